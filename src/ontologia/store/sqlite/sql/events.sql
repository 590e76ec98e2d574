-- name: insert_event
INSERT INTO events(id, namespace, type, payload, created_at, priority, root_event_id, chain_depth,
                   source, correlation_id, causation_id, tenant_id, dedup_key, occurred_at)
VALUES (:id, :namespace, :type, :payload, :created_at, :priority, :root_event_id, :chain_depth,
        :source, :correlation_id, :causation_id, :tenant_id, :dedup_key, :occurred_at);

-- name: insert_incoming
-- The last :count events, which this transaction has just stored: nobody else writes meanwhile.
INSERT INTO incoming(event_id)
SELECT id FROM events WHERE seq > (SELECT MAX(seq) FROM events) - :count ORDER BY seq;
