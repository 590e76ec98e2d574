-- name: damage
-- Foreign keys that are not enforced, and indexes that a broken-off CREATE INDEX left.
SELECT 'constraint ' || conname, 1 FROM pg_constraint
 WHERE contype = 'f' AND NOT convalidated AND connamespace = to_regnamespace('"ontologia"')
UNION ALL
SELECT 'index ' || c.relname, 1 FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
 WHERE NOT i.indisvalid AND c.relnamespace = to_regnamespace('"ontologia"');

-- name: entity_latest
-- As jsonb: text from elsewhere may be JSON in another form.
SELECT 'entity_latest ' || type, COUNT(*) FROM (
    SELECT COALESCE(h.entity_type, l.entity_type) AS type
      FROM (SELECT * FROM (
                SELECT DISTINCT ON (entity_type, entity_key) * FROM entity_history
                 ORDER BY entity_type, entity_key, id DESC) n
             WHERE fields_json <> 'null') h
      FULL JOIN entity_latest l
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
                  FROM relation_history
                 ORDER BY relation_type, left_key, right_key, instance_key, id DESC) n
             WHERE fields_json <> 'null') h
      FULL JOIN relation_latest l
        ON l.relation_type = h.relation_type AND l.left_key = h.left_key
       AND l.right_key = h.right_key AND l.instance_key = h.instance_key
     WHERE l.commit_id IS DISTINCT FROM h.commit_id
        OR l.schema_version_id IS DISTINCT FROM h.schema_version_id
        OR l.fields <> h.fields_json::jsonb OR l.fields_json::jsonb <> l.fields) d
 GROUP BY type;

-- name: unclaimed_types
WITH running AS (
    SELECT s.namespace, s.metadata::jsonb AS metadata FROM sessions s
     WHERE s.last_heartbeat >= :silent_since AND s.metadata::jsonb ->> 'stopped_at' IS NULL
       AND jsonb_typeof(s.metadata::jsonb -> 'event_types') = 'array')
SELECT c.namespace || ' ' || r.type || ' of ' || c.name, COUNT(*), c.namespace, r.type
  FROM consumers c JOIN ready r ON r.consumer_id = c.id
 WHERE EXISTS (SELECT 1 FROM running n WHERE n.namespace = c.namespace
                  AND n.metadata -> 'consumers' @> to_jsonb(c.name::text))
   AND NOT EXISTS (SELECT 1 FROM running n WHERE n.namespace = c.namespace
                      AND n.metadata -> 'consumers' @> to_jsonb(c.name::text)
                      AND n.metadata -> 'event_types' @> to_jsonb(r.type::text))
 GROUP BY c.namespace, r.type, c.name ORDER BY c.namespace, r.type, c.name;

-- name: without_event
SELECT 'attempts', COUNT(*) FROM attempts
 WHERE NOT EXISTS (SELECT 1 FROM events e WHERE e.id = event_id)
HAVING COUNT(*) > 0
UNION ALL
SELECT 'dedup', COUNT(*) FROM dedup
 WHERE NOT EXISTS (SELECT 1 FROM events e WHERE e.id = event_id)
   AND NOT EXISTS (SELECT 1 FROM deferred_events d
                    WHERE d.event_id = dedup.event_id AND d.status = 'scheduled')
HAVING COUNT(*) > 0
UNION ALL
SELECT 'restored', COUNT(*) FROM restored
 WHERE NOT EXISTS (SELECT 1 FROM events e WHERE e.id = event_id)
HAVING COUNT(*) > 0;

-- name: begin_repair
-- Other statements go by indexes (see `database.py`); these read whole tables. Who only reads may
-- go on.
SELECT set_config('enable_seqscan', 'on', true), set_config('enable_bitmapscan', 'on', true);
LOCK TABLE ontologia.event_claims, ontologia.ready, ontologia.incoming
  IN SHARE ROW EXCLUSIVE MODE;

-- name: mend_dedup
DELETE FROM dedup
 WHERE NOT EXISTS (SELECT 1 FROM events e WHERE e.id = event_id)
   AND NOT EXISTS (SELECT 1 FROM deferred_events d
                    WHERE d.event_id = dedup.event_id AND d.status = 'scheduled');

