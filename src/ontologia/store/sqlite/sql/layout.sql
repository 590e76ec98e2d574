-- name: commits
CREATE TABLE IF NOT EXISTS commits (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    created_at TEXT NOT NULL,
    metadata_json TEXT
);
-- The commits of an event's handlers. Other commits are not in it, nor is metadata from elsewhere
-- that is no JSON, which would otherwise be an error.
CREATE INDEX IF NOT EXISTS idx_commits_event
    ON commits(CASE WHEN json_valid(metadata_json) THEN metadata_json ->> 'event_id' END)
 WHERE CASE WHEN json_valid(metadata_json) THEN metadata_json ->> 'event_id' END IS NOT NULL;

-- name: entity_history
CREATE TABLE IF NOT EXISTS entity_history (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    entity_type TEXT NOT NULL,
    entity_key TEXT NOT NULL,
    fields_json TEXT NOT NULL,
    commit_id INTEGER NOT NULL,
    schema_version_id INTEGER,
    FOREIGN KEY (commit_id) REFERENCES commits(id)
);

-- name: relation_history
CREATE TABLE IF NOT EXISTS relation_history (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    relation_type TEXT NOT NULL,
    left_key TEXT NOT NULL,
    right_key TEXT NOT NULL,
    instance_key TEXT NOT NULL DEFAULT '',
    fields_json TEXT NOT NULL,
    commit_id INTEGER NOT NULL,
    schema_version_id INTEGER,
    FOREIGN KEY (commit_id) REFERENCES commits(id)
);

-- name: history_indexes
-- The lookup indexes answer "the version of this key at that commit" with one seek; those by
-- commit answer "what changed in between" without reading the rest of the history.
CREATE INDEX IF NOT EXISTS idx_entity_history_lookup
    ON entity_history(entity_type, entity_key, commit_id DESC);
CREATE INDEX IF NOT EXISTS idx_relation_history_lookup
    ON relation_history(relation_type, left_key, right_key, instance_key, commit_id DESC);
CREATE INDEX IF NOT EXISTS idx_entity_history_commit ON entity_history(commit_id);
CREATE INDEX IF NOT EXISTS idx_relation_history_commit ON relation_history(commit_id);

