-- name: get_reply
SELECT request_hash, reply, created_at FROM ontologia.replies
 WHERE namespace = %(namespace)s AND key = %(key)s;

-- name: insert_reply
-- The first one stays. While another transaction has stored one of this key and has not ended, this
-- waits for it.
INSERT INTO ontologia.replies(namespace, key, request_hash, reply, created_at)
VALUES (%(namespace)s, %(key)s, %(request_hash)s, %(reply)s, %(created_at)s)
    ON CONFLICT DO NOTHING;

-- name: delete_replies
-- A portion of those from before a time; what somebody else is deleting is left to them.
-- A materialized CTE: the planner may run a subquery once for each row, and its LIMIT each time.
WITH old AS MATERIALIZED (
    SELECT namespace, key FROM ontologia.replies
     WHERE namespace = %(namespace)s AND created_at < %(before)s
     ORDER BY created_at LIMIT %(most)s FOR UPDATE SKIP LOCKED)
DELETE FROM ontologia.replies AS r USING old
 WHERE r.namespace = old.namespace AND r.key = old.key;
