-- name: journal_entry
SELECT id, topic, source, @bytes(payload), correlation_id, status, created_at, processed_at,
       error, event_id
  FROM event_journal WHERE namespace = :namespace AND id = :id;

-- name: journal
-- The last entries of those that are asked for, the newest first; NULLs ask for any.
SELECT id, topic, source, @bytes(payload), correlation_id, status, created_at, processed_at,
       error, event_id
  FROM event_journal
 WHERE namespace = :namespace AND (CAST(:topic AS TEXT) IS NULL OR topic = :topic)
   AND (CAST(:status AS TEXT) IS NULL OR status = :status)
   AND (CAST(:correlation_id AS TEXT) IS NULL OR correlation_id = :correlation_id)
 ORDER BY id DESC LIMIT :limit;

-- name: list_deferred
-- Deferred events by the time they are due; NULLs ask for any.
SELECT id, topic, source, @bytes(payload), correlation_id, fire_at, status, created_at, fired_at
  FROM deferred_events
 WHERE namespace = :namespace AND (CAST(:status AS TEXT) IS NULL OR status = :status)
   AND (CAST(:until AS DOUBLE PRECISION) IS NULL OR fire_at <= :until)
 ORDER BY fire_at, id LIMIT :limit;

-- name: deferred_number
-- The number of an event that waits for its time; looks through those that do.
SELECT id FROM deferred_events
 WHERE status = 'scheduled' AND namespace = :namespace AND event_id = :event_id
   AND topic = :topic;

-- name: lease_holders
-- The sessions that hold claims of a consumer, with what is known of them.
SELECT DISTINCT k.session_id, s.last_heartbeat, s.metadata
  FROM event_claims k LEFT JOIN sessions s ON s.session_id = k.session_id
 WHERE k.consumer_id = :consumer_id AND k.due_at IS NOT NULL AND k.lease_token IS NOT NULL;

-- name: end_leases
-- What these sessions hold of a consumer comes due now; for each whether it was started.
UPDATE event_claims SET lease_until = :now, due_at = :now
 WHERE consumer_id = :consumer_id AND due_at IS NOT NULL AND lease_token IS NOT NULL
   AND session_id IN @texts(:sessions)
RETURNING read_commit IS NOT NULL;
