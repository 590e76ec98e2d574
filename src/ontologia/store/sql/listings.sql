-- name: namespaces
-- Sessions that are alive: not ended, and heard of since then. An event without a subscription is
-- pending only where the namespace has no consumers yet. SUM of whole numbers is numeric on
-- PostgreSQL; the casts make them whole again.
SELECT namespace, CAST(SUM(sessions) AS BIGINT), CAST(SUM(pending) AS BIGINT),
       CAST(SUM(unsubscribed) AS BIGINT), CAST(SUM(dead) AS BIGINT) FROM (
    SELECT namespace, COUNT(*) FILTER (
               WHERE last_heartbeat >= :since AND @json(metadata) ->> 'stopped_at' IS NULL
           ) AS sessions, 0 AS pending, 0 AS unsubscribed, 0 AS dead
      FROM sessions GROUP BY namespace
    UNION ALL
    SELECT namespace, 0, COUNT(*) FILTER (WHERE subscribed),
           COUNT(*) FILTER (WHERE NOT subscribed), 0 FROM (
        SELECT e.namespace, EXISTS (SELECT 1 FROM subscriptions s WHERE s.namespace = e.namespace
                                       AND s.type IN (e.type, '*'))
               OR NOT EXISTS (SELECT 1 FROM subscriptions s WHERE s.namespace = e.namespace)
               AS subscribed
          FROM events e WHERE NOT EXISTS (
               SELECT 1 FROM event_claims k WHERE k.event_id = e.id
                  AND (k.ack_at IS NOT NULL OR k.dead_lettered_at IS NOT NULL
                       OR k.lease_until > :now))) unfinished
     GROUP BY namespace
    UNION ALL
    SELECT namespace, 0, 0, 0, 0 FROM events GROUP BY namespace
    UNION ALL
    SELECT namespace, 0, 0, 0, COUNT(*) FROM dead_letters GROUP BY namespace) counted
 GROUP BY namespace ORDER BY namespace;

-- name: has_anything
-- A row if a namespace has events, consumers or dead letters.
SELECT 1 WHERE EXISTS (SELECT 1 FROM events WHERE namespace = :namespace)
            OR EXISTS (SELECT 1 FROM consumers WHERE namespace = :namespace)
            OR EXISTS (SELECT 1 FROM dead_letters WHERE namespace = :namespace);

-- name: busy_namespaces
-- The first namespaces that have events, one seek each.
WITH RECURSIVE n(namespace) AS (
    SELECT MIN(namespace) FROM events
    UNION ALL
    SELECT (SELECT MIN(e.namespace) FROM events e WHERE e.namespace > n.namespace)
      FROM n WHERE n.namespace IS NOT NULL)
SELECT namespace FROM n WHERE namespace IS NOT NULL LIMIT :most;

-- name: named_namespaces
-- The first namespaces, one seek each in every table.
WITH RECURSIVE e(namespace) AS (
    SELECT MIN(namespace) FROM events
    UNION ALL
    SELECT (SELECT MIN(x.namespace) FROM events x WHERE x.namespace > e.namespace)
      FROM e WHERE e.namespace IS NOT NULL),
s(namespace) AS (
    SELECT MIN(namespace) FROM sessions
    UNION ALL
    SELECT (SELECT MIN(x.namespace) FROM sessions x WHERE x.namespace > s.namespace)
      FROM s WHERE s.namespace IS NOT NULL),
d(namespace) AS (
    SELECT MIN(namespace) FROM dead_letters
    UNION ALL
    SELECT (SELECT MIN(x.namespace) FROM dead_letters x WHERE x.namespace > d.namespace)
      FROM d WHERE d.namespace IS NOT NULL)
SELECT namespace FROM (
    SELECT namespace FROM e UNION SELECT namespace FROM s UNION SELECT namespace FROM d
    UNION SELECT namespace FROM consumers) named
 WHERE namespace IS NOT NULL ORDER BY namespace LIMIT :most;

-- name: list_sessions
SELECT session_id, namespace, started_at, last_heartbeat, metadata FROM sessions
 WHERE namespace = :namespace ORDER BY started_at DESC, session_id;