-- name: latest
-- What is current, one row an object, in the order of the keys. Derived: `rebuild_latest` makes
-- it again from the history. `fields` is JSONB, which filters two to four times faster than text
-- and gives back the text it was made from, to the byte. Entities have rowids: in a table without,
-- SQLite looks up the row for every entry of a field's index, also where the entry would do, and
-- counting by an indexed field takes six times as long. Relations are little more than their keys,
-- which would be there twice.
CREATE TABLE IF NOT EXISTS entity_latest (
    entity_type TEXT NOT NULL,
    entity_key TEXT NOT NULL,
    commit_id INTEGER NOT NULL,
    schema_version_id INTEGER,
    fields BLOB NOT NULL,
    PRIMARY KEY (entity_type, entity_key)
);
CREATE TABLE IF NOT EXISTS relation_latest (
    relation_type TEXT NOT NULL,
    left_key TEXT NOT NULL,
    right_key TEXT NOT NULL,
    instance_key TEXT NOT NULL,
    commit_id INTEGER NOT NULL,
    schema_version_id INTEGER,
    fields BLOB NOT NULL,
    PRIMARY KEY (relation_type, left_key, right_key, instance_key)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS idx_relation_latest_right ON relation_latest(relation_type, right_key);

-- name: staging
-- A migration of many objects: each is upgraded beside the current one, and staged with the commit
-- that the current one is of (`source_commit`). Until the migration has a `commit_id`, no reader sees
-- it. From then on what is staged of that commit is current, and is moved to its place; the views
-- have what is current also meanwhile. At most one row: there is one migration at a time.
CREATE TABLE IF NOT EXISTS pending_migration (
    plan_hash TEXT PRIMARY KEY,
    types_json TEXT NOT NULL,
    owner_id TEXT NOT NULL,
    holder TEXT NOT NULL,
    expires_at TEXT NOT NULL,
    started_at TEXT NOT NULL,
    updated_at TEXT NOT NULL,
    objects INTEGER NOT NULL,
    staged INTEGER NOT NULL,
    since_commit INTEGER NOT NULL,
    commit_id INTEGER
);
CREATE TABLE IF NOT EXISTS staged_entities (
    entity_type TEXT NOT NULL,
    entity_key TEXT NOT NULL,
    source_commit INTEGER NOT NULL,
    schema_version_id INTEGER NOT NULL,
    fields_json TEXT NOT NULL,
    PRIMARY KEY (entity_type, entity_key)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS staged_relations (
    relation_type TEXT NOT NULL,
    left_key TEXT NOT NULL,
    right_key TEXT NOT NULL,
    instance_key TEXT NOT NULL,
    source_commit INTEGER NOT NULL,
    schema_version_id INTEGER NOT NULL,
    fields_json TEXT NOT NULL,
    PRIMARY KEY (relation_type, left_key, right_key, instance_key)
) WITHOUT ROWID;
-- The values of unique fields in what is staged, as hashes.
CREATE TABLE IF NOT EXISTS staged_values (
    type_kind TEXT NOT NULL,
    type_name TEXT NOT NULL,
    field TEXT NOT NULL,
    value_hash TEXT NOT NULL,
    object_key TEXT NOT NULL,
    PRIMARY KEY (type_kind, type_name, field, value_hash, object_key)
) WITHOUT ROWID;
CREATE VIEW IF NOT EXISTS entity_current AS
SELECT l.entity_type, l.entity_key,
       COALESCE((SELECT m.commit_id FROM pending_migration m
                 CROSS JOIN staged_entities st
                 WHERE m.commit_id IS NOT NULL AND st.entity_type = l.entity_type
                   AND st.entity_key = l.entity_key
                   AND st.source_commit = l.commit_id), l.commit_id) AS commit_id,
       COALESCE((SELECT st.schema_version_id FROM pending_migration m
                 CROSS JOIN staged_entities st
                 WHERE m.commit_id IS NOT NULL AND st.entity_type = l.entity_type
                   AND st.entity_key = l.entity_key
                   AND st.source_commit = l.commit_id), l.schema_version_id) AS schema_version_id,
       COALESCE((SELECT jsonb(st.fields_json) FROM pending_migration m
                 CROSS JOIN staged_entities st
                 WHERE m.commit_id IS NOT NULL AND st.entity_type = l.entity_type
                   AND st.entity_key = l.entity_key
                   AND st.source_commit = l.commit_id), l.fields) AS fields
  FROM entity_latest l;
CREATE VIEW IF NOT EXISTS relation_current AS
SELECT l.relation_type, l.left_key, l.right_key, l.instance_key,
       COALESCE((SELECT m.commit_id FROM pending_migration m
                 CROSS JOIN staged_relations st
                 WHERE m.commit_id IS NOT NULL AND st.relation_type = l.relation_type
                   AND st.left_key = l.left_key AND st.right_key = l.right_key
                   AND st.instance_key = l.instance_key
                   AND st.source_commit = l.commit_id), l.commit_id) AS commit_id,
       COALESCE((SELECT st.schema_version_id FROM pending_migration m
                 CROSS JOIN staged_relations st
                 WHERE m.commit_id IS NOT NULL AND st.relation_type = l.relation_type
                   AND st.left_key = l.left_key AND st.right_key = l.right_key
                   AND st.instance_key = l.instance_key
                   AND st.source_commit = l.commit_id), l.schema_version_id) AS schema_version_id,
       COALESCE((SELECT jsonb(st.fields_json) FROM pending_migration m
                 CROSS JOIN staged_relations st
                 WHERE m.commit_id IS NOT NULL AND st.relation_type = l.relation_type
                   AND st.left_key = l.left_key AND st.right_key = l.right_key
                   AND st.instance_key = l.instance_key
                   AND st.source_commit = l.commit_id), l.fields) AS fields
  FROM relation_latest l;

-- name: types
CREATE TABLE IF NOT EXISTS schema_registry (
    type_kind TEXT NOT NULL,
    type_name TEXT NOT NULL,
    schema_json TEXT NOT NULL,
    PRIMARY KEY (type_kind, type_name)
);
CREATE TABLE IF NOT EXISTS schema_versions (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    type_kind TEXT NOT NULL,
    type_name TEXT NOT NULL,
    schema_version_id INTEGER NOT NULL,
    schema_json TEXT NOT NULL,
    schema_hash TEXT NOT NULL,
    created_at TEXT NOT NULL,
    runtime_id TEXT,
    reason TEXT,
    fills_json TEXT,
    UNIQUE(type_kind, type_name, schema_version_id)
);

-- name: locks
CREATE TABLE IF NOT EXISTS locks (
    lock_name TEXT PRIMARY KEY,
    owner_id TEXT NOT NULL,
    acquired_at TEXT NOT NULL,
    expires_at TEXT NOT NULL
);

-- name: sessions
CREATE TABLE IF NOT EXISTS sessions (
    session_id TEXT PRIMARY KEY,
    namespace TEXT NOT NULL,
    started_at TEXT NOT NULL,
    last_heartbeat TEXT NOT NULL,
    metadata TEXT
);
CREATE INDEX IF NOT EXISTS idx_sessions_heartbeat ON sessions(last_heartbeat);
CREATE INDEX IF NOT EXISTS idx_sessions_namespace ON sessions(namespace);

-- name: events
-- The log. `seq` numbers the rows for those who list them; no rule of delivery looks at it.
-- `occurred_at` is the time that the event itself names; NULL if that is `created_at`.
CREATE TABLE IF NOT EXISTS events (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    namespace TEXT NOT NULL,
    type TEXT NOT NULL,
    payload TEXT NOT NULL,
    created_at TEXT NOT NULL,
    priority INTEGER NOT NULL DEFAULT 100,
    root_event_id TEXT NOT NULL,
    chain_depth INTEGER NOT NULL DEFAULT 0,
    source TEXT,
    correlation_id TEXT,
    causation_id TEXT,
    tenant_id TEXT,
    dedup_key TEXT,
    occurred_at TEXT
);
CREATE INDEX IF NOT EXISTS idx_events_namespace_type_order
    ON events(namespace, type, priority DESC, created_at ASC, id ASC);
-- What followed from an event. The first of a chain, as most are, costs nothing here. Layouts before
-- 5 had idx_events_root, which lacks deferred events: they begin a new count of depth.
DROP INDEX IF EXISTS idx_events_root;
CREATE INDEX IF NOT EXISTS idx_events_chain ON events(root_event_id) WHERE root_event_id <> id;
-- Which event has a key, stored or deferred.
CREATE TABLE IF NOT EXISTS dedup (
    namespace TEXT NOT NULL,
    type TEXT NOT NULL,
    key TEXT NOT NULL,
    event_id TEXT NOT NULL,
    PRIMARY KEY (namespace, type, key)
) WITHOUT ROWID;
-- Events whose time has not come, and those whose time came.
CREATE TABLE IF NOT EXISTS deferred_events (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    event_id TEXT NOT NULL,
    namespace TEXT NOT NULL,
    topic TEXT NOT NULL,
    source TEXT,
    payload TEXT NOT NULL,
    correlation_id TEXT,
    fire_at REAL NOT NULL,
    status TEXT NOT NULL DEFAULT 'scheduled',
    created_at REAL NOT NULL,
    fired_at REAL,
    priority INTEGER NOT NULL,
    root_event_id TEXT NOT NULL,
    chain_depth INTEGER NOT NULL,
    causation_id TEXT,
    tenant_id TEXT,
    dedup_key TEXT,
    occurred_at TEXT
);
CREATE INDEX IF NOT EXISTS idx_deferred_due ON deferred_events(fire_at) WHERE status = 'scheduled';
CREATE INDEX IF NOT EXISTS idx_deferred_done
    ON deferred_events(namespace) WHERE status <> 'scheduled';
-- One row a tick: whoever writes it announces the event.
CREATE TABLE IF NOT EXISTS schedule_fires (
    namespace TEXT NOT NULL,
    schedule_key TEXT NOT NULL,
    tick TEXT NOT NULL,
    event_id TEXT NOT NULL,
    PRIMARY KEY (namespace, schedule_key, tick)
) WITHOUT ROWID;

-- name: claims
-- Events nobody has looked at yet, in the order in which they are handed out.
CREATE TABLE IF NOT EXISTS incoming (
    seq INTEGER PRIMARY KEY,
    event_id TEXT NOT NULL
);
-- A number is never used again: somebody may still know a forgotten consumer by it.
CREATE TABLE IF NOT EXISTS consumers (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    last_seen_at TEXT NOT NULL,
    paused_at TEXT,
    UNIQUE (namespace, name)
);
CREATE TABLE IF NOT EXISTS subscriptions (
    namespace TEXT NOT NULL,
    type TEXT NOT NULL,
    consumer_id INTEGER NOT NULL,
    PRIMARY KEY (namespace, type, consumer_id)
) WITHOUT ROWID;
-- What each consumer can claim now, the most urgent first. Rows are inserted and deleted only.
CREATE TABLE IF NOT EXISTS ready (
    consumer_id INTEGER NOT NULL,
    priority INTEGER NOT NULL,
    created_at TEXT NOT NULL,
    event_id TEXT NOT NULL,
    type TEXT NOT NULL,
    PRIMARY KEY (consumer_id, priority DESC, created_at, event_id)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS event_claims (
    event_id TEXT NOT NULL,
    handler_id TEXT NOT NULL,
    session_id TEXT NOT NULL,
    claimed_at TEXT NOT NULL,
    lease_until TEXT NOT NULL,
    ack_at TEXT,
    attempts INTEGER NOT NULL DEFAULT 0,
    available_at TEXT NOT NULL,
    last_error TEXT,
    dead_lettered_at TEXT,
    consumer_id INTEGER NOT NULL,
    lease_token TEXT,
    read_commit INTEGER,
    started_at TEXT,
    due_at TEXT,
    conflicts INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (event_id, handler_id)
) WITHOUT ROWID;
-- What waits for a time, the end of a lease or of a backoff; nothing else is in it.
CREATE INDEX IF NOT EXISTS idx_claims_due
    ON event_claims(consumer_id, due_at) WHERE due_at IS NOT NULL;
-- Attempts that did not succeed.
CREATE TABLE IF NOT EXISTS attempts (
    event_id TEXT NOT NULL,
    handler_id TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    started_at TEXT,
    ended_at TEXT NOT NULL,
    read_commit INTEGER,
    outcome TEXT NOT NULL,
    error TEXT,
    traceback TEXT,
    PRIMARY KEY (event_id, handler_id, attempt)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS dead_letters (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    event_id TEXT NOT NULL,
    handler_id TEXT NOT NULL,
    namespace TEXT NOT NULL,
    failed_at TEXT NOT NULL,
    attempts INTEGER NOT NULL,
    last_error TEXT NOT NULL,
    event_type TEXT NOT NULL,
    event_payload TEXT NOT NULL,
    root_event_id TEXT NOT NULL,
    chain_depth INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS idx_dead_letters_namespace_failed
    ON dead_letters(namespace, failed_at DESC);

-- name: archives
-- Where finished events of a namespace were moved to, and from before which time.
CREATE TABLE IF NOT EXISTS archives (
    namespace TEXT NOT NULL,
    uri TEXT NOT NULL,
    archived_before TEXT NOT NULL,
    PRIMARY KEY (namespace, uri)
) WITHOUT ROWID;
-- Events that came back from an archive, which are retained for as long again.
CREATE TABLE IF NOT EXISTS restored (
    event_id TEXT NOT NULL PRIMARY KEY,
    restored_at TEXT NOT NULL
) WITHOUT ROWID;

-- name: replies
-- What was answered to a request that came with a key of its own, for when it comes again.
CREATE TABLE IF NOT EXISTS replies (
    namespace TEXT NOT NULL,
    key TEXT NOT NULL,
    request_hash TEXT NOT NULL,
    reply TEXT NOT NULL,
    created_at TEXT NOT NULL,
    PRIMARY KEY (namespace, key)
);
CREATE INDEX IF NOT EXISTS idx_replies_created ON replies(namespace, created_at);

-- name: intakes
-- How far each intake has read its source: the next position of each part, and how many messages
-- were behind it then.
CREATE TABLE IF NOT EXISTS intakes (
    namespace TEXT NOT NULL,
    source TEXT NOT NULL,
    part TEXT NOT NULL,
    position INTEGER NOT NULL,
    behind INTEGER NOT NULL,
    updated_at TEXT NOT NULL,
    PRIMARY KEY (namespace, source, part)
) WITHOUT ROWID;
-- What it has read of a source that has no positions, while the source has it.
CREATE TABLE IF NOT EXISTS intake_messages (
    namespace TEXT NOT NULL,
    source TEXT NOT NULL,
    name TEXT NOT NULL,
    PRIMARY KEY (namespace, source, name)
) WITHOUT ROWID;

-- name: event_journal
-- The events as a bus of extensions sees them: a view, no second queue. Of several buses the claim
-- that decides is one that is being handled, else one that failed, else one that is done. What a
-- process had when it died is `processing` until somebody takes it over. Times are Unix seconds.
CREATE VIEW IF NOT EXISTS event_journal AS
SELECT e.seq AS id, e.type AS topic, e.source, e.payload, e.correlation_id,
       CASE WHEN k.event_id IS NULL THEN 'pending'
            WHEN k.dead_lettered_at IS NOT NULL THEN 'failed'
            WHEN k.ack_at IS NOT NULL THEN 'done'
            WHEN k.lease_token IS NOT NULL AND k.read_commit IS NOT NULL THEN 'processing'
            ELSE 'pending' END AS status,
       strftime('%s', substr(e.created_at, 1, 19))
           + CAST('0' || substr(e.created_at, 20, 7) AS REAL) AS created_at,
       strftime('%s', substr(COALESCE(k.dead_lettered_at, k.ack_at), 1, 19))
           + CAST('0' || substr(COALESCE(k.dead_lettered_at, k.ack_at), 20, 7) AS REAL)
           AS processed_at,
       CASE WHEN k.dead_lettered_at IS NOT NULL THEN k.last_error END AS error,
       e.namespace, e.id AS event_id
  FROM events e
  LEFT JOIN event_claims k ON k.event_id = e.id AND k.handler_id = (
       SELECT c.handler_id FROM event_claims c
        WHERE c.event_id = e.id AND c.handler_id >= 'bus:' AND c.handler_id < 'bus;'
        ORDER BY CASE WHEN c.dead_lettered_at IS NOT NULL THEN 1
                      WHEN c.ack_at IS NOT NULL THEN 2
                      WHEN c.lease_token IS NOT NULL AND c.read_commit IS NOT NULL THEN 0
                      ELSE 3 END, c.handler_id
        LIMIT 1);

-- name: layout
-- A table of our own and not PRAGMA user_version: the file may be shared with an application.
-- `store_id` names this store: the version of an object means something in its own store only.
CREATE TABLE IF NOT EXISTS ontologia_layout (
    version INTEGER NOT NULL,
    store_id TEXT
);

-- name: set_layout
-- One row; a store keeps the id it has.
INSERT INTO ontologia_layout(version, store_id)
SELECT :version, COALESCE(MAX(store_id), lower(hex(randomblob(16)))) FROM ontologia_layout;
DELETE FROM ontologia_layout WHERE rowid < (SELECT MAX(rowid) FROM ontologia_layout);

-- name: restore_events
-- Events of a table as the document prints it, in the order in which they were emitted. They are not
-- new to consumers that have claims of them, so they are not in `incoming`: a consumer that subscribes
-- is given what it has no claim of.
INSERT INTO events(id, namespace, type, payload, created_at, priority, root_event_id, chain_depth,
                   correlation_id)
SELECT id, namespace, type, payload, instant(created_at), priority, root_event_id, chain_depth,
       root_event_id
  FROM temp.old_events ORDER BY instant(created_at), rowid;

-- name: restore_event_claims
-- Claims of such a table, with a consumer for each handler. What is not finished comes due when its
-- lease or its backoff ends. A claim of an event that is gone means nothing.
INSERT INTO consumers(namespace, name, last_seen_at)
SELECT e.namespace, k.handler_id, COALESCE(instant(MAX(k.claimed_at)), :now)
  FROM temp.old_event_claims k JOIN events e ON e.id = k.event_id
 GROUP BY e.namespace, k.handler_id;
INSERT INTO event_claims(event_id, handler_id, session_id, claimed_at, lease_until, ack_at, attempts,
                         available_at, last_error, dead_lettered_at, consumer_id, due_at)
SELECT k.event_id, k.handler_id, k.session_id, instant(k.claimed_at), instant(k.lease_until),
       instant(k.ack_at), k.attempts, instant(k.available_at), k.last_error,
       CASE WHEN k.ack_at IS NULL THEN instant(k.dead_lettered_at) END, c.id,
       CASE WHEN k.ack_at IS NULL AND k.dead_lettered_at IS NULL
            THEN MAX(instant(k.lease_until), instant(k.available_at)) END
  FROM temp.old_event_claims k JOIN events e ON e.id = k.event_id
  JOIN consumers c ON c.namespace = e.namespace AND c.name = k.handler_id;

-- name: restore_times
-- Times are compared as text, so they have one form.
UPDATE dead_letters SET failed_at = instant(failed_at) WHERE failed_at <> instant(failed_at);
UPDATE sessions SET started_at = instant(started_at), last_heartbeat = instant(last_heartbeat)
 WHERE (started_at, last_heartbeat) <> (instant(started_at), instant(last_heartbeat));

-- name: statistics
-- What the planner should assume. Without it SQLite takes ten rows for a type and reads all of
-- them where an index by field or key would do. Figures of a large store are right for small ones
-- too; an ANALYZE by hand replaces them. Analyzing one small table makes sqlite_stat1. The indexes of
-- fields have figures of their own, which stay.
ANALYZE ontologia_layout;
DELETE FROM sqlite_stat1 WHERE tbl IN
    ('entity_latest', 'relation_latest', 'entity_history', 'relation_history',
     'staged_entities', 'staged_relations',
     'events', 'event_claims', 'ready', 'incoming', 'subscriptions')
   AND COALESCE(idx, '') NOT IN
       (SELECT name FROM sqlite_schema WHERE type = 'index' AND sql LIKE '%json_extract(%');
INSERT INTO sqlite_stat1(tbl, idx, stat) VALUES
    ('entity_latest', 'sqlite_autoindex_entity_latest_1', '1000000 200000 1'),
    ('relation_latest', 'relation_latest', '1000000 250000 20 2 1'),
    ('relation_latest', 'idx_relation_latest_right', '1000000 250000 20'),
    ('staged_entities', 'staged_entities', '1000000 200000 1'),
    ('staged_relations', 'staged_relations', '1000000 250000 20 2 1'),
    ('entity_history', 'idx_entity_history_lookup', '5000000 1250000 5 1'),
    ('entity_history', 'idx_entity_history_commit', '5000000 100'),
    ('relation_history', 'idx_relation_history_lookup', '5000000 1250000 100 10 5 1'),
    ('relation_history', 'idx_relation_history_commit', '5000000 100'),
    ('events', 'sqlite_autoindex_events_1', '1000000 1'),
    ('events', 'idx_events_namespace_type_order', '1000000 250000 50000 10000 1 1'),
    ('events', 'idx_events_chain', '500000 5'),
    ('event_claims', 'event_claims', '1000000 2 1'),
    ('event_claims', 'idx_claims_due', '1000 100 1'),
    ('ready', 'ready', '10000 1000 500 1 1'),
    ('subscriptions', 'subscriptions', '100 50 5 1');

-- name: reload_statistics
ANALYZE sqlite_schema;

-- name: rebuild_latest
-- The greatest id of a key is its last version, also in files that have two in one commit. Text
-- from elsewhere may be JSON in another form; what is current is kept in ours.
DELETE FROM entity_latest;
DELETE FROM relation_latest;
INSERT INTO entity_latest(entity_type, entity_key, commit_id, schema_version_id, fields)
SELECT entity_type, entity_key, commit_id, schema_version_id, jsonb(canonical(fields_json))
  FROM (SELECT entity_type, entity_key, commit_id, schema_version_id, fields_json, MAX(id)
          FROM entity_history GROUP BY entity_type, entity_key)
 WHERE fields_json <> 'null';
INSERT INTO relation_latest(relation_type, left_key, right_key, instance_key, commit_id,
                            schema_version_id, fields)
SELECT relation_type, left_key, right_key, instance_key, commit_id, schema_version_id,
       jsonb(canonical(fields_json))
  FROM (SELECT relation_type, left_key, right_key, instance_key, commit_id, schema_version_id,
               fields_json, MAX(id)
          FROM relation_history GROUP BY relation_type, left_key, right_key, instance_key)
 WHERE fields_json <> 'null';
