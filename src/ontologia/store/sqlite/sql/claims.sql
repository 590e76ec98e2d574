-- name: get_consumer
SELECT id, paused_at FROM consumers WHERE namespace = :namespace AND name = :name;

-- name: add_consumer
INSERT INTO consumers(namespace, name, last_seen_at) VALUES (:namespace, :name, :now)
    ON CONFLICT (namespace, name) DO UPDATE SET last_seen_at = excluded.last_seen_at;

-- name: see_consumers
UPDATE consumers SET last_seen_at = :now WHERE id IN (SELECT value FROM json_each(:ids));

-- name: pause_consumer
UPDATE consumers SET paused_at = :paused_at WHERE namespace = :namespace AND name = :name;

-- name: add_subscription
INSERT INTO subscriptions(namespace, type, consumer_id) VALUES (:namespace, :type, :consumer_id)
    ON CONFLICT DO NOTHING;

-- name: subscribed_types
SELECT type FROM subscriptions WHERE namespace = :namespace AND consumer_id = :consumer_id;

-- name: backfill
-- What is retained becomes ready for a consumer that just subscribed. Events that are still in
-- `incoming` are handed out later, with this subscription seen.
INSERT INTO ready(consumer_id, priority, created_at, event_id, type)
SELECT :consumer_id, e.priority, e.created_at, e.id, e.type FROM events e
 WHERE e.namespace = :namespace AND e.type = :type
   AND e.id NOT IN (SELECT event_id FROM incoming)
   AND NOT EXISTS (SELECT 1 FROM event_claims k WHERE k.event_id = e.id AND k.handler_id = :name)
    ON CONFLICT DO NOTHING;

-- name: backfill_all
-- The same for a consumer of all types.
INSERT INTO ready(consumer_id, priority, created_at, event_id, type)
SELECT :consumer_id, e.priority, e.created_at, e.id, e.type FROM events e
 WHERE e.namespace = :namespace
   AND e.id NOT IN (SELECT event_id FROM incoming)
   AND NOT EXISTS (SELECT 1 FROM event_claims k WHERE k.event_id = e.id AND k.handler_id = :name)
    ON CONFLICT DO NOTHING;

-- name: count_incoming
SELECT COUNT(*) FROM incoming i CROSS JOIN events e ON e.id = i.event_id
 WHERE e.namespace = :namespace AND (:type = '*' OR e.type = :type);

-- name: skip_retained
-- A consumer that starts now takes what is retained for done, except what it has already, or
-- will be handed out.
INSERT INTO event_claims(event_id, handler_id, session_id, claimed_at, lease_until, ack_at,
                         available_at, consumer_id)
SELECT e.id, :name, :session_id, :now, :now, :now, :now,
       :consumer_id
  FROM events e
 WHERE e.namespace = :namespace AND (:type = '*' OR e.type = :type)
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
 ORDER BY o.event_id LIMIT :most;

-- name: drop_claims
DELETE FROM event_claims
 WHERE handler_id = :handler_id AND event_id IN (SELECT value FROM json_each(:ids));

-- name: drop_attempts
DELETE FROM attempts
 WHERE handler_id = :handler_id AND event_id IN (SELECT value FROM json_each(:ids));

-- name: drop_letters
DELETE FROM dead_letters
 WHERE handler_id = :handler_id AND event_id IN (SELECT value FROM json_each(:ids));

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
SELECT namespace, type, :consumer_id FROM subscriptions
 WHERE namespace = :namespace AND consumer_id = :old_id
    ON CONFLICT DO NOTHING;

-- name: peek
-- Whether there is anything to do, without a lock: three seeks a consumer. For all of them, and if
-- there is none: anything, and when the next deferred event is due. Whether there is much to hand out
-- does not matter here: one writer does it step by step.
SELECT EXISTS (SELECT 1 FROM incoming),
       (SELECT MIN(fire_at) FROM deferred_events WHERE status = 'scheduled'),
       0,
       c.value,
       EXISTS (SELECT 1 FROM ready r WHERE r.consumer_id = c.value),
       (SELECT MIN(due_at) FROM event_claims k
         WHERE k.consumer_id = c.value AND k.due_at IS NOT NULL),
       (SELECT paused_at IS NOT NULL FROM consumers p WHERE p.id = c.value)
  FROM (SELECT 1) LEFT JOIN json_each(:consumers) c;

