-- name: head
-- Commits are numbered under a lock, so the greatest number is the last.
SELECT MAX(id) FROM commits;

-- name: get_entity_at
-- The version of one entity as of a commit, one seek in the lookup index. The caller looks for a
-- tombstone. Old files of SQLite may have two rows of a key in one commit: the last one counts.
SELECT entity_key, fields_json, commit_id, schema_version_id, 0
  FROM entity_history WHERE entity_type = :type AND entity_key = :key AND commit_id <= :as_of
 ORDER BY commit_id DESC, id DESC LIMIT 1;

-- name: list_commits
SELECT id, created_at, metadata_json FROM commits WHERE id > :since ORDER BY id DESC LIMIT :limit;

-- name: get_commit
SELECT id, created_at, metadata_json FROM commits WHERE id = :id;

-- name: commit_between
-- The last commit with a number from `first` to `last`, and its time: one seek.
SELECT id, created_at FROM commits WHERE id BETWEEN :first AND :last ORDER BY id DESC LIMIT 1;

-- name: entity_changes
-- Every entity with a version after :first, up to :last, as it was at both. Costs what changed, not
-- what is stored.
@own;

-- name: relation_changes
@own;
