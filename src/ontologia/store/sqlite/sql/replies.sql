-- name: delete_replies
DELETE FROM replies WHERE (namespace, key) IN (
    SELECT namespace, key FROM replies
     WHERE namespace = :namespace AND created_at < :before ORDER BY created_at LIMIT :most);
