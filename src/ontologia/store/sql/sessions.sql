-- name: register_session
INSERT INTO sessions(session_id, namespace, started_at, last_heartbeat, metadata)
VALUES (:session_id, :namespace, :now, :now, :metadata)
    ON CONFLICT (session_id) DO UPDATE SET
       namespace = excluded.namespace, metadata = excluded.metadata,
       last_heartbeat = excluded.last_heartbeat;

-- name: end_session
@own;

-- name: heartbeat
UPDATE sessions SET last_heartbeat = :now WHERE session_id = :session_id;
