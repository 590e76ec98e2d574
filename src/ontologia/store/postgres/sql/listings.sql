-- name: namespaces
-- Sessions that are alive: not ended, and heard of since then. An event without a subscription is
-- pending only where the namespace has no consumers yet. SUM of whole numbers is numeric here; the
-- casts make them whole again.
SELECT namespace, SUM(sessions)::bigint, SUM(pending)::bigint, SUM(unsubscribed)::bigint,
       SUM(dead)::bigint FROM (
    SELECT namespace, COUNT(*) FILTER (
               WHERE last_heartbeat >= %(since)s AND metadata::jsonb ->> 'stopped_at' IS NULL
           ) AS sessions, 0 AS pending, 0 AS unsubscribed, 0 AS dead
      FROM ontologia.sessions GROUP BY namespace
    UNION ALL
    SELECT namespace, 0, COUNT(*) FILTER (WHERE subscribed),
           COUNT(*) FILTER (WHERE NOT subscribed), 0 FROM (
        SELECT e.namespace, EXISTS (SELECT 1 FROM ontologia.subscriptions s
                                     WHERE s.namespace = e.namespace AND s.type IN (e.type, '*'))
               OR NOT EXISTS (SELECT 1 FROM ontologia.subscriptions s
                               WHERE s.namespace = e.namespace) AS subscribed
          FROM ontologia.events e WHERE NOT EXISTS (
               SELECT 1 FROM ontologia.event_claims k WHERE k.event_id = e.id
                  AND (k.ack_at IS NOT NULL OR k.dead_lettered_at IS NOT NULL
                       OR k.lease_until > %(now)s))) unfinished
     GROUP BY namespace
    UNION ALL
    SELECT namespace, 0, 0, 0, 0 FROM ontologia.events GROUP BY namespace
    UNION ALL
    SELECT namespace, 0, 0, 0, COUNT(*) FROM ontologia.dead_letters GROUP BY namespace) counted
 GROUP BY namespace ORDER BY namespace;

-- name: has_anything
-- A row if a namespace has events, consumers or dead letters.
SELECT 1 WHERE EXISTS (SELECT 1 FROM ontologia.events WHERE namespace = %(namespace)s)
            OR EXISTS (SELECT 1 FROM ontologia.consumers WHERE namespace = %(namespace)s)
            OR EXISTS (SELECT 1 FROM ontologia.dead_letters WHERE namespace = %(namespace)s);

-- name: busy_namespaces
-- The first namespaces that have events, one seek each.
WITH RECURSIVE n(namespace) AS (
    SELECT MIN(namespace) FROM ontologia.events
    UNION ALL
    SELECT (SELECT MIN(e.namespace) FROM ontologia.events e WHERE e.namespace > n.namespace)
      FROM n WHERE n.namespace IS NOT NULL)
SELECT namespace FROM n WHERE namespace IS NOT NULL LIMIT %(most)s;

-- name: list_sessions
SELECT session_id, namespace, started_at, last_heartbeat, metadata FROM ontologia.sessions
 WHERE namespace = %(namespace)s ORDER BY started_at DESC, session_id;

-- name: event_types
-- The types of a namespace, one seek each.
WITH RECURSIVE t(type) AS (
    SELECT MIN(type) FROM ontologia.events WHERE namespace = %(namespace)s
    UNION ALL
    SELECT (SELECT MIN(e.type) FROM ontologia.events e
             WHERE e.namespace = %(namespace)s AND e.type > t.type)
      FROM t WHERE t.type IS NOT NULL)
SELECT type FROM t WHERE type IS NOT NULL;

-- name: list_events
-- The next events of one type and priority, in the order of the index.
SELECT id, type, created_at, priority FROM ontologia.events
 WHERE namespace = %(namespace)s AND type = %(type)s AND priority = %(priority)s
   AND (created_at, id) > (%(after)s, %(after_id)s)
 ORDER BY created_at, id LIMIT %(limit)s;

