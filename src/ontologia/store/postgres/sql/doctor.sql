-- The questions of `store/doctor.py`: rows of where and how many, then names for the
-- remedy, and none on a sound store. Then what mends.

-- name: damage
-- Foreign keys that are not enforced, and indexes that a broken-off CREATE INDEX left.
SELECT 'constraint ' || conname, 1 FROM pg_constraint
 WHERE contype = 'f' AND NOT convalidated AND connamespace = to_regnamespace('"ontologia"')
UNION ALL
SELECT 'index ' || c.relname, 1 FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
 WHERE NOT i.indisvalid AND c.relnamespace = to_regnamespace('"ontologia"');

-- name: orphans
-- History without its commit: the only foreign keys there are.
SELECT 'entity_history ' || h.entity_type, COUNT(*) FROM ontologia.entity_history h
 WHERE NOT EXISTS (SELECT 1 FROM ontologia.commits c WHERE c.id = h.commit_id)
 GROUP BY h.entity_type
UNION ALL
SELECT 'relation_history ' || h.relation_type, COUNT(*) FROM ontologia.relation_history h
 WHERE NOT EXISTS (SELECT 1 FROM ontologia.commits c WHERE c.id = h.commit_id)
 GROUP BY h.relation_type;

-- name: commit_gaps
SELECT 'after commit ' || MIN(before), SUM(id - before - 1)
  FROM (SELECT id, COALESCE(LAG(id) OVER (ORDER BY id), 0) AS before FROM ontologia.commits) c
 WHERE id > before + 1 HAVING COUNT(*) > 0;

-- name: duplicates
SELECT 'entity_history ' || entity_type, COUNT(*)
  FROM (SELECT entity_type FROM ontologia.entity_history
         GROUP BY entity_type, entity_key, commit_id HAVING COUNT(*) > 1) d
 GROUP BY entity_type
UNION ALL
SELECT 'relation_history ' || relation_type, COUNT(*)
  FROM (SELECT relation_type FROM ontologia.relation_history
         GROUP BY relation_type, left_key, right_key, instance_key, commit_id HAVING COUNT(*) > 1) d
 GROUP BY relation_type;

-- name: entity_latest
-- Current versions that are missing, of another commit, or other than the history says; then those
-- that the history does not have. As jsonb: text from elsewhere may be JSON in another form.
SELECT 'entity_latest ' || type, COUNT(*) FROM (
    SELECT COALESCE(h.entity_type, l.entity_type) AS type
      FROM (SELECT * FROM (
                SELECT DISTINCT ON (entity_type, entity_key) * FROM ontologia.entity_history
                 ORDER BY entity_type, entity_key, id DESC) n
             WHERE fields_json <> 'null') h
      FULL JOIN ontologia.entity_latest l
        ON l.entity_type = h.entity_type AND l.entity_key = h.entity_key
     WHERE l.commit_id IS DISTINCT FROM h.commit_id
        OR l.schema_version_id IS DISTINCT FROM h.schema_version_id
        OR l.fields <> h.fields_json::jsonb OR l.fields_json::jsonb <> l.fields) d
 GROUP BY type;

-- name: relation_latest
SELECT 'relation_latest ' || type, COUNT(*) FROM (
    SELECT COALESCE(h.relation_type, l.relation_type) AS type
      FROM (SELECT * FROM (
                SELECT DISTINCT ON (relation_type, left_key, right_key, instance_key) *
                  FROM ontologia.relation_history
                 ORDER BY relation_type, left_key, right_key, instance_key, id DESC) n
             WHERE fields_json <> 'null') h
      FULL JOIN ontologia.relation_latest l
        ON l.relation_type = h.relation_type AND l.left_key = h.left_key
       AND l.right_key = h.right_key AND l.instance_key = h.instance_key
     WHERE l.commit_id IS DISTINCT FROM h.commit_id
        OR l.schema_version_id IS DISTINCT FROM h.schema_version_id
        OR l.fields <> h.fields_json::jsonb OR l.fields_json::jsonb <> l.fields) d
 GROUP BY type;

