-- name: priorities
-- The priorities of a type, one seek each.
WITH RECURSIVE p(priority) AS (
    SELECT MAX(priority) FROM ontologia.events
     WHERE namespace = %(namespace)s AND type = %(type)s
    UNION ALL
    SELECT (SELECT MAX(e.priority) FROM ontologia.events e
             WHERE e.namespace = %(namespace)s AND e.type = %(type)s AND e.priority < p.priority)
      FROM p WHERE p.priority IS NOT NULL)
SELECT priority FROM p WHERE priority IS NOT NULL;

-- name: old_events
-- A portion of the events of one type and priority from before a time, the oldest first.
SELECT id, created_at FROM ontologia.events
 WHERE namespace = %(namespace)s AND type = %(type)s AND priority = %(priority)s
   AND created_at < %(before)s AND (created_at, id) > (%(after)s, %(after_id)s)
 ORDER BY created_at, id LIMIT %(most)s;

-- name: finished
-- Which of these events every consumer seen since `seen_since` has finished. The rows of `ready`
-- of consumers that are not waited for, and those of `event_claims`, are locked as in `unleased`. What
-- is ready for the others is left alone: whoever claims it at this moment would pass it by. What is
-- in `incoming` is for nobody if no consumer subscribes to it; otherwise it is dispatched first.
-- NOT IN, of what is named above: a table of it is made once. With NOT EXISTS the planner, who takes
-- these for small, reads all of them again for every event.
WITH asked AS MATERIALIZED (
    SELECT e.id, e.namespace, e.type, e.priority, e.created_at
      FROM ontologia.events e
     WHERE e.id = ANY(ARRAY(SELECT jsonb_array_elements_text(%(ids)s::jsonb)))),
waiting AS MATERIALIZED (
    SELECT a.id, r.ctid AS place
      FROM asked a
      JOIN ontologia.subscriptions s ON s.namespace = a.namespace AND s.type IN (a.type, '*')
      JOIN ontologia.consumers c ON c.id = s.consumer_id AND c.last_seen_at < %(seen_since)s
      JOIN ontologia.ready r ON r.consumer_id = s.consumer_id AND r.priority = a.priority
       AND r.created_at = a.created_at AND r.event_id = a.id
       FOR UPDATE OF r SKIP LOCKED),
claims AS MATERIALIZED (
    SELECT k.event_id, k.handler_id, k.due_at, k.ack_at, k.dead_lettered_at, k.ctid AS place
      FROM ontologia.event_claims k WHERE k.event_id = ANY(ARRAY(SELECT id FROM asked))
       FOR UPDATE SKIP LOCKED)
SELECT a.id FROM asked a
 WHERE NOT EXISTS (
       SELECT 1 FROM ontologia.subscriptions s JOIN ontologia.consumers c ON c.id = s.consumer_id
        WHERE s.namespace = %(namespace)s AND s.type IN (%(type)s, '*')
          AND c.last_seen_at >= %(seen_since)s
          AND NOT EXISTS (SELECT 1 FROM claims k
                           WHERE k.event_id = a.id AND k.handler_id = c.name
                             AND (k.ack_at IS NOT NULL OR k.dead_lettered_at IS NOT NULL)))
   AND a.id NOT IN (SELECT k.event_id FROM claims k
                     WHERE k.due_at > %(now)s AND k.ack_at IS NULL AND k.dead_lettered_at IS NULL)
   AND (NOT EXISTS (SELECT 1 FROM ontologia.incoming i WHERE i.event_id = a.id)
        OR NOT EXISTS (SELECT 1 FROM ontologia.subscriptions s
                        WHERE s.namespace = %(namespace)s AND s.type IN (%(type)s, '*')))
   AND NOT EXISTS (
       SELECT 1 FROM ontologia.subscriptions s
         JOIN ontologia.ready r ON r.consumer_id = s.consumer_id AND r.priority = a.priority
          AND r.created_at = a.created_at AND r.event_id = a.id
        WHERE s.namespace = a.namespace AND s.type IN (a.type, '*')
          AND r.ctid NOT IN (SELECT w.place FROM waiting w))
   AND NOT EXISTS (
       SELECT 1 FROM ontologia.event_claims k WHERE k.event_id = a.id
          AND k.ctid NOT IN (SELECT l.place FROM claims l));

-- name: consumers_of
SELECT c.name, c.last_seen_at
  FROM ontologia.subscriptions s JOIN ontologia.consumers c ON c.id = s.consumer_id
 WHERE s.namespace = %(namespace)s AND s.type IN (%(type)s, '*') ORDER BY c.name;

-- name: unleased
-- Which of these events no session is working on. Whoever moves an event of a consumer locks its
-- row in `ready` or in `event_claims`. So both are locked here until the events are deleted, and
-- an event of which a row is locked by somebody else, or was changed while this ran (its ctid is
-- another one), is left for the next time: it is being claimed, ended or made ready at this
-- moment, and would leave a row without an event behind.
WITH asked AS MATERIALIZED (
    SELECT e.id, e.namespace, e.type, e.priority, e.created_at
      FROM ontologia.events e
     WHERE e.id = ANY(ARRAY(SELECT jsonb_array_elements_text(%(ids)s::jsonb)))),