-- name: list_events_back
-- The same from the newest on.
SELECT id, type, created_at, priority FROM ontologia.events
 WHERE namespace = %(namespace)s AND type = %(type)s AND priority = %(priority)s
   AND (created_at, id) < (%(after)s, %(after_id)s)
 ORDER BY created_at DESC, id DESC LIMIT %(limit)s;

-- name: claims_of
SELECT event_id, handler_id, session_id, attempts, last_error, claimed_at, started_at,
       lease_until, available_at, ack_at, dead_lettered_at, read_commit, lease_token, conflicts
  FROM ontologia.event_claims
 WHERE event_id = ANY(ARRAY(SELECT jsonb_array_elements_text(%(ids)s::jsonb)))
 ORDER BY event_id, handler_id;

-- name: attempts_of
SELECT handler_id, attempt, started_at, ended_at, read_commit, outcome, error, traceback
  FROM ontologia.attempts WHERE event_id = %(id)s ORDER BY handler_id, attempt;

-- name: list_dead_letters
SELECT event_id, event_type, handler_id, attempts, last_error, failed_at FROM ontologia.dead_letters
 WHERE namespace = %(namespace)s ORDER BY failed_at DESC, id DESC LIMIT %(limit)s;

-- name: select_dead_letters
-- A portion of the dead letters that are asked for, the newest first; NULLs ask for any.
SELECT id, event_id, event_type, handler_id, attempts, last_error, failed_at
  FROM ontologia.dead_letters
 WHERE namespace = %(namespace)s AND failed_at >= %(since)s
   AND (failed_at, id) < (%(before)s, %(before_id)s)
   AND (%(event_id)s::text IS NULL OR event_id = %(event_id)s)
   AND (%(handler)s::text IS NULL OR handler_id = %(handler)s)
   AND (%(type)s::text IS NULL OR event_type = %(type)s)
   AND (%(error)s::text IS NULL OR strpos(last_error, %(error)s) > 0)
 ORDER BY failed_at DESC, id DESC LIMIT %(most)s;

-- name: retriable
-- Which of these dead letters have their event still, and a consumer that is subscribed to it. Who
-- changes them has the hand-out lock: no row of them can change meanwhile.
SELECT d.id, c.id
  FROM ontologia.dead_letters d
  JOIN ontologia.event_claims k ON k.event_id = d.event_id AND k.handler_id = d.handler_id
  JOIN ontologia.events e ON e.id = d.event_id
  JOIN ontologia.consumers c ON c.namespace = d.namespace AND c.name = d.handler_id
 WHERE d.id = ANY(ARRAY(SELECT value::bigint FROM jsonb_array_elements_text(%(ids)s::jsonb)))
   AND k.dead_lettered_at IS NOT NULL
   AND EXISTS (SELECT 1 FROM ontologia.subscriptions s WHERE s.namespace = e.namespace
                  AND s.type IN (e.type, '*') AND s.consumer_id = c.id);

-- name: lift_attempts
-- Out of the way first: a number that is still taken cannot be given.
UPDATE ontologia.attempts SET attempt = attempt - 1000000000
 WHERE handler_id = %(handler_id)s
   AND event_id = ANY(ARRAY(SELECT jsonb_array_elements_text(%(ids)s::jsonb)));

-- name: set_attempts_aside
-- What was the last attempt is number 0 now, and those before it are negative.
UPDATE ontologia.attempts a SET attempt = a.attempt + 1000000000
       - (SELECT k.attempts FROM ontologia.event_claims k
           WHERE k.event_id = a.event_id AND k.handler_id = a.handler_id)
 WHERE handler_id = %(handler_id)s
   AND event_id = ANY(ARRAY(SELECT jsonb_array_elements_text(%(ids)s::jsonb)));