-- name: live_sessions
-- The sessions of all namespaces that did not end and were heard of since then, the newest first.
SELECT session_id, namespace, started_at, last_heartbeat, metadata FROM sessions
 WHERE last_heartbeat >= :since AND @json(metadata) ->> 'stopped_at' IS NULL
 ORDER BY started_at DESC, session_id;

-- name: sessions_heard
-- Sessions heard of since then, those that ended meanwhile as well. The namespace is written so that
-- its index is not taken, and the one by heartbeat gives the order.
SELECT session_id, namespace, started_at, last_heartbeat, metadata FROM sessions
 WHERE namespace || '' = :namespace AND last_heartbeat >= :since
   AND (last_heartbeat, session_id) < (:before, :before_id)
 ORDER BY last_heartbeat DESC, session_id DESC LIMIT :most;

-- name: held_claims
-- How many claims each session holds, as far as claims that wait for a time are counted.
SELECT k.session_id, COUNT(*) FROM (
    SELECT o.session_id, o.lease_until FROM consumers c
     @join event_claims o ON o.consumer_id = c.id AND o.due_at IS NOT NULL
     WHERE c.namespace = :namespace LIMIT :most) k
 WHERE k.lease_until > :now GROUP BY k.session_id;

-- name: event_types
-- The types of a namespace, one seek each.
WITH RECURSIVE t(type) AS (
    SELECT MIN(type) FROM events WHERE namespace = :namespace
    UNION ALL
    SELECT (SELECT MIN(e.type) FROM events e WHERE e.namespace = :namespace AND e.type > t.type)
      FROM t WHERE t.type IS NOT NULL)
SELECT type FROM t WHERE type IS NOT NULL;

-- name: list_events
-- The next events of one type and priority, in the order of the index.
SELECT id, type, created_at, priority FROM events
 WHERE namespace = :namespace AND type = :type AND priority = :priority
   AND (created_at, id) > (:after, :after_id)
 ORDER BY created_at, id LIMIT :limit;

-- name: list_events_back
-- The same from the newest on.
SELECT id, type, created_at, priority FROM events
 WHERE namespace = :namespace AND type = :type AND priority = :priority
   AND (created_at, id) < (:after, :after_id)
 ORDER BY created_at DESC, id DESC LIMIT :limit;

-- name: payloads_of
SELECT id, @bytes(payload) FROM events WHERE id IN @texts(:ids);

-- name: claims_of
SELECT event_id, handler_id, session_id, attempts, last_error, claimed_at, started_at,
       lease_until, available_at, ack_at, dead_lettered_at, read_commit, lease_token, conflicts
  FROM event_claims WHERE event_id IN @texts(:ids)
 ORDER BY event_id, handler_id;

-- name: attempts_of
SELECT handler_id, attempt, started_at, ended_at, read_commit, outcome, error, traceback
  FROM attempts WHERE event_id = :id ORDER BY handler_id, attempt;

-- name: list_dead_letters
SELECT event_id, event_type, handler_id, attempts, last_error, failed_at FROM dead_letters
 WHERE namespace = :namespace ORDER BY failed_at DESC, id DESC LIMIT :limit;

-- name: select_dead_letters
-- A portion of the dead letters that are asked for, the newest first; NULLs ask for any.
SELECT id, event_id, event_type, handler_id, attempts, last_error, failed_at FROM dead_letters
 WHERE namespace = :namespace AND failed_at >= :since AND (failed_at, id) < (:before, :before_id)
   AND (CAST(:event_id AS TEXT) IS NULL OR event_id = :event_id)
   AND (CAST(:any_event AS INTEGER) = 1 OR event_id IN @texts(:event_ids))
   AND (CAST(:handler AS TEXT) IS NULL OR handler_id = :handler)
   AND (CAST(:type AS TEXT) IS NULL OR event_type = :type)
   AND (CAST(:error AS TEXT) IS NULL OR replace(last_error, :error, '') <> last_error)
 ORDER BY failed_at DESC, id DESC LIMIT :most;

-- name: count_dead_letters
SELECT COUNT(*) FROM (SELECT 1 FROM dead_letters WHERE namespace = :namespace LIMIT :most) counted;

