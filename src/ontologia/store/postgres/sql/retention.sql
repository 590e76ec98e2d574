-- name: finished
-- The rows of `ready` of consumers that are not waited for, and those of `event_claims`, are locked
-- as in `unleased`. What is ready for the others is left alone: whoever claims it at this moment
-- would pass it by.
-- NOT IN, of what is named above: a table of it is made once. With NOT EXISTS the planner, who takes
-- these for small, reads all of them again for every event.
WITH asked AS MATERIALIZED (
    SELECT e.id, e.namespace, e.type, e.priority, e.created_at
      FROM events e WHERE e.id IN @texts(:ids)),
waiting AS MATERIALIZED (
    SELECT a.id, r.ctid AS place
      FROM asked a
      JOIN subscriptions s ON s.namespace = a.namespace AND s.type IN (a.type, '*')
      JOIN consumers c ON c.id = s.consumer_id AND c.last_seen_at < :seen_since
      JOIN ready r ON r.consumer_id = s.consumer_id AND r.priority = a.priority
       AND r.created_at = a.created_at AND r.event_id = a.id
       FOR UPDATE OF r SKIP LOCKED),
claims AS MATERIALIZED (
    SELECT k.event_id, k.handler_id, k.due_at, k.ack_at, k.dead_lettered_at, k.ctid AS place
      FROM event_claims k WHERE k.event_id = ANY(ARRAY(SELECT id FROM asked))
       FOR UPDATE SKIP LOCKED)
SELECT a.id FROM asked a
 WHERE NOT EXISTS (
       SELECT 1 FROM subscriptions s JOIN consumers c ON c.id = s.consumer_id
        WHERE s.namespace = :namespace AND s.type IN (:type, '*')
          AND c.last_seen_at >= :seen_since
          AND NOT EXISTS (SELECT 1 FROM claims k
                           WHERE k.event_id = a.id AND k.handler_id = c.name
                             AND (k.ack_at IS NOT NULL OR k.dead_lettered_at IS NOT NULL)))
   AND a.id NOT IN (SELECT k.event_id FROM claims k
                     WHERE k.due_at > :now AND k.ack_at IS NULL AND k.dead_lettered_at IS NULL)
   AND NOT EXISTS (SELECT 1 FROM restored b
                    WHERE b.event_id = a.id AND b.restored_at >= :restored_since)
   AND (NOT EXISTS (SELECT 1 FROM incoming i WHERE i.event_id = a.id)
        OR NOT EXISTS (SELECT 1 FROM subscriptions s
                        WHERE s.namespace = :namespace AND s.type IN (:type, '*')))
   AND NOT EXISTS (
       SELECT 1 FROM subscriptions s
         JOIN ready r ON r.consumer_id = s.consumer_id AND r.priority = a.priority
          AND r.created_at = a.created_at AND r.event_id = a.id
        WHERE s.namespace = a.namespace AND s.type IN (a.type, '*')
          AND r.ctid NOT IN (SELECT w.place FROM waiting w))
   AND NOT EXISTS (
       SELECT 1 FROM event_claims k WHERE k.event_id = a.id
          AND k.ctid NOT IN (SELECT l.place FROM claims l));

-- name: unleased
-- Whoever moves an event of a consumer locks its
-- row in `ready` or in `event_claims`. So both are locked here until the events are deleted, and
-- an event of which a row is locked by somebody else, or was changed while this ran (its ctid is
-- another one), is left for the next time: it is being claimed, ended or made ready at this
-- moment, and would leave a row without an event behind.
WITH asked AS MATERIALIZED (
    SELECT e.id, e.namespace, e.type, e.priority, e.created_at
      FROM events e WHERE e.id IN @texts(:ids)),
waiting AS MATERIALIZED (
    SELECT a.id, r.ctid AS place
      FROM asked a
      JOIN subscriptions s ON s.namespace = a.namespace AND s.type IN (a.type, '*')
      JOIN ready r ON r.consumer_id = s.consumer_id AND r.priority = a.priority
       AND r.created_at = a.created_at AND r.event_id = a.id
       FOR UPDATE OF r SKIP LOCKED),
claims AS MATERIALIZED (
    SELECT k.event_id, k.lease_until, k.lease_token, k.ack_at, k.dead_lettered_at,
           k.ctid AS place
      FROM event_claims k WHERE k.event_id = ANY(ARRAY(SELECT id FROM asked))
       FOR UPDATE SKIP LOCKED)
SELECT a.id FROM asked a
 WHERE a.id NOT IN (SELECT k.event_id FROM claims k
                     WHERE k.lease_until > :now AND k.lease_token IS NOT NULL
                       AND k.ack_at IS NULL AND k.dead_lettered_at IS NULL)
   AND NOT EXISTS (
       SELECT 1 FROM subscriptions s
         JOIN ready r ON r.consumer_id = s.consumer_id AND r.priority = a.priority
          AND r.created_at = a.created_at AND r.event_id = a.id
        WHERE s.namespace = a.namespace AND s.type IN (a.type, '*')
          AND r.ctid NOT IN (SELECT w.place FROM waiting w))
   AND NOT EXISTS (
       SELECT 1 FROM event_claims k WHERE k.event_id = a.id
          AND k.ctid NOT IN (SELECT l.place FROM claims l));