-- name: mend_ready
INSERT INTO ready(consumer_id, priority, created_at, event_id, type)
SELECT DISTINCT s.consumer_id, e.priority, e.created_at, e.id, e.type
  FROM events e
  JOIN subscriptions s ON s.namespace = e.namespace AND s.type IN (e.type, '*')
  JOIN consumers c ON c.id = s.consumer_id
 WHERE NOT EXISTS (SELECT 1 FROM incoming i WHERE i.event_id = e.id)
   AND NOT EXISTS (SELECT 1 FROM event_claims k
                    WHERE k.event_id = e.id AND k.handler_id = c.name)
    ON CONFLICT DO NOTHING;

-- name: bloat
-- Tables with more dead rows than live ones, by the figures of the statistics. A burst of events
-- leaves some, too, until the next vacuum.
SELECT relname || ': ' || n_dead_tup || ' dead rows, ' || n_live_tup || ' live', n_dead_tup
  FROM pg_stat_user_tables
 WHERE n_dead_tup > 100000 AND n_dead_tup > n_live_tup
   AND relid IN (SELECT oid FROM pg_class WHERE relnamespace = to_regnamespace('"ontologia"'));

-- name: long_transactions
-- As long as they are open, no table of the server can be rid of dead rows. When transactions of
-- other roles began is NULL for a role that may not see it.
SELECT 'pid ' || pid || ', ' || COALESCE(NULLIF(application_name, ''), usename) || ', since '
       || to_char(xact_start AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS'), 1
  FROM pg_stat_activity
 WHERE datname = current_database() AND pid <> pg_backend_pid()
   AND xact_start < clock_timestamp() - interval '1 minute';

-- name: unsafe_settings
SELECT name || ' is ' || setting, 1 FROM pg_settings
 WHERE name IN ('fsync', 'full_page_writes') AND setting = 'off' ORDER BY name;

-- name: soft_commits
SELECT name || ' is ' || setting, 1 FROM pg_settings
 WHERE name = 'synchronous_commit' AND setting = 'off';

-- name: rebuild_latest
-- Rows that are as the history has them stay.
WITH newest AS (
    SELECT DISTINCT ON (entity_type, entity_key) * FROM entity_history
     ORDER BY entity_type, entity_key, id DESC)
DELETE FROM entity_latest l WHERE NOT EXISTS (
    SELECT 1 FROM newest h
     WHERE h.entity_type = l.entity_type AND h.entity_key = l.entity_key
       AND h.fields_json <> 'null' AND h.commit_id = l.commit_id
       AND h.schema_version_id IS NOT DISTINCT FROM l.schema_version_id
       AND h.fields_json::jsonb = l.fields AND l.fields_json::jsonb = l.fields);
INSERT INTO entity_latest(entity_type, entity_key, commit_id, schema_version_id, fields_json,
                          fields)
SELECT entity_type, entity_key, commit_id, schema_version_id, fields_json, fields_json::jsonb
  FROM (SELECT DISTINCT ON (entity_type, entity_key) * FROM entity_history
         ORDER BY entity_type, entity_key, id DESC) h
 WHERE fields_json <> 'null'
    ON CONFLICT DO NOTHING;
WITH newest AS (
    SELECT DISTINCT ON (relation_type, left_key, right_key, instance_key) *
      FROM relation_history
     ORDER BY relation_type, left_key, right_key, instance_key, id DESC)
DELETE FROM relation_latest l WHERE NOT EXISTS (
    SELECT 1 FROM newest h
     WHERE h.relation_type = l.relation_type AND h.left_key = l.left_key
       AND h.right_key = l.right_key AND h.instance_key = l.instance_key
       AND h.fields_json <> 'null' AND h.commit_id = l.commit_id
       AND h.schema_version_id IS NOT DISTINCT FROM l.schema_version_id
       AND h.fields_json::jsonb = l.fields AND l.fields_json::jsonb = l.fields);
INSERT INTO relation_latest(relation_type, left_key, right_key, instance_key, commit_id,
                            schema_version_id, fields_json, fields)
SELECT relation_type, left_key, right_key, instance_key, commit_id, schema_version_id, fields_json,
       fields_json::jsonb
  FROM (SELECT DISTINCT ON (relation_type, left_key, right_key, instance_key) *
          FROM relation_history
         ORDER BY relation_type, left_key, right_key, instance_key, id DESC) h
 WHERE fields_json <> 'null'
    ON CONFLICT DO NOTHING;