-- name: incoming_top
SELECT MAX(seq), COUNT(*) FROM (SELECT seq FROM incoming ORDER BY seq LIMIT :most);

-- name: hand_out
INSERT INTO ready(consumer_id, priority, created_at, event_id, type)
SELECT s.consumer_id, e.priority, e.created_at, e.id, e.type
  FROM incoming i CROSS JOIN events e ON e.id = i.event_id
 CROSS JOIN subscriptions s ON s.namespace = e.namespace AND s.type IN (e.type, '*')
 WHERE i.seq <= :top
    ON CONFLICT DO NOTHING;

-- name: delete_incoming
DELETE FROM incoming WHERE seq <= :top;

-- name: due_claims
-- Leases that ran out and backoffs that ended.
SELECT k.event_id, k.attempts, k.lease_until, k.available_at, k.read_commit, k.started_at
  FROM event_claims k
 WHERE k.consumer_id = :consumer_id AND k.due_at <= :now ORDER BY k.due_at LIMIT :most;

-- name: return_claims
-- Claims that came due are ready again.
UPDATE event_claims SET due_at = NULL, lease_token = NULL WHERE handler_id = :handler_id
   AND event_id IN (SELECT value FROM json_each(:ids));

-- name: count_crash
UPDATE event_claims SET due_at = NULL, lease_token = NULL, attempts = :attempts, last_error = :error
 WHERE event_id = :event_id AND handler_id = :handler_id;

-- name: make_ready
INSERT INTO ready(consumer_id, priority, created_at, event_id, type)
SELECT :consumer_id, e.priority, e.created_at, e.id, e.type FROM events e
 WHERE e.id IN (SELECT value FROM json_each(:ids))
    ON CONFLICT DO NOTHING;

-- name: select_ready
-- The order of the key is the order of urgency. CROSS JOIN keeps it: nothing is sorted. Payloads
-- are given as bytes: one that is no text must not spoil the batch.
SELECT e.id, e.namespace, e.type, CAST(e.payload AS BLOB), e.created_at, e.priority, e.root_event_id,
       e.chain_depth, e.source, e.correlation_id, e.causation_id, e.tenant_id, e.dedup_key,
       e.occurred_at, COALESCE(k.attempts, 0), k.last_error
  FROM ready r CROSS JOIN events e ON e.id = r.event_id
  LEFT JOIN event_claims k ON k.event_id = r.event_id AND k.handler_id = :handler_id
 WHERE r.consumer_id = :consumer_id
   AND (:types IS NULL OR r.type IN (SELECT value FROM json_each(:types)))
 ORDER BY r.priority DESC, r.created_at, r.event_id LIMIT :most;

-- name: take_ready
DELETE FROM ready WHERE consumer_id = ? AND priority = ? AND created_at = ? AND event_id = ?;

-- name: upsert_claim
-- With ?8 and ?9 the first attempt is started by the same stroke.
INSERT INTO event_claims(event_id, handler_id, session_id, claimed_at, lease_until, available_at,
                         consumer_id, lease_token, due_at, read_commit, started_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?4, ?6, ?7, ?5, ?8, ?9)
    ON CONFLICT (event_id, handler_id) DO UPDATE SET
       session_id = excluded.session_id, claimed_at = excluded.claimed_at,
       lease_until = excluded.lease_until, available_at = excluded.available_at,
       consumer_id = excluded.consumer_id, lease_token = excluded.lease_token,
       due_at = excluded.due_at, read_commit = excluded.read_commit,
       started_at = excluded.started_at;

-- name: last_commit
SELECT COALESCE(MAX(id), 0) FROM commits;

-- name: fence
-- The one question before anything is written in the name of a claim.
SELECT lease_until FROM event_claims
 WHERE event_id = :event_id AND handler_id = :handler_id AND lease_token = :token
   AND ack_at IS NULL AND dead_lettered_at IS NULL AND lease_until > :now;

-- name: start
UPDATE event_claims
   SET read_commit = (SELECT COALESCE(MAX(id), 0) FROM commits), started_at = :now,
       lease_until = :lease_until, due_at = :lease_until, available_at = :now
 WHERE handler_id = :handler_id AND event_id IN (SELECT value FROM json_each(:ids))
   AND lease_token = :token AND ack_at IS NULL AND dead_lettered_at IS NULL AND lease_until > :now
