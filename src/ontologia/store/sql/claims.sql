-- name: get_consumer
SELECT id, paused_at FROM consumers WHERE namespace = :namespace AND name = :name;

-- name: add_consumer
INSERT INTO consumers(namespace, name, last_seen_at) VALUES (:namespace, :name, :now)
    ON CONFLICT (namespace, name) DO UPDATE SET last_seen_at = excluded.last_seen_at;

-- name: see_consumers
UPDATE consumers SET last_seen_at = :now WHERE id IN @numbers(:ids);

-- name: pause_consumer
UPDATE consumers SET paused_at = :paused_at WHERE namespace = :namespace AND name = :name;

-- name: add_subscription
INSERT INTO subscriptions(namespace, type, consumer_id) VALUES (:namespace, :type, :consumer_id)
    ON CONFLICT DO NOTHING;

-- name: subscribed_types
SELECT type FROM subscriptions WHERE namespace = :namespace AND consumer_id = :consumer_id;

-- name: backfill
-- What is retained becomes ready for a consumer that just subscribed. Events that are still in
-- `incoming` are dispatched later, with this subscription seen.
@own;

-- name: backfill_all
-- The same for a consumer of all types.
@own;

-- name: count_incoming
SELECT COUNT(*) FROM incoming i @join events e ON e.id = i.event_id
 WHERE e.namespace = :namespace AND (CAST(:type AS TEXT) = '*' OR e.type = :type);

-- name: skip_retained
-- A consumer that starts now takes what is retained for done, except what it has already, or
-- will be dispatched.
INSERT INTO event_claims(event_id, handler_id, session_id, claimed_at, lease_until, ack_at,
                         available_at, consumer_id)
SELECT e.id, :name, :session_id, :now, :now, :now, :now, CAST(:consumer_id AS BIGINT)
  FROM events e
 WHERE e.namespace = :namespace AND (CAST(:type AS TEXT) = '*' OR e.type = :type)
   AND NOT EXISTS (SELECT 1 FROM ready r
                    WHERE r.consumer_id = :consumer_id AND r.priority = e.priority
                      AND r.created_at = e.created_at AND r.event_id = e.id)
   AND NOT EXISTS (SELECT 1 FROM event_claims k
                    WHERE k.event_id = e.id AND k.handler_id = :name)
   AND NOT EXISTS (SELECT 1 FROM incoming i WHERE i.event_id = e.id);

-- name: claimed_twice
-- Events that a renamed consumer has claims of under both names, and whether each is finished.
SELECT o.event_id, o.ack_at IS NOT NULL OR o.dead_lettered_at IS NOT NULL,
       n.ack_at IS NOT NULL OR n.dead_lettered_at IS NOT NULL
  FROM event_claims o
  JOIN event_claims n ON n.event_id = o.event_id AND n.handler_id = :name
  JOIN events e ON e.id = o.event_id AND e.namespace = :namespace
 WHERE o.handler_id = :old AND o.event_id > :after
 ORDER BY o.event_id LIMIT :most
   @lock(FOR UPDATE OF o, n);

-- name: drop_claims
DELETE FROM event_claims WHERE handler_id = :handler_id AND event_id IN @texts(:ids);

-- name: drop_attempts
DELETE FROM attempts WHERE handler_id = :handler_id AND event_id IN @texts(:ids);

-- name: drop_letters
DELETE FROM dead_letters WHERE handler_id = :handler_id AND event_id IN @texts(:ids);

-- name: drop_ready_of_old
-- What waits under the old name, and was claimed under the new one.
DELETE FROM ready WHERE consumer_id = :old_id
   AND EXISTS (SELECT 1 FROM event_claims k
                WHERE k.event_id = ready.event_id AND k.handler_id = :name);

-- name: drop_ready_of_new
-- What waits under the new name, and is known under the old one.
DELETE FROM ready WHERE consumer_id = :consumer_id
   AND (event_id IN (SELECT r.event_id FROM ready r WHERE r.consumer_id = :old_id)
        OR EXISTS (SELECT 1 FROM event_claims k
                    WHERE k.event_id = ready.event_id AND k.handler_id = :old));

-- name: adopt_ready
UPDATE ready SET consumer_id = :consumer_id WHERE consumer_id = :old_id;

-- name: adopt_claims
UPDATE event_claims SET handler_id = :name, consumer_id = :consumer_id
 WHERE handler_id = :old AND event_id IN (SELECT id FROM events WHERE namespace = :namespace);

-- name: adopt_attempts
UPDATE attempts SET handler_id = :name
 WHERE handler_id = :old AND event_id IN (SELECT id FROM events WHERE namespace = :namespace);

