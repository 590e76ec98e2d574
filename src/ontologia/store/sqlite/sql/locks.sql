-- name: gate
-- What every write transaction asks first: who holds the lease, and which schemas there are.
SELECT (SELECT owner_id FROM locks
         WHERE lock_name = 'ontology_write' AND expires_at > ?1 AND owner_id <> ?2),
       (SELECT MAX(id) FROM schema_versions);

-- name: holder
-- Whoever else holds the lease at this moment.
SELECT owner_id FROM locks
 WHERE lock_name = 'ontology_write' AND expires_at > :now AND owner_id <> :owner_id;

-- name: remove_expired
DELETE FROM locks WHERE lock_name = 'ontology_write' AND expires_at <= :now;

-- name: acquire
INSERT INTO locks(lock_name, owner_id, acquired_at, expires_at)
VALUES ('ontology_write', :owner_id, :now, :expires_at);

-- name: renew
UPDATE locks SET expires_at = :expires_at
 WHERE lock_name = 'ontology_write' AND owner_id = :owner_id AND expires_at > :now;

-- name: owned
SELECT 1 FROM locks
 WHERE lock_name = 'ontology_write' AND owner_id = :owner_id AND expires_at > :now;

-- name: release
DELETE FROM locks WHERE lock_name = 'ontology_write' AND owner_id = :owner_id;