-- name: unknown_versions
-- History written under a version of its type that is not registered.
SELECT 'entity ' || h.entity_type || ' version ' || h.schema_version_id, COUNT(*)
  FROM ontologia.entity_history h
 WHERE h.schema_version_id IS NOT NULL
   AND NOT EXISTS (SELECT 1 FROM ontologia.schema_versions v
                    WHERE v.type_kind = 'entity' AND v.type_name = h.entity_type
                      AND v.schema_version_id = h.schema_version_id)
 GROUP BY h.entity_type, h.schema_version_id
UNION ALL
SELECT 'relation ' || h.relation_type || ' version ' || h.schema_version_id, COUNT(*)
  FROM ontologia.relation_history h
 WHERE h.schema_version_id IS NOT NULL
   AND NOT EXISTS (SELECT 1 FROM ontologia.schema_versions v
                    WHERE v.type_kind = 'relation' AND v.type_name = h.relation_type
                      AND v.schema_version_id = h.schema_version_id)
 GROUP BY h.relation_type, h.schema_version_id;

-- name: version_gaps
SELECT type_kind || ' ' || type_name, MAX(schema_version_id) - COUNT(*)
  FROM ontologia.schema_versions
 GROUP BY type_kind, type_name HAVING MAX(schema_version_id) > COUNT(*);

-- name: registry
-- The current schema of a type is its newest version.
SELECT r.type_kind || ' ' || r.type_name, 1 FROM ontologia.schema_registry r
 WHERE r.schema_json IS DISTINCT FROM
       (SELECT v.schema_json FROM ontologia.schema_versions v
         WHERE v.type_kind = r.type_kind AND v.type_name = r.type_name
         ORDER BY v.schema_version_id DESC LIMIT 1);

-- name: old_versions
-- Current objects of an older version than the current one of their type. Those of before the type
-- was opened, and was left as it is otherwise, are as they should be.
SELECT l.kind || ' ' || l.name, SUM(l.n)::bigint
  FROM (SELECT kind, name, version, COUNT(*) AS n FROM (
            SELECT 'entity' AS kind, entity_type AS name,
                   COALESCE(schema_version_id, 1) AS version FROM ontologia.entity_latest
            UNION ALL
            SELECT 'relation', relation_type,
                   COALESCE(schema_version_id, 1) FROM ontologia.relation_latest) o
         GROUP BY kind, name, version) l
  JOIN (SELECT type_kind, type_name, MAX(schema_version_id) AS newest
          FROM ontologia.schema_versions GROUP BY type_kind, type_name) v
    ON v.type_kind = l.kind AND v.type_name = l.name
 WHERE l.version < v.newest
   AND NOT EXISTS (
       SELECT 1 FROM ontologia.schema_versions was
         JOIN ontologia.schema_versions now
           ON now.type_kind = was.type_kind AND now.type_name = was.type_name
        WHERE was.type_kind = l.kind AND was.type_name = l.name
          AND was.schema_version_id = l.version AND now.schema_version_id = v.newest
          AND was.schema_json <> now.schema_json
          AND was.schema_json = replace(now.schema_json, '"open":true,', ''))
 GROUP BY l.kind, l.name;

-- name: expired_locks
SELECT lock_name || ' of ' || owner_id, 1 FROM ontologia.locks WHERE expires_at <= %(now)s;

-- name: dead_sessions
SELECT namespace, COUNT(*) FROM ontologia.sessions
 WHERE last_heartbeat < %(silent_since)s AND metadata::jsonb -> 'stopped_at' IS NULL
 GROUP BY namespace;

-- name: unconsumed
SELECT e.namespace || ' ' || e.type, COUNT(*), e.namespace, e.type FROM ontologia.events e
 WHERE e.type <> %(collected)s
   AND NOT EXISTS (SELECT 1 FROM ontologia.subscriptions s
                    WHERE s.namespace = e.namespace AND s.type IN (e.type, '*'))
 GROUP BY e.namespace, e.type;

-- name: unclaimed_types
-- What is ready for a consumer that live sessions run, and none of them with a handler for the type.
-- A subscription outlives the handler that made it.
WITH running AS (
    SELECT s.namespace, s.metadata::jsonb AS metadata FROM ontologia.sessions s
     WHERE s.last_heartbeat >= %(silent_since)s AND s.metadata::jsonb ->> 'stopped_at' IS NULL
       AND jsonb_typeof(s.metadata::jsonb -> 'event_types') = 'array')
