-- The questions of `store/doctor.py`: rows of where and how many, then names for the
-- remedy, and none on a sound store. Then what mends.

-- name: damage
-- What the database itself finds wrong.
@own;

-- name: orphans
-- History without its commit: the only foreign keys there are.
SELECT 'entity_history ' || h.entity_type, COUNT(*) FROM entity_history h
 WHERE NOT EXISTS (SELECT 1 FROM commits c WHERE c.id = h.commit_id) GROUP BY h.entity_type
UNION ALL
SELECT 'relation_history ' || h.relation_type, COUNT(*) FROM relation_history h
 WHERE NOT EXISTS (SELECT 1 FROM commits c WHERE c.id = h.commit_id) GROUP BY h.relation_type;

-- name: commit_gaps
SELECT 'after commit ' || MIN(before), SUM(id - before - 1)
  FROM (SELECT id, COALESCE(LAG(id) OVER (ORDER BY id), 0) AS before FROM commits) c
 WHERE id > before + 1 HAVING COUNT(*) > 0;

-- name: duplicates
SELECT 'entity_history ' || entity_type, COUNT(*)
  FROM (SELECT entity_type FROM entity_history
         GROUP BY entity_type, entity_key, commit_id HAVING COUNT(*) > 1) d
 GROUP BY entity_type
UNION ALL
SELECT 'relation_history ' || relation_type, COUNT(*)
  FROM (SELECT relation_type FROM relation_history
         GROUP BY relation_type, left_key, right_key, instance_key, commit_id HAVING COUNT(*) > 1) d
 GROUP BY relation_type;

-- name: entity_latest
-- Current versions that are missing, of another commit, or other than the history says, and those
-- that the history does not have.
@own;

-- name: relation_latest
@own;

-- name: unknown_versions
-- History written under a version of its type that is not registered.
SELECT 'entity ' || h.entity_type || ' version ' || h.schema_version_id, COUNT(*)
  FROM entity_history h
 WHERE h.schema_version_id IS NOT NULL
   AND NOT EXISTS (SELECT 1 FROM schema_versions v
                    WHERE v.type_kind = 'entity' AND v.type_name = h.entity_type
                      AND v.schema_version_id = h.schema_version_id)
 GROUP BY h.entity_type, h.schema_version_id
UNION ALL
SELECT 'relation ' || h.relation_type || ' version ' || h.schema_version_id, COUNT(*)
  FROM relation_history h
 WHERE h.schema_version_id IS NOT NULL
   AND NOT EXISTS (SELECT 1 FROM schema_versions v
                    WHERE v.type_kind = 'relation' AND v.type_name = h.relation_type
                      AND v.schema_version_id = h.schema_version_id)
 GROUP BY h.relation_type, h.schema_version_id;

-- name: version_gaps
SELECT type_kind || ' ' || type_name, MAX(schema_version_id) - COUNT(*) FROM schema_versions
 GROUP BY type_kind, type_name HAVING MAX(schema_version_id) > COUNT(*);

-- name: registry
-- The current schema of a type is its newest version.
SELECT r.type_kind || ' ' || r.type_name, 1 FROM schema_registry r
 WHERE r.schema_json IS DISTINCT FROM
       (SELECT v.schema_json FROM schema_versions v
         WHERE v.type_kind = r.type_kind AND v.type_name = r.type_name
         ORDER BY v.schema_version_id DESC LIMIT 1);

-- name: stalled_migration
-- How many objects are left to it.
SELECT 'begun at ' || started_at || ' by ' || holder,
       CASE WHEN commit_id IS NULL THEN objects - staged ELSE staged END
  FROM pending_migration WHERE expires_at <= :now;

-- name: running_migration
SELECT 'begun at ' || started_at || ' by ' || holder,
       CASE WHEN commit_id IS NULL THEN objects - staged ELSE staged END
  FROM pending_migration WHERE expires_at > :now;