-- name: letters_tracebacks
-- The traceback of the last attempt of each of these dead letters.
SELECT d.id, a.traceback FROM dead_letters d
  JOIN attempts a ON a.event_id = d.event_id AND a.handler_id = d.handler_id
   AND a.attempt = d.attempts
 WHERE d.id IN @numbers(:ids) AND a.traceback IS NOT NULL;

-- name: retriable
-- Which of these dead letters have their event still, and a consumer that is subscribed to it. Who
-- changes them has the dispatch lock: no row of them can change meanwhile.
SELECT d.id, c.id
  FROM dead_letters d
  JOIN event_claims k ON k.event_id = d.event_id AND k.handler_id = d.handler_id
  JOIN events e ON e.id = d.event_id
  JOIN consumers c ON c.namespace = d.namespace AND c.name = d.handler_id
 WHERE d.id IN @numbers(:ids) AND k.dead_lettered_at IS NOT NULL
   AND EXISTS (SELECT 1 FROM subscriptions s WHERE s.namespace = e.namespace
                  AND s.type IN (e.type, '*') AND s.consumer_id = c.id);

-- name: lift_attempts
-- Out of the way first: a number that is still taken cannot be given.
UPDATE attempts SET attempt = attempt - 1000000000
 WHERE handler_id = :handler_id AND event_id IN @texts(:ids);

-- name: set_attempts_aside
-- What was the last attempt is number 0 now, and those before it are negative.
UPDATE attempts SET attempt = attempt + 1000000000
       - (SELECT k.attempts FROM event_claims k
           WHERE k.event_id = attempts.event_id AND k.handler_id = attempts.handler_id)
 WHERE handler_id = :handler_id AND event_id IN @texts(:ids);

-- name: revive_claims
-- Buried claims are open again, with no attempt counted; `make_ready` follows. The last error
-- stays: after a crash the event is run alone.
UPDATE event_claims
   SET dead_lettered_at = NULL, attempts = 0, lease_until = :now, available_at = :now,
       due_at = NULL, lease_token = NULL, read_commit = NULL, started_at = NULL,
       consumer_id = :consumer_id
 WHERE handler_id = :handler_id AND event_id IN @texts(:ids);

-- name: delete_dead_letters
DELETE FROM dead_letters WHERE id IN @numbers(:ids);

-- name: get_deferred
SELECT id, event_id, topic, @bytes(payload), fire_at, status FROM deferred_events
 WHERE namespace = :namespace AND id = :id;

-- name: scheduled_events
-- The next deferred events that wait, the earliest first; a type that is NULL asks for any.
SELECT id, event_id, topic, @bytes(payload), fire_at, dedup_key, source, created_at
  FROM deferred_events
 WHERE status = 'scheduled' AND namespace = :namespace
   AND (CAST(:type AS TEXT) IS NULL OR topic = :type)
   AND (fire_at, id) > (:after, :after_id)
 ORDER BY fire_at, id LIMIT :limit;

-- name: waiting_number
SELECT id, topic, fire_at FROM deferred_events
 WHERE id = :number AND status = 'scheduled' AND namespace = :namespace;

-- name: waiting_id
-- By the id that the event will have; of the first that wait.
SELECT id, topic FROM (
    SELECT id, topic, event_id, namespace FROM deferred_events
     WHERE status = 'scheduled' ORDER BY fire_at LIMIT :most) first
 WHERE event_id = :event_id AND namespace = :namespace;

-- name: has_session
SELECT 1 FROM sessions WHERE session_id = :session_id;

-- name: last_ticks
SELECT tick, event_id FROM schedule_fires
 WHERE namespace = :namespace AND schedule_key = :key ORDER BY tick DESC LIMIT :most;

-- name: holders_of_key
-- The events that have a dedup_key, one a type; a type that is NULL asks for any.
SELECT type, event_id FROM dedup
 WHERE namespace = :namespace AND key = :key
   AND (CAST(:type AS TEXT) IS NULL OR type = :type) ORDER BY type;

-- name: find_deferred
-- By the id that the event will have; of those that wait alone, as only they are few.
SELECT id FROM deferred_events
 WHERE status = 'scheduled' AND namespace = :namespace AND event_id = :event_id;

