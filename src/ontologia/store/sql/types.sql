-- name: generation
-- Grows with every registered version of any type: as long as it is the same, nothing changed.
-- Types are registered under the lock of commits, so a smaller number never comes later.
SELECT MAX(id) FROM schema_versions;

-- name: list_versions
SELECT type_kind, type_name, schema_version_id, schema_json, schema_hash, fills_json
  FROM schema_versions WHERE type_kind = :kind AND type_name = :name ORDER BY schema_version_id;

-- name: set_current
INSERT INTO schema_registry(type_kind, type_name, schema_json) VALUES (:kind, :name, :schema_json)
    ON CONFLICT (type_kind, type_name) DO UPDATE SET schema_json = excluded.schema_json;

-- name: insert_version
INSERT INTO schema_versions(type_kind, type_name, schema_version_id, schema_json, schema_hash,
                            created_at, runtime_id, reason, fills_json)
VALUES (:kind, :name, :version, :schema_json, :schema_hash, :created_at, :runtime_id, :reason,
        :fills_json);

-- name: unversioned_types
-- What is registered, if no version of any type is on record.
SELECT type_kind, type_name, schema_json FROM schema_registry
 WHERE NOT EXISTS (SELECT 1 FROM schema_versions) ORDER BY type_kind, type_name;
