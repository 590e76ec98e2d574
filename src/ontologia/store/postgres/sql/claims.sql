-- Lists come as JSON and are compared as arrays, = ANY(ARRAY(...)): of IN (SELECT ...) the planner
-- knows nothing, takes it for a good part of the table, and reads all of that instead of its index.

-- name: get_consumer
SELECT id, paused_at FROM ontologia.consumers WHERE namespace = %(namespace)s AND name = %(name)s;

-- name: add_consumer
INSERT INTO ontologia.consumers(namespace, name, last_seen_at)
VALUES (%(namespace)s, %(name)s, %(now)s)
    ON CONFLICT (namespace, name) DO UPDATE SET last_seen_at = excluded.last_seen_at;

-- name: see_consumers
UPDATE ontologia.consumers SET last_seen_at = %(now)s
 WHERE id = ANY(ARRAY(SELECT value::bigint FROM jsonb_array_elements_text(%(ids)s::jsonb)));

-- name: pause_consumer
UPDATE ontologia.consumers SET paused_at = %(paused_at)s
 WHERE namespace = %(namespace)s AND name = %(name)s;

-- name: add_subscription
INSERT INTO ontologia.subscriptions(namespace, type, consumer_id)
VALUES (%(namespace)s, %(type)s, %(consumer_id)s) ON CONFLICT DO NOTHING;

-- name: subscribed_types
SELECT type FROM ontologia.subscriptions
 WHERE namespace = %(namespace)s AND consumer_id = %(consumer_id)s;

-- name: backfill
-- What is retained becomes ready for a consumer that just subscribed. Events that are still in
-- `incoming` are handed out later, with this subscription seen. NOT EXISTS, not NOT IN: that one
-- is run row by row once the list outgrows work_mem.
INSERT INTO ontologia.ready(consumer_id, priority, created_at, event_id, type)
SELECT %(consumer_id)s::bigint, e.priority, e.created_at, e.id, e.type FROM ontologia.events e
 WHERE e.namespace = %(namespace)s AND e.type = %(type)s
   AND NOT EXISTS (SELECT 1 FROM ontologia.incoming i WHERE i.event_id = e.id)
   AND NOT EXISTS (SELECT 1 FROM ontologia.event_claims k
                    WHERE k.event_id = e.id AND k.handler_id = %(name)s)
    ON CONFLICT DO NOTHING;

-- name: backfill_all
-- The same for a consumer of all types.
INSERT INTO ontologia.ready(consumer_id, priority, created_at, event_id, type)
SELECT %(consumer_id)s::bigint, e.priority, e.created_at, e.id, e.type FROM ontologia.events e
 WHERE e.namespace = %(namespace)s
   AND NOT EXISTS (SELECT 1 FROM ontologia.incoming i WHERE i.event_id = e.id)
   AND NOT EXISTS (SELECT 1 FROM ontologia.event_claims k
                    WHERE k.event_id = e.id AND k.handler_id = %(name)s)
    ON CONFLICT DO NOTHING;

-- name: count_incoming
SELECT COUNT(*) FROM ontologia.incoming i JOIN ontologia.events e ON e.id = i.event_id
 WHERE e.namespace = %(namespace)s AND (%(type)s::text = '*' OR e.type = %(type)s);

-- name: skip_retained
-- A consumer that starts now takes what is retained for done, except what it has already, or
-- will be handed out.
INSERT INTO ontologia.event_claims(event_id, handler_id, session_id, claimed_at, lease_until, ack_at,
                         available_at, consumer_id)
SELECT e.id, %(name)s, %(session_id)s, %(now)s, %(now)s, %(now)s, %(now)s,
       %(consumer_id)s::bigint
  FROM ontologia.events e
 WHERE e.namespace = %(namespace)s AND (%(type)s::text = '*' OR e.type = %(type)s)
   AND NOT EXISTS (SELECT 1 FROM ontologia.ready r
                    WHERE r.consumer_id = %(consumer_id)s AND r.priority = e.priority
                      AND r.created_at = e.created_at AND r.event_id = e.id)
   AND NOT EXISTS (SELECT 1 FROM ontologia.event_claims k
                    WHERE k.event_id = e.id AND k.handler_id = %(name)s)
   AND NOT EXISTS (SELECT 1 FROM ontologia.incoming i WHERE i.event_id = e.id);