-- name: pairs
-- Who is subscribed to what.
SELECT s.type, c.name, c.paused_at FROM consumers c
  JOIN subscriptions s ON s.namespace = c.namespace AND s.consumer_id = c.id
 WHERE c.namespace = :namespace;

-- name: waiting
-- What can be claimed, by type and consumer, with the oldest of it.
SELECT r.type, c.name, COUNT(*), MIN(r.created_at)
  FROM consumers c @join ready r ON r.consumer_id = c.id
 WHERE c.namespace = :namespace GROUP BY r.type, c.name;

-- name: arriving
-- The same for what is not dispatched yet. Who is subscribed to a type and to all gets it once.
SELECT e.type, c.name, COUNT(DISTINCT e.id), MIN(e.created_at)
  FROM incoming i @join events e ON e.id = i.event_id
  JOIN subscriptions s ON s.namespace = e.namespace AND s.type IN (e.type, '*')
  JOIN consumers c ON c.id = s.consumer_id
 WHERE e.namespace = :namespace GROUP BY e.type, c.name;

-- name: named_consumers
SELECT id, name, last_seen_at, paused_at FROM consumers WHERE namespace = :namespace ORDER BY name;

-- name: subscriptions_in
SELECT consumer_id, type FROM subscriptions WHERE namespace = :namespace ORDER BY type;

-- name: load_ready
-- What one consumer can claim, as far as it is counted, and since when the oldest of it waits: one
-- seek for each priority.
WITH RECURSIVE p(priority) AS (
    SELECT MAX(priority) FROM ready WHERE consumer_id = :consumer_id
    UNION ALL
    SELECT (SELECT MAX(r.priority) FROM ready r
             WHERE r.consumer_id = :consumer_id AND r.priority < p.priority)
      FROM p WHERE p.priority IS NOT NULL)
SELECT (SELECT COUNT(*) FROM (
            SELECT 1 FROM ready WHERE consumer_id = :consumer_id LIMIT :most) counted),
       (SELECT MIN((SELECT MIN(r.created_at) FROM ready r
                     WHERE r.consumer_id = :consumer_id AND r.priority = p.priority)) FROM p);

-- name: load_claims
-- Claims of one consumer that wait for a time, as far as they are counted: all, leased, in backoff,
-- those whose time has come, and of these the attempts that did not end while they had their lease;
-- those that failed before; and since when the oldest waits.
SELECT COUNT(*), COUNT(*) FILTER (WHERE k.lease_until > :now),
       COUNT(*) FILTER (WHERE k.lease_until <= :now AND k.due_at > :now),
       COUNT(*) FILTER (WHERE k.due_at <= :now),
       COUNT(*) FILTER (WHERE k.due_at <= :now AND k.read_commit IS NOT NULL
                          AND k.lease_token IS NOT NULL),
       COUNT(*) FILTER (WHERE k.attempts > 0),
       MIN(e.created_at) FILTER (WHERE k.due_at <= :now)
  FROM (SELECT event_id, lease_until, due_at, read_commit, lease_token, attempts FROM event_claims
         WHERE consumer_id = :consumer_id AND due_at IS NOT NULL ORDER BY due_at LIMIT :most) k
 @join events e ON e.id = k.event_id;

-- name: load_arriving
-- What is not dispatched yet, as far as it is counted, by consumer.
SELECT s.consumer_id, COUNT(DISTINCT e.id), MIN(e.created_at)
  FROM (SELECT event_id FROM incoming ORDER BY seq LIMIT :most) i
 @join events e ON e.id = i.event_id
  JOIN subscriptions s ON s.namespace = e.namespace AND s.type IN (e.type, '*')
 WHERE e.namespace = :namespace GROUP BY s.consumer_id;

-- name: ready_then
-- Events of one priority that one consumer can claim now, of those that were emitted by then.
SELECT event_id, type, created_at, CAST(:namespace AS TEXT) FROM ready
 WHERE consumer_id = :consumer_id AND priority = :priority AND created_at <= :until
 ORDER BY created_at, event_id LIMIT :most;

-- name: unfinished_claims
-- Those that wait for a time: leased, in backoff, or due again; whenever they were emitted.
SELECT e.id, e.type, e.created_at, e.namespace
  FROM (SELECT event_id FROM event_claims WHERE consumer_id = :consumer_id AND due_at IS NOT NULL
         ORDER BY due_at LIMIT :most) k
 @join events e ON e.id = k.event_id;

