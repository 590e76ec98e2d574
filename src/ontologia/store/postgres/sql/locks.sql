-- name: gate
-- What a transaction that writes state asks as soon as it has the lock of commits: the last
-- commit, which schemas there are, who has the lease on long writes, and the types of a migration
-- that settles. It is sent with BEGIN, so it has no parameters; whether the lease has run out is for
-- the caller to see, whose clock it is.
SELECT (SELECT id FROM commits ORDER BY id DESC LIMIT 1),
       (SELECT id FROM schema_versions ORDER BY id DESC LIMIT 1),
       l.owner_id, l.expires_at,
       (SELECT CASE WHEN commit_id IS NOT NULL THEN types_json END FROM pending_migration
         ORDER BY plan_hash LIMIT 1)
  FROM (SELECT 1) AS one LEFT JOIN locks AS l ON l.lock_name = 'ontology_write';