waiting AS MATERIALIZED (
    SELECT a.id, r.ctid AS place
      FROM asked a
      JOIN ontologia.subscriptions s ON s.namespace = a.namespace AND s.type IN (a.type, '*')
      JOIN ontologia.ready r ON r.consumer_id = s.consumer_id AND r.priority = a.priority
       AND r.created_at = a.created_at AND r.event_id = a.id
       FOR UPDATE OF r SKIP LOCKED),
claims AS MATERIALIZED (
    SELECT k.event_id, k.lease_until, k.lease_token, k.ack_at, k.dead_lettered_at,
           k.ctid AS place
      FROM ontologia.event_claims k WHERE k.event_id = ANY(ARRAY(SELECT id FROM asked))
       FOR UPDATE SKIP LOCKED)
SELECT a.id FROM asked a
 WHERE a.id NOT IN (SELECT k.event_id FROM claims k
                     WHERE k.lease_until > %(now)s AND k.lease_token IS NOT NULL
                       AND k.ack_at IS NULL AND k.dead_lettered_at IS NULL)
   AND NOT EXISTS (
       SELECT 1 FROM ontologia.subscriptions s
         JOIN ontologia.ready r ON r.consumer_id = s.consumer_id AND r.priority = a.priority
          AND r.created_at = a.created_at AND r.event_id = a.id
        WHERE s.namespace = a.namespace AND s.type IN (a.type, '*')
          AND r.ctid NOT IN (SELECT w.place FROM waiting w))
   AND NOT EXISTS (
       SELECT 1 FROM ontologia.event_claims k WHERE k.event_id = a.id
          AND k.ctid NOT IN (SELECT l.place FROM claims l));

-- name: delete_ready_of
DELETE FROM ontologia.ready WHERE (consumer_id, priority, created_at, event_id) IN (
    SELECT s.consumer_id, e.priority, e.created_at, e.id
      FROM ontologia.events e
      JOIN ontologia.subscriptions s ON s.namespace = e.namespace AND s.type IN (e.type, '*')
     WHERE e.id = ANY(ARRAY(SELECT jsonb_array_elements_text(%(ids)s::jsonb))));

-- name: delete_incoming_of
DELETE FROM ontologia.incoming
 WHERE event_id = ANY(ARRAY(SELECT jsonb_array_elements_text(%(ids)s::jsonb)));

-- name: delete_claims_of
DELETE FROM ontologia.event_claims
 WHERE event_id = ANY(ARRAY(SELECT jsonb_array_elements_text(%(ids)s::jsonb)));

-- name: delete_attempts_of
DELETE FROM ontologia.attempts
 WHERE event_id = ANY(ARRAY(SELECT jsonb_array_elements_text(%(ids)s::jsonb)));

-- name: delete_dedup_of
DELETE FROM ontologia.dedup WHERE (namespace, type, key) IN (
    SELECT e.namespace, e.type, e.dedup_key
      FROM ontologia.events e
     WHERE e.id = ANY(ARRAY(SELECT jsonb_array_elements_text(%(ids)s::jsonb)))
       AND e.dedup_key IS NOT NULL);

-- name: delete_events
DELETE FROM ontologia.events
 WHERE id = ANY(ARRAY(SELECT jsonb_array_elements_text(%(ids)s::jsonb)));

-- name: old_records
-- Whether there is anything that the following and `delete_replies` would delete.
SELECT 1 WHERE EXISTS (
       SELECT 1 FROM ontologia.schedule_fires WHERE namespace = %(namespace)s AND tick < %(before)s)
    OR EXISTS (
       SELECT 1 FROM ontologia.sessions
        WHERE namespace = %(namespace)s AND last_heartbeat < %(before)s)
    OR EXISTS (
       SELECT 1 FROM ontologia.deferred_events
        WHERE namespace = %(namespace)s AND status <> 'scheduled'
          AND COALESCE(fired_at, created_at) < %(before_time)s)
    OR EXISTS (
       SELECT 1 FROM ontologia.replies
        WHERE namespace = %(namespace)s AND created_at < %(replies_before)s);

-- name: delete_fires
DELETE FROM ontologia.schedule_fires WHERE namespace = %(namespace)s AND tick < %(before)s;

-- name: delete_deferred
-- Those that fired, or were cancelled, long ago.
DELETE FROM ontologia.deferred_events
 WHERE namespace = %(namespace)s AND status <> 'scheduled'
   AND COALESCE(fired_at, created_at) < %(before)s;

-- name: lifetimes
-- From when to when sessions of a namespace were heard of.
SELECT started_at, last_heartbeat FROM ontologia.sessions WHERE namespace = %(namespace)s;

-- name: delete_sessions
DELETE FROM ontologia.sessions WHERE namespace = %(namespace)s AND last_heartbeat < %(before)s;
