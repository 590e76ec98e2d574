-- name: list_consumers
SELECT c.name, c.last_seen_at, c.paused_at,
       (SELECT COUNT(*) FROM ready r WHERE r.consumer_id = c.id),
       (SELECT COUNT(*) FROM event_claims k
         WHERE k.consumer_id = c.id AND k.due_at IS NOT NULL AND k.lease_until > :now),
       (SELECT COUNT(*) FROM event_claims k
         WHERE k.consumer_id = c.id AND k.due_at IS NOT NULL AND k.lease_until <= :now),
       (SELECT COALESCE(json_agg(s.type ORDER BY s.type), '[]')::text
          FROM subscriptions s WHERE s.namespace = c.namespace AND s.consumer_id = c.id)
  FROM consumers c WHERE c.namespace = :namespace ORDER BY c.name;

-- name: holders
SELECT s.session_id FROM sessions s
 WHERE s.namespace = :namespace AND s.last_heartbeat >= :since
   AND s.metadata::jsonb ->> 'stopped_at' IS NULL
   AND s.metadata::jsonb -> 'consumers' @> to_jsonb(:name::text)
UNION
SELECT k.session_id FROM event_claims k LEFT JOIN sessions s ON s.session_id = k.session_id
 WHERE k.consumer_id = :consumer_id AND k.due_at IS NOT NULL AND k.lease_token IS NOT NULL
   AND k.lease_until > :now
   AND (s.session_id IS NULL
        OR s.last_heartbeat >= :since AND s.metadata::jsonb ->> 'stopped_at' IS NULL);

-- name: forget_subscriptions
-- What a session made ready after `forget_ready`, before its claims were gone, goes as well.
WITH late AS (DELETE FROM ready WHERE consumer_id = :consumer_id)
DELETE FROM subscriptions WHERE namespace = :namespace AND consumer_id = :consumer_id;

-- name: about
SELECT 'PostgreSQL ' || current_setting('server_version'),
       (SELECT MAX(version) FROM ontologia_layout),
       (SELECT SUM(pg_total_relation_size(oid))::bigint FROM pg_class
         WHERE relnamespace = '"ontologia"'::regnamespace AND relkind = 'r'),
       'fsync ' || current_setting('fsync') || ', full_page_writes '
       || current_setting('full_page_writes') || ', synchronous_commit '
       || current_setting('synchronous_commit');

-- name: entity_page
SELECT entity_key, fields_json, schema_version_id FROM entity_current
 WHERE entity_type = :type AND entity_key > :key ORDER BY entity_key LIMIT :most;

-- name: relation_page
SELECT left_key, right_key, instance_key, fields_json, schema_version_id FROM relation_current
 WHERE relation_type = :type AND (left_key, right_key, instance_key) > (:left, :right, :instance)
 ORDER BY left_key, right_key, instance_key LIMIT :most;

-- name: commits_for
-- The index has what stands between the quotes in the JSON of each id.
SELECT id, created_at, metadata_json FROM commits
 WHERE substring(metadata_json from '"event_id":"([^"]*)"') = ANY(ARRAY(
           SELECT substring(i::text from '"([^"]*)"')
             FROM jsonb_array_elements(:ids::jsonb) AS i)) ORDER BY id;
