-- name: one_place
-- In incoming, in ready, in an open claim, or finished: these four, and one of them each.
SELECT f.event_id, c.name, 'places:', places FROM (
    SELECT e.id AS event_id, s.consumer_id AS consumer_id,
           COALESCE(i.number, 0)
         + (SELECT COUNT(*) FROM ready r WHERE r.consumer_id = s.consumer_id
               AND r.priority = e.priority AND r.created_at = e.created_at AND r.event_id = e.id)
         + (SELECT COUNT(*) FROM event_claims k JOIN consumers n ON n.id = s.consumer_id
             WHERE k.event_id = e.id AND k.handler_id = n.name
               AND (k.due_at IS NOT NULL OR k.ack_at IS NOT NULL OR k.dead_lettered_at IS NOT NULL))
           AS places
      FROM events e
      JOIN (SELECT DISTINCT e2.id AS event_id, s2.consumer_id
              FROM events e2 JOIN subscriptions s2
                ON s2.namespace = e2.namespace AND s2.type IN (e2.type, '*')) s
        ON s.event_id = e.id
      LEFT JOIN (SELECT event_id, COUNT(*) AS number FROM incoming GROUP BY event_id) i
        ON i.event_id = e.id) f
  JOIN consumers c ON c.id = f.consumer_id
 WHERE places <> 1;

-- name: due_while_leased
SELECT event_id, handler_id, due_at, lease_until, available_at FROM event_claims
 WHERE due_at IS NOT NULL
   AND due_at <> CASE WHEN lease_until > available_at THEN lease_until ELSE available_at END;

-- name: nothing_due_when_finished
SELECT event_id, handler_id, due_at FROM event_claims
 WHERE due_at IS NOT NULL AND (ack_at IS NOT NULL OR dead_lettered_at IS NOT NULL);

-- name: one_ending
SELECT event_id, handler_id FROM event_claims
 WHERE ack_at IS NOT NULL AND dead_lettered_at IS NOT NULL;

-- name: claims_have_events
SELECT 'event_claims', k.event_id FROM event_claims k
 WHERE NOT EXISTS (SELECT 1 FROM events e WHERE e.id = k.event_id)
UNION ALL
SELECT 'ready', r.event_id FROM ready r
 WHERE NOT EXISTS (SELECT 1 FROM events e WHERE e.id = r.event_id)
UNION ALL
SELECT 'incoming', i.event_id FROM incoming i
 WHERE NOT EXISTS (SELECT 1 FROM events e WHERE e.id = i.event_id);

-- name: dead_letters_are_claims
-- Dead letters have no index by event, so they are read once.
SELECT k.event_id, k.handler_id
  FROM (SELECT event_id, handler_id FROM dead_letters
         GROUP BY event_id, handler_id HAVING COUNT(*) > 1) d
  JOIN event_claims k ON k.event_id = d.event_id AND k.handler_id = d.handler_id
 WHERE k.dead_lettered_at IS NOT NULL;

-- name: attempts_are_counted
-- Those of before an operator's retry are numbered 0 and down, and not counted.
SELECT k.event_id, k.handler_id, k.attempts FROM event_claims k
 WHERE k.attempts < (SELECT COUNT(*) FROM attempts a
                      WHERE a.event_id = k.event_id AND a.handler_id = k.handler_id
                        AND a.attempt > 0);

-- name: started_claims
SELECT event_id, handler_id FROM event_claims WHERE (read_commit IS NULL) <> (started_at IS NULL);
