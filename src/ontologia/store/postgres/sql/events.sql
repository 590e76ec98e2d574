-- name: insert_event
-- The event, and that it is to be handed out.
WITH added AS (
    INSERT INTO ontologia.events(id, namespace, type, payload, created_at, priority, root_event_id,
                                 chain_depth, source, correlation_id, causation_id, tenant_id,
                                 dedup_key, occurred_at)
    VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
    RETURNING id)
INSERT INTO ontologia.incoming(event_id) SELECT id FROM added;

-- name: insert_events
-- Many events by one statement: a list of the ids, one of the namespaces, and so on.
WITH added AS (
    INSERT INTO ontologia.events(id, namespace, type, payload, created_at, priority, root_event_id,
                                 chain_depth, source, correlation_id, causation_id, tenant_id,
                                 dedup_key, occurred_at)
    SELECT * FROM unnest(%s::text[], %s::text[], %s::text[], %s::text[], %s::text[], %s::bigint[],
                         %s::text[], %s::bigint[], %s::text[], %s::text[], %s::text[], %s::text[],
                         %s::text[], %s::text[])
    RETURNING id)
INSERT INTO ontologia.incoming(event_id) SELECT id FROM added;

-- name: append_event
-- The same, and nothing if the event is there: it can be sent again when its answer was lost. One
-- that is being written is waited for.
WITH added AS (
    INSERT INTO ontologia.events(id, namespace, type, payload, created_at, priority, root_event_id,
                                 chain_depth, source, correlation_id, causation_id, tenant_id,
                                 dedup_key, occurred_at)
    VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
    ON CONFLICT (id) DO NOTHING
    RETURNING id)
INSERT INTO ontologia.incoming(event_id) SELECT id FROM added;

-- name: append_events
WITH added AS (
    INSERT INTO ontologia.events(id, namespace, type, payload, created_at, priority, root_event_id,
                                 chain_depth, source, correlation_id, causation_id, tenant_id,
                                 dedup_key, occurred_at)
    SELECT * FROM unnest(%s::text[], %s::text[], %s::text[], %s::text[], %s::text[], %s::bigint[],
                         %s::text[], %s::bigint[], %s::text[], %s::text[], %s::text[], %s::text[],
                         %s::text[], %s::text[])
    ON CONFLICT (id) DO NOTHING
    RETURNING id)
INSERT INTO ontologia.incoming(event_id) SELECT id FROM added;

-- name: insert_dedup
-- Not DO NOTHING: an update that never happens still locks the row that is in the way, so that
-- nobody can delete it before `get_dedup` has read whose it is.
INSERT INTO ontologia.dedup AS d (namespace, type, key, event_id)
VALUES (%(namespace)s, %(type)s, %(key)s, %(event_id)s)
    ON CONFLICT (namespace, type, key) DO UPDATE SET key = d.key WHERE false;

-- name: get_dedup
SELECT event_id FROM ontologia.dedup
 WHERE namespace = %(namespace)s AND type = %(type)s AND key = %(key)s;

-- name: get_event
SELECT id, namespace, type, payload, created_at, priority, root_event_id, chain_depth, source,
       correlation_id, causation_id, tenant_id, dedup_key, occurred_at
  FROM ontologia.events WHERE id = %(id)s;

-- name: event_number
-- Its number in the journal.
SELECT seq FROM ontologia.events WHERE id = %(id)s;

-- name: insert_deferred
INSERT INTO ontologia.deferred_events(
    event_id, namespace, topic, source, payload, correlation_id, fire_at, created_at, priority,
    root_event_id, chain_depth, causation_id, tenant_id, dedup_key, occurred_at)
VALUES (%(event_id)s, %(namespace)s, %(topic)s, %(source)s, %(payload)s, %(correlation_id)s,
        %(fire_at)s, %(created_at)s, %(priority)s, %(root_event_id)s, %(chain_depth)s,
        %(causation_id)s, %(tenant_id)s, %(dedup_key)s, %(occurred_at)s)
RETURNING id;

-- name: has_event
SELECT 1 FROM ontologia.events WHERE id = %s;

-- name: has_deferred
SELECT 1 FROM ontologia.deferred_events WHERE event_id = %(event_id)s;

-- name: due_deferred
-- What to announce now, the earliest first. Runs under the hand-out lock, so nobody else announces
-- them; one that somebody is cancelling at this moment is locked, and left alone.
SELECT id, event_id, namespace, topic, payload, priority, root_event_id, chain_depth, source,
       correlation_id, causation_id, tenant_id, dedup_key, occurred_at
  FROM ontologia.deferred_events WHERE status = 'scheduled' AND fire_at <= %(now)s
 ORDER BY fire_at, id LIMIT 1000
   FOR UPDATE SKIP LOCKED;

-- name: mark_fired
UPDATE ontologia.deferred_events SET status = 'fired', fired_at = %(now)s
 WHERE id = ANY(ARRAY(SELECT value::bigint FROM jsonb_array_elements_text(%(ids)s::jsonb)));

-- name: cancel_deferred
UPDATE ontologia.deferred_events SET status = 'cancelled'
 WHERE id = %(id)s AND namespace = %(namespace)s AND status = 'scheduled'
   AND (%(source)s::text IS NULL OR source = %(source)s)
RETURNING event_id, topic, dedup_key;

-- name: delete_dedup
DELETE FROM ontologia.dedup
 WHERE namespace = %(namespace)s AND type = %(type)s AND key = %(key)s AND event_id = %(event_id)s;

-- name: insert_fire
INSERT INTO ontologia.schedule_fires(namespace, schedule_key, tick, event_id)
VALUES (%(namespace)s, %(schedule_key)s, %(tick)s, %(event_id)s) ON CONFLICT DO NOTHING;

-- name: taken_ids
-- Which of these ids events have already.
SELECT id FROM ontologia.events
 WHERE id = ANY(ARRAY(SELECT jsonb_array_elements_text(%(ids)s::jsonb)));
