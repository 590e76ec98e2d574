-- name: lock
SELECT pg_advisory_xact_lock(:key);

-- name: has_layout
SELECT to_regclass('ontologia.ontologia_layout') IS NOT NULL,
       to_regclass('ontologia.ontologia_copy') IS NOT NULL;

-- name: get_layout
-- Layouts before 5 had no store_id: asked of the row as JSON it is NULL there, and no error.
SELECT version, to_jsonb(l) ->> 'store_id' FROM ontologia.ontologia_layout l
 ORDER BY version DESC LIMIT 1;

-- name: get_copy
-- What is being copied into the schema; the table is there only until that is finished.
SELECT source FROM ontologia.ontologia_copy;

-- name: set_layout
-- One row; a store keeps the id it has. The version of an object means something in its own store
-- only.
WITH before AS (DELETE FROM ontologia.ontologia_layout RETURNING store_id)
INSERT INTO ontologia.ontologia_layout(version, store_id)
SELECT :version, COALESCE(MAX(store_id), replace(gen_random_uuid()::text, '-', '')) FROM before;

-- name: schema
-- Text is compared byte by byte (COLLATE "C"): the order of times as text is the order of time,
-- and the same on every server, whatever its language.
-- IF NOT EXISTS would ask for the right to make schemas also where an operator has made this one.
DO $$ BEGIN
    IF to_regnamespace('"ontologia"') IS NULL THEN CREATE SCHEMA "ontologia"; END IF;
END $$;

-- name: commits
-- No identity column: commits are numbered without gaps, in the order in which they become
-- visible, and a sequence does neither.
CREATE TABLE IF NOT EXISTS ontologia.commits (
    id bigint PRIMARY KEY,
    created_at text COLLATE "C" NOT NULL,
    metadata_json text COLLATE "C"
);
-- The commits of an event's handlers; other commits are not in it. A pattern and no cast to jsonb,
-- which fails for metadata from elsewhere that is no JSON: whoever asks looks again.
CREATE INDEX IF NOT EXISTS idx_commits_event
    ON ontologia.commits(substring(metadata_json from '"event_id":"([^"]*)"'))
 WHERE substring(metadata_json from '"event_id":"([^"]*)"') IS NOT NULL;

-- name: entity_history
-- Nothing here is ever updated. `fields_json` is canonical text: jsonb bends numbers and the order
-- of keys. A version that says "deleted" has the text null.
CREATE TABLE IF NOT EXISTS ontologia.entity_history (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    entity_type text COLLATE "C" NOT NULL,
    entity_key text COLLATE "C" NOT NULL,
    fields_json text COLLATE "C" NOT NULL,
    commit_id bigint NOT NULL REFERENCES ontologia.commits(id),
    schema_version_id bigint
);

-- name: relation_history
CREATE TABLE IF NOT EXISTS ontologia.relation_history (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    relation_type text COLLATE "C" NOT NULL,
    left_key text COLLATE "C" NOT NULL,
    right_key text COLLATE "C" NOT NULL,
    instance_key text COLLATE "C" NOT NULL DEFAULT '',
    fields_json text COLLATE "C" NOT NULL,
    commit_id bigint NOT NULL REFERENCES ontologia.commits(id),
    schema_version_id bigint
);

-- name: history_indexes
-- The lookup indexes answer "the version of this key at that commit" with one seek; those by
-- commit answer "what changed in between" without reading the rest of the history.
CREATE INDEX IF NOT EXISTS idx_entity_history_lookup
    ON ontologia.entity_history(entity_type, entity_key, commit_id DESC);
CREATE INDEX IF NOT EXISTS idx_relation_history_lookup
    ON ontologia.relation_history(relation_type, left_key, right_key, instance_key,
                                  commit_id DESC);
CREATE INDEX IF NOT EXISTS idx_entity_history_commit ON ontologia.entity_history(commit_id);
CREATE INDEX IF NOT EXISTS idx_relation_history_commit ON ontologia.relation_history(commit_id);

-- name: latest
-- What is current, one row an object; can be made again from the history. `fields_json` is what
-- readers get and commits compare, `fields` only finds.
CREATE TABLE IF NOT EXISTS ontologia.entity_latest (
    entity_type text COLLATE "C" NOT NULL,
    entity_key text COLLATE "C" NOT NULL,
    commit_id bigint NOT NULL,
    schema_version_id bigint,
    fields_json text COLLATE "C" NOT NULL,
    fields jsonb NOT NULL,
    PRIMARY KEY (entity_type, entity_key)
);
CREATE TABLE IF NOT EXISTS ontologia.relation_latest (
    relation_type text COLLATE "C" NOT NULL,
    left_key text COLLATE "C" NOT NULL,
    right_key text COLLATE "C" NOT NULL,
    instance_key text COLLATE "C" NOT NULL,
    commit_id bigint NOT NULL,
    schema_version_id bigint,
    fields_json text COLLATE "C" NOT NULL,
    fields jsonb NOT NULL,
    PRIMARY KEY (relation_type, left_key, right_key, instance_key)
);
CREATE INDEX IF NOT EXISTS idx_relation_latest_right
    ON ontologia.relation_latest(relation_type, right_key);

