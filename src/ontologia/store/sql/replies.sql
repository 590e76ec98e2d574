-- name: get_reply
SELECT request_hash, reply, created_at FROM replies WHERE namespace = :namespace AND key = :key;

-- name: insert_reply
-- The first one stays. While another transaction has stored one of this key and has not ended, this
-- waits for it.
INSERT INTO replies(namespace, key, request_hash, reply, created_at)
VALUES (:namespace, :key, :request_hash, :reply, :created_at)
    ON CONFLICT DO NOTHING;

-- name: delete_replies
-- A portion of those from before a time.
@own;
