-- name: current_types
-- The current version of those of the types in the JSON list `keys` ([kind, name] each) that are
-- registered.
SELECT v.type_kind, v.type_name, v.schema_version_id, v.schema_json, v.schema_hash,
       v.fills_json
  FROM jsonb_array_elements(:keys::jsonb) AS k
 CROSS JOIN LATERAL (
       SELECT * FROM schema_versions
        WHERE type_kind = k.value ->> 0 AND type_name = k.value ->> 1
        ORDER BY schema_version_id DESC LIMIT 1) AS v;