-- name: revive_claims
-- Buried claims are open again, with no attempt counted; `make_ready` follows. The last error
-- stays: after a crash the event is run alone.
UPDATE ontologia.event_claims
   SET dead_lettered_at = NULL, attempts = 0, lease_until = %(now)s, available_at = %(now)s,
       due_at = NULL, lease_token = NULL, read_commit = NULL, started_at = NULL,
       consumer_id = %(consumer_id)s
 WHERE handler_id = %(handler_id)s
   AND event_id = ANY(ARRAY(SELECT jsonb_array_elements_text(%(ids)s::jsonb)));

-- name: delete_dead_letters
DELETE FROM ontologia.dead_letters
 WHERE id = ANY(ARRAY(SELECT value::bigint FROM jsonb_array_elements_text(%(ids)s::jsonb)));

-- name: get_deferred
SELECT id, event_id, topic, payload, fire_at, status FROM ontologia.deferred_events
 WHERE namespace = %(namespace)s AND id = %(id)s;

-- name: scheduled_events
-- The next deferred events that wait, the earliest first; a type that is NULL asks for any.
SELECT id, event_id, topic, payload, fire_at, dedup_key, source, created_at
  FROM ontologia.deferred_events
 WHERE status = 'scheduled' AND namespace = %(namespace)s
   AND (%(type)s::text IS NULL OR topic = %(type)s)
   AND (fire_at, id) > (%(after)s, %(after_id)s)
 ORDER BY fire_at, id LIMIT %(limit)s;

-- name: holders_of_key
-- The events that have a dedup_key, one a type; a type that is NULL asks for any.
SELECT type, event_id FROM ontologia.dedup
 WHERE namespace = %(namespace)s AND key = %(key)s
   AND (%(type)s::text IS NULL OR type = %(type)s) ORDER BY type;

-- name: find_deferred
-- By the id that the event will have; of those that wait alone, as only they are few.
SELECT id FROM ontologia.deferred_events
 WHERE status = 'scheduled' AND namespace = %(namespace)s AND event_id = %(event_id)s;

-- name: pairs
-- Who is subscribed to what.
SELECT s.type, c.name, c.paused_at FROM ontologia.consumers c
  JOIN ontologia.subscriptions s ON s.namespace = c.namespace AND s.consumer_id = c.id
 WHERE c.namespace = %(namespace)s;

-- name: waiting
-- What can be claimed, by type and consumer, with the oldest of it.
SELECT r.type, c.name, COUNT(*), MIN(r.created_at)
  FROM ontologia.consumers c JOIN ontologia.ready r ON r.consumer_id = c.id
 WHERE c.namespace = %(namespace)s GROUP BY r.type, c.name;

-- name: arriving
-- The same for what nobody has handed out yet. Who is subscribed to a type and to all gets it once.
SELECT e.type, c.name, COUNT(DISTINCT e.id), MIN(e.created_at)
  FROM ontologia.incoming i JOIN ontologia.events e ON e.id = i.event_id
  JOIN ontologia.subscriptions s ON s.namespace = e.namespace AND s.type IN (e.type, '*')
  JOIN ontologia.consumers c ON c.id = s.consumer_id
 WHERE e.namespace = %(namespace)s GROUP BY e.type, c.name;

-- name: events_of_type
SELECT COUNT(*), MIN(created_at) FROM ontologia.events WHERE namespace = %(namespace)s AND type = %(type)s;

-- name: open_claims
-- Claims that wait for a time: leased, in backoff, and those whose time has come.
SELECT e.type, c.name, COUNT(*) FILTER (WHERE k.lease_until > %(now)s),
       COUNT(*) FILTER (WHERE k.lease_until <= %(now)s AND k.due_at > %(now)s),
       COUNT(*) FILTER (WHERE k.due_at <= %(now)s),
       MIN(e.created_at) FILTER (WHERE k.due_at <= %(now)s)
  FROM ontologia.consumers c
  JOIN ontologia.event_claims k ON k.consumer_id = c.id AND k.due_at IS NOT NULL
  JOIN ontologia.events e ON e.id = k.event_id
 WHERE c.namespace = %(namespace)s GROUP BY e.type, c.name;

