-- name: current_entities
-- The current version of the entities with these keys.
SELECT e.entity_key, e.fields_json, e.schema_version_id, e.commit_id
  FROM entity_latest AS e
 WHERE e.entity_type = :type AND e.entity_key = ANY(:keys::text[]);

-- name: current_entity
-- The same for one entity: there is less to plan.
SELECT entity_key, fields_json, schema_version_id, commit_id FROM entity_latest
 WHERE entity_type = :type AND entity_key = :key;

-- name: current_relation
SELECT left_key, right_key, instance_key, fields_json, schema_version_id, commit_id
  FROM relation_latest
 WHERE relation_type = :type AND left_key = :left AND right_key = :right
   AND instance_key = :instance;

-- name: current_relations
-- The same for relations; left, right and instance keys are three lists of one length.
SELECT r.left_key, r.right_key, r.instance_key, r.fields_json, r.schema_version_id, r.commit_id
  FROM unnest(:left::text[], :right::text[], :instance::text[])
       AS k(left_key, right_key, instance_key)
  JOIN relation_latest AS r
    ON r.relation_type = :type AND r.left_key = k.left_key AND r.right_key = k.right_key
   AND r.instance_key = k.instance_key;

-- name: get_entity
-- The point read: the current version of one entity, one seek in the primary key.
SELECT entity_key, fields_json, commit_id, schema_version_id, 0
  FROM entity_latest WHERE entity_type = :type AND entity_key = :key;

-- name: insert_commit
-- The number is the caller's: it has the lock of commits and knows the last one.
INSERT INTO commits(id, created_at, metadata_json)
VALUES (:commit_id, :created_at, :metadata_json);

-- name: delete_latest_entities
-- What commit `commit_id` deleted is current no more.
DELETE FROM entity_latest AS e USING entity_history AS h
 WHERE h.commit_id = :commit_id AND h.fields_json = 'null'
   AND e.entity_type = h.entity_type AND e.entity_key = h.entity_key;

-- name: delete_latest_relations
DELETE FROM relation_latest AS r USING relation_history AS h
 WHERE h.commit_id = :commit_id AND h.fields_json = 'null'
   AND r.relation_type = h.relation_type AND r.left_key = h.left_key
   AND r.right_key = h.right_key AND r.instance_key = h.instance_key;

-- name: entity_changes
WITH touched AS (
    SELECT DISTINCT entity_type, entity_key FROM entity_history
     WHERE commit_id > :first AND commit_id <= :last)
SELECT t.entity_type, t.entity_key, a.fields_json, b.fields_json,
       a.schema_version_id, b.schema_version_id
  FROM touched AS t
  LEFT JOIN LATERAL (
       SELECT h.fields_json, h.schema_version_id FROM entity_history AS h
        WHERE h.entity_type = t.entity_type AND h.entity_key = t.entity_key
          AND h.commit_id <= :first ORDER BY h.commit_id DESC LIMIT 1) AS a ON true
  LEFT JOIN LATERAL (
       SELECT h.fields_json, h.schema_version_id FROM entity_history AS h
        WHERE h.entity_type = t.entity_type AND h.entity_key = t.entity_key
          AND h.commit_id <= :last ORDER BY h.commit_id DESC LIMIT 1) AS b ON true
 ORDER BY t.entity_type, t.entity_key;

-- name: relation_changes
WITH touched AS (
    SELECT DISTINCT relation_type, left_key, right_key, instance_key FROM relation_history
     WHERE commit_id > :first AND commit_id <= :last)
SELECT t.relation_type, t.left_key, t.right_key, t.instance_key, a.fields_json, b.fields_json,
       a.schema_version_id, b.schema_version_id
  FROM touched AS t
  LEFT JOIN LATERAL (
       SELECT h.fields_json, h.schema_version_id FROM relation_history AS h
        WHERE h.relation_type = t.relation_type AND h.left_key = t.left_key
          AND h.right_key = t.right_key AND h.instance_key = t.instance_key
          AND h.commit_id <= :first ORDER BY h.commit_id DESC LIMIT 1) AS a ON true
  LEFT JOIN LATERAL (
       SELECT h.fields_json, h.schema_version_id FROM relation_history AS h
        WHERE h.relation_type = t.relation_type AND h.left_key = t.left_key
          AND h.right_key = t.right_key AND h.instance_key = t.instance_key
          AND h.commit_id <= :last ORDER BY h.commit_id DESC LIMIT 1) AS b ON true
 ORDER BY t.relation_type, t.left_key, t.right_key, t.instance_key;

