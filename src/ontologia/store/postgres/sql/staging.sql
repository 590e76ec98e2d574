-- name: settle_entities_latest
UPDATE entity_latest AS l SET commit_id = :commit_id, schema_version_id = st.schema_version_id,
       fields_json = st.fields_json, fields = st.fields_json::jsonb
  FROM staged_entities AS st
 WHERE st.entity_type = :type AND st.entity_key > :key
   AND st.entity_key <= :key_to
   AND l.entity_type = st.entity_type AND l.entity_key = st.entity_key
   AND l.commit_id = st.source_commit;

-- name: unstaged_entities
-- OFFSET 0 has each looked up by its key: the planner, who knows nothing of what was staged just now,
-- would merge both tables from their beginnings.
SELECT l.entity_key, l.commit_id, st.fields_json AS staged_json,
       l.fields_json AS fields_json, l.schema_version_id
  FROM entity_latest AS l
  LEFT JOIN LATERAL (
       SELECT source_commit, fields_json FROM staged_entities AS s
        WHERE s.entity_type = l.entity_type AND s.entity_key = l.entity_key OFFSET 0) AS st ON true
 WHERE l.entity_type = :type AND l.entity_key > :key
   AND st.source_commit IS DISTINCT FROM l.commit_id
 ORDER BY l.entity_key LIMIT :most;

-- name: changed_entities
SELECT h.commit_id, h.id, st.source_commit, h.entity_key, l.commit_id,
       st.fields_json AS staged_json, l.fields_json AS fields_json, l.schema_version_id
  FROM (SELECT commit_id, id, entity_key FROM entity_history
         WHERE commit_id >= :commit_id AND (commit_id, id) > (:commit_id, :row_id)
           AND entity_type = :type
         ORDER BY commit_id, id LIMIT :most) AS h
  LEFT JOIN LATERAL (
       SELECT commit_id, fields_json, schema_version_id FROM entity_latest AS s
        WHERE s.entity_type = :type AND s.entity_key = h.entity_key OFFSET 0) AS l ON true
  LEFT JOIN LATERAL (
       SELECT source_commit, fields_json FROM staged_entities AS s
        WHERE s.entity_type = :type AND s.entity_key = h.entity_key OFFSET 0) AS st ON true
 ORDER BY h.commit_id, h.id;

-- name: settling_changes_entities
SELECT l.entity_type, l.entity_key, l.fields_json, st.fields_json, l.schema_version_id,
    st.schema_version_id
  FROM pending_migration AS m
 CROSS JOIN staged_entities AS st
 JOIN entity_latest AS l
    ON l.entity_type = st.entity_type AND l.entity_key = st.entity_key
   AND l.commit_id = st.source_commit
 WHERE m.commit_id > :first AND m.commit_id <= :last;

-- name: settle_relations_latest
UPDATE relation_latest AS l SET commit_id = :commit_id, schema_version_id = st.schema_version_id,
       fields_json = st.fields_json, fields = st.fields_json::jsonb
  FROM staged_relations AS st
 WHERE st.relation_type = :type AND (st.left_key, st.right_key, st.instance_key) > (:left, :right,
     :instance)
   AND (st.left_key, st.right_key, st.instance_key) <= (:left_to, :right_to, :instance_to)
   AND l.relation_type = st.relation_type AND l.left_key = st.left_key
   AND l.right_key = st.right_key AND l.instance_key = st.instance_key
   AND l.commit_id = st.source_commit;

-- name: unstaged_relations
-- OFFSET 0 has each looked up by its key: the planner, who knows nothing of what was staged just now,
-- would merge both tables from their beginnings.
SELECT l.left_key, l.right_key, l.instance_key, l.commit_id, st.fields_json AS staged_json,
       l.fields_json AS fields_json, l.schema_version_id
  FROM relation_latest AS l
  LEFT JOIN LATERAL (
       SELECT source_commit, fields_json FROM staged_relations AS s
        WHERE s.relation_type = l.relation_type AND s.left_key = l.left_key
          AND s.right_key = l.right_key AND s.instance_key = l.instance_key OFFSET 0) AS st ON true
 WHERE l.relation_type = :type AND (l.left_key, l.right_key, l.instance_key) > (:left, :right,
     :instance)
   AND st.source_commit IS DISTINCT FROM l.commit_id
 ORDER BY l.left_key, l.right_key, l.instance_key LIMIT :most;

-- name: changed_relations
SELECT h.commit_id, h.id, st.source_commit, h.left_key, h.right_key, h.instance_key, l.commit_id,
       st.fields_json AS staged_json,
       l.fields_json AS fields_json, l.schema_version_id
  FROM (SELECT commit_id, id, left_key, right_key, instance_key FROM relation_history
         WHERE commit_id >= :commit_id AND (commit_id, id) > (:commit_id, :row_id)
           AND relation_type = :type
         ORDER BY commit_id, id LIMIT :most) AS h
  LEFT JOIN LATERAL (
       SELECT commit_id, fields_json, schema_version_id FROM relation_latest AS s
        WHERE s.relation_type = :type AND s.left_key = h.left_key
          AND s.right_key = h.right_key AND s.instance_key = h.instance_key OFFSET 0) AS l ON true
  LEFT JOIN LATERAL (
       SELECT source_commit, fields_json FROM staged_relations AS s
        WHERE s.relation_type = :type AND s.left_key = h.left_key
          AND s.right_key = h.right_key AND s.instance_key = h.instance_key OFFSET 0) AS st ON true
 ORDER BY h.commit_id, h.id;

-- name: settling_changes_relations
SELECT l.relation_type, l.left_key, l.right_key, l.instance_key, l.fields_json, st.fields_json,
    l.schema_version_id, st.schema_version_id
  FROM pending_migration AS m
 CROSS JOIN staged_relations AS st
 JOIN relation_latest AS l
    ON l.relation_type = st.relation_type AND l.left_key = st.left_key
        AND l.right_key = st.right_key AND l.instance_key = st.instance_key
   AND l.commit_id = st.source_commit
 WHERE m.commit_id > :first AND m.commit_id <= :last;

-- name: stage_entities
INSERT INTO staged_entities(entity_type, entity_key, source_commit, schema_version_id, fields_json)
SELECT * FROM unnest(:types::text[], :keys::text[], :sources::bigint[], :versions::bigint[],
                     :fields::text[])
    ON CONFLICT (entity_type, entity_key) DO UPDATE SET
       source_commit = excluded.source_commit, schema_version_id = excluded.schema_version_id,
       fields_json = excluded.fields_json;

-- name: stage_relations
INSERT INTO staged_relations(relation_type, left_key, right_key, instance_key, source_commit,
                             schema_version_id, fields_json)
SELECT * FROM unnest(:types::text[], :left::text[], :right::text[], :instance::text[],
                     :sources::bigint[], :versions::bigint[], :fields::text[])
    ON CONFLICT (relation_type, left_key, right_key, instance_key) DO UPDATE SET
       source_commit = excluded.source_commit, schema_version_id = excluded.schema_version_id,
       fields_json = excluded.fields_json;

-- name: stage_values
INSERT INTO staged_values(type_kind, type_name, field, value_hash, object_key)
SELECT * FROM unnest(:kinds::text[], :names::text[], :fields::text[], :hashes::text[],
                     :keys::text[])
    ON CONFLICT DO NOTHING;