-- name: failures_since
SELECT e.type, a.handler_id, COUNT(*)
  FROM ontologia.attempts a JOIN ontologia.events e ON e.id = a.event_id
 WHERE a.ended_at >= %(since)s AND e.namespace = %(namespace)s GROUP BY e.type, a.handler_id;

-- name: deaths_since
SELECT event_type, handler_id, COUNT(*) FROM ontologia.dead_letters
 WHERE namespace = %(namespace)s AND failed_at >= %(since)s GROUP BY event_type, handler_id;

-- name: came_since
-- How many events of one type and priority came; of them, how many each consumer has done, and its
-- conflicts.
SELECT NULL::text, COUNT(*), 0 FROM ontologia.events
 WHERE namespace = %(namespace)s AND type = %(type)s AND priority = %(priority)s
   AND created_at >= %(since)s
UNION ALL
SELECT k.handler_id, COUNT(k.ack_at), SUM(k.conflicts)::bigint
  FROM ontologia.events e JOIN ontologia.event_claims k ON k.event_id = e.id
 WHERE e.namespace = %(namespace)s AND e.type = %(type)s AND e.priority = %(priority)s
   AND e.created_at >= %(since)s
 GROUP BY k.handler_id;

-- name: last_number
SELECT COALESCE(MAX(seq), 0) FROM ontologia.events;

-- name: events_after
-- What was written after a number, in all namespaces: what is missing is still being written.
SELECT seq, namespace, id, type, created_at FROM ontologia.events
 WHERE seq > %(after)s ORDER BY seq LIMIT %(most)s;

-- name: events_numbered
SELECT seq, namespace, id, type, created_at FROM ontologia.events
 WHERE seq = ANY(ARRAY(SELECT value::bigint FROM jsonb_array_elements_text(%(numbers)s::jsonb)))
 ORDER BY seq;

-- name: at_hand
-- What a consumer is about to get, and what it has.
SELECT event_id, type FROM (
    SELECT event_id, type FROM ontologia.ready WHERE consumer_id = %(consumer_id)s
     ORDER BY priority DESC, created_at, event_id LIMIT %(most)s) soon
UNION
SELECT event_id, type FROM (
    SELECT k.event_id, e.type
      FROM ontologia.event_claims k JOIN ontologia.events e ON e.id = k.event_id
     WHERE k.consumer_id = %(consumer_id)s AND k.due_at IS NOT NULL
     ORDER BY k.due_at LIMIT %(most)s) now;

-- name: next_arriving
-- What is handed out next, as far as it is of this namespace.
SELECT e.id, e.type FROM (SELECT event_id FROM ontologia.incoming ORDER BY seq LIMIT %(most)s) i
  JOIN ontologia.events e ON e.id = i.event_id WHERE e.namespace = %(namespace)s;

-- name: consumers_in
SELECT id FROM ontologia.consumers WHERE namespace = %(namespace)s;

-- name: list_consumers
SELECT c.name, c.last_seen_at, c.paused_at,
       (SELECT COUNT(*) FROM ontologia.ready r WHERE r.consumer_id = c.id),
       (SELECT COUNT(*) FROM ontologia.event_claims k
         WHERE k.consumer_id = c.id AND k.due_at IS NOT NULL AND k.lease_until > %(now)s),
       (SELECT COUNT(*) FROM ontologia.event_claims k
         WHERE k.consumer_id = c.id AND k.due_at IS NOT NULL AND k.lease_until <= %(now)s),
       (SELECT COALESCE(json_agg(s.type ORDER BY s.type), '[]')::text
          FROM ontologia.subscriptions s
         WHERE s.namespace = c.namespace AND s.consumer_id = c.id)
  FROM ontologia.consumers c WHERE c.namespace = %(namespace)s ORDER BY c.name;