-- name: staging
-- A migration of many objects: each is upgraded beside the current one, and staged with the commit
-- that the current one is of (`source_commit`). Until the migration has a `commit_id`, no reader sees
-- it. From then on what is staged of that commit is current, and is moved to its place; the views
-- have what is current also meanwhile. At most one row: there is one migration at a time.
CREATE TABLE IF NOT EXISTS ontologia.pending_migration (
    plan_hash text COLLATE "C" PRIMARY KEY,
    types_json text COLLATE "C" NOT NULL,
    owner_id text COLLATE "C" NOT NULL,
    holder text COLLATE "C" NOT NULL,
    expires_at text COLLATE "C" NOT NULL,
    started_at text COLLATE "C" NOT NULL,
    updated_at text COLLATE "C" NOT NULL,
    objects bigint NOT NULL,
    staged bigint NOT NULL,
    since_commit bigint NOT NULL,
    commit_id bigint
);
CREATE TABLE IF NOT EXISTS ontologia.staged_entities (
    entity_type text COLLATE "C" NOT NULL,
    entity_key text COLLATE "C" NOT NULL,
    source_commit bigint NOT NULL,
    schema_version_id bigint NOT NULL,
    fields_json text COLLATE "C" NOT NULL,
    PRIMARY KEY (entity_type, entity_key)
);
CREATE TABLE IF NOT EXISTS ontologia.staged_relations (
    relation_type text COLLATE "C" NOT NULL,
    left_key text COLLATE "C" NOT NULL,
    right_key text COLLATE "C" NOT NULL,
    instance_key text COLLATE "C" NOT NULL,
    source_commit bigint NOT NULL,
    schema_version_id bigint NOT NULL,
    fields_json text COLLATE "C" NOT NULL,
    PRIMARY KEY (relation_type, left_key, right_key, instance_key)
);
-- The values of unique fields in what is staged, as hashes.
CREATE TABLE IF NOT EXISTS ontologia.staged_values (
    type_kind text COLLATE "C" NOT NULL,
    type_name text COLLATE "C" NOT NULL,
    field text COLLATE "C" NOT NULL,
    value_hash text COLLATE "C" NOT NULL,
    object_key text COLLATE "C" NOT NULL,
    PRIMARY KEY (type_kind, type_name, field, value_hash, object_key)
);
CREATE OR REPLACE VIEW ontologia.entity_current AS
SELECT l.entity_type, l.entity_key,
       COALESCE(m.commit_id, l.commit_id) AS commit_id,
       CASE WHEN m.commit_id IS NULL THEN l.schema_version_id ELSE st.schema_version_id END
           AS schema_version_id,
       CASE WHEN m.commit_id IS NULL THEN l.fields_json ELSE st.fields_json END AS fields_json,
       CASE WHEN m.commit_id IS NULL THEN l.fields ELSE st.fields_json::jsonb END AS fields
  FROM ontologia.entity_latest l
  LEFT JOIN LATERAL (
       SELECT s.source_commit, s.schema_version_id, s.fields_json FROM ontologia.staged_entities s
        WHERE s.entity_type = l.entity_type AND s.entity_key = l.entity_key
          AND s.source_commit = l.commit_id OFFSET 0) st ON true
  LEFT JOIN ontologia.pending_migration m
    ON m.commit_id IS NOT NULL AND st.source_commit IS NOT NULL;
CREATE OR REPLACE VIEW ontologia.relation_current AS
SELECT l.relation_type, l.left_key, l.right_key, l.instance_key,
       COALESCE(m.commit_id, l.commit_id) AS commit_id,
       CASE WHEN m.commit_id IS NULL THEN l.schema_version_id ELSE st.schema_version_id END
           AS schema_version_id,
       CASE WHEN m.commit_id IS NULL THEN l.fields_json ELSE st.fields_json END AS fields_json,
       CASE WHEN m.commit_id IS NULL THEN l.fields ELSE st.fields_json::jsonb END AS fields
  FROM ontologia.relation_latest l
  LEFT JOIN LATERAL (
       SELECT s.source_commit, s.schema_version_id, s.fields_json FROM ontologia.staged_relations s
        WHERE s.relation_type = l.relation_type AND s.left_key = l.left_key
          AND s.right_key = l.right_key AND s.instance_key = l.instance_key
          AND s.source_commit = l.commit_id OFFSET 0) st ON true
  LEFT JOIN ontologia.pending_migration m
    ON m.commit_id IS NOT NULL AND st.source_commit IS NOT NULL;

