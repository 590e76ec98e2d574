-- name: list_consumers
SELECT c.name, c.last_seen_at, c.paused_at,
       (SELECT COUNT(*) FROM ready r WHERE r.consumer_id = c.id),
       (SELECT COUNT(*) FROM event_claims k WHERE k.consumer_id = c.id AND k.due_at IS NOT NULL
           AND k.lease_until > :now),
       (SELECT COUNT(*) FROM event_claims k WHERE k.consumer_id = c.id AND k.due_at IS NOT NULL
           AND k.lease_until <= :now),
       (SELECT json_group_array(type) FROM
            (SELECT type FROM subscriptions s WHERE s.namespace = c.namespace
                AND s.consumer_id = c.id ORDER BY type))
  FROM consumers c WHERE c.namespace = :namespace ORDER BY c.name;

-- name: holders
SELECT s.session_id FROM sessions s
 WHERE s.namespace = :namespace AND s.last_heartbeat >= :since
   AND json_extract(s.metadata, '$.stopped_at') IS NULL
   AND EXISTS (SELECT 1 FROM json_each(s.metadata, '$.consumers') h WHERE h.value = :name)
UNION
SELECT k.session_id FROM event_claims k LEFT JOIN sessions s ON s.session_id = k.session_id
 WHERE k.consumer_id = :consumer_id AND k.due_at IS NOT NULL AND k.lease_token IS NOT NULL
   AND k.lease_until > :now
   AND (s.session_id IS NULL
        OR s.last_heartbeat >= :since AND json_extract(s.metadata, '$.stopped_at') IS NULL);

-- name: forget_subscriptions
DELETE FROM subscriptions WHERE namespace = :namespace AND consumer_id = :consumer_id;

-- name: about
SELECT 'SQLite ' || sqlite_version(), (SELECT MAX(version) FROM ontologia_layout),
       (SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()), NULL;

-- name: entity_page
SELECT entity_key, json(fields), schema_version_id FROM entity_current
 WHERE entity_type = :type AND entity_key > :key ORDER BY entity_key LIMIT :most;

-- name: relation_page
SELECT left_key, right_key, instance_key, json(fields), schema_version_id FROM relation_current
 WHERE relation_type = :type AND (left_key, right_key, instance_key) > (:left, :right, :instance)
 ORDER BY left_key, right_key, instance_key LIMIT :most;

-- name: commits_for
SELECT id, created_at, metadata_json FROM commits
 WHERE CASE WHEN json_valid(metadata_json) THEN metadata_json ->> 'event_id' END
       IN @texts(:ids) ORDER BY id;
