-- name: backfill
-- NOT EXISTS, here and below, not NOT IN: that one is run row by row once the list outgrows
-- work_mem.
INSERT INTO ready(consumer_id, priority, created_at, event_id, type)
SELECT :consumer_id::bigint, e.priority, e.created_at, e.id, e.type FROM events e
 WHERE e.namespace = :namespace AND e.type = :type
   AND NOT EXISTS (SELECT 1 FROM incoming i WHERE i.event_id = e.id)
   AND NOT EXISTS (SELECT 1 FROM event_claims k
                    WHERE k.event_id = e.id AND k.handler_id = :name)
    ON CONFLICT DO NOTHING;

-- name: backfill_all
INSERT INTO ready(consumer_id, priority, created_at, event_id, type)
SELECT :consumer_id::bigint, e.priority, e.created_at, e.id, e.type FROM events e
 WHERE e.namespace = :namespace
   AND NOT EXISTS (SELECT 1 FROM incoming i WHERE i.event_id = e.id)
   AND NOT EXISTS (SELECT 1 FROM event_claims k
                    WHERE k.event_id = e.id AND k.handler_id = :name)
    ON CONFLICT DO NOTHING;

-- name: peek
SELECT EXISTS (SELECT 1 FROM incoming),
       (SELECT MIN(fire_at) FROM deferred_events WHERE status = 'scheduled'),
       EXISTS (SELECT 1 FROM incoming ORDER BY seq OFFSET :most),
       c.id,
       EXISTS (SELECT 1 FROM ready r WHERE r.consumer_id = c.id),
       (SELECT MIN(due_at) FROM event_claims k
         WHERE k.consumer_id = c.id AND k.due_at IS NOT NULL),
       (SELECT paused_at IS NOT NULL FROM consumers p WHERE p.id = c.id)
  FROM (VALUES (1)) AS once
  LEFT JOIN (SELECT value::bigint AS id
               FROM jsonb_array_elements_text(:consumers::jsonb)) c ON true;

-- name: dispatch
-- One statement, so one snapshot: what it deletes is what it dispatches. With two, an event that
-- is committed in between would be deleted unseen. Runs under the dispatch lock. LATERAL with a
-- LIMIT is looked up row by row: the planner takes `taken` for large, and would rather read all
-- retained events than these. Does nothing after a `try_dispatch_lock` that
-- was refused.
WITH taken AS (
    DELETE FROM incoming
     WHERE current_setting('dispatch.locked', true) IS DISTINCT FROM 'false'
       AND seq IN (SELECT seq FROM incoming ORDER BY seq LIMIT :most)
    RETURNING event_id),
dispatched AS (
    INSERT INTO ready(consumer_id, priority, created_at, event_id, type)
    SELECT s.consumer_id, e.priority, e.created_at, e.id, e.type
      FROM taken t
     CROSS JOIN LATERAL (SELECT * FROM events WHERE id = t.event_id LIMIT 1) e
      JOIN subscriptions s ON s.namespace = e.namespace AND s.type IN (e.type, '*')
        ON CONFLICT DO NOTHING)
SELECT COUNT(*) FROM taken;

-- name: ack_moved
-- As in `began_at`, one whose start was lost has none.
UPDATE event_claims
   SET ack_at = :now, due_at = NULL,
       read_commit = CASE WHEN started_at IS NOT NULL THEN (:ids::jsonb ->> event_id)::bigint
                          ELSE read_commit END
 WHERE handler_id = :handler_id
   AND event_id = ANY(ARRAY(SELECT jsonb_object_keys(:ids::jsonb)))
   AND lease_token = :token AND ack_at IS NULL AND dead_lettered_at IS NULL
   AND lease_until > :now
RETURNING event_id;

-- name: try_dispatch_lock
-- A row if no other session has the dispatch lock, and there is no more than a batch: of more, the
-- most urgent may not be in the first. The statements that follow in the same message know by the
-- setting whether that was so, and the client need not wait for the row.
SELECT true
 WHERE set_config('dispatch.locked',
                  CASE WHEN EXISTS (SELECT 1 FROM incoming ORDER BY seq OFFSET :most)
                       THEN 'false' ELSE pg_try_advisory_xact_lock(:key)::text END,
                  true) = 'true';

-- name: lock_consumer
SELECT pg_try_advisory_xact_lock(:key);

-- name: take
-- One statement instead of SQLite's three. The rows that others are taking are locked, and
-- skipped: takers neither wait for each other nor get the same event. MATERIALIZED, or the
-- planner might run the part with the LIMIT more than once; LATERAL as in `dispatch`. Of the first
-- `start`, those before the first that was tried already are started by the same stroke. A claim
-- without a look, a guess, does not know whether the consumer is paused, nor whether all that is
-- new was dispatched just before.
WITH picked AS MATERIALIZED (
    SELECT r.ctid AS place, r.priority, r.created_at, r.event_id FROM ready r
     WHERE r.consumer_id = :consumer_id AND r.priority <= :highest::bigint
       AND (:types::text IS NULL OR r.type IN @texts(:types))
       AND (SELECT paused_at FROM consumers WHERE id = :consumer_id) IS NULL
       AND (NOT :guess::boolean OR current_setting('dispatch.locked', true) = 'true')
     ORDER BY r.priority DESC, r.created_at, r.event_id LIMIT :most
       FOR UPDATE SKIP LOCKED),
gone AS (
    DELETE FROM ready WHERE ctid = ANY(ARRAY(SELECT place FROM picked))),
ordered AS (
    SELECT event_id, row_number() OVER (ORDER BY priority DESC, created_at, event_id) AS number
      FROM picked),
started AS MATERIALIZED (
    SELECT COALESCE(MIN(o.number) - 1, :start) AS most
      FROM ordered o
     CROSS JOIN LATERAL (SELECT 1 FROM event_claims k
                          WHERE k.event_id = o.event_id AND k.handler_id = :handler_id
                            AND k.attempts > 0 LIMIT 1) AS tried
     WHERE o.number <= :start),
claimed AS (
    INSERT INTO event_claims(event_id, handler_id, session_id, claimed_at, lease_until,
                             available_at, consumer_id, lease_token, due_at, read_commit,
                             started_at)
    SELECT o.event_id, :handler_id, :session_id, :now, :lease_until, :now, :consumer_id, :token,
           :lease_until,
           CASE WHEN o.number <= s.most THEN (SELECT COALESCE(MAX(id), 0) FROM commits) END,
           CASE WHEN o.number <= s.most THEN :now END
      FROM ordered o CROSS JOIN started s
        ON CONFLICT (event_id, handler_id) DO UPDATE SET
           session_id = excluded.session_id, claimed_at = excluded.claimed_at,
           lease_until = excluded.lease_until, available_at = excluded.available_at,
           consumer_id = excluded.consumer_id, lease_token = excluded.lease_token,
           due_at = excluded.due_at, read_commit = excluded.read_commit,
           started_at = excluded.started_at
    RETURNING event_id, attempts, last_error, read_commit)
SELECT e.id, e.namespace, e.type, e.payload, e.created_at, e.priority, e.root_event_id,
       e.chain_depth, e.source, e.correlation_id, e.causation_id, e.tenant_id, e.dedup_key,
       e.occurred_at, c.attempts, c.last_error, c.read_commit
  FROM claimed c
 CROSS JOIN LATERAL (SELECT * FROM events WHERE id = c.event_id LIMIT 1) e
 ORDER BY e.priority DESC, e.created_at, e.id;