-- name: types
CREATE TABLE IF NOT EXISTS ontologia.schema_registry (
    type_kind text COLLATE "C" NOT NULL,
    type_name text COLLATE "C" NOT NULL,
    schema_json text COLLATE "C" NOT NULL,
    PRIMARY KEY (type_kind, type_name)
);
CREATE TABLE IF NOT EXISTS ontologia.schema_versions (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    type_kind text COLLATE "C" NOT NULL,
    type_name text COLLATE "C" NOT NULL,
    schema_version_id bigint NOT NULL,
    schema_json text COLLATE "C" NOT NULL,
    schema_hash text COLLATE "C" NOT NULL,
    created_at text COLLATE "C" NOT NULL,
    runtime_id text COLLATE "C",
    reason text COLLATE "C",
    UNIQUE (type_kind, type_name, schema_version_id)
);
ALTER TABLE ontologia.schema_versions ADD COLUMN IF NOT EXISTS fills_json text COLLATE "C";

-- name: locks
CREATE TABLE IF NOT EXISTS ontologia.locks (
    lock_name text COLLATE "C" PRIMARY KEY,
    owner_id text COLLATE "C" NOT NULL,
    acquired_at text COLLATE "C" NOT NULL,
    expires_at text COLLATE "C" NOT NULL
);

-- name: sessions
CREATE TABLE IF NOT EXISTS ontologia.sessions (
    session_id text COLLATE "C" PRIMARY KEY,
    namespace text COLLATE "C" NOT NULL,
    started_at text COLLATE "C" NOT NULL,
    last_heartbeat text COLLATE "C" NOT NULL,
    metadata text COLLATE "C"
);
CREATE INDEX IF NOT EXISTS idx_sessions_heartbeat ON ontologia.sessions(last_heartbeat);
CREATE INDEX IF NOT EXISTS idx_sessions_namespace ON ontologia.sessions(namespace);

-- name: events
-- The log. `seq` numbers the rows for those who list them; no rule of delivery looks at it.
-- `occurred_at` is the time that the event itself names; NULL if that is `created_at`.
CREATE TABLE IF NOT EXISTS ontologia.events (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id text COLLATE "C" NOT NULL UNIQUE,
    namespace text COLLATE "C" NOT NULL,
    type text COLLATE "C" NOT NULL,
    payload text COLLATE "C" NOT NULL,
    created_at text COLLATE "C" NOT NULL,
    priority bigint NOT NULL DEFAULT 100,
    root_event_id text COLLATE "C" NOT NULL,
    chain_depth bigint NOT NULL DEFAULT 0,
    source text COLLATE "C",
    correlation_id text COLLATE "C",
    causation_id text COLLATE "C",
    tenant_id text COLLATE "C",
    dedup_key text COLLATE "C",
    occurred_at text COLLATE "C"
);
ALTER TABLE ontologia.events ADD COLUMN IF NOT EXISTS occurred_at text COLLATE "C";
CREATE INDEX IF NOT EXISTS idx_events_namespace_type_order
    ON ontologia.events(namespace, type, priority DESC, created_at ASC, id ASC);
-- What followed from an event. The first of a chain, as most are, costs nothing here. Layouts before
-- 5 had idx_events_root, which lacks deferred events: they begin a new count of depth.
DROP INDEX IF EXISTS ontologia.idx_events_root;
CREATE INDEX IF NOT EXISTS idx_events_chain
    ON ontologia.events(root_event_id) WHERE root_event_id <> id;
