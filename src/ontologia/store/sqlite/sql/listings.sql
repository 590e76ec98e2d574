-- name: namespaces
SELECT namespace, SUM(sessions), SUM(pending), SUM(dead) FROM (
    SELECT namespace, COUNT(*) AS sessions, 0 AS pending, 0 AS dead FROM sessions GROUP BY namespace
    UNION ALL
    SELECT namespace, 0, SUM(NOT EXISTS (
               SELECT 1 FROM event_claims k WHERE k.event_id = e.id
                  AND (k.ack_at IS NOT NULL OR k.dead_lettered_at IS NOT NULL
                       OR k.lease_until > :now))), 0
      FROM events e GROUP BY namespace
    UNION ALL
    SELECT namespace, 0, 0, COUNT(*) FROM dead_letters GROUP BY namespace)
 GROUP BY namespace ORDER BY namespace;

-- name: list_sessions
SELECT session_id, namespace, started_at, last_heartbeat, metadata FROM sessions
 WHERE namespace = :namespace ORDER BY started_at DESC, session_id;

-- name: event_types
-- The types of a namespace, one seek each.
WITH RECURSIVE t(type) AS (
    SELECT MIN(type) FROM events WHERE namespace = :namespace
    UNION ALL
    SELECT (SELECT MIN(e.type) FROM events e WHERE e.namespace = :namespace AND e.type > t.type)
      FROM t WHERE t.type IS NOT NULL)
SELECT type FROM t WHERE type IS NOT NULL;

-- name: list_events
-- The first events of one type, in the order of the index.
SELECT id, type, created_at, priority FROM events
 WHERE namespace = :namespace AND type = :type
 ORDER BY priority DESC, created_at, id LIMIT :limit;

-- name: claims_of
SELECT event_id, handler_id, session_id, attempts, last_error, claimed_at, started_at,
       lease_until, available_at, ack_at, dead_lettered_at, read_commit, lease_token
  FROM event_claims WHERE event_id IN (SELECT value FROM json_each(:ids))
 ORDER BY event_id, handler_id;

-- name: attempts_of
SELECT handler_id, attempt, started_at, ended_at, read_commit, outcome, error
  FROM attempts WHERE event_id = :id ORDER BY handler_id, attempt;

-- name: list_dead_letters
SELECT event_id, event_type, handler_id, attempts, last_error, failed_at FROM dead_letters
 WHERE namespace = :namespace ORDER BY failed_at DESC, id DESC LIMIT :limit;

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
-- The live sessions that said they run a consumer, and those that hold claims of it.
SELECT s.session_id FROM sessions s
 WHERE s.namespace = :namespace AND s.last_heartbeat >= :since
   AND json_extract(s.metadata, '$.stopped_at') IS NULL
   AND EXISTS (SELECT 1 FROM json_each(s.metadata, '$.consumers') h WHERE h.value = :name)
UNION
SELECT session_id FROM event_claims
 WHERE consumer_id = :consumer_id AND due_at IS NOT NULL AND lease_token IS NOT NULL
   AND lease_until > :now;

-- name: forget_ready
DELETE FROM ready WHERE consumer_id = :consumer_id;

-- name: forget_waiting
-- What it did not finish; what it did stays, as the record of it.
DELETE FROM event_claims WHERE consumer_id = :consumer_id
   AND ack_at IS NULL AND dead_lettered_at IS NULL;

-- name: forget_subscriptions
DELETE FROM subscriptions WHERE namespace = :namespace AND consumer_id = :consumer_id;

-- name: forget_consumer
DELETE FROM consumers WHERE id = :consumer_id;