SELECT c.namespace || ' ' || r.type || ' of ' || c.name, COUNT(*), c.namespace, r.type
  FROM ontologia.consumers c JOIN ontologia.ready r ON r.consumer_id = c.id
 WHERE EXISTS (SELECT 1 FROM running n WHERE n.namespace = c.namespace
                  AND n.metadata -> 'consumers' @> to_jsonb(c.name::text))
   AND NOT EXISTS (SELECT 1 FROM running n WHERE n.namespace = c.namespace
                      AND n.metadata -> 'consumers' @> to_jsonb(c.name::text)
                      AND n.metadata -> 'event_types' @> to_jsonb(r.type::text))
 GROUP BY c.namespace, r.type, c.name ORDER BY c.namespace, r.type, c.name;

-- name: dead_letters
SELECT namespace || ' ' || handler_id, COUNT(*), namespace FROM ontologia.dead_letters
 GROUP BY namespace, handler_id ORDER BY namespace, handler_id;

-- name: unseen_consumers
-- Consumers that nobody has run for as long as events are kept, with what waits for them.
SELECT c.namespace || ' ' || c.name,
       (SELECT COUNT(*) FROM ontologia.ready r WHERE r.consumer_id = c.id)
  FROM ontologia.consumers c WHERE c.last_seen_at < %(long_ago)s;

-- name: without_consumer
SELECT 'subscriptions', COUNT(*) FROM ontologia.subscriptions
 WHERE NOT EXISTS (SELECT 1 FROM ontologia.consumers c WHERE c.id = consumer_id)
HAVING COUNT(*) > 0
UNION ALL
SELECT 'ready', COUNT(*) FROM ontologia.ready
 WHERE NOT EXISTS (SELECT 1 FROM ontologia.consumers c WHERE c.id = consumer_id)
HAVING COUNT(*) > 0
UNION ALL
SELECT 'event_claims', COUNT(*) FROM ontologia.event_claims
 WHERE ack_at IS NULL AND dead_lettered_at IS NULL
   AND NOT EXISTS (SELECT 1 FROM ontologia.consumers c WHERE c.id = consumer_id)
HAVING COUNT(*) > 0;

-- name: without_event
SELECT 'attempts', COUNT(*) FROM ontologia.attempts
 WHERE NOT EXISTS (SELECT 1 FROM ontologia.events e WHERE e.id = event_id)
HAVING COUNT(*) > 0
UNION ALL
SELECT 'dedup', COUNT(*) FROM ontologia.dedup
 WHERE NOT EXISTS (SELECT 1 FROM ontologia.events e WHERE e.id = event_id)
   AND NOT EXISTS (SELECT 1 FROM ontologia.deferred_events d
                    WHERE d.event_id = dedup.event_id AND d.status = 'scheduled')
HAVING COUNT(*) > 0;

-- name: bloat
-- Tables with more dead rows than live ones, by the figures of the statistics. A burst of events
-- leaves some, too, until the next vacuum.
SELECT relname || ': ' || n_dead_tup || ' dead rows, ' || n_live_tup || ' live', n_dead_tup
  FROM pg_stat_user_tables
 WHERE n_dead_tup > 100000 AND n_dead_tup > n_live_tup
   AND relid IN (SELECT oid FROM pg_class WHERE relnamespace = to_regnamespace('"ontologia"'));