-- Which event has a key, stored or deferred.
CREATE TABLE IF NOT EXISTS ontologia.dedup (
    namespace text COLLATE "C" NOT NULL,
    type text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    event_id text COLLATE "C" NOT NULL,
    PRIMARY KEY (namespace, type, key)
);
-- Events whose time has not come, and those whose time came.
CREATE TABLE IF NOT EXISTS ontologia.deferred_events (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    event_id text COLLATE "C" NOT NULL,
    namespace text COLLATE "C" NOT NULL,
    topic text COLLATE "C" NOT NULL,
    source text COLLATE "C",
    payload text COLLATE "C" NOT NULL,
    correlation_id text COLLATE "C",
    fire_at double precision NOT NULL,
    status text COLLATE "C" NOT NULL DEFAULT 'scheduled',
    created_at double precision NOT NULL,
    fired_at double precision,
    priority bigint NOT NULL,
    root_event_id text COLLATE "C" NOT NULL,
    chain_depth bigint NOT NULL,
    causation_id text COLLATE "C",
    tenant_id text COLLATE "C",
    dedup_key text COLLATE "C",
    occurred_at text COLLATE "C"
);
ALTER TABLE ontologia.deferred_events ADD COLUMN IF NOT EXISTS occurred_at text COLLATE "C";
CREATE INDEX IF NOT EXISTS idx_deferred_due
    ON ontologia.deferred_events(fire_at) WHERE status = 'scheduled';
CREATE INDEX IF NOT EXISTS idx_deferred_done
    ON ontologia.deferred_events(namespace) WHERE status <> 'scheduled';
-- One row a tick: whoever writes it announces the event.
CREATE TABLE IF NOT EXISTS ontologia.schedule_fires (
    namespace text COLLATE "C" NOT NULL,
    schedule_key text COLLATE "C" NOT NULL,
    tick text COLLATE "C" NOT NULL,
    event_id text COLLATE "C" NOT NULL,
    PRIMARY KEY (namespace, schedule_key, tick)
);

-- name: claims
-- Events nobody has looked at yet, in the order in which they are handed out. Rows of `incoming`
-- and `ready` live for a moment: they are vacuumed by their number, not by the tables' size.
CREATE TABLE IF NOT EXISTS ontologia.incoming (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    event_id text COLLATE "C" NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);
CREATE TABLE IF NOT EXISTS ontologia.consumers (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    namespace text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    last_seen_at text COLLATE "C" NOT NULL,
    paused_at text COLLATE "C",
    UNIQUE (namespace, name)
);
CREATE TABLE IF NOT EXISTS ontologia.subscriptions (
    namespace text COLLATE "C" NOT NULL,
    type text COLLATE "C" NOT NULL,
    consumer_id bigint NOT NULL,
    PRIMARY KEY (namespace, type, consumer_id)
);
-- What each consumer can claim now, the most urgent first. Rows are inserted and deleted only.
-- A primary key has no DESC, so the order of urgency is a unique index.
CREATE TABLE IF NOT EXISTS ontologia.ready (
    consumer_id bigint NOT NULL,
    priority bigint NOT NULL,
    created_at text COLLATE "C" NOT NULL,
    event_id text COLLATE "C" NOT NULL,
    type text COLLATE "C" NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);
CREATE UNIQUE INDEX IF NOT EXISTS idx_ready
    ON ontologia.ready(consumer_id, priority DESC, created_at, event_id);
CREATE TABLE IF NOT EXISTS ontologia.event_claims (
    event_id text COLLATE "C" NOT NULL,
    handler_id text COLLATE "C" NOT NULL,
    session_id text COLLATE "C" NOT NULL,
    claimed_at text COLLATE "C" NOT NULL,
    lease_until text COLLATE "C" NOT NULL,
    ack_at text COLLATE "C",
    attempts bigint NOT NULL DEFAULT 0,
    available_at text COLLATE "C" NOT NULL,
    last_error text COLLATE "C",
    dead_lettered_at text COLLATE "C",
    consumer_id bigint NOT NULL,
    lease_token text COLLATE "C",
    read_commit bigint,
    started_at text COLLATE "C",
    due_at text COLLATE "C",
    conflicts bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (event_id, handler_id)
);
ALTER TABLE ontologia.event_claims
    ADD COLUMN IF NOT EXISTS conflicts bigint NOT NULL DEFAULT 0;
-- What waits for a time, the end of a lease or of a backoff; nothing else is in it.
CREATE INDEX IF NOT EXISTS idx_claims_due
    ON ontologia.event_claims(consumer_id, due_at) WHERE due_at IS NOT NULL;
-- Attempts that did not succeed.
CREATE TABLE IF NOT EXISTS ontologia.attempts (
    event_id text COLLATE "C" NOT NULL,
    handler_id text COLLATE "C" NOT NULL,
    attempt bigint NOT NULL,
    started_at text COLLATE "C",
    ended_at text COLLATE "C" NOT NULL,
    read_commit bigint,
    outcome text COLLATE "C" NOT NULL,
    error text COLLATE "C",
    traceback text COLLATE "C",
    PRIMARY KEY (event_id, handler_id, attempt)
);
ALTER TABLE ontologia.attempts ADD COLUMN IF NOT EXISTS traceback text COLLATE "C";
CREATE TABLE IF NOT EXISTS ontologia.dead_letters (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    event_id text COLLATE "C" NOT NULL,
    handler_id text COLLATE "C" NOT NULL,
    namespace text COLLATE "C" NOT NULL,
    failed_at text COLLATE "C" NOT NULL,
    attempts bigint NOT NULL,
    last_error text COLLATE "C" NOT NULL,
    event_type text COLLATE "C" NOT NULL,
    event_payload text COLLATE "C" NOT NULL,
    root_event_id text COLLATE "C" NOT NULL,
    chain_depth bigint NOT NULL
);
CREATE INDEX IF NOT EXISTS idx_dead_letters_namespace_failed
    ON ontologia.dead_letters(namespace, failed_at DESC);

