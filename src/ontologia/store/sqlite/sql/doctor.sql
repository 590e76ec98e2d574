-- name: damage
SELECT quick_check, 1 FROM pragma_quick_check WHERE quick_check <> 'ok';

-- name: entity_latest
-- Bytes that are no JSONB must not end the question.
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

-- name: unclaimed_types
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

-- name: without_event
SELECT 'attempts', COUNT(*) FROM attempts
 WHERE event_id NOT IN (SELECT id FROM events) HAVING COUNT(*) > 0
UNION ALL
SELECT 'dedup', COUNT(*) FROM dedup
 WHERE event_id NOT IN (SELECT id FROM events)
   AND event_id NOT IN (SELECT event_id FROM deferred_events WHERE status = 'scheduled')
HAVING COUNT(*) > 0
UNION ALL
SELECT 'restored', COUNT(*) FROM restored
 WHERE event_id NOT IN (SELECT id FROM events) HAVING COUNT(*) > 0;

-- name: begin_repair
-- SQLite has one writer.
SELECT 1;

-- name: mend_dedup
DELETE FROM dedup WHERE event_id NOT IN (SELECT id FROM events)
   AND event_id NOT IN (SELECT event_id FROM deferred_events WHERE status = 'scheduled');

-- name: mend_ready
INSERT INTO ready(consumer_id, priority, created_at, event_id, type)
SELECT DISTINCT s.consumer_id, e.priority, e.created_at, e.id, e.type
  FROM events e JOIN subscriptions s ON s.namespace = e.namespace AND s.type IN (e.type, '*')
  JOIN consumers c ON c.id = s.consumer_id
 WHERE e.id NOT IN (SELECT event_id FROM incoming)
   AND NOT EXISTS (SELECT 1 FROM event_claims k WHERE k.event_id = e.id AND k.handler_id = c.name)
    ON CONFLICT DO NOTHING;