-- name: undispatched
-- Those that are not dispatched yet, of all namespaces.
SELECT e.id, e.type, e.created_at, e.namespace
  FROM (SELECT event_id FROM incoming ORDER BY seq LIMIT :most) i
 @join events e ON e.id = i.event_id;

-- name: dead_until
-- Dead letters on record that were there by then, the newest first.
SELECT event_id, handler_id FROM dead_letters
 WHERE namespace = :namespace AND failed_at <= :until ORDER BY failed_at DESC, id DESC LIMIT :most;

-- name: count_arriving
SELECT COUNT(*) FROM (SELECT 1 FROM incoming LIMIT :most) counted;

-- name: events_of_type
SELECT COUNT(*), MIN(created_at) FROM events WHERE namespace = :namespace AND type = :type;

-- name: open_claims
-- Claims that wait for a time: leased, in backoff, and those whose time has come; of these the
-- attempts that began and did not end while they had their lease.
SELECT e.type, c.name, COUNT(*) FILTER (WHERE k.lease_until > :now),
       COUNT(*) FILTER (WHERE k.lease_until <= :now AND k.due_at > :now),
       COUNT(*) FILTER (WHERE k.due_at <= :now),
       COUNT(*) FILTER (WHERE k.due_at <= :now AND k.read_commit IS NOT NULL
                          AND k.lease_token IS NOT NULL),
       MIN(e.created_at) FILTER (WHERE k.due_at <= :now)
  FROM consumers c
 @join event_claims k ON k.consumer_id = c.id AND k.due_at IS NOT NULL
 @join events e ON e.id = k.event_id
 WHERE c.namespace = :namespace GROUP BY e.type, c.name;

-- name: failures_since
SELECT e.type, a.handler_id, COUNT(*) FROM attempts a @join events e ON e.id = a.event_id
 WHERE a.ended_at >= :since AND e.namespace = :namespace GROUP BY e.type, a.handler_id;

-- name: deaths_since
SELECT event_type, handler_id, COUNT(*) FROM dead_letters
 WHERE namespace = :namespace AND failed_at >= :since GROUP BY event_type, handler_id;

-- name: came_since
-- How many events of one type and priority came; of them, how many each consumer has done, and its
-- conflicts.
SELECT CAST(NULL AS TEXT), COUNT(*), 0 FROM events
 WHERE namespace = :namespace AND type = :type AND priority = :priority AND created_at >= :since
UNION ALL
SELECT k.handler_id, COUNT(k.ack_at), CAST(SUM(k.conflicts) AS BIGINT)
  FROM events e @join event_claims k ON k.event_id = e.id
 WHERE e.namespace = :namespace AND e.type = :type AND e.priority = :priority
   AND e.created_at >= :since
 GROUP BY k.handler_id;

-- name: last_number
SELECT COALESCE(MAX(seq), 0) FROM events;

-- name: events_after
-- What was written after a number, in all namespaces: what is missing is still being written.
SELECT seq, namespace, id, type, created_at FROM events WHERE seq > :after ORDER BY seq LIMIT :most;

-- name: events_numbered
SELECT seq, namespace, id, type, created_at FROM events
 WHERE seq IN @numbers(:numbers) ORDER BY seq;

-- name: at_hand
-- What a consumer is about to get, and what it has.
SELECT event_id, type FROM (
    SELECT event_id, type FROM ready WHERE consumer_id = :consumer_id
     ORDER BY priority DESC, created_at, event_id LIMIT :most) soon
UNION
SELECT event_id, type FROM (
    SELECT k.event_id, e.type FROM event_claims k @join events e ON e.id = k.event_id
     WHERE k.consumer_id = :consumer_id AND k.due_at IS NOT NULL ORDER BY k.due_at LIMIT :most) now;

-- name: next_arriving
-- What is dispatched next, as far as it is of this namespace.
SELECT e.id, e.type FROM (SELECT event_id FROM incoming ORDER BY seq LIMIT :most) i
 @join events e ON e.id = i.event_id WHERE e.namespace = :namespace;

