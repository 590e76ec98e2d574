-- name: backfill
-- NOT IN, here and below: `incoming` has no index on its events, and is read once.
INSERT INTO ready(consumer_id, priority, created_at, event_id, type)
SELECT :consumer_id, e.priority, e.created_at, e.id, e.type FROM events e
 WHERE e.namespace = :namespace AND e.type = :type
   AND e.id NOT IN (SELECT event_id FROM incoming)
   AND NOT EXISTS (SELECT 1 FROM event_claims k WHERE k.event_id = e.id AND k.handler_id = :name)
    ON CONFLICT DO NOTHING;

-- name: backfill_all
INSERT INTO ready(consumer_id, priority, created_at, event_id, type)
SELECT :consumer_id, e.priority, e.created_at, e.id, e.type FROM events e
 WHERE e.namespace = :namespace
   AND e.id NOT IN (SELECT event_id FROM incoming)
   AND NOT EXISTS (SELECT 1 FROM event_claims k WHERE k.event_id = e.id AND k.handler_id = :name)
    ON CONFLICT DO NOTHING;

-- name: peek
-- Whether there is much to dispatch does not matter here: one writer does it step by step.
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

-- name: dispatch
INSERT INTO ready(consumer_id, priority, created_at, event_id, type)
SELECT s.consumer_id, e.priority, e.created_at, e.id, e.type
  FROM incoming i CROSS JOIN events e ON e.id = i.event_id
 CROSS JOIN subscriptions s ON s.namespace = e.namespace AND s.type IN (e.type, '*')
 WHERE i.seq <= :top
    ON CONFLICT DO NOTHING;

-- name: delete_incoming
DELETE FROM incoming WHERE seq <= :top;

-- name: select_ready
-- The order of the key is the order of urgency. CROSS JOIN keeps it: nothing is sorted. Payloads
-- are given as bytes: one that is no text must not spoil the batch.
SELECT e.id, e.namespace, e.type, @bytes(e.payload), e.created_at, e.priority, e.root_event_id,
       e.chain_depth, e.source, e.correlation_id, e.causation_id, e.tenant_id, e.dedup_key,
       e.occurred_at, COALESCE(k.attempts, 0), k.last_error
  FROM ready r CROSS JOIN events e ON e.id = r.event_id
  LEFT JOIN event_claims k ON k.event_id = r.event_id AND k.handler_id = :handler_id
 WHERE r.consumer_id = :consumer_id AND r.priority <= :highest
   AND (:types IS NULL OR r.type IN @texts(:types))
 ORDER BY r.priority DESC, r.created_at, r.event_id LIMIT :most;

-- name: take_ready
DELETE FROM ready
 WHERE consumer_id = :consumer_id AND priority = :priority AND created_at = :created_at
   AND event_id = :event_id;

-- name: upsert_claim
-- With :read_commit and :started_at the first attempt is started by the same stroke.
INSERT INTO event_claims(event_id, handler_id, session_id, claimed_at, lease_until, available_at,
                         consumer_id, lease_token, due_at, read_commit, started_at)
VALUES (:event_id, :handler_id, :session_id, :now, :lease_until, :now, :consumer_id, :token,
        :lease_until, :read_commit, :started_at)
    ON CONFLICT (event_id, handler_id) DO UPDATE SET
       session_id = excluded.session_id, claimed_at = excluded.claimed_at,
       lease_until = excluded.lease_until, available_at = excluded.available_at,
       consumer_id = excluded.consumer_id, lease_token = excluded.lease_token,
       due_at = excluded.due_at, read_commit = excluded.read_commit,
       started_at = excluded.started_at;

-- name: ack_moved
UPDATE event_claims SET ack_at = :now, due_at = NULL, read_commit = seen.value
  FROM json_each(:ids) AS seen
 WHERE event_id = seen.key AND handler_id = :handler_id
   AND lease_token = :token AND ack_at IS NULL AND dead_lettered_at IS NULL AND lease_until > :now
RETURNING event_id;
