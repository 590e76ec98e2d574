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
-- Which of these events every consumer seen since :seen_since has finished, without those that were
-- restored since :restored_since. What is in `incoming` is for nobody if no consumer subscribes to it;
-- otherwise it is dispatched first.
@own;

-- name: consumers_of
SELECT c.name, c.last_seen_at FROM subscriptions s JOIN consumers c ON c.id = s.consumer_id
 WHERE s.namespace = :namespace AND s.type IN (:type, '*') ORDER BY c.name;

-- name: unleased
-- Which of these events no session is working on.
@own;

-- name: delete_ready_of
DELETE FROM ready WHERE (consumer_id, priority, created_at, event_id) IN (
    SELECT s.consumer_id, e.priority, e.created_at, e.id
      FROM events e
     @join subscriptions s ON s.namespace = e.namespace AND s.type IN (e.type, '*')
     WHERE e.id IN @texts(:ids));

-- name: delete_incoming_of
DELETE FROM incoming WHERE event_id IN @texts(:ids);

-- name: delete_claims_of
DELETE FROM event_claims WHERE event_id IN @texts(:ids);

-- name: delete_attempts_of
DELETE FROM attempts WHERE event_id IN @texts(:ids);

-- name: delete_dedup_of
-- A restored event has its key only if no other event took it meanwhile.
DELETE FROM dedup WHERE event_id IN @texts(:ids) AND (namespace, type, key) IN (
    SELECT e.namespace, e.type, e.dedup_key FROM events e
     WHERE e.id IN @texts(:ids) AND e.dedup_key IS NOT NULL);

-- name: delete_restored_of
DELETE FROM restored WHERE event_id IN @texts(:ids);

-- name: delete_events
DELETE FROM events WHERE id IN @texts(:ids);

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
