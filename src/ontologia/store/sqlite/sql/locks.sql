-- name: gate
-- What every write transaction asks first: who holds the lease, and which schemas there are.
SELECT (SELECT owner_id FROM locks
         WHERE lock_name = 'ontology_write' AND expires_at > ?1 AND owner_id <> ?2),
       (SELECT MAX(id) FROM schema_versions);

-- name: holder
-- Whoever else holds the lease at this moment.
SELECT owner_id FROM locks
 WHERE lock_name = 'ontology_write' AND expires_at > :now AND owner_id <> :owner_id;

-- name: acquire
-- Instead of one that has expired; nothing happens while somebody has it.
INSERT INTO locks(lock_name, owner_id, acquired_at, expires_at)
VALUES ('ontology_write', :owner_id, :now, :expires_at)
    ON CONFLICT (lock_name) DO UPDATE SET
       owner_id = excluded.owner_id, acquired_at = excluded.acquired_at,
       expires_at = excluded.expires_at
 WHERE locks.expires_at <= :now;

-- name: renew
UPDATE locks SET expires_at = :expires_at
 WHERE lock_name = 'ontology_write' AND owner_id = :owner_id AND expires_at > :now;

-- name: owned
SELECT 1 FROM locks
 WHERE lock_name = 'ontology_write' AND owner_id = :owner_id AND expires_at > :now;

-- name: release
DELETE FROM locks WHERE lock_name = 'ontology_write' AND owner_id = :owner_id;