-- name: consumers_in
SELECT id FROM consumers WHERE namespace = :namespace;

-- name: list_consumers
-- Name, when it was seen, since when it is paused, what is ready, leased and in backoff, and its
-- types as a JSON list.
@own;

-- name: holders
-- The live sessions that said they run a consumer, and those that hold claims of it. A lease that
-- a dead session left behind holds nothing.
@own;

-- name: forget_ready
DELETE FROM ready WHERE consumer_id = :consumer_id;

-- name: forget_attempts
-- Of what it did not finish: if it comes back, it begins anew.
DELETE FROM attempts WHERE (event_id, handler_id) IN (
    SELECT event_id, handler_id FROM event_claims WHERE consumer_id = :consumer_id
       AND ack_at IS NULL AND dead_lettered_at IS NULL);

-- name: forget_waiting
-- What it did not finish; what it did stays, as the record of it.
DELETE FROM event_claims WHERE consumer_id = :consumer_id
   AND ack_at IS NULL AND dead_lettered_at IS NULL;

-- name: forget_subscriptions
@own;

-- name: forget_consumer
DELETE FROM consumers WHERE id = :consumer_id;

-- name: about
-- The database and its version, the layout, the size in bytes, and the server's settings on which
-- durability rests.
@own;

-- name: list_types
-- The current version of every type; one that was dropped has the schema null.
SELECT v.type_kind, v.type_name, v.schema_version_id, v.schema_json, v.schema_hash, v.fills_json
  FROM schema_versions v
 WHERE v.schema_version_id = (SELECT MAX(n.schema_version_id) FROM schema_versions n
                               WHERE n.type_kind = v.type_kind AND n.type_name = v.type_name)
   AND v.schema_json <> 'null'
 ORDER BY v.type_kind, v.type_name;

-- name: type_history
-- A session's id may be followed by the number of its thread.
SELECT v.schema_version_id, v.schema_json, v.created_at, v.runtime_id, v.reason, s.metadata
  FROM schema_versions v
  LEFT JOIN sessions s ON s.session_id = substr(v.runtime_id, 1, 36)
 WHERE v.type_kind = :kind AND v.type_name = :name ORDER BY v.schema_version_id;

-- name: count_entities
SELECT entity_type, COUNT(*) FROM entity_latest GROUP BY entity_type;

-- name: count_some_entities
SELECT COUNT(*) FROM (SELECT 1 FROM entity_latest WHERE entity_type = :type LIMIT :most) counted;

-- name: count_some_relations
SELECT COUNT(*) FROM (
    SELECT 1 FROM relation_latest WHERE relation_type = :type LIMIT :most) counted;

-- name: count_relations
SELECT relation_type, COUNT(*) FROM relation_latest GROUP BY relation_type;

-- name: count_entities_at
SELECT h.entity_type, COUNT(*) FROM entity_history h
 WHERE h.commit_id <= :as_of AND h.fields_json <> 'null'
   AND h.id = (SELECT n.id FROM entity_history n
                WHERE n.entity_type = h.entity_type AND n.entity_key = h.entity_key
                  AND n.commit_id <= :as_of ORDER BY n.commit_id DESC, n.id DESC LIMIT 1)
 GROUP BY h.entity_type;

-- name: count_relations_at
SELECT h.relation_type, COUNT(*) FROM relation_history h
 WHERE h.commit_id <= :as_of AND h.fields_json <> 'null'
   AND h.id = (SELECT n.id FROM relation_history n
                WHERE n.relation_type = h.relation_type AND n.left_key = h.left_key
                  AND n.right_key = h.right_key AND n.instance_key = h.instance_key
                  AND n.commit_id <= :as_of ORDER BY n.commit_id DESC, n.id DESC LIMIT 1)
 GROUP BY h.relation_type;

-- name: entity_page
-- The next entities of a type, in the order of their keys.
@own;

-- name: relation_page
@own;

