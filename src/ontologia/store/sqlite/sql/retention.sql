-- name: finished
SELECT e.value FROM json_each(:ids) e
 WHERE NOT EXISTS (
       SELECT 1 FROM subscriptions s JOIN consumers c ON c.id = s.consumer_id
        WHERE s.namespace = :namespace AND s.type IN (:type, '*') AND c.last_seen_at >= :seen_since
          AND NOT EXISTS (SELECT 1 FROM event_claims k
                           WHERE k.event_id = e.value AND k.handler_id = c.name
                             AND (k.ack_at IS NOT NULL OR k.dead_lettered_at IS NOT NULL)))
   AND NOT EXISTS (SELECT 1 FROM event_claims k
                    WHERE k.event_id = e.value AND k.due_at > :now
                      AND k.ack_at IS NULL AND k.dead_lettered_at IS NULL)
   AND NOT EXISTS (SELECT 1 FROM restored r
                    WHERE r.event_id = e.value AND r.restored_at >= :restored_since)
   AND (e.value NOT IN (SELECT event_id FROM incoming)
        OR NOT EXISTS (SELECT 1 FROM subscriptions s
                        WHERE s.namespace = :namespace AND s.type IN (:type, '*')));

-- name: unleased
SELECT e.value FROM json_each(:ids) e
 WHERE NOT EXISTS (SELECT 1 FROM event_claims k
                    WHERE k.event_id = e.value AND k.lease_until > :now AND k.lease_token IS NOT NULL
                      AND k.ack_at IS NULL AND k.dead_lettered_at IS NULL);
