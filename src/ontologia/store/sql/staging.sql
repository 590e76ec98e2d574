-- A migration of many objects: what it has staged, and what is left to do. Each statement is there
-- for entities and for relations. `store/staging.py` says what they are for.

-- name: pending_migration
SELECT plan_hash, types_json, owner_id, holder, expires_at, started_at, updated_at, objects,
    staged,
       since_commit, commit_id
  FROM pending_migration ORDER BY plan_hash LIMIT 1;

-- name: settling
SELECT CASE WHEN commit_id IS NOT NULL THEN types_json END FROM pending_migration
 ORDER BY plan_hash LIMIT 1;

-- name: begin_migration
INSERT INTO pending_migration(plan_hash, types_json, owner_id, holder, expires_at, started_at,
                              updated_at, objects, staged, since_commit)
VALUES (:plan_hash, :types_json, :owner_id, :holder, :expires_at, :now, :now, :objects, 0,
        :since_commit);

-- name: take_migration
-- From an owner whose lease has run out.
UPDATE pending_migration SET owner_id = :owner_id, holder = :holder, expires_at = :expires_at,
       updated_at = :now
 WHERE plan_hash = :plan_hash AND (owner_id = :owner_id OR expires_at <= :now);

-- name: advance_migration
-- The fence of everything that is staged or settled: a session that lost the migration changes nothing,
-- nor does a session that has not seen the switch.
UPDATE pending_migration SET staged = staged + :staged, expires_at = :expires_at,
       updated_at = :now, since_commit = :since_commit
 WHERE plan_hash = :plan_hash AND owner_id = :owner_id AND COALESCE(commit_id, 0) = :switched_in;

-- name: release_migration
UPDATE pending_migration SET expires_at = :now
 WHERE plan_hash = :plan_hash AND owner_id = :owner_id;

-- name: switch_migration
UPDATE pending_migration SET commit_id = :commit_id, objects = :objects, staged = :objects
 WHERE plan_hash = :plan_hash AND owner_id = :owner_id;

-- name: end_migration
DELETE FROM pending_migration WHERE plan_hash = :plan_hash AND owner_id = :owner_id;

-- name: repeated_values
-- Values of unique fields that several staged objects have.
SELECT type_kind, type_name, field, value_hash FROM staged_values
 GROUP BY type_kind, type_name, field, value_hash HAVING COUNT(*) > 1
 ORDER BY type_kind, type_name, field, value_hash LIMIT :most;

-- name: holders_of_value
SELECT object_key FROM staged_values
 WHERE type_kind = :kind AND type_name = :name AND field = :field AND value_hash = :value_hash
 ORDER BY object_key LIMIT :most;

-- name: stage_value
INSERT INTO staged_values(type_kind, type_name, field, value_hash, object_key)
VALUES (:kind, :name, :field, :value_hash, :object_key) ON CONFLICT DO NOTHING;

-- name: unstage_value
DELETE FROM staged_values
 WHERE type_kind = :kind AND type_name = :name AND field = :field AND value_hash = :value_hash
   AND object_key = :object_key;

-- name: clear_values
DELETE FROM staged_values
 WHERE (type_kind, type_name, field, value_hash, object_key) IN (
       SELECT type_kind, type_name, field, value_hash, object_key FROM staged_values
        ORDER BY type_kind, type_name, field, value_hash, object_key LIMIT :most);

-- name: unstage_entity
DELETE FROM staged_entities WHERE entity_type = :type AND entity_key = :key;

-- name: clear_entities
DELETE FROM staged_entities WHERE (entity_type, entity_key) IN (
       SELECT entity_type, entity_key FROM staged_entities
        ORDER BY entity_type, entity_key LIMIT :most);

-- name: count_unmigrated_entities
SELECT COUNT(*) FROM entity_latest WHERE entity_type = :type;

-- name: staged_entity
SELECT fields_json FROM staged_entities
 WHERE entity_type = :type AND entity_key = :key;

-- name: staged_entities_after
SELECT entity_key FROM staged_entities AS st
 WHERE st.entity_type = :type AND st.entity_key > :key
 ORDER BY st.entity_key LIMIT :most;

-- name: settle_entities_history
-- Staged objects of these keys, unless they were written since, as versions of the migration's
-- commit.
INSERT INTO entity_history(entity_type, entity_key, fields_json, commit_id,
                           schema_version_id)
SELECT st.entity_type, st.entity_key, st.fields_json, :commit_id, st.schema_version_id
  FROM staged_entities AS st
 @join entity_latest AS l
    ON l.entity_type = st.entity_type AND l.entity_key = st.entity_key
   AND l.commit_id = st.source_commit
 WHERE st.entity_type = :type AND st.entity_key > :key
   AND st.entity_key <= :key_to
 ORDER BY st.entity_key;

-- name: settle_entities_latest
@own;

-- name: settle_entities_staged
DELETE FROM staged_entities AS st
 WHERE st.entity_type = :type AND st.entity_key > :key
   AND st.entity_key <= :key_to;

-- name: settle_entity
-- One object that is about to be written: its version of the migration's commit comes first.
INSERT INTO entity_history(entity_type, entity_key, fields_json, commit_id,
                           schema_version_id)
