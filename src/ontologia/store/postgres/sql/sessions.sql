-- name: end_session
UPDATE sessions
   SET last_heartbeat = :now,
       metadata = jsonb_set(metadata::jsonb, '{stopped_at}', to_jsonb(:now::text))::text
 WHERE session_id = :session_id;
