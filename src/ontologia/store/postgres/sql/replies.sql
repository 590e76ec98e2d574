-- name: delete_replies
-- What another process is deleting is left to it. A materialized CTE: the planner may run a
-- subquery once for each row, and its LIMIT each time.
WITH old AS MATERIALIZED (
    SELECT namespace, key FROM replies
     WHERE namespace = :namespace AND created_at < :before
     ORDER BY created_at LIMIT :most FOR UPDATE SKIP LOCKED)
DELETE FROM replies AS r USING old
 WHERE r.namespace = old.namespace AND r.key = old.key;
