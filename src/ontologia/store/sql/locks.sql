-- name: holder
-- Whoever else holds the lease at this moment.
SELECT owner_id FROM locks
 WHERE lock_name = 'ontology_write' AND expires_at > :now AND owner_id <> :owner_id;

-- name: acquire
-- Instead of one that has expired; nothing happens while somebody has it.
INSERT INTO locks AS l (lock_name, owner_id, acquired_at, expires_at)
VALUES ('ontology_write', :owner_id, :now, :expires_at)
    ON CONFLICT (lock_name) DO UPDATE SET
       owner_id = excluded.owner_id, acquired_at = excluded.acquired_at,
       expires_at = excluded.expires_at
 WHERE l.expires_at <= :now;

-- name: renew
UPDATE locks SET expires_at = :expires_at
 WHERE lock_name = 'ontology_write' AND owner_id = :owner_id AND expires_at > :now;

-- name: owned
-- Its row is locked: nobody takes it away before the transaction ends.
SELECT 1 FROM locks
 WHERE lock_name = 'ontology_write' AND owner_id = :owner_id AND expires_at > :now
   @lock(FOR KEY SHARE);

-- name: release
DELETE FROM locks WHERE lock_name = 'ontology_write' AND owner_id = :owner_id;