-- name: archives
-- Where finished events of a namespace were moved to, and from before which time.
CREATE TABLE IF NOT EXISTS ontologia.archives (
    namespace text COLLATE "C" NOT NULL,
    uri text COLLATE "C" NOT NULL,
    archived_before text COLLATE "C" NOT NULL,
    PRIMARY KEY (namespace, uri)
);
-- Events that came back from an archive, which are retained for as long again.
CREATE TABLE IF NOT EXISTS ontologia.restored (
    event_id text COLLATE "C" PRIMARY KEY,
    restored_at text COLLATE "C" NOT NULL
);

-- name: replies
-- What was answered to a request that came with a key of its own, for when it comes again.
CREATE TABLE IF NOT EXISTS ontologia.replies (
    namespace text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    request_hash text COLLATE "C" NOT NULL,
    reply text COLLATE "C" NOT NULL,
    created_at text COLLATE "C" NOT NULL,
    PRIMARY KEY (namespace, key)
);
CREATE INDEX IF NOT EXISTS idx_replies_created ON ontologia.replies(namespace, created_at);

-- name: intakes
-- How far each intake has read its source: the next position of each part, and how many messages
-- were behind it then.
CREATE TABLE IF NOT EXISTS ontologia.intakes (
    namespace text COLLATE "C" NOT NULL,
    source text COLLATE "C" NOT NULL,
    part text COLLATE "C" NOT NULL,
    position bigint NOT NULL,
    behind bigint NOT NULL,
    updated_at text COLLATE "C" NOT NULL,
    PRIMARY KEY (namespace, source, part)
);
-- What it has read of a source that has no positions, while the source has it.
CREATE TABLE IF NOT EXISTS ontologia.intake_messages (
    namespace text COLLATE "C" NOT NULL,
    source text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    PRIMARY KEY (namespace, source, name)
);

-- name: event_journal
-- The events as a bus of extensions sees them: a view, no second queue. Of several buses the claim
-- that decides is one that is being handled, else one that failed, else one that is done. What a
-- process had when it died is `processing` until somebody takes it over. Times are Unix seconds.
CREATE OR REPLACE VIEW ontologia.event_journal AS
SELECT e.seq AS id, e.type AS topic, e.source, e.payload, e.correlation_id,
       CASE WHEN k.event_id IS NULL THEN 'pending'
            WHEN k.dead_lettered_at IS NOT NULL THEN 'failed'
            WHEN k.ack_at IS NOT NULL THEN 'done'
            WHEN k.lease_token IS NOT NULL AND k.read_commit IS NOT NULL THEN 'processing'
            ELSE 'pending' END AS status,
       extract(epoch FROM e.created_at::timestamptz)::double precision AS created_at,
       extract(epoch FROM COALESCE(k.dead_lettered_at, k.ack_at)::timestamptz)::double precision
           AS processed_at,
       CASE WHEN k.dead_lettered_at IS NOT NULL THEN k.last_error END AS error,
       e.namespace, e.id AS event_id
  FROM ontologia.events e
  LEFT JOIN ontologia.event_claims k ON k.event_id = e.id AND k.handler_id = (
       SELECT c.handler_id FROM ontologia.event_claims c
        WHERE c.event_id = e.id AND c.handler_id >= 'bus:' AND c.handler_id < 'bus;'
        ORDER BY CASE WHEN c.dead_lettered_at IS NOT NULL THEN 1
                      WHEN c.ack_at IS NOT NULL THEN 2
                      WHEN c.lease_token IS NOT NULL AND c.read_commit IS NOT NULL THEN 0
                      ELSE 3 END, c.handler_id
        LIMIT 1);

-- name: layout
CREATE TABLE IF NOT EXISTS ontologia.ontologia_layout (
    version bigint NOT NULL,
    store_id text COLLATE "C"
);
ALTER TABLE ontologia.ontologia_layout ADD COLUMN IF NOT EXISTS store_id text COLLATE "C";
