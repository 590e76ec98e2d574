-- name: end_session
UPDATE sessions SET last_heartbeat = :now, metadata = json_set(metadata, '$.stopped_at', :now)
 WHERE session_id = :session_id;