SELECT st.entity_type, st.entity_key, st.fields_json, m.commit_id, st.schema_version_id
  FROM pending_migration AS m
 CROSS JOIN staged_entities AS st
 @join entity_latest AS l
    ON l.entity_type = st.entity_type AND l.entity_key = st.entity_key
   AND l.commit_id = st.source_commit
 WHERE m.commit_id IS NOT NULL AND st.entity_type = :type
   AND st.entity_key = :key;

-- name: unstaged_entities
-- Current objects after a key that are not staged, or were written since. What is staged of them,
-- the fields and the version come last.
@own;

-- name: changed_entities
-- Objects that were written after a row of the history, with their current and staged versions.
@own;

-- name: settling_changes_entities
-- What the commit of a migration that settles changes and the history does not have yet.
@own;

-- name: stage_entity
INSERT INTO staged_entities(entity_type, entity_key, source_commit,
                        schema_version_id, fields_json)
VALUES (:type, :key, :source_commit, :version, :fields)
    ON CONFLICT (entity_type, entity_key) DO UPDATE SET
       source_commit = excluded.source_commit, schema_version_id = excluded.schema_version_id,
       fields_json = excluded.fields_json;

-- name: unstage_relation
DELETE FROM staged_relations WHERE relation_type = :type AND left_key = :left
   AND right_key = :right AND instance_key = :instance;

-- name: clear_relations
DELETE FROM staged_relations WHERE (relation_type, left_key, right_key, instance_key) IN (
       SELECT relation_type, left_key, right_key, instance_key FROM staged_relations
        ORDER BY relation_type, left_key, right_key, instance_key LIMIT :most);

-- name: count_unmigrated_relations
SELECT COUNT(*) FROM relation_latest WHERE relation_type = :type;

-- name: staged_relation
SELECT fields_json FROM staged_relations
 WHERE relation_type = :type AND left_key = :left AND right_key = :right
   AND instance_key = :instance;

-- name: staged_relations_after
SELECT left_key, right_key, instance_key FROM staged_relations AS st
 WHERE st.relation_type = :type AND (st.left_key, st.right_key, st.instance_key) > (:left, :right,
     :instance)
 ORDER BY st.left_key, st.right_key, st.instance_key LIMIT :most;

-- name: settle_relations_history
-- Staged objects of these keys, unless they were written since, as versions of the migration's
-- commit.
INSERT INTO relation_history(relation_type, left_key, right_key, instance_key, fields_json,
    commit_id,
                           schema_version_id)
SELECT st.relation_type, st.left_key, st.right_key, st.instance_key, st.fields_json, :commit_id,
    st.schema_version_id
  FROM staged_relations AS st
 @join relation_latest AS l
    ON l.relation_type = st.relation_type AND l.left_key = st.left_key
        AND l.right_key = st.right_key AND l.instance_key = st.instance_key
   AND l.commit_id = st.source_commit
 WHERE st.relation_type = :type AND (st.left_key, st.right_key, st.instance_key) > (:left, :right,
     :instance)
   AND (st.left_key, st.right_key, st.instance_key) <= (:left_to, :right_to, :instance_to)
 ORDER BY st.left_key, st.right_key, st.instance_key;

-- name: settle_relations_latest
@own;

-- name: settle_relations_staged
DELETE FROM staged_relations AS st
 WHERE st.relation_type = :type AND (st.left_key, st.right_key, st.instance_key) > (:left, :right,
     :instance)
   AND (st.left_key, st.right_key, st.instance_key) <= (:left_to, :right_to, :instance_to);

-- name: settle_relation
-- One object that is about to be written: its version of the migration's commit comes first.
INSERT INTO relation_history(relation_type, left_key, right_key, instance_key, fields_json,
    commit_id,
                           schema_version_id)
SELECT st.relation_type, st.left_key, st.right_key, st.instance_key, st.fields_json, m.commit_id,
    st.schema_version_id
  FROM pending_migration AS m
 CROSS JOIN staged_relations AS st
 @join relation_latest AS l
    ON l.relation_type = st.relation_type AND l.left_key = st.left_key
        AND l.right_key = st.right_key AND l.instance_key = st.instance_key
   AND l.commit_id = st.source_commit
 WHERE m.commit_id IS NOT NULL AND st.relation_type = :type
   AND st.left_key = :left AND st.right_key = :right AND st.instance_key = :instance;

-- name: unstaged_relations
-- Current objects after a key that are not staged, or were written since. What is staged of them,
-- the fields and the version come last.
@own;

-- name: changed_relations
-- Objects that were written after a row of the history, with their current and staged versions.
@own;

-- name: settling_changes_relations
-- What the commit of a migration that settles changes and the history does not have yet.
@own;

-- name: stage_relation
INSERT INTO staged_relations(relation_type, left_key, right_key, instance_key, source_commit,
                        schema_version_id, fields_json)
VALUES (:type, :left, :right, :instance, :source_commit, :version, :fields)
    ON CONFLICT (relation_type, left_key, right_key, instance_key) DO UPDATE SET
       source_commit = excluded.source_commit, schema_version_id = excluded.schema_version_id,
       fields_json = excluded.fields_json;
