-- name: get_reply
SELECT request_hash, reply, created_at FROM replies WHERE namespace = :namespace AND key = :key;

-- name: insert_reply
-- The first one stays.
INSERT INTO replies(namespace, key, request_hash, reply, created_at)
VALUES (:namespace, :key, :request_hash, :reply, :created_at)
    ON CONFLICT DO NOTHING;

-- name: delete_replies
-- A portion of those from before a time.
DELETE FROM replies WHERE (namespace, key) IN (
    SELECT namespace, key FROM replies
     WHERE namespace = :namespace AND created_at < :before ORDER BY created_at LIMIT :most);
