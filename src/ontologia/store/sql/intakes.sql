-- name: intake_positions
SELECT part, position, behind, updated_at FROM intakes
 WHERE namespace = :namespace AND source = :source ORDER BY part;

-- name: list_intakes
SELECT source, part, position, behind, updated_at FROM intakes
 WHERE namespace = :namespace ORDER BY source, part;

-- name: move_intake
-- Nothing if another intake has moved it meanwhile; -1 stands for a part that is not there yet.
INSERT INTO intakes AS i (namespace, source, part, position, behind, updated_at)
VALUES (:namespace, :source, :part, :position, :behind, :now)
    ON CONFLICT (namespace, source, part) DO UPDATE SET
       position = excluded.position, behind = excluded.behind, updated_at = excluded.updated_at
 WHERE i.position = :before;

-- name: known_names
SELECT name FROM intake_messages
 WHERE namespace = :namespace AND source = :source AND name IN @texts(:names);

-- name: names_between
SELECT name FROM intake_messages
 WHERE namespace = :namespace AND source = :source AND name > :after AND name <= :until
 ORDER BY name LIMIT :most;

-- name: note_name
INSERT INTO intake_messages(namespace, source, name) VALUES (:namespace, :source, :name)
    ON CONFLICT DO NOTHING;

-- name: forget_names
DELETE FROM intake_messages
 WHERE namespace = :namespace AND source = :source AND name IN @texts(:names);

-- name: events_of_ids
SELECT id, namespace, type, @bytes(payload) FROM events WHERE id IN @texts(:ids);
