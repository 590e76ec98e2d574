-- name: priorities
-- The priorities of a type, one seek each.
WITH RECURSIVE p(priority) AS (
    SELECT MAX(priority) FROM events WHERE namespace = :namespace AND type = :type
    UNION ALL
    SELECT (SELECT MAX(e.priority) FROM events e
             WHERE e.namespace = :namespace AND e.type = :type AND e.priority < p.priority)
      FROM p WHERE p.priority IS NOT NULL)
SELECT priority FROM p WHERE priority IS NOT NULL;

-- name: old_events
-- A portion of the events of one type and priority from before a time, the oldest first.
SELECT id, created_at FROM events
 WHERE namespace = :namespace AND type = :type AND priority = :priority
   AND created_at < :before AND (created_at, id) > (:after, :after_id)
 ORDER BY created_at, id LIMIT :most;

-- name: finished
-- Which of these events every consumer seen since :seen_since has finished. What is in `incoming` is
-- for nobody if no consumer subscribes to it; otherwise it is dispatched first.
SELECT e.value FROM json_each(:ids) e
 WHERE NOT EXISTS (
       SELECT 1 FROM subscriptions s JOIN consumers c ON c.id = s.consumer_id
        WHERE s.namespace = :namespace AND s.type IN (:type, '*') AND c.last_seen_at >= :seen_since
          AND NOT EXISTS (SELECT 1 FROM event_claims k
                           WHERE k.event_id = e.value AND k.handler_id = c.name
                             AND (k.ack_at IS NOT NULL OR k.dead_lettered_at IS NOT NULL)))
   AND NOT EXISTS (SELECT 1 FROM event_claims k
                    WHERE k.event_id = e.value AND k.due_at > :now
                      AND k.ack_at IS NULL AND k.dead_lettered_at IS NULL)
   AND (e.value NOT IN (SELECT event_id FROM incoming)
        OR NOT EXISTS (SELECT 1 FROM subscriptions s
                        WHERE s.namespace = :namespace AND s.type IN (:type, '*')));

-- name: consumers_of
SELECT c.name, c.last_seen_at FROM subscriptions s JOIN consumers c ON c.id = s.consumer_id
 WHERE s.namespace = :namespace AND s.type IN (:type, '*') ORDER BY c.name;

-- name: unleased
-- Which of these events no session is working on.
SELECT e.value FROM json_each(:ids) e
 WHERE NOT EXISTS (SELECT 1 FROM event_claims k
                    WHERE k.event_id = e.value AND k.lease_until > :now AND k.lease_token IS NOT NULL
                      AND k.ack_at IS NULL AND k.dead_lettered_at IS NULL);

-- name: delete_ready_of
DELETE FROM ready WHERE (consumer_id, priority, created_at, event_id) IN (
    SELECT s.consumer_id, e.priority, e.created_at, e.id
      FROM json_each(:ids) i CROSS JOIN events e ON e.id = i.value
     CROSS JOIN subscriptions s ON s.namespace = e.namespace AND s.type IN (e.type, '*'));

-- name: delete_incoming_of
DELETE FROM incoming WHERE event_id IN (SELECT value FROM json_each(:ids));

-- name: delete_claims_of
DELETE FROM event_claims WHERE event_id IN (SELECT value FROM json_each(:ids));

-- name: delete_attempts_of
DELETE FROM attempts WHERE event_id IN (SELECT value FROM json_each(:ids));

-- name: delete_dedup_of
DELETE FROM dedup WHERE (namespace, type, key) IN (
    SELECT e.namespace, e.type, e.dedup_key FROM json_each(:ids) i CROSS JOIN events e ON e.id = i.value
     WHERE e.dedup_key IS NOT NULL);

-- name: delete_events
DELETE FROM events WHERE id IN (SELECT value FROM json_each(:ids));

-- name: old_records
-- Whether there is anything that the following and `delete_replies` would delete.
SELECT 1 WHERE EXISTS (
       SELECT 1 FROM schedule_fires WHERE namespace = :namespace AND tick < :before)
    OR EXISTS (
       SELECT 1 FROM sessions
        WHERE namespace = :namespace AND last_heartbeat < :before)
    OR EXISTS (
       SELECT 1 FROM deferred_events
        WHERE namespace = :namespace AND status <> 'scheduled'
          AND COALESCE(fired_at, created_at) < :before_time)
    OR EXISTS (
       SELECT 1 FROM replies
        WHERE namespace = :namespace AND created_at < :replies_before);

-- name: delete_fires
DELETE FROM schedule_fires WHERE namespace = :namespace AND tick < :before;

-- name: delete_deferred
-- Those that fired, or were cancelled, long ago.
DELETE FROM deferred_events
 WHERE namespace = :namespace AND status <> 'scheduled'
   AND COALESCE(fired_at, created_at) < :before;

-- name: lifetimes
-- From when to when sessions of a namespace were heard of.
SELECT started_at, last_heartbeat FROM sessions WHERE namespace = :namespace;

-- name: delete_sessions
DELETE FROM sessions WHERE namespace = :namespace AND last_heartbeat < :before;
