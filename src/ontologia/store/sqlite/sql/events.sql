-- name: insert_event
INSERT INTO events(id, namespace, type, payload, created_at, priority, root_event_id, chain_depth,
                   source, correlation_id, causation_id, tenant_id, dedup_key, occurred_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: insert_incoming
INSERT INTO incoming(event_id) VALUES (?);

-- name: insert_dedup
INSERT INTO dedup(namespace, type, key, event_id) VALUES (:namespace, :type, :key, :event_id)
    ON CONFLICT DO NOTHING;

-- name: get_dedup
SELECT event_id FROM dedup WHERE namespace = :namespace AND type = :type AND key = :key;

-- name: get_event
SELECT id, namespace, type, CAST(payload AS BLOB), created_at, priority, root_event_id,
       chain_depth, source, correlation_id, causation_id, tenant_id, dedup_key, occurred_at
  FROM events WHERE id = :id;

-- name: event_number
-- Its number in the journal.
SELECT seq FROM events WHERE id = :id;

-- name: insert_deferred
INSERT INTO deferred_events(event_id, namespace, topic, source, payload, correlation_id, fire_at,
                            created_at, priority, root_event_id, chain_depth, causation_id,
                            tenant_id, dedup_key, occurred_at)
VALUES (:event_id, :namespace, :topic, :source, :payload, :correlation_id, :fire_at, :created_at,
        :priority, :root_event_id, :chain_depth, :causation_id, :tenant_id, :dedup_key,
        :occurred_at)
RETURNING id;

-- name: due_deferred
-- What to announce now, the earliest first.
SELECT id, event_id, namespace, topic, payload, priority, root_event_id, chain_depth, source,
       correlation_id, causation_id, tenant_id, dedup_key, occurred_at
  FROM deferred_events WHERE status = 'scheduled' AND fire_at <= :now ORDER BY fire_at, id LIMIT 1000;

-- name: mark_fired
UPDATE deferred_events SET status = 'fired', fired_at = :now
 WHERE id IN (SELECT value FROM json_each(:ids));

-- name: cancel_deferred
UPDATE deferred_events SET status = 'cancelled'
 WHERE id = :id AND namespace = :namespace AND status = 'scheduled'
   AND (:source IS NULL OR source = :source)
RETURNING event_id, topic, dedup_key;

-- name: delete_dedup
DELETE FROM dedup
 WHERE namespace = :namespace AND type = :type AND key = :key AND event_id = :event_id;

-- name: insert_fire
INSERT INTO schedule_fires(namespace, schedule_key, tick, event_id)
VALUES (:namespace, :schedule_key, :tick, :event_id) ON CONFLICT DO NOTHING;

-- name: taken_ids
-- Which of these ids events have already.
SELECT id FROM events WHERE id IN (SELECT value FROM json_each(:ids));