-- name: holders
-- The live sessions that said they run a consumer, and those that hold claims of it. A lease that
-- a dead session left behind holds nothing.
SELECT s.session_id FROM ontologia.sessions s
 WHERE s.namespace = %(namespace)s AND s.last_heartbeat >= %(since)s
   AND s.metadata::jsonb ->> 'stopped_at' IS NULL
   AND s.metadata::jsonb -> 'consumers' @> to_jsonb(%(name)s::text)
UNION
SELECT k.session_id FROM ontologia.event_claims k
  LEFT JOIN ontologia.sessions s ON s.session_id = k.session_id
 WHERE k.consumer_id = %(consumer_id)s AND k.due_at IS NOT NULL AND k.lease_token IS NOT NULL
   AND k.lease_until > %(now)s
   AND (s.session_id IS NULL
        OR s.last_heartbeat >= %(since)s AND s.metadata::jsonb ->> 'stopped_at' IS NULL);

-- name: forget_ready
DELETE FROM ontologia.ready WHERE consumer_id = %(consumer_id)s;

-- name: forget_attempts
-- Of what it did not finish: if it comes back, it begins anew.
DELETE FROM ontologia.attempts WHERE (event_id, handler_id) IN (
    SELECT event_id, handler_id FROM ontologia.event_claims WHERE consumer_id = %(consumer_id)s
       AND ack_at IS NULL AND dead_lettered_at IS NULL);

-- name: forget_waiting
-- What it did not finish; what it did stays, as the record of it.
DELETE FROM ontologia.event_claims WHERE consumer_id = %(consumer_id)s
   AND ack_at IS NULL AND dead_lettered_at IS NULL;

-- name: forget_subscriptions
-- What a session made ready after `forget_ready`, before its claims were gone, goes as well.
WITH late AS (DELETE FROM ontologia.ready WHERE consumer_id = %(consumer_id)s)
DELETE FROM ontologia.subscriptions
 WHERE namespace = %(namespace)s AND consumer_id = %(consumer_id)s;

-- name: forget_consumer
DELETE FROM ontologia.consumers WHERE id = %(consumer_id)s;

-- name: about
SELECT 'PostgreSQL ' || current_setting('server_version'),
       (SELECT MAX(version) FROM ontologia.ontologia_layout),
       (SELECT SUM(pg_total_relation_size(oid))::bigint FROM pg_class
         WHERE relnamespace = '"ontologia"'::regnamespace AND relkind = 'r');

-- name: list_types
-- The current version of every type; one that was dropped has the schema null.
SELECT v.type_kind, v.type_name, v.schema_version_id, v.schema_json, v.schema_hash
  FROM ontologia.schema_versions v
 WHERE v.schema_version_id = (SELECT MAX(n.schema_version_id) FROM ontologia.schema_versions n
                               WHERE n.type_kind = v.type_kind AND n.type_name = v.type_name)
   AND v.schema_json <> 'null'
 ORDER BY v.type_kind, v.type_name;

-- name: type_history
-- A session's id may be followed by the number of its thread.
SELECT v.schema_version_id, v.schema_json, v.created_at, v.runtime_id, v.reason, s.metadata
  FROM ontologia.schema_versions v
  LEFT JOIN ontologia.sessions s ON s.session_id = substr(v.runtime_id, 1, 36)
 WHERE v.type_kind = %(kind)s AND v.type_name = %(name)s ORDER BY v.schema_version_id;

-- name: count_entities
SELECT entity_type, COUNT(*) FROM ontologia.entity_latest GROUP BY entity_type;

-- name: count_relations
SELECT relation_type, COUNT(*) FROM ontologia.relation_latest GROUP BY relation_type;

-- name: count_entities_at
SELECT h.entity_type, COUNT(*) FROM ontologia.entity_history h
 WHERE h.commit_id <= %(as_of)s AND h.fields_json <> 'null'
   AND h.id = (SELECT n.id FROM ontologia.entity_history n
                WHERE n.entity_type = h.entity_type AND n.entity_key = h.entity_key
                  AND n.commit_id <= %(as_of)s ORDER BY n.commit_id DESC, n.id DESC LIMIT 1)
 GROUP BY h.entity_type;

