-- name: current_types
-- The current version of those of the types in the JSON list `keys` ([kind, name] each) that are
-- registered.
SELECT v.type_kind, v.type_name, v.schema_version_id, v.schema_json, v.schema_hash
  FROM jsonb_array_elements(%(keys)s::jsonb) AS k
 CROSS JOIN LATERAL (
       SELECT * FROM ontologia.schema_versions
        WHERE type_kind = k.value ->> 0 AND type_name = k.value ->> 1
        ORDER BY schema_version_id DESC LIMIT 1) AS v;

-- name: generation
-- Grows with every registered version of any type: as long as it is the same, nothing changed.
-- Types are registered under the lock of commits, so a smaller number never comes later.
SELECT MAX(id) FROM ontologia.schema_versions;

-- name: list_versions
SELECT type_kind, type_name, schema_version_id, schema_json, schema_hash
  FROM ontologia.schema_versions
 WHERE type_kind = %(kind)s AND type_name = %(name)s ORDER BY schema_version_id;

-- name: set_current
INSERT INTO ontologia.schema_registry(type_kind, type_name, schema_json)
VALUES (%(kind)s, %(name)s, %(schema_json)s)
    ON CONFLICT (type_kind, type_name) DO UPDATE SET schema_json = excluded.schema_json;

-- name: insert_version
INSERT INTO ontologia.schema_versions(type_kind, type_name, schema_version_id, schema_json,
                                      schema_hash, created_at, runtime_id, reason)
VALUES (%(kind)s, %(name)s, %(version)s, %(schema_json)s, %(schema_hash)s, %(created_at)s,
        %(runtime_id)s, %(reason)s);

-- name: unversioned_types
-- What is registered, if no version of any type is on record.
SELECT type_kind, type_name, schema_json FROM ontologia.schema_registry
 WHERE NOT EXISTS (SELECT 1 FROM ontologia.schema_versions) ORDER BY type_kind, type_name;