RETURNING event_id, read_commit;

-- name: start_within_lease
-- The same where the lease is as good as new: it stays, and so does its place in the index.
UPDATE event_claims
   SET read_commit = (SELECT COALESCE(MAX(id), 0) FROM commits), started_at = :now
 WHERE handler_id = :handler_id AND event_id IN (SELECT value FROM json_each(:ids))
   AND lease_token = :token AND ack_at IS NULL AND dead_lettered_at IS NULL AND lease_until > :now
RETURNING event_id, read_commit;

-- name: run_again
-- After a conflict: the same claim and attempt, begun anew on fresh state.
UPDATE event_claims
   SET conflicts = conflicts + 1,
       read_commit = (SELECT COALESCE(MAX(id), 0) FROM commits), started_at = :now,
       lease_until = :lease_until, due_at = :lease_until, available_at = :now
 WHERE handler_id = :handler_id AND event_id IN (SELECT value FROM json_each(:ids))
   AND lease_token = :token AND ack_at IS NULL AND dead_lettered_at IS NULL AND lease_until > :now
RETURNING event_id, read_commit;

-- name: began_at
UPDATE event_claims SET read_commit = ?
 WHERE event_id = ? AND handler_id = ? AND lease_token = ?;

-- name: renew
UPDATE event_claims SET lease_until = :lease_until, due_at = :lease_until, available_at = :now
 WHERE handler_id = :handler_id AND event_id IN (SELECT value FROM json_each(:ids))
   AND lease_token = :token AND ack_at IS NULL AND dead_lettered_at IS NULL AND lease_until > :now
RETURNING event_id;

-- name: ack
UPDATE event_claims SET ack_at = :now, due_at = NULL
 WHERE handler_id = :handler_id AND event_id IN (SELECT value FROM json_each(:ids))
   AND lease_token = :token AND ack_at IS NULL AND dead_lettered_at IS NULL AND lease_until > :now
RETURNING event_id;

-- name: ack_moved
-- With the commit that each attempt saw.
UPDATE event_claims SET ack_at = :now, due_at = NULL, read_commit = seen.value
  FROM json_each(:ids) AS seen
 WHERE event_id = seen.key AND handler_id = :handler_id
   AND lease_token = :token AND ack_at IS NULL AND dead_lettered_at IS NULL AND lease_until > :now
RETURNING event_id;

-- name: abandon
-- Handed back without a mark against it; `make_ready` follows.
UPDATE event_claims SET lease_until = :now, available_at = :now, due_at = NULL,
       lease_token = NULL, read_commit = NULL,
       started_at = NULL
 WHERE handler_id = :handler_id AND event_id IN (SELECT value FROM json_each(:ids))
   AND lease_token = :token AND ack_at IS NULL AND dead_lettered_at IS NULL AND lease_until > :now
RETURNING event_id;

-- name: get_claim
-- A claim that is held, by whom and under which token; NULLs ask for any.
SELECT attempts, read_commit, started_at, lease_token, consumer_id, lease_until FROM event_claims
 WHERE event_id = :event_id AND handler_id = :handler_id
   AND (:session_id IS NULL OR session_id = :session_id)
   AND (:token IS NULL OR lease_token = :token)
   AND lease_token IS NOT NULL AND ack_at IS NULL AND dead_lettered_at IS NULL
   AND lease_until > :now;

-- name: lock_claim
-- The same before it is changed. SQLite has nothing to lock: nobody else writes.
SELECT attempts, read_commit, started_at, lease_token, consumer_id, lease_until FROM event_claims
 WHERE event_id = :event_id AND handler_id = :handler_id
   AND (:session_id IS NULL OR session_id = :session_id)
   AND (:token IS NULL OR lease_token = :token)
   AND lease_token IS NOT NULL AND ack_at IS NULL AND dead_lettered_at IS NULL
   AND lease_until > :now;

-- name: release
UPDATE event_claims
   SET attempts = :attempts, lease_until = :now, available_at = :available_at,
       due_at = :available_at, lease_token = NULL, last_error = :error
 WHERE event_id = :event_id AND handler_id = :handler_id;

-- name: bury
UPDATE event_claims
   SET attempts = :attempts, lease_until = :now, available_at = :now, due_at = NULL,
       lease_token = NULL,
       last_error = :error, dead_lettered_at = :now
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