-- name: claimed_twice
-- Events that a renamed consumer has claims of under both names, and whether each is finished.
SELECT o.event_id, o.ack_at IS NOT NULL OR o.dead_lettered_at IS NOT NULL,
       n.ack_at IS NOT NULL OR n.dead_lettered_at IS NOT NULL
  FROM ontologia.event_claims o
  JOIN ontologia.event_claims n ON n.event_id = o.event_id AND n.handler_id = %(name)s
  JOIN ontologia.events e ON e.id = o.event_id AND e.namespace = %(namespace)s
 WHERE o.handler_id = %(old)s AND o.event_id > %(after)s
 ORDER BY o.event_id LIMIT %(most)s
   FOR UPDATE OF o, n;

-- name: drop_claims
DELETE FROM ontologia.event_claims
 WHERE handler_id = %(handler_id)s
   AND event_id = ANY(ARRAY(SELECT jsonb_array_elements_text(%(ids)s::jsonb)));

-- name: drop_attempts
DELETE FROM ontologia.attempts
 WHERE handler_id = %(handler_id)s
   AND event_id = ANY(ARRAY(SELECT jsonb_array_elements_text(%(ids)s::jsonb)));

-- name: drop_letters
DELETE FROM ontologia.dead_letters
 WHERE handler_id = %(handler_id)s
   AND event_id = ANY(ARRAY(SELECT jsonb_array_elements_text(%(ids)s::jsonb)));

-- name: drop_ready_of_old
-- What waits under the old name, and was claimed under the new one.
DELETE FROM ontologia.ready WHERE consumer_id = %(old_id)s
   AND EXISTS (SELECT 1 FROM ontologia.event_claims k
                WHERE k.event_id = ready.event_id AND k.handler_id = %(name)s);

-- name: drop_ready_of_new
-- What waits under the new name, and is known under the old one.
DELETE FROM ontologia.ready WHERE consumer_id = %(consumer_id)s
   AND (event_id IN (SELECT r.event_id FROM ontologia.ready r
                      WHERE r.consumer_id = %(old_id)s)
        OR EXISTS (SELECT 1 FROM ontologia.event_claims k
                    WHERE k.event_id = ready.event_id AND k.handler_id = %(old)s));

-- name: adopt_ready
UPDATE ontologia.ready SET consumer_id = %(consumer_id)s WHERE consumer_id = %(old_id)s;

-- name: adopt_claims
UPDATE ontologia.event_claims SET handler_id = %(name)s, consumer_id = %(consumer_id)s
 WHERE handler_id = %(old)s
   AND event_id IN (SELECT id FROM ontologia.events WHERE namespace = %(namespace)s);

-- name: adopt_attempts
UPDATE ontologia.attempts SET handler_id = %(name)s
 WHERE handler_id = %(old)s
   AND event_id IN (SELECT id FROM ontologia.events WHERE namespace = %(namespace)s);

-- name: adopt_letters
UPDATE ontologia.dead_letters SET handler_id = %(name)s
 WHERE namespace = %(namespace)s AND handler_id = %(old)s;

-- name: adopt_pause
UPDATE ontologia.consumers
   SET paused_at = COALESCE(paused_at, (SELECT o.paused_at FROM ontologia.consumers o
                                         WHERE o.id = %(old_id)s))
 WHERE id = %(consumer_id)s;

-- name: adopt_subscriptions
INSERT INTO ontologia.subscriptions(namespace, type, consumer_id)
SELECT namespace, type, %(consumer_id)s::bigint FROM ontologia.subscriptions
 WHERE namespace = %(namespace)s AND consumer_id = %(old_id)s
    ON CONFLICT DO NOTHING;

-- name: peek
-- Whether there is anything to do, without a lock: three seeks a consumer. For all of them, and if
-- there is none: anything, when the next deferred event is due, and whether there is more than a
-- portion.
SELECT EXISTS (SELECT 1 FROM ontologia.incoming),
       (SELECT MIN(fire_at) FROM ontologia.deferred_events WHERE status = 'scheduled'),
       EXISTS (SELECT 1 FROM ontologia.incoming ORDER BY seq OFFSET %(most)s),
       c.id,
       EXISTS (SELECT 1 FROM ontologia.ready r WHERE r.consumer_id = c.id),
       (SELECT MIN(due_at) FROM ontologia.event_claims k
         WHERE k.consumer_id = c.id AND k.due_at IS NOT NULL),
       (SELECT paused_at IS NOT NULL FROM ontologia.consumers p WHERE p.id = c.id)
  FROM (VALUES (1)) AS once
  LEFT JOIN (SELECT value::bigint AS id
               FROM jsonb_array_elements_text(%(consumers)s::jsonb)) c ON true;