-- name: commit_entity
-- A whole commit of one entity that is there afterwards: one statement, in half the time.
WITH made AS (
    INSERT INTO commits(id, created_at, metadata_json)
    VALUES (:commit_id, :created_at, :metadata_json)
), history AS (
    INSERT INTO entity_history(entity_type, entity_key, fields_json, commit_id, schema_version_id)
    VALUES (:type, :keys, :fields, :commit_id, :version)
)
INSERT INTO entity_latest(entity_type, entity_key, commit_id, schema_version_id, fields_json,
                          fields)
VALUES (:type, :keys, :commit_id, :version, :fields, (:fields::text)::jsonb)
    ON CONFLICT (entity_type, entity_key) DO UPDATE SET
       commit_id = excluded.commit_id, schema_version_id = excluded.schema_version_id,
       fields_json = excluded.fields_json, fields = excluded.fields;

-- name: commit_relation
WITH made AS (
    INSERT INTO commits(id, created_at, metadata_json)
    VALUES (:commit_id, :created_at, :metadata_json)
), history AS (
    INSERT INTO relation_history(relation_type, left_key, right_key, instance_key, fields_json,
                                 commit_id, schema_version_id)
    VALUES (:type, :left, :right, :instance, :fields, :commit_id, :version)
)
INSERT INTO relation_latest(relation_type, left_key, right_key, instance_key, commit_id,
                            schema_version_id, fields_json, fields)
VALUES (:type, :left, :right, :instance, :commit_id, :version, :fields, (:fields::text)::jsonb)
    ON CONFLICT (relation_type, left_key, right_key, instance_key) DO UPDATE SET
       commit_id = excluded.commit_id, schema_version_id = excluded.schema_version_id,
       fields_json = excluded.fields_json, fields = excluded.fields;

-- name: write_entities
-- New versions become history, and current, by one stroke, however many they are. A list a column:
-- one row is one entity.
WITH written AS MATERIALIZED (
    SELECT * FROM unnest(:types::text[], :keys::text[], :fields::text[],
                         :versions::bigint[]) AS w(entity_type, entity_key, fields_json, version)
), history AS (
    INSERT INTO entity_history(entity_type, entity_key, fields_json, commit_id, schema_version_id)
    SELECT entity_type, entity_key, fields_json, :commit_id, version FROM written
)
INSERT INTO entity_latest(entity_type, entity_key, commit_id, schema_version_id, fields_json,
                          fields)
SELECT entity_type, entity_key, :commit_id, version, fields_json, fields_json::jsonb
  FROM written WHERE fields_json <> 'null'
    ON CONFLICT (entity_type, entity_key) DO UPDATE SET
       commit_id = excluded.commit_id, schema_version_id = excluded.schema_version_id,
       fields_json = excluded.fields_json, fields = excluded.fields;

-- name: write_relations
WITH written AS MATERIALIZED (
    SELECT * FROM unnest(:types::text[], :left::text[], :right::text[],
                         :instance::text[], :fields::text[], :versions::bigint[])
                  AS w(relation_type, left_key, right_key, instance_key, fields_json, version)
), history AS (
    INSERT INTO relation_history(relation_type, left_key, right_key, instance_key, fields_json,
                                 commit_id, schema_version_id)
    SELECT relation_type, left_key, right_key, instance_key, fields_json, :commit_id, version
      FROM written
)
INSERT INTO relation_latest(relation_type, left_key, right_key, instance_key, commit_id,
                            schema_version_id, fields_json, fields)
SELECT relation_type, left_key, right_key, instance_key, :commit_id, version, fields_json,
       fields_json::jsonb
  FROM written WHERE fields_json <> 'null'
    ON CONFLICT (relation_type, left_key, right_key, instance_key) DO UPDATE SET
       commit_id = excluded.commit_id, schema_version_id = excluded.schema_version_id,
       fields_json = excluded.fields_json, fields = excluded.fields;

-- name: has_commit
-- Whether this very commit is there, and not another of the same number.
SELECT 1 FROM commits
 WHERE id = :commit_id AND created_at = :created_at AND metadata_json = :metadata_json;