-- name: count_relations_at
SELECT h.relation_type, COUNT(*) FROM ontologia.relation_history h
 WHERE h.commit_id <= %(as_of)s AND h.fields_json <> 'null'
   AND h.id = (SELECT n.id FROM ontologia.relation_history n
                WHERE n.relation_type = h.relation_type AND n.left_key = h.left_key
                  AND n.right_key = h.right_key AND n.instance_key = h.instance_key
                  AND n.commit_id <= %(as_of)s ORDER BY n.commit_id DESC, n.id DESC LIMIT 1)
 GROUP BY h.relation_type;

-- name: entity_page
-- The next entities of a type, in the order of their keys.
SELECT entity_key, fields_json, schema_version_id FROM ontologia.entity_latest
 WHERE entity_type = %(type)s AND entity_key > %(key)s ORDER BY entity_key LIMIT %(most)s;

-- name: relation_page
SELECT left_key, right_key, instance_key, fields_json, schema_version_id
  FROM ontologia.relation_latest
 WHERE relation_type = %(type)s
   AND (left_key, right_key, instance_key) > (%(left)s, %(right)s, %(instance)s)
 ORDER BY left_key, right_key, instance_key LIMIT %(most)s;

-- name: entity_page_at
-- The same as of a commit: of every key the last version until then, unless it says "deleted".
SELECT h.entity_key, h.fields_json, h.schema_version_id FROM ontologia.entity_history h
 WHERE h.entity_type = %(type)s AND h.entity_key > %(key)s
   AND h.commit_id <= %(as_of)s AND h.fields_json <> 'null'
   AND h.id = (SELECT n.id FROM ontologia.entity_history n
                WHERE n.entity_type = h.entity_type AND n.entity_key = h.entity_key
                  AND n.commit_id <= %(as_of)s ORDER BY n.commit_id DESC, n.id DESC LIMIT 1)
 ORDER BY h.entity_key LIMIT %(most)s;

-- name: relation_page_at
SELECT h.left_key, h.right_key, h.instance_key, h.fields_json, h.schema_version_id
  FROM ontologia.relation_history h
 WHERE h.relation_type = %(type)s
   AND (h.left_key, h.right_key, h.instance_key) > (%(left)s, %(right)s, %(instance)s)
   AND h.commit_id <= %(as_of)s AND h.fields_json <> 'null'
   AND h.id = (SELECT n.id FROM ontologia.relation_history n
                WHERE n.relation_type = h.relation_type AND n.left_key = h.left_key
                  AND n.right_key = h.right_key AND n.instance_key = h.instance_key
                  AND n.commit_id <= %(as_of)s ORDER BY n.commit_id DESC, n.id DESC LIMIT 1)
 ORDER BY h.left_key, h.right_key, h.instance_key LIMIT %(most)s;

-- name: count_events
-- All retained events, by the gravest of what their claims say.
SELECT namespace, status, COUNT(*) FROM (
    SELECT e.namespace, CASE
           WHEN EXISTS (SELECT 1 FROM ontologia.event_claims k WHERE k.event_id = e.id
                           AND k.dead_lettered_at IS NOT NULL) THEN 'dead_lettered'
           WHEN EXISTS (SELECT 1 FROM ontologia.event_claims k WHERE k.event_id = e.id
                           AND k.ack_at IS NOT NULL) THEN 'acked'
           WHEN EXISTS (SELECT 1 FROM ontologia.event_claims k WHERE k.event_id = e.id
                           AND k.lease_until > %(now)s) THEN 'claimed'
           WHEN EXISTS (SELECT 1 FROM ontologia.subscriptions s WHERE s.namespace = e.namespace
                           AND s.type IN (e.type, '*'))
             OR NOT EXISTS (SELECT 1 FROM ontologia.subscriptions s
                             WHERE s.namespace = e.namespace) THEN 'pending'
           ELSE 'unsubscribed' END AS status
      FROM ontologia.events e) AS counted
 GROUP BY namespace, status;