-- name: old_versions
-- Current objects of an older version than the current one of their type. Those of before
-- compatible changes alone are as they should be; so are those of before the type was opened by a
-- version of Ontologia that did not write down what new fields are in older objects.
SELECT l.kind || ' ' || l.name, CAST(SUM(l.n) AS BIGINT)
  FROM (SELECT kind, name, version, COUNT(*) AS n FROM (
            SELECT 'entity' AS kind, entity_type AS name,
                   COALESCE(schema_version_id, 1) AS version FROM entity_current
            UNION ALL
            SELECT 'relation', relation_type,
                   COALESCE(schema_version_id, 1) FROM relation_current) o
         GROUP BY kind, name, version) l
  JOIN (SELECT type_kind, type_name, MAX(schema_version_id) AS newest
          FROM schema_versions GROUP BY type_kind, type_name) v
    ON v.type_kind = l.kind AND v.type_name = l.name
 WHERE l.version < v.newest
   AND EXISTS (
       SELECT 1 FROM schema_versions step
        WHERE step.type_kind = l.kind AND step.type_name = l.name
          AND step.schema_version_id > l.version AND step.fills_json IS NULL)
   AND NOT EXISTS (
       SELECT 1 FROM schema_versions was
         JOIN schema_versions now
           ON now.type_kind = was.type_kind AND now.type_name = was.type_name
        WHERE was.type_kind = l.kind AND was.type_name = l.name
          AND was.schema_version_id = l.version AND now.schema_version_id = v.newest
          AND was.schema_json <> now.schema_json
          AND was.schema_json = replace(now.schema_json, '"open":true,', ''))
 GROUP BY l.kind, l.name;

-- name: expired_locks
SELECT lock_name || ' of ' || owner_id, 1 FROM locks WHERE expires_at <= :now;

-- name: dead_sessions
SELECT namespace, COUNT(*) FROM sessions
 WHERE last_heartbeat < :silent_since AND @json(metadata) ->> 'stopped_at' IS NULL
 GROUP BY namespace;

-- name: unconsumed
SELECT e.namespace || ' ' || e.type, COUNT(*), e.namespace, e.type FROM events e
 WHERE e.type <> :collected
   AND NOT EXISTS (SELECT 1 FROM subscriptions s
                    WHERE s.namespace = e.namespace AND s.type IN (e.type, '*'))
 GROUP BY e.namespace, e.type;

-- name: unclaimed_types
-- What is ready for a consumer that live sessions run, and none of them with a handler for the type.
-- A subscription outlives the handler that made it.
@own;

-- name: dead_letters
SELECT namespace || ' ' || handler_id, COUNT(*), namespace FROM dead_letters
 GROUP BY namespace, handler_id ORDER BY namespace, handler_id;

-- name: overdue
-- Attempts that began, did not end while they had their lease, and were not claimed again.
SELECT c.namespace || ' ' || c.name, COUNT(*) FROM consumers c
 @join event_claims k ON k.consumer_id = c.id AND k.due_at <= :now
   AND k.read_commit IS NOT NULL AND k.lease_token IS NOT NULL
 GROUP BY c.namespace, c.name ORDER BY c.namespace, c.name;

-- name: abandoned_threads
SELECT namespace || ' session ' || session_id,
       CAST(@json(metadata) ->> 'abandoned_threads' AS BIGINT) FROM sessions
 WHERE last_heartbeat >= :silent_since AND @json(metadata) ->> 'stopped_at' IS NULL
   AND CAST(@json(metadata) ->> 'abandoned_threads' AS BIGINT) > 0;

-- name: unseen_consumers
-- Consumers that no session has run for as long as events are kept, with what waits for them.
SELECT c.namespace || ' ' || c.name,
       (SELECT COUNT(*) FROM ready r WHERE r.consumer_id = c.id)
  FROM consumers c WHERE c.last_seen_at < :long_ago;

-- name: without_consumer
SELECT 'subscriptions', COUNT(*) FROM subscriptions
 WHERE NOT EXISTS (SELECT 1 FROM consumers c WHERE c.id = consumer_id) HAVING COUNT(*) > 0
UNION ALL
SELECT 'ready', COUNT(*) FROM ready
 WHERE NOT EXISTS (SELECT 1 FROM consumers c WHERE c.id = consumer_id) HAVING COUNT(*) > 0
UNION ALL
SELECT 'event_claims', COUNT(*) FROM event_claims
 WHERE ack_at IS NULL AND dead_lettered_at IS NULL
   AND NOT EXISTS (SELECT 1 FROM consumers c WHERE c.id = consumer_id) HAVING COUNT(*) > 0;

-- name: without_event
@own;

-- name: begin_repair
-- No other transaction moves an event until the end of the transaction.
@own;

-- name: mend_locks
DELETE FROM locks WHERE expires_at <= :now;

-- name: mend_sessions
DELETE FROM sessions WHERE last_heartbeat < :long_ago;

-- name: mend_subscriptions
DELETE FROM subscriptions
 WHERE NOT EXISTS (SELECT 1 FROM consumers c WHERE c.id = consumer_id);

-- name: mend_attempts
DELETE FROM attempts WHERE NOT EXISTS (SELECT 1 FROM events e WHERE e.id = event_id);

-- name: mend_restored
DELETE FROM restored WHERE NOT EXISTS (SELECT 1 FROM events e WHERE e.id = event_id);