-- name: long_transactions
-- As long as they are open, no table of the server can be rid of dead rows.
SELECT 'pid ' || pid || ', ' || COALESCE(NULLIF(application_name, ''), usename) || ', since '
       || to_char(xact_start AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS'), 1
  FROM pg_stat_activity
 WHERE datname = current_database() AND pid <> pg_backend_pid()
   AND xact_start < clock_timestamp() - interval '5 minutes';

-- name: lock_tables
-- Nobody claims or hands out meanwhile; who only reads may.
LOCK TABLE ontologia.event_claims, ontologia.ready, ontologia.incoming IN SHARE ROW EXCLUSIVE MODE;

-- name: free_planner
-- Other statements go by indexes (see `database.py`); these read whole tables.
SELECT set_config('enable_seqscan', 'on', true), set_config('enable_bitmapscan', 'on', true);

-- name: rebuild_latest
-- Rows that are as the history has them stay.
WITH newest AS (
    SELECT DISTINCT ON (entity_type, entity_key) * FROM ontologia.entity_history
     ORDER BY entity_type, entity_key, id DESC)
DELETE FROM ontologia.entity_latest l WHERE NOT EXISTS (
    SELECT 1 FROM newest h
     WHERE h.entity_type = l.entity_type AND h.entity_key = l.entity_key
       AND h.fields_json <> 'null' AND h.commit_id = l.commit_id
       AND h.schema_version_id IS NOT DISTINCT FROM l.schema_version_id
       AND h.fields_json::jsonb = l.fields AND l.fields_json::jsonb = l.fields);
INSERT INTO ontologia.entity_latest(entity_type, entity_key, commit_id, schema_version_id,
                                    fields_json, fields)
SELECT entity_type, entity_key, commit_id, schema_version_id, fields_json, fields_json::jsonb
  FROM (SELECT DISTINCT ON (entity_type, entity_key) * FROM ontologia.entity_history
         ORDER BY entity_type, entity_key, id DESC) h
 WHERE fields_json <> 'null'
    ON CONFLICT DO NOTHING;
WITH newest AS (
    SELECT DISTINCT ON (relation_type, left_key, right_key, instance_key) *
      FROM ontologia.relation_history
     ORDER BY relation_type, left_key, right_key, instance_key, id DESC)
DELETE FROM ontologia.relation_latest l WHERE NOT EXISTS (
    SELECT 1 FROM newest h
     WHERE h.relation_type = l.relation_type AND h.left_key = l.left_key
       AND h.right_key = l.right_key AND h.instance_key = l.instance_key
       AND h.fields_json <> 'null' AND h.commit_id = l.commit_id
       AND h.schema_version_id IS NOT DISTINCT FROM l.schema_version_id
       AND h.fields_json::jsonb = l.fields AND l.fields_json::jsonb = l.fields);
INSERT INTO ontologia.relation_latest(relation_type, left_key, right_key, instance_key, commit_id,
                                      schema_version_id, fields_json, fields)
SELECT relation_type, left_key, right_key, instance_key, commit_id, schema_version_id, fields_json,
       fields_json::jsonb
  FROM (SELECT DISTINCT ON (relation_type, left_key, right_key, instance_key) *
          FROM ontologia.relation_history
         ORDER BY relation_type, left_key, right_key, instance_key, id DESC) h
 WHERE fields_json <> 'null'
    ON CONFLICT DO NOTHING;

-- name: mend_locks
DELETE FROM ontologia.locks WHERE expires_at <= %(now)s;

-- name: mend_sessions
DELETE FROM ontologia.sessions WHERE last_heartbeat < %(long_ago)s;

-- name: mend_subscriptions
DELETE FROM ontologia.subscriptions
 WHERE NOT EXISTS (SELECT 1 FROM ontologia.consumers c WHERE c.id = consumer_id);

-- name: mend_attempts
DELETE FROM ontologia.attempts
 WHERE NOT EXISTS (SELECT 1 FROM ontologia.events e WHERE e.id = event_id);

-- name: mend_dedup
DELETE FROM ontologia.dedup
 WHERE NOT EXISTS (SELECT 1 FROM ontologia.events e WHERE e.id = event_id)
   AND NOT EXISTS (SELECT 1 FROM ontologia.deferred_events d
                    WHERE d.event_id = dedup.event_id AND d.status = 'scheduled');

-- name: mend_claims
-- Claims of events that are gone, and open ones of consumers that are: whoever registers under
-- that name gets the event again.
DELETE FROM ontologia.event_claims
 WHERE NOT EXISTS (SELECT 1 FROM ontologia.events e WHERE e.id = event_id)
    OR (ack_at IS NULL AND dead_lettered_at IS NULL
        AND NOT EXISTS (SELECT 1 FROM ontologia.consumers c WHERE c.id = consumer_id));

-- name: mend_letters
DELETE FROM ontologia.dead_letters WHERE EXISTS (
    SELECT 1 FROM ontologia.dead_letters d WHERE d.event_id = dead_letters.event_id
       AND d.handler_id = dead_letters.handler_id AND d.id < dead_letters.id);

-- name: mend_endings
-- What has a dead letter was buried; without one it was acknowledged.
UPDATE ontologia.event_claims
   SET ack_at = CASE WHEN EXISTS (SELECT 1 FROM ontologia.dead_letters d
                                   WHERE d.event_id = event_claims.event_id
                                     AND d.handler_id = event_claims.handler_id)
                     THEN NULL ELSE ack_at END,
       dead_lettered_at = CASE WHEN EXISTS (
                                   SELECT 1 FROM ontologia.dead_letters d
                                    WHERE d.event_id = event_claims.event_id
                                      AND d.handler_id = event_claims.handler_id)
                               THEN dead_lettered_at END
 WHERE ack_at IS NOT NULL AND dead_lettered_at IS NOT NULL;

-- name: mend_counts
UPDATE ontologia.event_claims
   SET attempts = (SELECT COUNT(*) FROM ontologia.attempts a
                    WHERE a.event_id = event_claims.event_id
                      AND a.handler_id = event_claims.handler_id)
 WHERE attempts < (SELECT COUNT(*) FROM ontologia.attempts a
                    WHERE a.event_id = event_claims.event_id
                      AND a.handler_id = event_claims.handler_id);

-- name: mend_starts
UPDATE ontologia.event_claims
   SET read_commit = COALESCE(read_commit, 0), started_at = COALESCE(started_at, claimed_at)
 WHERE (read_commit IS NULL) <> (started_at IS NULL);

-- name: mend_finished
UPDATE ontologia.event_claims SET due_at = NULL
 WHERE due_at IS NOT NULL AND (ack_at IS NOT NULL OR dead_lettered_at IS NOT NULL);

-- name: mend_due
UPDATE ontologia.event_claims SET due_at = GREATEST(lease_until, available_at)
 WHERE due_at <> GREATEST(lease_until, available_at);

-- name: mend_incoming
-- An event is handed out to all its consumers at once: what anybody has is not incoming.
DELETE FROM ontologia.incoming
 WHERE NOT EXISTS (SELECT 1 FROM ontologia.events e WHERE e.id = event_id)
    OR event_id IN (SELECT event_id FROM ontologia.ready)
    OR EXISTS (SELECT 1 FROM ontologia.event_claims k WHERE k.event_id = incoming.event_id)
    OR EXISTS (SELECT 1 FROM ontologia.incoming i
                WHERE i.event_id = incoming.event_id AND i.seq < incoming.seq);

-- name: mend_ready_gone
-- A row that is not as its event is, or whose event is claimed or finished.
DELETE FROM ontologia.ready
 WHERE NOT EXISTS (SELECT 1 FROM ontologia.events e
                    WHERE e.id = ready.event_id AND e.priority = ready.priority
                      AND e.created_at = ready.created_at AND e.type = ready.type)
    OR NOT EXISTS (SELECT 1 FROM ontologia.consumers c WHERE c.id = ready.consumer_id)
    OR EXISTS (SELECT 1 FROM ontologia.consumers c
                 JOIN ontologia.event_claims k ON k.handler_id = c.name
                WHERE c.id = ready.consumer_id AND k.event_id = ready.event_id
                  AND (k.due_at IS NOT NULL OR k.ack_at IS NOT NULL
                       OR k.dead_lettered_at IS NOT NULL));

-- name: mend_waiting
-- An open claim that is in no place waits for the end of its lease or backoff.
UPDATE ontologia.event_claims SET due_at = GREATEST(lease_until, available_at)
 WHERE due_at IS NULL AND ack_at IS NULL AND dead_lettered_at IS NULL
   AND NOT EXISTS (SELECT 1 FROM ontologia.ready r
                     JOIN ontologia.events e ON e.id = event_claims.event_id
                    WHERE r.consumer_id = event_claims.consumer_id AND r.priority = e.priority
                      AND r.created_at = e.created_at AND r.event_id = e.id);

-- name: mend_ready
INSERT INTO ontologia.ready(consumer_id, priority, created_at, event_id, type)
SELECT DISTINCT s.consumer_id, e.priority, e.created_at, e.id, e.type
  FROM ontologia.events e
  JOIN ontologia.subscriptions s ON s.namespace = e.namespace AND s.type IN (e.type, '*')
  JOIN ontologia.consumers c ON c.id = s.consumer_id
 WHERE NOT EXISTS (SELECT 1 FROM ontologia.incoming i WHERE i.event_id = e.id)
   AND NOT EXISTS (SELECT 1 FROM ontologia.event_claims k
                    WHERE k.event_id = e.id AND k.handler_id = c.name)
    ON CONFLICT DO NOTHING;
