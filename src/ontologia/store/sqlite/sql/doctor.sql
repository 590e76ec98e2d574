-- The questions of `store/doctor.py`: rows of where and how many, then names for the
-- remedy, and none on a sound store. Then what mends.

-- name: damage
-- What SQLite itself finds wrong with the file.
SELECT quick_check, 1 FROM pragma_quick_check WHERE quick_check <> 'ok';

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
-- Current versions that are missing, of another commit, or other than the history says; then those
-- that the history does not have. Bytes that are no JSONB must not end the question.
SELECT 'entity_latest ' || type, COUNT(*) FROM (
    SELECT h.entity_type AS type
      FROM (SELECT entity_type, entity_key, commit_id, schema_version_id, fields_json, MAX(id)
              FROM entity_history GROUP BY entity_type, entity_key) h
      LEFT JOIN entity_latest l ON l.entity_type = h.entity_type AND l.entity_key = h.entity_key
     WHERE h.fields_json <> 'null'
       AND (l.commit_id IS NOT h.commit_id OR l.schema_version_id IS NOT h.schema_version_id
            OR CASE WHEN json_valid(l.fields, 8) THEN json(l.fields) END
               IS NOT canonical(h.fields_json))
    UNION ALL
    SELECT l.entity_type FROM entity_latest l
     WHERE COALESCE((SELECT h.fields_json FROM entity_history h
                      WHERE h.entity_type = l.entity_type AND h.entity_key = l.entity_key
                      ORDER BY h.commit_id DESC, h.id DESC LIMIT 1), 'null') = 'null') d
 GROUP BY type;

-- name: relation_latest
SELECT 'relation_latest ' || type, COUNT(*) FROM (
    SELECT h.relation_type AS type
      FROM (SELECT relation_type, left_key, right_key, instance_key, commit_id, schema_version_id,
                   fields_json, MAX(id)
              FROM relation_history
             GROUP BY relation_type, left_key, right_key, instance_key) h
      LEFT JOIN relation_latest l
        ON l.relation_type = h.relation_type AND l.left_key = h.left_key
       AND l.right_key = h.right_key AND l.instance_key = h.instance_key
     WHERE h.fields_json <> 'null'
       AND (l.commit_id IS NOT h.commit_id OR l.schema_version_id IS NOT h.schema_version_id
            OR CASE WHEN json_valid(l.fields, 8) THEN json(l.fields) END
               IS NOT canonical(h.fields_json))
    UNION ALL
    SELECT l.relation_type FROM relation_latest l
     WHERE COALESCE((SELECT h.fields_json FROM relation_history h
                      WHERE h.relation_type = l.relation_type AND h.left_key = l.left_key
                        AND h.right_key = l.right_key AND h.instance_key = l.instance_key
                      ORDER BY h.commit_id DESC, h.id DESC LIMIT 1), 'null') = 'null') d
 GROUP BY type;

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
 WHERE r.schema_json IS NOT
       (SELECT v.schema_json FROM schema_versions v
         WHERE v.type_kind = r.type_kind AND v.type_name = r.type_name
         ORDER BY v.schema_version_id DESC LIMIT 1);

-- name: old_versions
-- Current objects of an older version than the current one of their type. Those of before the type
-- was opened, and was left as it is otherwise, are as they should be.
SELECT l.kind || ' ' || l.name, SUM(l.n)
  FROM (SELECT kind, name, version, COUNT(*) AS n FROM (
            SELECT 'entity' AS kind, entity_type AS name,
                   COALESCE(schema_version_id, 1) AS version FROM entity_latest
            UNION ALL
            SELECT 'relation', relation_type,
                   COALESCE(schema_version_id, 1) FROM relation_latest) o
         GROUP BY kind, name, version) l
  JOIN (SELECT type_kind, type_name, MAX(schema_version_id) AS newest
          FROM schema_versions GROUP BY type_kind, type_name) v
    ON v.type_kind = l.kind AND v.type_name = l.name
 WHERE l.version < v.newest
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
 WHERE last_heartbeat < :silent_since AND json_extract(metadata, '$.stopped_at') IS NULL
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
WITH running AS (
    SELECT s.namespace, h.value AS name, s.metadata FROM sessions s
     CROSS JOIN json_each(s.metadata, '$.consumers') h
     WHERE s.last_heartbeat >= :silent_since AND json_extract(s.metadata, '$.stopped_at') IS NULL
       AND json_type(s.metadata, '$.event_types') = 'array')
SELECT c.namespace || ' ' || r.type || ' of ' || c.name, COUNT(*), c.namespace, r.type
  FROM consumers c JOIN ready r ON r.consumer_id = c.id
 WHERE EXISTS (SELECT 1 FROM running n WHERE n.namespace = c.namespace AND n.name = c.name)
   AND NOT EXISTS (
       SELECT 1 FROM running n CROSS JOIN json_each(n.metadata, '$.event_types') t
        WHERE n.namespace = c.namespace AND n.name = c.name AND t.value = r.type)
 GROUP BY c.namespace, r.type, c.name ORDER BY c.namespace, r.type, c.name;

-- name: dead_letters
SELECT namespace || ' ' || handler_id, COUNT(*), namespace FROM dead_letters
 GROUP BY namespace, handler_id ORDER BY namespace, handler_id;

-- name: unseen_consumers
-- Consumers that nobody has run for as long as events are kept, with what waits for them.
SELECT c.namespace || ' ' || c.name,
       (SELECT COUNT(*) FROM ready r WHERE r.consumer_id = c.id)
  FROM consumers c WHERE c.last_seen_at < :long_ago;