-- name: hand_out
-- One statement, so one snapshot: what it deletes is what it hands out. With two, an event that
-- is committed in between would be deleted unseen. Runs under the hand-out lock. LATERAL with a
-- LIMIT is looked up row by row: the planner takes `taken` for large, and would rather read all
-- retained events than these. Does nothing after a `try_turn` that was refused.
WITH taken AS (
    DELETE FROM ontologia.incoming
     WHERE current_setting('hand_out.turn', true) IS DISTINCT FROM 'false'
       AND seq IN (SELECT seq FROM ontologia.incoming ORDER BY seq LIMIT %(most)s)
    RETURNING event_id),
handed AS (
    INSERT INTO ontologia.ready(consumer_id, priority, created_at, event_id, type)
    SELECT s.consumer_id, e.priority, e.created_at, e.id, e.type
      FROM taken t
     CROSS JOIN LATERAL (SELECT * FROM ontologia.events WHERE id = t.event_id LIMIT 1) e
      JOIN ontologia.subscriptions s ON s.namespace = e.namespace AND s.type IN (e.type, '*')
        ON CONFLICT DO NOTHING)
SELECT COUNT(*) FROM taken;

-- name: try_turn
-- The lock of hand-out, if nobody has it, and there is no more than a portion: of more, the most
-- urgent may not be in the first. What follows on the same way knows by the setting whether that was
-- so, and the client need not ask first.
SELECT set_config('hand_out.turn',
                  CASE WHEN EXISTS (SELECT 1 FROM ontologia.incoming ORDER BY seq OFFSET %(most)s)
                       THEN 'false' ELSE pg_try_advisory_xact_lock(%(key)s)::text END, true);

-- name: due_claims
-- Leases that ran out and backoffs that ended. What another claimer is returning, or its holder
-- is ending at this moment, is locked, and left alone.
SELECT k.event_id, k.attempts, k.lease_until, k.available_at, k.read_commit, k.started_at
  FROM ontologia.event_claims k
 WHERE k.consumer_id = %(consumer_id)s AND k.due_at <= %(now)s ORDER BY k.due_at LIMIT %(most)s
   FOR UPDATE SKIP LOCKED;

-- name: return_claims
-- Claims that came due are ready again.
UPDATE ontologia.event_claims SET due_at = NULL, lease_token = NULL
 WHERE handler_id = %(handler_id)s
   AND event_id = ANY(ARRAY(SELECT jsonb_array_elements_text(%(ids)s::jsonb)));

-- name: count_crash
UPDATE ontologia.event_claims
   SET due_at = NULL, lease_token = NULL, attempts = %(attempts)s, last_error = %(error)s
 WHERE event_id = %(event_id)s AND handler_id = %(handler_id)s;

-- name: make_ready
INSERT INTO ontologia.ready(consumer_id, priority, created_at, event_id, type)
SELECT %(consumer_id)s::bigint, e.priority, e.created_at, e.id, e.type FROM ontologia.events e
 WHERE e.id = ANY(ARRAY(SELECT jsonb_array_elements_text(%(ids)s::jsonb)))
    ON CONFLICT DO NOTHING;

-- name: take
-- One statement instead of SQLite's three. The rows that others are taking are locked, and
-- skipped: takers neither wait for each other nor get the same event. MATERIALIZED, or the
-- planner might run the part with the LIMIT more than once; LATERAL as in `hand_out`. Of the first
-- `start`, those before the first that was tried already are started by the same stroke. Whoever
-- claims on a guess has not looked: whether the consumer is paused, whether all that is new was handed
-- out just before, and whether there is something for those `behind` which it comes.
WITH picked AS MATERIALIZED (
    SELECT r.ctid AS place, r.priority, r.created_at, r.event_id FROM ontologia.ready r
     WHERE r.consumer_id = %(consumer_id)s
       AND (%(types)s::text IS NULL
            OR r.type = ANY(ARRAY(SELECT jsonb_array_elements_text(%(types)s::jsonb))))
       AND (SELECT paused_at FROM ontologia.consumers WHERE id = %(consumer_id)s) IS NULL
       AND (%(behind)s::bigint[] IS NULL OR current_setting('hand_out.turn', true) = 'true')
       AND NOT EXISTS (SELECT 1 FROM ontologia.ready b WHERE b.consumer_id = ANY(%(behind)s::bigint[]))
       AND NOT EXISTS (SELECT 1 FROM ontologia.event_claims b
                        WHERE b.consumer_id = ANY(%(behind)s::bigint[]) AND b.due_at <= %(now)s)
     ORDER BY r.priority DESC, r.created_at, r.event_id LIMIT %(most)s
       FOR UPDATE SKIP LOCKED),
gone AS (
    DELETE FROM ontologia.ready WHERE ctid = ANY(ARRAY(SELECT place FROM picked))),
