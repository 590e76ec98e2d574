-- name: gate
-- What every write transaction asks first: who holds the lease, which schemas there are, and
-- the types of a migration that settles.
SELECT (SELECT owner_id FROM locks
         WHERE lock_name = 'ontology_write' AND expires_at > :now AND owner_id <> :owner_id),
       (SELECT MAX(id) FROM schema_versions),
       (SELECT types_json FROM pending_migration WHERE commit_id IS NOT NULL);