-- name: entity_versions
-- What was ever said of one entity, before a commit, the newest first.
SELECT commit_id, fields_json, schema_version_id FROM ontologia.entity_history
 WHERE entity_type = %(type)s AND entity_key = %(key)s AND commit_id < %(before)s
 ORDER BY commit_id DESC, id DESC LIMIT %(most)s;

-- name: relation_versions
SELECT commit_id, fields_json, schema_version_id FROM ontologia.relation_history
 WHERE relation_type = %(type)s AND left_key = %(left)s AND right_key = %(right)s
   AND instance_key = %(instance)s AND commit_id < %(before)s
 ORDER BY commit_id DESC, id DESC LIMIT %(most)s;

-- name: commits_before
-- The next commits on the way back.
SELECT id, created_at, metadata_json FROM ontologia.commits
 WHERE id < %(before)s AND id > %(since)s ORDER BY id DESC LIMIT %(most)s;

-- name: commits_for
-- The commits whose metadata names one of these events, oldest first; the caller looks again. The
-- index has what stands between the quotes in the JSON of each id.
SELECT id, created_at, metadata_json FROM ontologia.commits
 WHERE substring(metadata_json from '"event_id":"([^"]*)"') = ANY(ARRAY(
           SELECT substring(i::text from '"([^"]*)"')
             FROM jsonb_array_elements(%(ids)s::jsonb) AS i)) ORDER BY id;

-- name: causes_of
-- An event, the event whose handler announced it, and so on: one seek each.
WITH RECURSIVE up(id) AS (
    SELECT %(id)s::text COLLATE "C"
    UNION
    SELECT e.causation_id FROM ontologia.events e JOIN up ON e.id = up.id
     WHERE e.causation_id IS NOT NULL)
SELECT e.id, e.namespace, e.type, e.payload, e.created_at, e.priority, e.root_event_id,
       e.chain_depth, e.source, e.correlation_id, e.causation_id, e.tenant_id, e.dedup_key
  FROM up JOIN ontologia.events e ON e.id = up.id;

-- name: chain_of
-- The first event of a chain and all that followed from it, oldest first.
SELECT id, namespace, type, payload, created_at, priority, root_event_id, chain_depth, source,
       correlation_id, causation_id, tenant_id, dedup_key, seq
  FROM ontologia.events WHERE id = %(root)s
UNION ALL
SELECT id, namespace, type, payload, created_at, priority, root_event_id, chain_depth, source,
       correlation_id, causation_id, tenant_id, dedup_key, seq
  FROM ontologia.events WHERE root_event_id = %(root)s AND root_event_id <> id
 ORDER BY 14;

-- name: attempts_at
-- The attempts at these events that did not succeed.
SELECT event_id, handler_id, attempt, started_at, ended_at, read_commit, outcome, error
  FROM ontologia.attempts WHERE event_id = ANY(ARRAY(SELECT jsonb_array_elements_text(%(ids)s::jsonb)))
 ORDER BY event_id, handler_id, attempt;

-- name: ready_for
-- Who could claim these events and has not yet.
SELECT e.id, c.name
  FROM ontologia.events e
  JOIN ontologia.subscriptions s ON s.namespace = e.namespace AND s.type IN (e.type, '*')
  JOIN ontologia.consumers c ON c.id = s.consumer_id
  JOIN ontologia.ready r ON r.consumer_id = c.id AND r.priority = e.priority
       AND r.created_at = e.created_at AND r.event_id = e.id
 WHERE e.id = ANY(ARRAY(SELECT jsonb_array_elements_text(%(ids)s::jsonb)))
 GROUP BY e.id, c.name ORDER BY e.id, c.name;
