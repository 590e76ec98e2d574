-- name: ready_payloads
-- The next of what a consumer can claim, of one type and priority, the oldest first. Here and below:
-- where to go on, the event, its payload, and whether it is left out.
SELECT r.created_at, r.event_id, e.id, @bytes(e.payload) AS fields_json, FALSE
  FROM ready r @join events e ON e.id = r.event_id
 WHERE r.consumer_id = :consumer_id AND r.priority = :priority
   AND (r.created_at, r.event_id) > (:after, :after_id) AND r.type = :type
 ORDER BY r.created_at, r.event_id LIMIT :most;

-- name: open_payloads
-- The next of what it has claimed and not finished, in the order in which it comes due.
SELECT k.due_at, k.event_id, e.id, @bytes(e.payload) AS fields_json, FALSE
  FROM event_claims k @join events e ON e.id = k.event_id
 WHERE k.consumer_id = :consumer_id AND k.due_at IS NOT NULL
   AND (k.due_at, k.event_id) > (:after, :after_id) AND e.type = :type
 ORDER BY k.due_at, k.event_id LIMIT :most;

-- name: arriving_payloads
-- The next of what is not dispatched yet.
SELECT i.seq, i.event_id, e.id, @bytes(e.payload) AS fields_json, FALSE
  FROM incoming i @join events e ON e.id = i.event_id
 WHERE i.seq > :after AND e.namespace = :namespace AND e.type = :type
 ORDER BY i.seq LIMIT :most;

-- name: retained_payloads
-- The next events of one type and priority, and whether a consumer of these names has had them: the
-- others it would get if it subscribed now. The page comes first: the planner may otherwise join all
-- claims before it counts to :most.
WITH page AS MATERIALIZED (
    SELECT created_at, id, payload FROM events
     WHERE namespace = :namespace AND type = :type AND priority = :priority
       AND (created_at, id) > (:after, :after_id)
     ORDER BY created_at, id LIMIT :most)
SELECT p.created_at, p.id, p.id, @bytes(p.payload) AS fields_json,
       (SELECT 1 FROM event_claims k
         WHERE k.event_id = p.id AND k.handler_id IN @texts(:names) LIMIT 1) IS NOT NULL
  FROM page p ORDER BY p.created_at, p.id;

-- name: count_retained
-- How many events of a type a consumer of these names would get if it subscribed now.
SELECT COUNT(*) FROM events e
 WHERE e.namespace = :namespace AND e.type = :type
   AND NOT EXISTS (SELECT 1 FROM event_claims k
                    WHERE k.event_id = e.id AND k.handler_id IN @texts(:names));

-- name: deferred_payloads
-- The next deferred events of a type, the earliest first.
SELECT fire_at, id, event_id, @bytes(payload) AS fields_json, FALSE
  FROM deferred_events
 WHERE status = 'scheduled' AND namespace = :namespace AND topic = :type
   AND (fire_at, id) > (:after, :after_id)
 ORDER BY fire_at, id LIMIT :most;

-- name: dead_payloads
-- The next dead letters of a type that consumers of these names have, the newest first.
SELECT failed_at, id, event_id, @bytes(event_payload) AS fields_json, FALSE
  FROM dead_letters
 WHERE namespace = :namespace AND (failed_at, id) < (:after, :after_id)
   AND event_type = :type AND handler_id IN @texts(:names)
 ORDER BY failed_at DESC, id DESC LIMIT :most;

-- name: last_fires
-- The last tick of every schedule, with its event while that is retained: three seeks each.
WITH RECURSIVE s(key) AS (
    SELECT MIN(schedule_key) FROM schedule_fires WHERE namespace = :namespace
    UNION ALL
    SELECT (SELECT MIN(f.schedule_key) FROM schedule_fires f
             WHERE f.namespace = :namespace AND f.schedule_key > s.key)
      FROM s WHERE s.key IS NOT NULL),
last AS MATERIALIZED (
    SELECT s.key,
           (SELECT MAX(l.tick) FROM schedule_fires l
             WHERE l.namespace = :namespace AND l.schedule_key = s.key) AS tick,
           (SELECT l.event_id FROM schedule_fires l
             WHERE l.namespace = :namespace AND l.schedule_key = s.key
             ORDER BY l.tick DESC LIMIT 1) AS event_id
      FROM s WHERE s.key IS NOT NULL)
SELECT last.key, last.tick, e.type, e.source, @bytes(e.payload)
  FROM last LEFT JOIN events e ON e.id = last.event_id;

-- name: longest_attempt
-- Of the attempts that have begun and hold their lease, the one that began first.
SELECT k.event_id, e.type, k.handler_id, k.session_id, k.started_at
  FROM consumers c
 @join event_claims k ON k.consumer_id = c.id AND k.due_at IS NOT NULL
 @join events e ON e.id = k.event_id
 WHERE c.namespace = :namespace AND k.lease_token IS NOT NULL AND k.lease_until > :now
   AND k.started_at IS NOT NULL AND k.read_commit IS NOT NULL
 ORDER BY k.started_at, k.event_id LIMIT 1;
