-- name: gate
-- What a transaction that writes state asks as soon as it has the lock of commits: the last
-- commit, which schemas there are, and who has the lease on long writes. It is sent with BEGIN, so
-- it has no parameters; whether the lease has run out is for the caller to see, whose clock it is.
SELECT (SELECT id FROM ontologia.commits ORDER BY id DESC LIMIT 1),
       (SELECT id FROM ontologia.schema_versions ORDER BY id DESC LIMIT 1),
       l.owner_id, l.expires_at
  FROM (SELECT 1) AS one LEFT JOIN ontologia.locks AS l ON l.lock_name = 'ontology_write';

-- name: holder
-- Whoever else holds the lease at this moment.
SELECT owner_id FROM ontologia.locks
 WHERE lock_name = 'ontology_write' AND expires_at > %(now)s AND owner_id <> %(owner_id)s;

-- name: acquire
-- Instead of one that has expired; nothing happens while somebody has it.
INSERT INTO ontologia.locks AS l (lock_name, owner_id, acquired_at, expires_at)
VALUES ('ontology_write', %(owner_id)s, %(now)s, %(expires_at)s)
    ON CONFLICT (lock_name) DO UPDATE SET
       owner_id = excluded.owner_id, acquired_at = excluded.acquired_at,
       expires_at = excluded.expires_at
 WHERE l.expires_at <= %(now)s;

-- name: renew
UPDATE ontologia.locks SET expires_at = %(expires_at)s
 WHERE lock_name = 'ontology_write' AND owner_id = %(owner_id)s AND expires_at > %(now)s;

-- name: owned
-- Its row is locked: nobody takes it away before the transaction ends.
SELECT 1 FROM ontologia.locks
 WHERE lock_name = 'ontology_write' AND owner_id = %(owner_id)s AND expires_at > %(now)s
   FOR KEY SHARE;

-- name: release
DELETE FROM ontologia.locks WHERE lock_name = 'ontology_write' AND owner_id = %(owner_id)s;
