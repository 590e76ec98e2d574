-- name: current_entities
-- The current version of the entities whose keys are in the JSON list :keys. CROSS JOIN keeps
-- the order of the tables: the planner would otherwise look through the list for every entity.
SELECT k.value, json(e.fields), e.schema_version_id, e.commit_id
  FROM json_each(:keys) AS k
 CROSS JOIN entity_latest AS e ON e.entity_type = :type AND e.entity_key = k.value;

-- name: current_entity
-- The same for one entity: a seek, without making a table of a list.
SELECT json(fields), schema_version_id, commit_id FROM entity_latest
 WHERE entity_type = :type AND entity_key = :key;

-- name: current_relation
SELECT json(fields), schema_version_id, commit_id FROM relation_latest
 WHERE relation_type = :type AND left_key = :left AND right_key = :right
   AND instance_key = :instance;

-- name: current_relations
-- The same for relations; each element of :keys is a list of left, right and instance key.
SELECT r.left_key, r.right_key, r.instance_key, json(r.fields), r.schema_version_id, r.commit_id
  FROM json_each(:keys) AS k
 CROSS JOIN relation_latest AS r
    ON r.relation_type = :type AND r.left_key = k.value ->> 0 AND r.right_key = k.value ->> 1
   AND r.instance_key = k.value ->> 2;

-- name: get_entity
-- The point read: the current version of one entity, one seek in the primary key.
SELECT entity_key, json(fields), commit_id, schema_version_id, 0
  FROM entity_latest WHERE entity_type = :type AND entity_key = :key;

-- name: insert_commit
INSERT INTO commits(created_at, metadata_json) VALUES (:created_at, :metadata_json);

-- name: insert_entity_version
INSERT INTO entity_history(entity_type, entity_key, fields_json, commit_id, schema_version_id)
VALUES (:type, :key, :fields, :commit_id, :version);

-- name: insert_relation_version
INSERT INTO relation_history(relation_type, left_key, right_key, instance_key, fields_json,
                             commit_id, schema_version_id)
VALUES (:type, :left, :right, :instance, :fields, :commit_id, :version);

-- name: set_latest_entity
-- For a few rows: the fields are at hand, so they are not read again.
INSERT INTO entity_latest(entity_type, entity_key, fields, commit_id, schema_version_id)
VALUES (:type, :key, jsonb(:fields), :commit_id, :version)
    ON CONFLICT DO UPDATE SET commit_id = excluded.commit_id, fields = excluded.fields,
                              schema_version_id = excluded.schema_version_id;

-- name: set_latest_relation
INSERT INTO relation_latest(relation_type, left_key, right_key, instance_key, fields, commit_id,
                            schema_version_id)
VALUES (:type, :left, :right, :instance, jsonb(:fields), :commit_id, :version)
    ON CONFLICT DO UPDATE SET commit_id = excluded.commit_id, fields = excluded.fields,
                              schema_version_id = excluded.schema_version_id;

-- name: update_latest_entities
-- What commit :commit_id wrote becomes current. In the order of the keys, as they were inserted,
-- so that neighbouring rows are written together.
INSERT INTO entity_latest(entity_type, entity_key, commit_id, schema_version_id, fields)
SELECT entity_type, entity_key, commit_id, schema_version_id, jsonb(fields_json)
  FROM entity_history WHERE commit_id = :commit_id AND fields_json <> 'null' ORDER BY id
    ON CONFLICT DO UPDATE SET commit_id = excluded.commit_id, fields = excluded.fields,
                              schema_version_id = excluded.schema_version_id;

-- name: update_latest_relations
INSERT INTO relation_latest(relation_type, left_key, right_key, instance_key, commit_id,
                            schema_version_id, fields)
SELECT relation_type, left_key, right_key, instance_key, commit_id, schema_version_id,
       jsonb(fields_json)
  FROM relation_history WHERE commit_id = :commit_id AND fields_json <> 'null' ORDER BY id
    ON CONFLICT DO UPDATE SET commit_id = excluded.commit_id, fields = excluded.fields,
                              schema_version_id = excluded.schema_version_id;

-- name: delete_latest_entities
DELETE FROM entity_latest WHERE (entity_type, entity_key) IN (
    SELECT entity_type, entity_key FROM entity_history
     WHERE commit_id = :commit_id AND fields_json = 'null');

-- name: delete_latest_relations
DELETE FROM relation_latest WHERE (relation_type, left_key, right_key, instance_key) IN (
    SELECT relation_type, left_key, right_key, instance_key FROM relation_history
     WHERE commit_id = :commit_id AND fields_json = 'null');

-- name: entity_changes
WITH touched AS (
    SELECT DISTINCT entity_type, entity_key FROM entity_history
     WHERE commit_id > :first AND commit_id <= :last)
SELECT t.entity_type, t.entity_key, a.fields_json, b.fields_json,
       a.schema_version_id, b.schema_version_id
  FROM touched AS t
  LEFT JOIN entity_history AS a ON a.id = (
       SELECT h.id FROM entity_history AS h
        WHERE h.entity_type = t.entity_type AND h.entity_key = t.entity_key
          AND h.commit_id <= :first ORDER BY h.commit_id DESC LIMIT 1)
  LEFT JOIN entity_history AS b ON b.id = (
       SELECT h.id FROM entity_history AS h
        WHERE h.entity_type = t.entity_type AND h.entity_key = t.entity_key
          AND h.commit_id <= :last ORDER BY h.commit_id DESC LIMIT 1)
 ORDER BY t.entity_type, t.entity_key;

-- name: relation_changes
WITH touched AS (
    SELECT DISTINCT relation_type, left_key, right_key, instance_key FROM relation_history
     WHERE commit_id > :first AND commit_id <= :last)
SELECT t.relation_type, t.left_key, t.right_key, t.instance_key, a.fields_json, b.fields_json,
       a.schema_version_id, b.schema_version_id
  FROM touched AS t
  LEFT JOIN relation_history AS a ON a.id = (
       SELECT h.id FROM relation_history AS h
        WHERE h.relation_type = t.relation_type AND h.left_key = t.left_key
          AND h.right_key = t.right_key AND h.instance_key = t.instance_key
          AND h.commit_id <= :first ORDER BY h.commit_id DESC LIMIT 1)
  LEFT JOIN relation_history AS b ON b.id = (
       SELECT h.id FROM relation_history AS h
        WHERE h.relation_type = t.relation_type AND h.left_key = t.left_key
          AND h.right_key = t.right_key AND h.instance_key = t.instance_key
          AND h.commit_id <= :last ORDER BY h.commit_id DESC LIMIT 1)
 ORDER BY t.relation_type, t.left_key, t.right_key, t.instance_key;