-- name: entity_page_at
-- The same as of a commit: of every key the last version until then, unless it says "deleted".
SELECT h.entity_key, h.fields_json, h.schema_version_id FROM entity_history h
 WHERE h.entity_type = :type AND h.entity_key > :key
   AND h.commit_id <= :as_of AND h.fields_json <> 'null'
   AND h.id = (SELECT n.id FROM entity_history n
                WHERE n.entity_type = h.entity_type AND n.entity_key = h.entity_key
                  AND n.commit_id <= :as_of ORDER BY n.commit_id DESC, n.id DESC LIMIT 1)
 ORDER BY h.entity_key LIMIT :most;

-- name: relation_page_at
SELECT h.left_key, h.right_key, h.instance_key, h.fields_json, h.schema_version_id
  FROM relation_history h
 WHERE h.relation_type = :type
   AND (h.left_key, h.right_key, h.instance_key) > (:left, :right, :instance)
   AND h.commit_id <= :as_of AND h.fields_json <> 'null'
   AND h.id = (SELECT n.id FROM relation_history n
                WHERE n.relation_type = h.relation_type AND n.left_key = h.left_key
                  AND n.right_key = h.right_key AND n.instance_key = h.instance_key
                  AND n.commit_id <= :as_of ORDER BY n.commit_id DESC, n.id DESC LIMIT 1)
 ORDER BY h.left_key, h.right_key, h.instance_key LIMIT :most;

-- name: count_events
-- All retained events, by the gravest of what their claims say.
SELECT namespace, status, COUNT(*) FROM (
    SELECT e.namespace, CASE
           WHEN EXISTS (SELECT 1 FROM event_claims k WHERE k.event_id = e.id
                           AND k.dead_lettered_at IS NOT NULL) THEN 'dead_lettered'
           WHEN EXISTS (SELECT 1 FROM event_claims k WHERE k.event_id = e.id
                           AND k.ack_at IS NOT NULL) THEN 'acked'
           WHEN EXISTS (SELECT 1 FROM event_claims k WHERE k.event_id = e.id
                           AND k.lease_until > :now) THEN 'claimed'
           WHEN EXISTS (SELECT 1 FROM subscriptions s WHERE s.namespace = e.namespace
                           AND s.type IN (e.type, '*'))
             OR NOT EXISTS (SELECT 1 FROM subscriptions s WHERE s.namespace = e.namespace)
                THEN 'pending'
           ELSE 'unsubscribed' END AS status
      FROM events e) AS counted
 GROUP BY namespace, status;

-- name: entity_versions
-- What was ever said of one entity, before a commit, the newest first.
SELECT commit_id, fields_json, schema_version_id FROM entity_history
 WHERE entity_type = :type AND entity_key = :key AND commit_id < :before
 ORDER BY commit_id DESC, id DESC LIMIT :most;

-- name: relation_versions
SELECT commit_id, fields_json, schema_version_id FROM relation_history
 WHERE relation_type = :type AND left_key = :left AND right_key = :right
   AND instance_key = :instance AND commit_id < :before
 ORDER BY commit_id DESC, id DESC LIMIT :most;

-- name: settling_version_of_entity
-- The version that a migration has given an entity, while it is not in the history yet.
SELECT m.commit_id, st.fields_json, st.schema_version_id
  FROM pending_migration AS m
 CROSS JOIN staged_entities AS st
 CROSS JOIN entity_latest AS l
 WHERE m.commit_id < :before AND st.entity_type = :type AND st.entity_key = :key
   AND l.entity_type = st.entity_type AND l.entity_key = st.entity_key
   AND l.commit_id = st.source_commit;

-- name: settling_version_of_relation
SELECT m.commit_id, st.fields_json, st.schema_version_id
  FROM pending_migration AS m
 CROSS JOIN staged_relations AS st
 CROSS JOIN relation_latest AS l
 WHERE m.commit_id < :before AND st.relation_type = :type AND st.left_key = :left
   AND st.right_key = :right AND st.instance_key = :instance
   AND l.relation_type = st.relation_type AND l.left_key = st.left_key
   AND l.right_key = st.right_key AND l.instance_key = st.instance_key
   AND l.commit_id = st.source_commit;

-- name: settling_now
-- The types of a migration that has switched and is not finished.
SELECT m.types_json FROM pending_migration AS m WHERE m.commit_id IS NOT NULL;

