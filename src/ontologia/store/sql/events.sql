-- name: insert_dedup
-- Not DO NOTHING: an update that never happens still locks the row that is in the way, so that
-- nobody can delete it before `get_dedup` has read whose it is.
INSERT INTO dedup AS d (namespace, type, key, event_id)
VALUES (:namespace, :type, :key, :event_id)
    ON CONFLICT (namespace, type, key) DO UPDATE SET key = d.key WHERE false;

-- name: get_dedup
SELECT event_id FROM dedup WHERE namespace = :namespace AND type = :type AND key = :key;

-- name: get_event
SELECT id, namespace, type, @bytes(payload), created_at, priority, root_event_id,
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
-- What to announce now, the earliest first. Runs under the dispatch lock, so nobody else announces
-- them; one that somebody is cancelling at this moment is locked, and left alone.
SELECT id, event_id, namespace, topic, payload, priority, root_event_id, chain_depth, source,
       correlation_id, causation_id, tenant_id, dedup_key, occurred_at
  FROM deferred_events WHERE status = 'scheduled' AND fire_at <= :now
 ORDER BY fire_at, id LIMIT 1000
   @lock(FOR UPDATE SKIP LOCKED);

-- name: mark_fired
UPDATE deferred_events SET status = 'fired', fired_at = :now
 WHERE id IN @numbers(:ids);

-- name: cancel_deferred
UPDATE deferred_events SET status = 'cancelled'
 WHERE id = :id AND namespace = :namespace AND status = 'scheduled'
   AND (CAST(:source AS TEXT) IS NULL OR source = :source)
RETURNING event_id, topic, dedup_key;

-- name: delete_dedup
DELETE FROM dedup
 WHERE namespace = :namespace AND type = :type AND key = :key AND event_id = :event_id;

-- name: insert_fire
INSERT INTO schedule_fires(namespace, schedule_key, tick, event_id)
VALUES (:namespace, :schedule_key, :tick, :event_id) ON CONFLICT DO NOTHING;

-- name: taken_ids
-- Which of these ids events have already.
SELECT id FROM events WHERE id IN @texts(:ids);