-- name: without_consumer
SELECT 'subscriptions', COUNT(*) FROM subscriptions
 WHERE consumer_id NOT IN (SELECT id FROM consumers) HAVING COUNT(*) > 0
UNION ALL
SELECT 'ready', COUNT(*) FROM ready
 WHERE consumer_id NOT IN (SELECT id FROM consumers) HAVING COUNT(*) > 0
UNION ALL
SELECT 'event_claims', COUNT(*) FROM event_claims
 WHERE ack_at IS NULL AND dead_lettered_at IS NULL
   AND consumer_id NOT IN (SELECT id FROM consumers) HAVING COUNT(*) > 0;

-- name: without_event
SELECT 'attempts', COUNT(*) FROM attempts
 WHERE event_id NOT IN (SELECT id FROM events) HAVING COUNT(*) > 0
UNION ALL
SELECT 'dedup', COUNT(*) FROM dedup
 WHERE event_id NOT IN (SELECT id FROM events)
   AND event_id NOT IN (SELECT event_id FROM deferred_events WHERE status = 'scheduled')
HAVING COUNT(*) > 0;

-- name: lock_tables
-- SQLite has one writer.
SELECT 1;

-- name: mend_locks
DELETE FROM locks WHERE expires_at <= :now;

-- name: mend_sessions
DELETE FROM sessions WHERE last_heartbeat < :long_ago;

-- name: mend_subscriptions
DELETE FROM subscriptions WHERE consumer_id NOT IN (SELECT id FROM consumers);

-- name: mend_attempts
DELETE FROM attempts WHERE event_id NOT IN (SELECT id FROM events);

-- name: mend_dedup
DELETE FROM dedup WHERE event_id NOT IN (SELECT id FROM events)
   AND event_id NOT IN (SELECT event_id FROM deferred_events WHERE status = 'scheduled');

-- name: mend_claims
-- Claims of events that are gone, and open ones of consumers that are: whoever registers under
-- that name gets the event again.
DELETE FROM event_claims WHERE event_id NOT IN (SELECT id FROM events)
    OR (ack_at IS NULL AND dead_lettered_at IS NULL
        AND consumer_id NOT IN (SELECT id FROM consumers));

-- name: mend_letters
DELETE FROM dead_letters WHERE EXISTS (
    SELECT 1 FROM dead_letters d WHERE d.event_id = dead_letters.event_id
       AND d.handler_id = dead_letters.handler_id AND d.id < dead_letters.id);

-- name: mend_endings
-- What has a dead letter was buried; without one it was acknowledged.
UPDATE event_claims
   SET ack_at = CASE WHEN EXISTS (SELECT 1 FROM dead_letters d
                                   WHERE d.event_id = event_claims.event_id
                                     AND d.handler_id = event_claims.handler_id)
                     THEN NULL ELSE ack_at END,
       dead_lettered_at = CASE WHEN EXISTS (
                                   SELECT 1 FROM dead_letters d
                                    WHERE d.event_id = event_claims.event_id
                                      AND d.handler_id = event_claims.handler_id)
                               THEN dead_lettered_at END
 WHERE ack_at IS NOT NULL AND dead_lettered_at IS NOT NULL;

-- name: mend_counts
UPDATE event_claims
   SET attempts = (SELECT COUNT(*) FROM attempts a WHERE a.event_id = event_claims.event_id
                      AND a.handler_id = event_claims.handler_id)
 WHERE attempts < (SELECT COUNT(*) FROM attempts a WHERE a.event_id = event_claims.event_id
                      AND a.handler_id = event_claims.handler_id);

-- name: mend_starts
UPDATE event_claims
   SET read_commit = COALESCE(read_commit, 0), started_at = COALESCE(started_at, claimed_at)
 WHERE (read_commit IS NULL) <> (started_at IS NULL);

-- name: mend_finished
UPDATE event_claims SET due_at = NULL
 WHERE due_at IS NOT NULL AND (ack_at IS NOT NULL OR dead_lettered_at IS NOT NULL);

-- name: mend_due
UPDATE event_claims SET due_at = MAX(lease_until, available_at)
 WHERE due_at <> MAX(lease_until, available_at);

-- name: mend_incoming
-- An event is handed out to all its consumers at once: what anybody has is not incoming.
DELETE FROM incoming WHERE event_id NOT IN (SELECT id FROM events)
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
UPDATE event_claims SET due_at = MAX(lease_until, available_at)
 WHERE due_at IS NULL AND ack_at IS NULL AND dead_lettered_at IS NULL
   AND NOT EXISTS (SELECT 1 FROM ready r JOIN events e ON e.id = event_claims.event_id
                    WHERE r.consumer_id = event_claims.consumer_id AND r.priority = e.priority
                      AND r.created_at = e.created_at AND r.event_id = e.id);

-- name: mend_ready
INSERT INTO ready(consumer_id, priority, created_at, event_id, type)
SELECT DISTINCT s.consumer_id, e.priority, e.created_at, e.id, e.type
  FROM events e JOIN subscriptions s ON s.namespace = e.namespace AND s.type IN (e.type, '*')
  JOIN consumers c ON c.id = s.consumer_id
 WHERE e.id NOT IN (SELECT event_id FROM incoming)
   AND NOT EXISTS (SELECT 1 FROM event_claims k WHERE k.event_id = e.id AND k.handler_id = c.name)
    ON CONFLICT DO NOTHING;