-- name: entity_changes_of
-- The next entities that one commit wrote, each as it was before and after.
SELECT h.id, h.entity_type, h.entity_key, b.fields_json, h.fields_json, b.schema_version_id,
       h.schema_version_id
  FROM entity_history h
  LEFT JOIN entity_history b ON b.id = (
       SELECT p.id FROM entity_history p
        WHERE p.entity_type = h.entity_type AND p.entity_key = h.entity_key
          AND p.commit_id < h.commit_id ORDER BY p.commit_id DESC, p.id DESC LIMIT 1)
 WHERE h.commit_id = :commit_id AND h.id > :after ORDER BY h.id LIMIT :most;

-- name: relation_changes_of
SELECT h.id, h.relation_type, h.left_key, h.right_key, h.instance_key, b.fields_json,
       h.fields_json, b.schema_version_id, h.schema_version_id
  FROM relation_history h
  LEFT JOIN relation_history b ON b.id = (
       SELECT p.id FROM relation_history p
        WHERE p.relation_type = h.relation_type AND p.left_key = h.left_key
          AND p.right_key = h.right_key AND p.instance_key = h.instance_key
          AND p.commit_id < h.commit_id ORDER BY p.commit_id DESC, p.id DESC LIMIT 1)
 WHERE h.commit_id = :commit_id AND h.id > :after ORDER BY h.id LIMIT :most;

-- name: events_of_source
-- The events of one type and priority, of a stretch of time, that this source emitted.
SELECT created_at, id, type FROM events
 WHERE namespace = :namespace AND type = :type AND priority = :priority
   AND created_at >= :first AND created_at <= :last AND source = :source
 ORDER BY created_at, id LIMIT :most;

-- name: commits_before
-- The next commits on the way back.
SELECT id, created_at, metadata_json FROM commits
 WHERE id < :before AND id > :since ORDER BY id DESC LIMIT :most;

-- name: operators_commits
-- Commits of these numbers that an operator made, the newest first; the caller looks again.
SELECT id, created_at, metadata_json FROM commits
 WHERE id < :before AND id >= :first AND replace(metadata_json, :mark, '') <> metadata_json
 ORDER BY id DESC LIMIT :most;

-- name: commits_for
-- The commits whose metadata names one of these events, oldest first; the caller looks again.
@own;

-- name: causes_of
-- An event, the event whose handler announced it, and so on: one seek each.
WITH RECURSIVE up(id) AS (
    SELECT id FROM events WHERE id = :id
    UNION
    SELECT e.causation_id FROM events e JOIN up ON e.id = up.id WHERE e.causation_id IS NOT NULL)
SELECT e.id, e.namespace, e.type, @bytes(e.payload), e.created_at, e.priority, e.root_event_id,
       e.chain_depth, e.source, e.correlation_id, e.causation_id, e.tenant_id, e.dedup_key
  FROM up @join events e ON e.id = up.id;

-- name: chain_of
-- The first event of a chain and all that followed from it, oldest first.
SELECT id, namespace, type, @bytes(payload), created_at, priority, root_event_id,
       chain_depth, source, correlation_id, causation_id, tenant_id, dedup_key, seq
  FROM events WHERE id = :root
UNION ALL
SELECT id, namespace, type, @bytes(payload), created_at, priority, root_event_id,
       chain_depth, source, correlation_id, causation_id, tenant_id, dedup_key, seq
  FROM events WHERE root_event_id = :root AND root_event_id <> id
 ORDER BY 14;

-- name: attempts_at
-- The attempts at these events that did not succeed.
SELECT event_id, handler_id, attempt, started_at, ended_at, read_commit, outcome, error
  FROM attempts WHERE event_id IN @texts(:ids)
 ORDER BY event_id, handler_id, attempt;

-- name: ready_for
-- Who could claim these events and has not yet.
SELECT e.id, c.name
  FROM events e
 @join subscriptions s ON s.namespace = e.namespace AND s.type IN (e.type, '*')
 @join consumers c ON c.id = s.consumer_id
 @join ready r ON r.consumer_id = c.id AND r.priority = e.priority
       AND r.created_at = e.created_at AND r.event_id = e.id
 WHERE e.id IN @texts(:ids)
 GROUP BY e.id, c.name ORDER BY e.id, c.name;
