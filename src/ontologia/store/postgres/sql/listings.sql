-- name: namespaces
-- SUM of whole numbers is numeric here; the casts make them whole again.
SELECT namespace, SUM(sessions)::bigint, SUM(pending)::bigint, SUM(dead)::bigint FROM (
    SELECT namespace, COUNT(*) AS sessions, 0 AS pending, 0 AS dead
      FROM ontologia.sessions GROUP BY namespace
    UNION ALL
    SELECT namespace, 0, COUNT(*) FILTER (WHERE NOT EXISTS (
               SELECT 1 FROM ontologia.event_claims k WHERE k.event_id = e.id
                  AND (k.ack_at IS NOT NULL OR k.dead_lettered_at IS NOT NULL
                       OR k.lease_until > %(now)s))), 0
      FROM ontologia.events e GROUP BY namespace
    UNION ALL
    SELECT namespace, 0, 0, COUNT(*) FROM ontologia.dead_letters GROUP BY namespace) counted
 GROUP BY namespace ORDER BY namespace;

-- name: list_sessions
SELECT session_id, namespace, started_at, last_heartbeat, metadata FROM ontologia.sessions
 WHERE namespace = %(namespace)s ORDER BY started_at DESC, session_id;

-- name: event_types
-- The types of a namespace, one seek each.
WITH RECURSIVE t(type) AS (
    SELECT MIN(type) FROM ontologia.events WHERE namespace = %(namespace)s
    UNION ALL
    SELECT (SELECT MIN(e.type) FROM ontologia.events e
             WHERE e.namespace = %(namespace)s AND e.type > t.type)
      FROM t WHERE t.type IS NOT NULL)
SELECT type FROM t WHERE type IS NOT NULL;

-- name: list_events
-- The first events of one type, in the order of the index.
SELECT id, type, created_at, priority FROM ontologia.events
 WHERE namespace = %(namespace)s AND type = %(type)s
 ORDER BY priority DESC, created_at, id LIMIT %(limit)s;

-- name: claims_of
SELECT event_id, handler_id, session_id, attempts, last_error, claimed_at, started_at,
       lease_until, available_at, ack_at, dead_lettered_at, read_commit, lease_token
  FROM ontologia.event_claims
 WHERE event_id = ANY(ARRAY(SELECT jsonb_array_elements_text(%(ids)s::jsonb)))
 ORDER BY event_id, handler_id;

-- name: attempts_of
SELECT handler_id, attempt, started_at, ended_at, read_commit, outcome, error
  FROM ontologia.attempts WHERE event_id = %(id)s ORDER BY handler_id, attempt;

-- name: list_dead_letters
SELECT event_id, event_type, handler_id, attempts, last_error, failed_at FROM ontologia.dead_letters
 WHERE namespace = %(namespace)s ORDER BY failed_at DESC, id DESC LIMIT %(limit)s;

-- name: list_consumers
SELECT c.name, c.last_seen_at, c.paused_at,
       (SELECT COUNT(*) FROM ontologia.ready r WHERE r.consumer_id = c.id),
       (SELECT COUNT(*) FROM ontologia.event_claims k
         WHERE k.consumer_id = c.id AND k.due_at IS NOT NULL AND k.lease_until > %(now)s),
       (SELECT COUNT(*) FROM ontologia.event_claims k
         WHERE k.consumer_id = c.id AND k.due_at IS NOT NULL AND k.lease_until <= %(now)s),
       (SELECT COALESCE(json_agg(s.type ORDER BY s.type), '[]')::text
          FROM ontologia.subscriptions s
         WHERE s.namespace = c.namespace AND s.consumer_id = c.id)
  FROM ontologia.consumers c WHERE c.namespace = %(namespace)s ORDER BY c.name;

-- name: holders
-- The live sessions that said they run a consumer, and those that hold claims of it.
SELECT s.session_id FROM ontologia.sessions s
 WHERE s.namespace = %(namespace)s AND s.last_heartbeat >= %(since)s
   AND s.metadata::jsonb ->> 'stopped_at' IS NULL
   AND s.metadata::jsonb -> 'consumers' @> to_jsonb(%(name)s::text)
UNION
SELECT session_id FROM ontologia.event_claims
 WHERE consumer_id = %(consumer_id)s AND due_at IS NOT NULL AND lease_token IS NOT NULL
   AND lease_until > %(now)s;

-- name: forget_ready
DELETE FROM ontologia.ready WHERE consumer_id = %(consumer_id)s;

-- name: forget_waiting
-- What it did not finish; what it did stays, as the record of it.
DELETE FROM ontologia.event_claims WHERE consumer_id = %(consumer_id)s
   AND ack_at IS NULL AND dead_lettered_at IS NULL;

-- name: forget_subscriptions
-- What a session made ready after `forget_ready`, before its claims were gone, goes as well.
WITH late AS (DELETE FROM ontologia.ready WHERE consumer_id = %(consumer_id)s)
DELETE FROM ontologia.subscriptions
 WHERE namespace = %(namespace)s AND consumer_id = %(consumer_id)s;

-- name: forget_consumer
DELETE FROM ontologia.consumers WHERE id = %(consumer_id)s;
