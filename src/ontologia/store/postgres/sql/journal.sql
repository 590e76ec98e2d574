-- name: journal_entry
SELECT id, topic, source, payload, correlation_id, status, created_at, processed_at,
       error, event_id
  FROM ontologia.event_journal WHERE namespace = %(namespace)s AND id = %(id)s;

-- name: journal
-- The last entries of those that are asked for, the newest first; NULLs ask for any.
SELECT id, topic, source, payload, correlation_id, status, created_at, processed_at,
       error, event_id
  FROM ontologia.event_journal
 WHERE namespace = %(namespace)s AND (%(topic)s::text IS NULL OR topic = %(topic)s)
   AND (%(status)s::text IS NULL OR status = %(status)s)
   AND (%(correlation_id)s::text IS NULL OR correlation_id = %(correlation_id)s)
 ORDER BY id DESC LIMIT %(limit)s;

-- name: list_deferred
-- Deferred events by the time they are due; NULLs ask for any.
SELECT id, topic, source, payload, correlation_id, fire_at, status, created_at,
       fired_at
  FROM ontologia.deferred_events
 WHERE namespace = %(namespace)s AND (%(status)s::text IS NULL OR status = %(status)s)
   AND (%(until)s::double precision IS NULL OR fire_at <= %(until)s)
 ORDER BY fire_at, id LIMIT %(limit)s;

-- name: deferred_number
-- The number of an event that waits for its time; looks through those that do.
SELECT id FROM ontologia.deferred_events
 WHERE status = 'scheduled' AND namespace = %(namespace)s AND event_id = %(event_id)s
   AND topic = %(topic)s;

-- name: lease_holders
-- The sessions that hold claims of a consumer, with what is known of them.
SELECT DISTINCT k.session_id, s.last_heartbeat, s.metadata
  FROM ontologia.event_claims k LEFT JOIN ontologia.sessions s ON s.session_id = k.session_id
 WHERE k.consumer_id = %(consumer_id)s AND k.due_at IS NOT NULL AND k.lease_token IS NOT NULL;

-- name: end_leases
-- What these sessions hold of a consumer comes due now; for each whether it was started.
UPDATE ontologia.event_claims SET lease_until = %(now)s, due_at = %(now)s
 WHERE consumer_id = %(consumer_id)s AND due_at IS NOT NULL AND lease_token IS NOT NULL
   AND session_id IN (SELECT jsonb_array_elements_text(%(sessions)s::jsonb))
RETURNING read_commit IS NOT NULL;