-- name: adopt_letters
UPDATE dead_letters SET handler_id = :name WHERE namespace = :namespace AND handler_id = :old;

-- name: adopt_pause
UPDATE consumers
   SET paused_at = COALESCE(paused_at, (SELECT o.paused_at FROM consumers o WHERE o.id = :old_id))
 WHERE id = :consumer_id;

-- name: adopt_subscriptions
INSERT INTO subscriptions(namespace, type, consumer_id)
SELECT namespace, type, CAST(:consumer_id AS BIGINT) FROM subscriptions
 WHERE namespace = :namespace AND consumer_id = :old_id
    ON CONFLICT DO NOTHING;

-- name: peek
-- Whether there is anything to do, without a lock: three seeks a consumer. For all of them, and if
-- there is none: anything, when the next deferred event is due, and whether there is more than a
-- portion.
@own;

-- name: due_claims
-- Leases that ran out and backoffs that ended. What another claimer is returning, or its holder
-- is ending at this moment, is locked, and left alone.
SELECT k.event_id, k.attempts, k.lease_until, k.available_at, k.read_commit, k.started_at
  FROM event_claims k
 WHERE k.consumer_id = :consumer_id AND k.due_at <= :now ORDER BY k.due_at LIMIT :most
   @lock(FOR UPDATE SKIP LOCKED);

-- name: return_claims
-- Claims that came due are ready again.
UPDATE event_claims SET due_at = NULL, lease_token = NULL
 WHERE handler_id = :handler_id AND event_id IN @texts(:ids);

-- name: count_crash
UPDATE event_claims SET due_at = NULL, lease_token = NULL, attempts = :attempts, last_error = :error
 WHERE event_id = :event_id AND handler_id = :handler_id;

-- name: make_ready
INSERT INTO ready(consumer_id, priority, created_at, event_id, type)
SELECT CAST(:consumer_id AS BIGINT), e.priority, e.created_at, e.id, e.type FROM events e
 WHERE e.id IN @texts(:ids)
    ON CONFLICT DO NOTHING;

-- name: others_claim
-- Whether another session has claims of a consumer that have not ended, or left such behind.
SELECT 1 FROM event_claims
 WHERE consumer_id = :consumer_id AND due_at IS NOT NULL AND session_id <> :session_id LIMIT 1;

-- name: ready_priorities
-- The priorities of what a consumer can claim: one seek each.
WITH RECURSIVE found(priority) AS (
    SELECT MAX(priority) FROM ready WHERE consumer_id = :consumer_id
    UNION ALL
    SELECT (SELECT MAX(r.priority) FROM ready r
             WHERE r.consumer_id = :consumer_id AND r.priority < f.priority)
      FROM found f WHERE f.priority IS NOT NULL)
SELECT priority FROM found WHERE priority IS NOT NULL;

-- name: oldest_ready
SELECT created_at, event_id FROM ready
 WHERE consumer_id = :consumer_id AND priority = :priority
   AND (CAST(:types AS TEXT) IS NULL OR type IN @texts(:types))
 ORDER BY created_at, event_id LIMIT :most;

-- name: last_commit
SELECT COALESCE(MAX(id), 0) FROM commits;

-- name: fence
-- The one question before anything is written in the name of a claim. The row stays locked until
-- the end of the transaction: without that another session could claim it between here and COMMIT.
SELECT lease_until FROM event_claims
 WHERE event_id = :event_id AND handler_id = :handler_id AND lease_token = :token
   AND ack_at IS NULL AND dead_lettered_at IS NULL AND lease_until > :now
   @lock(FOR UPDATE);

-- name: start
UPDATE event_claims
   SET read_commit = (SELECT COALESCE(MAX(id), 0) FROM commits), started_at = :now,
       lease_until = :lease_until, due_at = :lease_until, available_at = :now
 WHERE handler_id = :handler_id AND event_id IN @texts(:ids)
   AND lease_token = :token AND ack_at IS NULL AND dead_lettered_at IS NULL AND lease_until > :now
RETURNING event_id, lease_until, read_commit;

-- name: start_within_lease
-- The same where the lease is as good as new: it stays, and so does its place in the index.
UPDATE event_claims
   SET read_commit = (SELECT COALESCE(MAX(id), 0) FROM commits), started_at = :now
 WHERE handler_id = :handler_id AND event_id IN @texts(:ids)
   AND lease_token = :token AND ack_at IS NULL AND dead_lettered_at IS NULL AND lease_until > :now
RETURNING event_id, lease_until, read_commit;

