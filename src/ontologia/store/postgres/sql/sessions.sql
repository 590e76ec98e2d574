-- name: register_session
INSERT INTO ontologia.sessions(session_id, namespace, started_at, last_heartbeat, metadata)
VALUES (%(session_id)s, %(namespace)s, %(now)s, %(now)s, %(metadata)s)
    ON CONFLICT (session_id) DO UPDATE SET
       namespace = excluded.namespace, metadata = excluded.metadata,
       last_heartbeat = excluded.last_heartbeat;

-- name: end_session
UPDATE ontologia.sessions
   SET last_heartbeat = %(now)s,
       metadata = jsonb_set(metadata::jsonb, '{stopped_at}', to_jsonb(%(now)s::text))::text
 WHERE session_id = %(session_id)s;

-- name: heartbeat
UPDATE ontologia.sessions SET last_heartbeat = %(now)s WHERE session_id = %(session_id)s;
