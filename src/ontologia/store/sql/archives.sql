-- name: events_to_archive
SELECT id, namespace, type, @bytes(payload), created_at, priority, root_event_id,
       chain_depth, source, correlation_id, causation_id, tenant_id, dedup_key, occurred_at
  FROM events WHERE id IN @texts(:ids) ORDER BY id;

-- name: attempts_to_archive
SELECT event_id, handler_id, attempt, started_at, ended_at, read_commit, outcome, error, traceback
  FROM attempts WHERE event_id IN @texts(:ids)
 ORDER BY event_id, handler_id, attempt;

-- name: letters_of
-- The dead letters of these events. There is no index by event: they are found by when they died.
SELECT event_id, handler_id, failed_at, attempts, last_error FROM dead_letters
 WHERE namespace = :namespace AND failed_at IN @texts(:times) AND event_id IN @texts(:ids)
 ORDER BY id;

-- name: note_archive
INSERT INTO archives AS a (namespace, uri, archived_before) VALUES (:namespace, :uri, :before)
    ON CONFLICT (namespace, uri) DO UPDATE SET archived_before = excluded.archived_before
 WHERE a.archived_before < excluded.archived_before;

-- name: archives_after
-- Where events of a namespace from this time may have been moved to; a time that is NULL asks for any.
SELECT uri, archived_before FROM archives
 WHERE namespace = :namespace AND (CAST(:time AS TEXT) IS NULL OR archived_before > :time)
 ORDER BY uri;

-- name: restore_event
-- Not into `incoming`: who is to get it is said by its claims and `ready_restored`.
INSERT INTO events(id, namespace, type, payload, created_at, priority, root_event_id, chain_depth,
                   source, correlation_id, causation_id, tenant_id, dedup_key, occurred_at)
VALUES (:id, :namespace, :type, :payload, :created_at, :priority, :root_event_id, :chain_depth,
        :source, :correlation_id, :causation_id, :tenant_id, :dedup_key, :occurred_at);

-- name: restore_dedup
INSERT INTO dedup(namespace, type, key, event_id) VALUES (:namespace, :type, :key, :event_id)
    ON CONFLICT DO NOTHING;

-- name: restore_claim
INSERT INTO event_claims(event_id, handler_id, session_id, attempts, last_error, claimed_at,
                         started_at, lease_until, available_at, ack_at, dead_lettered_at,
                         read_commit, lease_token, conflicts, consumer_id)
VALUES (:event_id, :handler_id, :session_id, :attempts, :last_error, :claimed_at, :started_at,
        :lease_until, :available_at, :ack_at, :dead_lettered_at, :read_commit, :lease_token,
        :conflicts, :consumer_id);

-- name: restore_attempt
INSERT INTO attempts(event_id, handler_id, attempt, started_at, ended_at, read_commit, outcome,
                     error, traceback)
VALUES (:event_id, :handler_id, :attempt, :started_at, :ended_at, :read_commit, :outcome, :error,
        :traceback);

-- name: note_restored
INSERT INTO restored(event_id, restored_at) VALUES (:event_id, :now);

-- name: subscribers_of
-- The consumers of these types, or of all, with the type that each is subscribed to.
SELECT c.name, s.type FROM subscriptions s JOIN consumers c ON c.id = s.consumer_id
 WHERE s.namespace = :namespace AND (s.type = '*' OR s.type IN @texts(:types));

-- name: numbers_of_consumers
SELECT name, id FROM consumers WHERE namespace = :namespace AND name IN @texts(:names);

-- name: ready_restored
-- What was restored becomes ready for the consumers that have not finished it.
INSERT INTO ready(consumer_id, priority, created_at, event_id, type)
SELECT DISTINCT s.consumer_id, e.priority, e.created_at, e.id, e.type
  FROM events e
  JOIN subscriptions s ON s.namespace = e.namespace AND s.type IN (e.type, '*')
  JOIN consumers c ON c.id = s.consumer_id
 WHERE e.id IN @texts(:ids)
   AND NOT EXISTS (SELECT 1 FROM event_claims k
                    WHERE k.event_id = e.id AND k.handler_id = c.name
                      AND (k.ack_at IS NOT NULL OR k.dead_lettered_at IS NOT NULL))
    ON CONFLICT DO NOTHING;