-- name: run_again
-- After a conflict: the same claim and attempt, begun anew on fresh state.
UPDATE event_claims
   SET conflicts = conflicts + 1,
       read_commit = (SELECT COALESCE(MAX(id), 0) FROM commits), started_at = :now,
       lease_until = :lease_until, due_at = :lease_until, available_at = :now
 WHERE handler_id = :handler_id AND event_id IN @texts(:ids)
   AND lease_token = :token AND ack_at IS NULL AND dead_lettered_at IS NULL AND lease_until > :now
RETURNING event_id, lease_until, read_commit;

-- name: began_at
-- A server that crashed may have lost the start, and kept the claim.
UPDATE event_claims SET read_commit = :read_commit
 WHERE event_id = :event_id AND handler_id = :handler_id AND lease_token = :token
   AND started_at IS NOT NULL;

-- name: renew
UPDATE event_claims SET lease_until = :lease_until, due_at = :lease_until, available_at = :now
 WHERE handler_id = :handler_id AND event_id IN @texts(:ids)
   AND lease_token = :token AND ack_at IS NULL AND dead_lettered_at IS NULL AND lease_until > :now
RETURNING event_id, lease_until;

-- name: ack
UPDATE event_claims SET ack_at = :now, due_at = NULL
 WHERE handler_id = :handler_id AND event_id IN @texts(:ids)
   AND lease_token = :token AND ack_at IS NULL AND dead_lettered_at IS NULL AND lease_until > :now
RETURNING event_id;

-- name: ack_moved
-- With the commit that each attempt saw: :ids is a JSON object, from event to commit.
@own;

-- name: abandon
-- Handed back without a mark against it; `make_ready` follows.
UPDATE event_claims
   SET lease_until = :now, available_at = :now, due_at = NULL, lease_token = NULL,
       read_commit = NULL, started_at = NULL
 WHERE handler_id = :handler_id AND event_id IN @texts(:ids)
   AND lease_token = :token AND ack_at IS NULL AND dead_lettered_at IS NULL AND lease_until > :now
RETURNING event_id;

-- name: get_claim
-- A claim that is held, by whom and under which token; NULLs ask for any.
SELECT attempts, read_commit, started_at, lease_token, consumer_id, lease_until FROM event_claims
 WHERE event_id = :event_id AND handler_id = :handler_id
   AND (CAST(:session_id AS TEXT) IS NULL OR session_id = :session_id)
   AND (CAST(:token AS TEXT) IS NULL OR lease_token = :token)
   AND lease_token IS NOT NULL AND ack_at IS NULL AND dead_lettered_at IS NULL
   AND lease_until > :now;

-- name: lock_claim
-- The same before it is changed: nobody else can claim it until the transaction ends.
SELECT attempts, read_commit, started_at, lease_token, consumer_id, lease_until FROM event_claims
 WHERE event_id = :event_id AND handler_id = :handler_id
   AND (CAST(:session_id AS TEXT) IS NULL OR session_id = :session_id)
   AND (CAST(:token AS TEXT) IS NULL OR lease_token = :token)
   AND lease_token IS NOT NULL AND ack_at IS NULL AND dead_lettered_at IS NULL
   AND lease_until > :now
   @lock(FOR UPDATE);

-- name: release
UPDATE event_claims
   SET attempts = :attempts, lease_until = :now, available_at = :available_at,
       due_at = :available_at, lease_token = NULL, last_error = :error
 WHERE event_id = :event_id AND handler_id = :handler_id;

-- name: bury
UPDATE event_claims
   SET attempts = :attempts, lease_until = :now, available_at = :now, due_at = NULL,
       lease_token = NULL, last_error = :error, dead_lettered_at = :now
 WHERE event_id = :event_id AND handler_id = :handler_id;

-- name: insert_dead_letter
INSERT INTO dead_letters(event_id, handler_id, namespace, failed_at, attempts, last_error,
                         event_type, event_payload, root_event_id, chain_depth)
SELECT :event_id, :handler_id, namespace, :now, :attempts, :error, type, payload, root_event_id,
       chain_depth
  FROM events WHERE id = :event_id;

-- name: insert_attempt
INSERT INTO attempts(event_id, handler_id, attempt, started_at, ended_at, read_commit, outcome,
                     error, traceback)
VALUES (:event_id, :handler_id, :attempt, :started_at, :now, :read_commit, :outcome, :error,
        :traceback)
    ON CONFLICT (event_id, handler_id, attempt) DO UPDATE SET
       started_at = excluded.started_at, ended_at = excluded.ended_at,
       read_commit = excluded.read_commit, outcome = excluded.outcome, error = excluded.error,
       traceback = excluded.traceback;
