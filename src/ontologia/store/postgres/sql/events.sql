-- name: insert_event
-- The event, and that it is to be handed out.
WITH added AS (
    INSERT INTO events(id, namespace, type, payload, created_at, priority, root_event_id,
                       chain_depth, source, correlation_id, causation_id, tenant_id, dedup_key,
                       occurred_at)
    VALUES (:id, :namespace, :type, :payload, :created_at, :priority, :root_event_id,
            :chain_depth, :source, :correlation_id, :causation_id, :tenant_id, :dedup_key,
            :occurred_at)
    RETURNING id)
INSERT INTO incoming(event_id) SELECT id FROM added;

-- name: insert_events
-- Many events by one statement: a list of the ids, one of the namespaces, and so on.
WITH added AS (
    INSERT INTO events(id, namespace, type, payload, created_at, priority, root_event_id,
                       chain_depth, source, correlation_id, causation_id, tenant_id, dedup_key,
                       occurred_at)
    SELECT * FROM unnest(:ids::text[], :namespaces::text[], :types::text[], :payloads::text[],
                         :times::text[], :priorities::bigint[], :roots::text[], :depths::bigint[],
                         :sources::text[], :correlations::text[], :causations::text[],
                         :tenants::text[], :keys::text[], :occurrences::text[])
    RETURNING id)
INSERT INTO incoming(event_id) SELECT id FROM added;

-- name: append_event
-- The same, and nothing if the event is there: it can be sent again when its answer was lost. One
-- that is being written is waited for.
WITH added AS (
    INSERT INTO events(id, namespace, type, payload, created_at, priority, root_event_id,
                       chain_depth, source, correlation_id, causation_id, tenant_id, dedup_key,
                       occurred_at)
    VALUES (:id, :namespace, :type, :payload, :created_at, :priority, :root_event_id,
            :chain_depth, :source, :correlation_id, :causation_id, :tenant_id, :dedup_key,
            :occurred_at)
    ON CONFLICT (id) DO NOTHING
    RETURNING id)
INSERT INTO incoming(event_id) SELECT id FROM added;

-- name: append_events
WITH added AS (
    INSERT INTO events(id, namespace, type, payload, created_at, priority, root_event_id,
                       chain_depth, source, correlation_id, causation_id, tenant_id, dedup_key,
                       occurred_at)
    SELECT * FROM unnest(:ids::text[], :namespaces::text[], :types::text[], :payloads::text[],
                         :times::text[], :priorities::bigint[], :roots::text[], :depths::bigint[],
                         :sources::text[], :correlations::text[], :causations::text[],
                         :tenants::text[], :keys::text[], :occurrences::text[])
    ON CONFLICT (id) DO NOTHING
    RETURNING id)
INSERT INTO incoming(event_id) SELECT id FROM added;

-- name: has_event
SELECT 1 FROM events WHERE id = :id;

-- name: has_deferred
SELECT 1 FROM deferred_events WHERE event_id = :event_id;
