-- name: current_types
-- The current version of those of the types in the JSON list :keys ([kind, name] each) that are
-- registered.
SELECT v.type_kind, v.type_name, v.schema_version_id, v.schema_json, v.schema_hash,
       v.fills_json
  FROM json_each(:keys) AS k
 CROSS JOIN schema_versions AS v ON v.id = (
       SELECT id FROM schema_versions
        WHERE type_kind = k.value ->> 0 AND type_name = k.value ->> 1
        ORDER BY schema_version_id DESC LIMIT 1);