ordered AS (
    SELECT event_id, row_number() OVER (ORDER BY priority DESC, created_at, event_id) AS number
      FROM picked),
started AS MATERIALIZED (
    SELECT COALESCE(MIN(o.number) - 1, %(start)s) AS most
      FROM ordered o
     CROSS JOIN LATERAL (SELECT 1 FROM ontologia.event_claims k
                          WHERE k.event_id = o.event_id AND k.handler_id = %(handler_id)s
                            AND k.attempts > 0 LIMIT 1) AS tried
     WHERE o.number <= %(start)s),
claimed AS (
    INSERT INTO ontologia.event_claims(event_id, handler_id, session_id, claimed_at, lease_until,
                                       available_at, consumer_id, lease_token, due_at, read_commit,
                                       started_at)
    SELECT o.event_id, %(handler_id)s, %(session_id)s, %(now)s, %(lease_until)s, %(now)s,
           %(consumer_id)s, %(token)s, %(lease_until)s,
           CASE WHEN o.number <= s.most
                THEN (SELECT COALESCE(MAX(id), 0) FROM ontologia.commits) END,
           CASE WHEN o.number <= s.most THEN %(now)s END
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
 CROSS JOIN LATERAL (SELECT * FROM ontologia.events WHERE id = c.event_id LIMIT 1) e
 ORDER BY e.priority DESC, e.created_at, e.id;

-- name: fence
-- The one question before anything is written in the name of a claim. The row stays locked until
-- the end of the transaction: without that another session could claim it between here and COMMIT.
SELECT lease_until FROM ontologia.event_claims
 WHERE event_id = %(event_id)s AND handler_id = %(handler_id)s AND lease_token = %(token)s
   AND ack_at IS NULL AND dead_lettered_at IS NULL AND lease_until > %(now)s
   FOR UPDATE;

-- name: start
UPDATE ontologia.event_claims
   SET read_commit = (SELECT COALESCE(MAX(id), 0) FROM ontologia.commits), started_at = %(now)s,
       lease_until = %(lease_until)s, due_at = %(lease_until)s, available_at = %(now)s
 WHERE handler_id = %(handler_id)s
   AND event_id = ANY(ARRAY(SELECT jsonb_array_elements_text(%(ids)s::jsonb)))
   AND lease_token = %(token)s AND ack_at IS NULL AND dead_lettered_at IS NULL
   AND lease_until > %(now)s
RETURNING event_id, read_commit;

-- name: start_within_lease
-- The same where the lease is as good as new: it stays, and so does its place in the index.
UPDATE ontologia.event_claims
   SET read_commit = (SELECT COALESCE(MAX(id), 0) FROM ontologia.commits), started_at = %(now)s
 WHERE handler_id = %(handler_id)s
   AND event_id = ANY(ARRAY(SELECT jsonb_array_elements_text(%(ids)s::jsonb)))
   AND lease_token = %(token)s AND ack_at IS NULL AND dead_lettered_at IS NULL
   AND lease_until > %(now)s
RETURNING event_id, read_commit;

-- name: run_again
-- After a conflict: the same claim and attempt, begun anew on fresh state.
UPDATE ontologia.event_claims
   SET conflicts = conflicts + 1,
       read_commit = (SELECT COALESCE(MAX(id), 0) FROM ontologia.commits), started_at = %(now)s,
       lease_until = %(lease_until)s, due_at = %(lease_until)s, available_at = %(now)s
 WHERE handler_id = %(handler_id)s
   AND event_id = ANY(ARRAY(SELECT jsonb_array_elements_text(%(ids)s::jsonb)))
   AND lease_token = %(token)s AND ack_at IS NULL AND dead_lettered_at IS NULL
   AND lease_until > %(now)s
RETURNING event_id, read_commit;

-- name: began_at
-- A server that crashed may have lost the start, and kept the claim.
UPDATE ontologia.event_claims SET read_commit = %s
 WHERE event_id = %s AND handler_id = %s AND lease_token = %s AND started_at IS NOT NULL;

-- name: last_commit
SELECT COALESCE(MAX(id), 0) FROM ontologia.commits;

-- name: renew
UPDATE ontologia.event_claims
   SET lease_until = %(lease_until)s, due_at = %(lease_until)s, available_at = %(now)s
 WHERE handler_id = %(handler_id)s
   AND event_id = ANY(ARRAY(SELECT jsonb_array_elements_text(%(ids)s::jsonb)))
   AND lease_token = %(token)s AND ack_at IS NULL AND dead_lettered_at IS NULL
   AND lease_until > %(now)s
RETURNING event_id;

-- name: ack
UPDATE ontologia.event_claims SET ack_at = %(now)s, due_at = NULL
 WHERE handler_id = %(handler_id)s
   AND event_id = ANY(ARRAY(SELECT jsonb_array_elements_text(%(ids)s::jsonb)))
   AND lease_token = %(token)s AND ack_at IS NULL AND dead_lettered_at IS NULL
   AND lease_until > %(now)s
RETURNING event_id;

-- name: ack_moved
-- With the commit that each attempt saw. As in `began_at`, one whose start was lost has none.
UPDATE ontologia.event_claims
   SET ack_at = %(now)s, due_at = NULL,
       read_commit = CASE WHEN started_at IS NOT NULL THEN (%(ids)s::jsonb ->> event_id)::bigint
                          ELSE read_commit END
 WHERE handler_id = %(handler_id)s
   AND event_id = ANY(ARRAY(SELECT jsonb_object_keys(%(ids)s::jsonb)))
   AND lease_token = %(token)s AND ack_at IS NULL AND dead_lettered_at IS NULL
   AND lease_until > %(now)s
RETURNING event_id;

-- name: abandon
-- Handed back without a mark against it; `make_ready` follows.
UPDATE ontologia.event_claims
   SET lease_until = %(now)s, available_at = %(now)s, due_at = NULL, lease_token = NULL,
       read_commit = NULL, started_at = NULL
 WHERE handler_id = %(handler_id)s
   AND event_id = ANY(ARRAY(SELECT jsonb_array_elements_text(%(ids)s::jsonb)))
   AND lease_token = %(token)s AND ack_at IS NULL AND dead_lettered_at IS NULL
   AND lease_until > %(now)s
RETURNING event_id;

-- name: get_claim
-- A claim that is held, by whom and under which token; NULLs ask for any.
SELECT attempts, read_commit, started_at, lease_token, consumer_id, lease_until
  FROM ontologia.event_claims
 WHERE event_id = %(event_id)s AND handler_id = %(handler_id)s
   AND (%(session_id)s::text IS NULL OR session_id = %(session_id)s)
   AND (%(token)s::text IS NULL OR lease_token = %(token)s)
   AND lease_token IS NOT NULL AND ack_at IS NULL AND dead_lettered_at IS NULL
   AND lease_until > %(now)s;

-- name: lock_claim
-- The same before it is changed: nobody else can claim it until the transaction ends.
SELECT attempts, read_commit, started_at, lease_token, consumer_id, lease_until
  FROM ontologia.event_claims
 WHERE event_id = %(event_id)s AND handler_id = %(handler_id)s
   AND (%(session_id)s::text IS NULL OR session_id = %(session_id)s)
   AND (%(token)s::text IS NULL OR lease_token = %(token)s)
   AND lease_token IS NOT NULL AND ack_at IS NULL AND dead_lettered_at IS NULL
   AND lease_until > %(now)s
   FOR UPDATE;

-- name: release
UPDATE ontologia.event_claims
   SET attempts = %(attempts)s, lease_until = %(now)s, available_at = %(available_at)s,
       due_at = %(available_at)s, lease_token = NULL, last_error = %(error)s
 WHERE event_id = %(event_id)s AND handler_id = %(handler_id)s;

-- name: bury
UPDATE ontologia.event_claims
   SET attempts = %(attempts)s, lease_until = %(now)s, available_at = %(now)s, due_at = NULL, lease_token = NULL,
       last_error = %(error)s, dead_lettered_at = %(now)s
 WHERE event_id = %(event_id)s AND handler_id = %(handler_id)s;

-- name: insert_dead_letter
INSERT INTO ontologia.dead_letters(event_id, handler_id, namespace, failed_at, attempts, last_error,
                                   event_type, event_payload, root_event_id, chain_depth)
SELECT %(event_id)s, %(handler_id)s, namespace, %(now)s, %(attempts)s, %(error)s, type, payload,
       root_event_id, chain_depth
  FROM ontologia.events WHERE id = %(event_id)s;

-- name: insert_attempt
INSERT INTO ontologia.attempts(event_id, handler_id, attempt, started_at, ended_at, read_commit,
                               outcome, error, traceback)
VALUES (%(event_id)s, %(handler_id)s, %(attempt)s, %(started_at)s, %(now)s, %(read_commit)s,
        %(outcome)s, %(error)s, %(traceback)s)
    ON CONFLICT (event_id, handler_id, attempt) DO UPDATE SET
       started_at = excluded.started_at, ended_at = excluded.ended_at,
       read_commit = excluded.read_commit, outcome = excluded.outcome, error = excluded.error,
       traceback = excluded.traceback;
