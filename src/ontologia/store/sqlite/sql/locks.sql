-- name: gate
-- What every write transaction asks first: who holds the lease, and which schemas there are.
SELECT (SELECT owner_id FROM locks
         WHERE lock_name = 'ontology_write' AND expires_at > :now AND owner_id <> :owner_id),
       (SELECT MAX(id) FROM schema_versions);