-- name: mend_dedup
@own;

-- name: mend_claims
-- Claims of events that are gone, and open ones of consumers that are: a consumer that registers
-- under that name gets the event again.
DELETE FROM event_claims
 WHERE NOT EXISTS (SELECT 1 FROM events e WHERE e.id = event_id)
    OR (ack_at IS NULL AND dead_lettered_at IS NULL
        AND NOT EXISTS (SELECT 1 FROM consumers c WHERE c.id = consumer_id));

-- name: mend_letters
-- Dead letters have no index by event, so they are read once.
DELETE FROM dead_letters WHERE id IN (
    SELECT d.id FROM (SELECT id, ROW_NUMBER() OVER (PARTITION BY event_id, handler_id ORDER BY id)
                                 AS place FROM dead_letters) d
     WHERE d.place > 1);

-- name: mend_endings
-- What has a dead letter was dead-lettered; without one it was acknowledged.
UPDATE event_claims
   SET ack_at = CASE WHEN (event_id, handler_id) IN (SELECT event_id, handler_id FROM dead_letters)
                     THEN NULL ELSE ack_at END,
       dead_lettered_at = CASE WHEN (event_id, handler_id) IN
                                    (SELECT event_id, handler_id FROM dead_letters)
                               THEN dead_lettered_at END
 WHERE ack_at IS NOT NULL AND dead_lettered_at IS NOT NULL;

-- name: mend_counts
-- Attempts of before an operator's retry, which are numbered 0 and down, do not count.
UPDATE event_claims
   SET attempts = (SELECT COUNT(*) FROM attempts a WHERE a.event_id = event_claims.event_id
                      AND a.handler_id = event_claims.handler_id AND a.attempt > 0)
 WHERE attempts < (SELECT COUNT(*) FROM attempts a WHERE a.event_id = event_claims.event_id
                      AND a.handler_id = event_claims.handler_id AND a.attempt > 0);

-- name: mend_starts
UPDATE event_claims
   SET read_commit = COALESCE(read_commit, 0), started_at = COALESCE(started_at, claimed_at)
 WHERE (read_commit IS NULL) <> (started_at IS NULL);

-- name: mend_finished
UPDATE event_claims SET due_at = NULL
 WHERE due_at IS NOT NULL AND (ack_at IS NOT NULL OR dead_lettered_at IS NOT NULL);

-- name: mend_due
UPDATE event_claims
   SET due_at = CASE WHEN lease_until > available_at THEN lease_until ELSE available_at END
 WHERE due_at <> CASE WHEN lease_until > available_at THEN lease_until ELSE available_at END;

-- name: mend_incoming
-- An event is dispatched to all its consumers at once: what anybody has is not incoming.
DELETE FROM incoming
 WHERE NOT EXISTS (SELECT 1 FROM events e WHERE e.id = event_id)
    OR event_id IN (SELECT event_id FROM ready)
    OR EXISTS (SELECT 1 FROM event_claims k WHERE k.event_id = incoming.event_id)
    OR EXISTS (SELECT 1 FROM incoming i
                WHERE i.event_id = incoming.event_id AND i.seq < incoming.seq);

-- name: mend_ready_gone
-- A row that is not as its event is, or whose event is claimed or finished.
DELETE FROM ready
 WHERE NOT EXISTS (SELECT 1 FROM events e
                    WHERE e.id = ready.event_id AND e.priority = ready.priority
                      AND e.created_at = ready.created_at AND e.type = ready.type)
    OR NOT EXISTS (SELECT 1 FROM consumers c WHERE c.id = ready.consumer_id)
    OR EXISTS (SELECT 1 FROM consumers c JOIN event_claims k ON k.handler_id = c.name
                WHERE c.id = ready.consumer_id AND k.event_id = ready.event_id
                  AND (k.due_at IS NOT NULL OR k.ack_at IS NOT NULL
                       OR k.dead_lettered_at IS NOT NULL));

-- name: mend_waiting
-- An open claim that is in no place waits for the end of its lease or backoff.
UPDATE event_claims
   SET due_at = CASE WHEN lease_until > available_at THEN lease_until ELSE available_at END
 WHERE due_at IS NULL AND ack_at IS NULL AND dead_lettered_at IS NULL
   AND NOT EXISTS (SELECT 1 FROM ready r JOIN events e ON e.id = event_claims.event_id
                    WHERE r.consumer_id = event_claims.consumer_id AND r.priority = e.priority
                      AND r.created_at = e.created_at AND r.event_id = e.id);

-- name: mend_ready
@own;
