"""Every SQL statement of the record in PostgreSQL, by name. Text alone: ``tables`` has their values.

The tables are in a schema of their own. A commit is one statement, outside of any transaction block, so
nothing that pauses in between can hold the rows of a session. It says itself who may write: a session's row
moves only if it still has the epoch of the writer's claim and the head that the first new event was chained
to, and events and executions follow only where their session's row has moved. In a cluster, a session is
claimed or begun only while the table `owners` (``cluster.statements``) says that its key is this node's: the
statement locks that row, so another node's claim of the key comes wholly before it or wholly after it.
"""

from __future__ import annotations

from typing import Final

from cellgate.record.store.summing import SUMMED, SumBy

SCHEMA_VERSION: Final = 2
"""The number of the tables' schema, in the table `about`."""
FORMER_VERSION: Final = 1
"""The number of tables that are brought up to date."""

# ---- connecting -------------------------------------------------------------------------------------------

SETTINGS: Final = (
    ("search_path", "cellgate, pg_catalog"),
    ("idle_in_transaction_session_timeout", "10s"),
    ("idle_session_timeout", "0"),
    ("lock_timeout", "10s"),
    ("statement_timeout", "60s"),
    ("tcp_keepalives_idle", "10"),
    ("tcp_keepalives_interval", "5"),
    ("tcp_keepalives_count", "3"),
    ("tcp_user_timeout", "20s"),
    ("standard_conforming_strings", "on"),
)
"""What each connection is set to: no connection that hangs may hold anything for long."""
SET: Final = "SELECT set_config(name, value, false) FROM unnest(%s::text[], %s::text[]) AS s (name, value)"
ENCODING: Final = "SHOW server_encoding"
LOCK_ALONE: Final = "SELECT pg_try_advisory_lock(1128614983, 1)"
"""Its first number is "CELG", the mark of a record's file. Held as long as the connection lives."""
LOCK_SHARED: Final = "SELECT pg_try_advisory_lock_shared(1128614983, 1)"
UNLOCK: Final = "SELECT pg_advisory_unlock_all()"

# ---- the tables -------------------------------------------------------------------------------------------

SESSION_COLUMNS: Final = (
    "id, principal, key, kernel, isolation, state, cause, created_at, last_activity, execution_count, "
    "limits, metadata, environment, head_seq, head, folder, parent, branched_from, branched_seq, "
    "branched_head"
)
EXECUTION_COLUMNS: Final = (
    "session_id, id, number, msg_id, first_seq, last_seq, status, created_at, idempotency_key, request_hash, "
    "ended_at, cpu_seconds, memory_peak, disk_written, network_sent, network_received"
)
_ENDS = (
    *('ended_at text COLLATE "C"', "cpu_seconds double precision", "memory_peak bigint"),
    *("disk_written bigint", "network_sent bigint", "network_received bigint"),
)
_ENDED_INDEX = "CREATE INDEX executions_ended ON executions (ended_at) WHERE ended_at IS NOT NULL"
EVENT_COLUMNS: Final = "session_id, seq, type, execution, body, hash"
UNFINISHED_INDEX: Final = """CREATE INDEX IF NOT EXISTS executions_unfinished
    ON executions (session_id, number) WHERE status IS NULL"""
"""Without it each list of sessions in a cluster would read all executions of the sessions open elsewhere."""
HAS_UNFINISHED_INDEX: Final = """SELECT EXISTS (SELECT FROM pg_indexes
    WHERE schemaname = 'cellgate' AND indexname = 'executions_unfinished')"""
TABLES: Final = f"""
CREATE SCHEMA cellgate;
SET LOCAL search_path = cellgate, pg_catalog;
CREATE TABLE about (version integer NOT NULL);
CREATE SEQUENCE session_ids AS bigint;
CREATE TABLE sessions (
    id bigint PRIMARY KEY,
    principal text NOT NULL,
    key text NOT NULL,
    kernel text NOT NULL,
    isolation text NOT NULL,
    state text NOT NULL,
    cause text,
    created_at text NOT NULL,
    last_activity text NOT NULL,
    execution_count bigint NOT NULL,
    limits text NOT NULL,
    metadata text NOT NULL,
    environment text NOT NULL,
    folder text NOT NULL,
    parent bigint NOT NULL,
    branched_from text NOT NULL,
    branched_seq bigint NOT NULL,
    branched_head text NOT NULL,
    epoch bigint NOT NULL,
    head_seq bigint NOT NULL,
    head bytea NOT NULL,
    bytes bigint NOT NULL,
    CONSTRAINT sessions_of_key UNIQUE (principal, key)
) WITH (fillfactor = 50);
CREATE INDEX sessions_of_principal ON sessions (principal, id);
CREATE INDEX sessions_open ON sessions (id) WHERE state <> 'ended';
CREATE INDEX branches ON sessions (parent, id) WHERE parent > 0;
CREATE INDEX folders ON sessions (folder);
CREATE TABLE executions (
    session_id bigint NOT NULL,
    id text NOT NULL,
    number bigint NOT NULL,
    msg_id text NOT NULL,
    first_seq bigint NOT NULL,
    last_seq bigint,
    status text,
    created_at text NOT NULL,
    idempotency_key text,
    request_hash text,
    {", ".join(_ENDS)},
    PRIMARY KEY (session_id, number),
    UNIQUE (session_id, id)
) WITH (fillfactor = 70);
CREATE INDEX executions_of_key ON executions (session_id, idempotency_key, number)
    WHERE idempotency_key IS NOT NULL;
{UNFINISHED_INDEX};
{_ENDED_INDEX};
CREATE TABLE events (
    session_id bigint NOT NULL,
    seq bigint NOT NULL,
    type text NOT NULL,
    execution text,
    body bytea NOT NULL,
    hash bytea NOT NULL,
    PRIMARY KEY (session_id, seq)
);
CREATE TABLE trail (
    seq bigint PRIMARY KEY,
    type text NOT NULL,
    body bytea NOT NULL,
    hash bytea NOT NULL
);
CREATE INDEX trail_of_type ON trail (type, seq) WHERE type IN ('act', 'record_purged');
CREATE TABLE purges (session_id bigint PRIMARY KEY)
"""
NOTE_VERSION: Final = "INSERT INTO about VALUES (%s)"

# ---- tables of the version before -------------------------------------------------------------------------

IS_FORMER: Final = f"SELECT EXISTS (SELECT FROM about WHERE version = {FORMER_VERSION})"  # noqa: S608
ADD_COLUMNS: Final = f"""SET LOCAL statement_timeout = 0;
ALTER TABLE executions {", ".join(f"ADD COLUMN {column}" for column in _ENDS)};
{_ENDED_INDEX}"""
ENDED_CELLS: Final = """SELECT x.session_id, x.number, q.body, f.body
    FROM (SELECT session_id, number, first_seq, last_seq FROM executions
        WHERE (session_id, number) > (%s, %s) AND status IS NOT NULL
        ORDER BY session_id, number LIMIT %s) AS x
    LEFT JOIN events AS q ON q.session_id = x.session_id AND q.seq = x.first_seq
    LEFT JOIN events AS f ON f.session_id = x.session_id AND f.seq = x.last_seq
    ORDER BY x.session_id, x.number"""
"""Cells that have ended, with their first and their last event, if these are there."""
SET_ENDS: Final = """UPDATE executions AS x SET ended_at = e.ended_at, cpu_seconds = e.cpu_seconds,
        memory_peak = e.memory_peak, disk_written = e.disk_written, network_sent = e.network_sent,
        network_received = e.network_received
    FROM unnest(%(ended_at)b::text[], %(cpu_seconds)b::double precision[], %(memory_peak)b::bigint[],
        %(disk_written)b::bigint[], %(network_sent)b::bigint[], %(network_received)b::bigint[],
        %(session)b::bigint[], %(number)b::bigint[])
        AS e (ended_at, cpu_seconds, memory_peak, disk_written, network_sent, network_received, session_id,
            number)
    WHERE x.session_id = e.session_id AND x.number = e.number"""
NOTE_NEWER: Final = f"UPDATE about SET version = {SCHEMA_VERSION}"  # noqa: S608

# ---- writing ----------------------------------------------------------------------------------------------

NEW_IDS: Final = "SELECT max(nextval('session_ids')) FROM generate_series(1, %s)"
CLAIM: Final = "UPDATE sessions SET epoch = epoch + 1 WHERE id = %s RETURNING epoch, head_seq, head"
CLAIM_OWN: Final = """WITH held AS MATERIALIZED (SELECT s.id FROM sessions AS s
        JOIN owners AS o ON o.principal = s.principal AND o.key = s.key
        JOIN nodes AS n ON n.id = o.node AND n.id = %(node)s AND n.incarnation = %(incarnation)s
        WHERE s.id = %(id)s FOR SHARE OF o)
    UPDATE sessions AS s SET epoch = s.epoch + 1 FROM held WHERE s.id = held.id
        RETURNING s.epoch, s.head_seq, s.head"""
"""CLAIM in a cluster. Returns no row for a session whose key is not this node's, or no longer."""
HEADS: Final = "SELECT id, epoch, head_seq, head FROM sessions WHERE id = ANY(%b::bigint[])"
LOST: Final = """SELECT k.id, EXISTS (SELECT FROM sessions AS s WHERE s.id = k.id)
    FROM unnest(%(id)b::bigint[], %(seq)b::bigint[], %(head)b::bytea[]) AS k (id, seq, head)
    WHERE NOT EXISTS (SELECT FROM events AS e
        WHERE e.session_id = k.id AND e.seq = k.seq AND e.hash = k.head)"""
"""Returns the sessions whose event of this number and hash is missing, each with whether it has a row."""

_NEW_EVENTS = """
    e AS MATERIALIZED (SELECT * FROM unnest(
        %(event_session)b::bigint[], %(event_seq)b::bigint[], %(event_type)b::text[],
        %(event_execution)b::text[], %(event_body)b::bytea[], %(event_hash)b::bytea[])
        AS e (session_id, seq, type, execution, body, hash)),"""
_MOVED = """
    own AS (UPDATE sessions AS s SET
        head_seq = coalesce(g.after, s.head_seq), head = coalesce(g.head, s.head),
        bytes = s.bytes + g.bytes, kernel = coalesce(g.kernel, s.kernel),
        isolation = coalesce(g.isolation, s.isolation), state = coalesce(g.state, s.state),
        cause = CASE WHEN g.state IS NULL THEN s.cause ELSE g.cause END,
        last_activity = coalesce(g.last_activity, s.last_activity),
        execution_count = coalesce(g.execution_count, s.execution_count),
        limits = coalesce(g.limits, s.limits), metadata = coalesce(g.metadata, s.metadata),
        environment = coalesce(g.environment, s.environment)
        FROM unnest(
            %(id)b::bigint[], %(epoch)b::bigint[], %(before)b::bigint[], %(after)b::bigint[],
            %(head)b::bytea[], %(bytes)b::bigint[], %(kernel)b::text[], %(isolation)b::text[],
            %(state)b::text[], %(cause)b::text[], %(last_activity)b::text[],
            %(execution_count)b::bigint[], %(limits)b::text[], %(metadata)b::text[],
            %(environment)b::text[])
            AS g (id, epoch, before, after, head, bytes, kernel, isolation, state, cause, last_activity,
                execution_count, limits, metadata, environment)
        LEFT JOIN e ON e.session_id = g.id AND e.seq = g.before + 1
        WHERE s.id = g.id AND s.epoch = g.epoch AND (g.before IS NULL
            OR (s.head_seq = g.before AND e.hash = sha256(s.head || e.body)))
        RETURNING s.id),"""
_NEW_SESSIONS = f"""INSERT INTO sessions ({SESSION_COLUMNS}, epoch, bytes) SELECT * FROM unnest(
        %(new_id)b::bigint[], %(new_principal)b::text[], %(new_key)b::text[], %(new_kernel)b::text[],
        %(new_isolation)b::text[], %(new_state)b::text[], %(new_cause)b::text[],
        %(new_created_at)b::text[], %(new_last_activity)b::text[], %(new_execution_count)b::bigint[],
        %(new_limits)b::text[], %(new_metadata)b::text[], %(new_environment)b::text[],
        %(new_head_seq)b::bigint[], %(new_head)b::bytea[], %(new_folder)b::text[],
        %(new_parent)b::bigint[], %(new_branched_from)b::text[], %(new_branched_seq)b::bigint[],
        %(new_branched_head)b::text[], %(new_epoch)b::bigint[], %(new_bytes)b::bigint[])"""  # noqa: S608
_NEW_ENTRIES = """INSERT INTO trail SELECT * FROM unnest(
        %(trail_seq)b::bigint[], %(trail_type)b::text[], %(trail_body)b::bytea[], %(trail_hash)b::bytea[])"""
_BEGUN = f"made AS ({_NEW_SESSIONS} RETURNING id), entries AS ({_NEW_ENTRIES}),"
_HELD = """
    held AS MATERIALIZED (SELECT o.key FROM unnest(%(new_principal)b::text[], %(new_key)b::text[])
        AS g (principal, key) JOIN owners AS o ON o.principal = g.principal AND o.key = g.key
        JOIN nodes AS n ON n.id = o.node AND n.id = %(node)s AND n.incarnation = %(incarnation)s
        FOR SHARE OF o),"""
_ALL_HELD = "WHERE (SELECT count(*) FROM held) = cardinality(%(new_id)b::bigint[])"
_BEGUN_OWN = f"""{_HELD}
    made AS ({_NEW_SESSIONS} {_ALL_HELD} RETURNING id),
    entries AS ({_NEW_ENTRIES} {_ALL_HELD}),"""
_FOLLOWING = f"""
    x AS (INSERT INTO executions ({EXECUTION_COLUMNS}) SELECT x.* FROM unnest(
        %(execution_session)b::bigint[], %(execution_id)b::text[], %(execution_number)b::bigint[],
        %(execution_msg_id)b::text[], %(execution_first_seq)b::bigint[],
        %(execution_last_seq)b::bigint[], %(execution_status)b::text[],
        %(execution_created_at)b::text[], %(execution_idempotency_key)b::text[],
        %(execution_request_hash)b::text[], %(execution_ended_at)b::text[],
        %(execution_cpu_seconds)b::double precision[], %(execution_memory_peak)b::bigint[],
        %(execution_disk_written)b::bigint[], %(execution_network_sent)b::bigint[],
        %(execution_network_received)b::bigint[])
        AS x ({EXECUTION_COLUMNS}) JOIN written ON written.id = x.session_id
        ON CONFLICT (session_id, id) DO UPDATE SET last_seq = excluded.last_seq, status = excluded.status,
            ended_at = excluded.ended_at, cpu_seconds = excluded.cpu_seconds,
            memory_peak = excluded.memory_peak, disk_written = excluded.disk_written,
            network_sent = excluded.network_sent, network_received = excluded.network_received),
    v AS (INSERT INTO events ({EVENT_COLUMNS})
        SELECT e.* FROM e JOIN written ON written.id = e.session_id)
    SELECT id FROM written"""  # noqa: S608 - constants of this module

COMMIT: Final = f"WITH {_NEW_EVENTS}{_MOVED} written AS (SELECT id FROM own), {_FOLLOWING}"  # noqa: S608
"""Returns the ids of the sessions whose rows it wrote; the other sessions were claimed by another writer."""
COMMIT_BEGUN: Final = f"""WITH {_NEW_EVENTS}{_MOVED}{_BEGUN}
    written AS (SELECT id FROM own UNION ALL SELECT id FROM made), {_FOLLOWING}"""  # noqa: S608
"""COMMIT for sessions that have no row yet; their entries in the audit trail are written as well."""
COMMIT_BEGUN_OWN: Final = f"""WITH {_NEW_EVENTS}{_MOVED}{_BEGUN_OWN}
    written AS (SELECT id FROM own UNION ALL SELECT id FROM made), {_FOLLOWING}"""  # noqa: S608
"""COMMIT_BEGUN in a cluster. It begins no session unless the keys of all of them are this node's."""

TRAIL_HEAD: Final = "SELECT seq, hash FROM trail ORDER BY seq DESC LIMIT 1"
TRAIL_HASH: Final = "SELECT hash FROM trail WHERE seq = %s"
NEWEST_ACT: Final = "SELECT coalesce(max(seq), 0) FROM trail WHERE type = 'act'"
ADD_ENTRIES: Final = """INSERT INTO trail SELECT * FROM unnest(
    %(trail_seq)b::bigint[], %(trail_type)b::text[], %(trail_body)b::bytea[], %(trail_hash)b::bytea[])"""

# ---- purging ----------------------------------------------------------------------------------------------

TOMBSTONE: Final = """SELECT epoch, id, principal, key, created_at, head_seq, head
    FROM sessions WHERE id = %s"""
PURGE: Final = """WITH gone AS (
        DELETE FROM sessions WHERE id = %(id)s AND epoch = %(epoch)s AND head_seq = %(head_seq)s
            AND head = %(head)b RETURNING id),
    begun AS (INSERT INTO purges SELECT id FROM gone),
    entry AS (INSERT INTO trail SELECT %(seq)s::bigint, %(type)s, %(body)b, %(hash)b FROM gone)
    SELECT id FROM gone"""
PURGES: Final = "SELECT session_id FROM purges ORDER BY session_id"
IS_PURGED: Final = "SELECT EXISTS (SELECT FROM purges WHERE session_id = %s)"
REMOVE_EVENTS: Final = """DELETE FROM events WHERE session_id = %(id)s AND seq <= (SELECT max(seq) FROM (
    SELECT seq FROM events WHERE session_id = %(id)s ORDER BY seq LIMIT %(limit)s) AS first)"""
REMOVE_EXECUTIONS: Final = """DELETE FROM executions WHERE session_id = %(id)s AND number <= (
    SELECT max(number) FROM (SELECT number FROM executions WHERE session_id = %(id)s
    ORDER BY number LIMIT %(limit)s) AS first)"""
END_PURGE: Final = "DELETE FROM purges WHERE session_id = %s"

# ---- reading ----------------------------------------------------------------------------------------------

_SESSIONS = f"SELECT {SESSION_COLUMNS} FROM sessions"  # noqa: S608 - constants of this module
SESSION: Final = f"{_SESSIONS} WHERE principal = %s AND key = %s"
SESSION_BY_ID: Final = f"{_SESSIONS} WHERE id = %s"
_BY_KEY = {"": "", "prefix": " AND starts_with(key, %(prefix)s)", "exact": " AND key = %(prefix)s"}


def sessions(how: str, *, of_one: bool, in_states: bool, newest: bool) -> str:
    """Return the statement that lists sessions: `of_one` principal, `in_states`, the newest first.

    `how`: the filter by key, one of "", "prefix" and "exact". Each has its own statement, because a common
    one would be planned as if each filter were applied to all principals.
    """
    whose = "principal = %(principal)s AND " if of_one else ""
    states = "state = ANY(%(states)s::text[]) AND " if in_states else ""
    page = "< %(after)s{} ORDER BY id DESC" if newest else "> %(after)s{} ORDER BY id"
    return f"{_SESSIONS} WHERE {whose}{states}id {page.format(_BY_KEY[how])} LIMIT %(limit)s"


UNFINISHED_SESSIONS: Final = f"{_SESSIONS} WHERE state <> 'ended' ORDER BY id"
UNFINISHED_OF_KEYS: Final = f"""{_SESSIONS} WHERE state <> 'ended' AND (principal, key) IN (
    SELECT * FROM unnest(%s::text[], %s::text[])) ORDER BY id"""  # noqa: S608
FOLDERS: Final = "SELECT folder FROM sessions"
HOLDS_FOLDER: Final = """SELECT EXISTS (SELECT FROM sessions WHERE folder = %s AND id <> %s
    AND NOT (state = 'ended' AND cause IS NOT DISTINCT FROM 'deleted'))"""
DESCENDANTS: Final = f"""{_SESSIONS} WHERE id IN (
    WITH RECURSIVE descendants (id) AS (
        SELECT id FROM sessions WHERE parent = %(id)s AND parent > 0
        UNION ALL SELECT s.id FROM sessions AS s JOIN descendants AS d ON s.parent = d.id AND s.parent > 0)
    SELECT id FROM descendants LIMIT %(limit)s) ORDER BY id"""  # noqa: S608
LAST_ACTIVITY: Final = 'SELECT max(last_activity COLLATE "C") FROM sessions'
LONGEST_ENDED: Final = f"""{_SESSIONS} WHERE state = 'ended' AND id <> ALL(%s::bigint[]) AND id NOT IN (
    WITH RECURSIVE continued (id) AS (
        SELECT parent FROM sessions WHERE parent > 0 AND state <> 'ended'
        UNION SELECT s.parent FROM sessions AS s JOIN continued AS c ON s.id = c.id WHERE s.parent > 0)
    SELECT id FROM continued) ORDER BY last_activity COLLATE "C", id LIMIT 1"""  # noqa: S608
RECORD_SIZES: Final = "SELECT principal, sum(bytes)::bigint FROM sessions GROUP BY principal"
RECORD_SIZE: Final = "SELECT bytes FROM sessions WHERE id = %s"
ALL_BYTES: Final = "SELECT coalesce(sum(bytes), 0)::bigint FROM sessions"
IS_THERE: Final = "SELECT EXISTS (SELECT FROM sessions WHERE id = %s)"

_EXECUTIONS = f"SELECT {EXECUTION_COLUMNS} FROM executions WHERE session_id = %s AND "  # noqa: S608
EXECUTION: Final = f"{_EXECUTIONS} id = %s"
EXECUTION_BY_KEY: Final = f"{_EXECUTIONS} idempotency_key = %s ORDER BY number DESC LIMIT 1"
LAST_EXECUTION: Final = f"{_EXECUTIONS} true ORDER BY number DESC LIMIT 1"
EXECUTIONS: Final = f"{_EXECUTIONS} number > %s ORDER BY number LIMIT %s"
NEWEST_EXECUTIONS: Final = f"{_EXECUTIONS} number < %s ORDER BY number DESC LIMIT %s"
UNFINISHED_EXECUTIONS: Final = f"{_EXECUTIONS} status IS NULL ORDER BY number"
UNFINISHED_COUNTS: Final = """SELECT session_id, count(*) FROM executions
    WHERE session_id = ANY(%s::bigint[]) AND status IS NULL GROUP BY session_id"""
EXECUTION_COUNTS: Final = """SELECT s.id, last.number FROM unnest(%s::bigint[]) AS s (id)
    CROSS JOIN LATERAL (SELECT number FROM executions WHERE session_id = s.id
        ORDER BY number DESC LIMIT 1) AS last"""

SET_PATIENCE: Final = "SELECT set_config('statement_timeout', %s, true)"
_PLACES = {
    SumBy.PRINCIPAL: 's.principal COLLATE "C"',
    SumBy.SESSION: "s.id",
    SumBy.DAY: "left(x.ended_at, 10)",
}


def sums(by: SumBy, how: str, *, of_one: bool, goes_on: bool) -> str:
    """Return the statement that sums what cells used; `how` and `of_one` as those of `sessions`.

    `goes_on`: whether it is for a page after the first.
    """
    place = _PLACES[by]
    key = _BY_KEY[how].replace("key", "s.key", 1)
    whose = " AND s.principal = %(principal)s" if of_one else ""
    page = f" AND {place} > %(after)s" if goes_on else ""
    names = "s.principal, s.key" if by is SumBy.SESSION else "NULL, NULL"
    return f"""SELECT {place}, {names}, {SUMMED}
        FROM executions AS x JOIN sessions AS s ON s.id = x.session_id
        WHERE x.ended_at >= %(begin)s AND x.ended_at < %(end)s{whose}{key}{page}
        GROUP BY 1 ORDER BY 1 LIMIT %(limit)s"""  # noqa: S608


LAST_EVENT: Final = """SELECT last.seq, last.hash FROM sessions AS s
    LEFT JOIN LATERAL (SELECT seq, hash FROM events WHERE session_id = s.id
        ORDER BY seq DESC LIMIT 1) AS last ON true WHERE s.id = %s"""
EVENTS: Final = f"""WITH page AS (
        SELECT {EVENT_COLUMNS}, sum(length(body)) OVER (ORDER BY seq) AS total,
            row_number() OVER (ORDER BY seq) AS place
        FROM (SELECT * FROM events WHERE session_id = %(id)s AND seq > %(after)s AND seq <= %(until)s
            ORDER BY seq LIMIT %(limit)s) AS next)
    SELECT {EVENT_COLUMNS}, EXISTS (SELECT FROM sessions WHERE id = %(id)s)
    FROM page WHERE place = 1 OR total <= %(max_bytes)s ORDER BY seq"""  # noqa: S608
"""Each event, with whether its session still exists: a purge removes the session first."""
EVENTS_OF_TYPES: Final = f"""SELECT {EVENT_COLUMNS} FROM events
    WHERE session_id = %s AND seq > %s AND type = ANY(%s::text[]) ORDER BY seq LIMIT %s"""  # noqa: S608
EVENT: Final = f"SELECT {EVENT_COLUMNS} FROM events WHERE session_id = %s AND seq = %s"  # noqa: S608
ARE_LARGER: Final = """SELECT coalesce(sum(length(body)), 0) + %(row_cost)s * count(*) > %(size)s
    FROM events WHERE session_id = %(id)s AND seq > %(after)s AND seq <= %(until)s"""

TRAIL: Final = "SELECT seq, type, body, hash FROM trail WHERE seq > %s ORDER BY seq LIMIT %s"
ACTS: Final = "SELECT seq, body FROM trail WHERE type = 'act' AND seq < %s ORDER BY seq DESC LIMIT %s"
TOMBSTONES: Final = "SELECT body FROM trail WHERE type = 'record_purged' ORDER BY seq"

# ---- commands ---------------------------------------------------------------------------------------------

FOR_COMMANDS: Final = (("statement_timeout", "0"), ("idle_in_transaction_session_timeout", "0"))
"""The settings of a command's connection: it may read for long, or wait for the reader of its output."""
STORED_EVENTS: Final = f"""SELECT {EVENT_COLUMNS} FROM events
    WHERE session_id = %s AND seq > %s ORDER BY seq LIMIT %s"""  # noqa: S608
STRAY: Final = {
    table: f"""SELECT session_id FROM {table} WHERE session_id NOT IN (SELECT id FROM sessions)
        AND session_id NOT IN (SELECT session_id FROM purges) LIMIT 1"""  # noqa: S608
    for table in ("events", "executions")
}
STATISTICS: Final = (
    ("sessions", "SELECT count(*) FROM sessions"),
    ("open_sessions", "SELECT count(*) FROM sessions WHERE state <> 'ended'"),
    ("executions", "SELECT count(*) FROM executions"),
    ("events", "SELECT count(*) FROM events"),
    ("event_bytes", "SELECT coalesce(sum(bytes), 0)::bigint FROM sessions"),
    ("purged", "SELECT count(*) FROM trail WHERE type = 'record_purged'"),
    ("trail_entries", "SELECT count(*) FROM trail"),
    (
        "database_bytes",
        """SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint FROM pg_class AS c
        JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE n.nspname = 'cellgate' AND c.relkind = 'r'""",
    ),
)
MAY_MAKE_TABLES: Final = "SELECT has_database_privilege(current_database(), 'CREATE')"
IS_EMPTY: Final = """SELECT NOT EXISTS (SELECT FROM sessions) AND NOT EXISTS (SELECT FROM trail)
    AND NOT EXISTS (SELECT FROM events) AND NOT EXISTS (SELECT FROM purges)"""
COPY_SESSIONS: Final = f"COPY sessions ({SESSION_COLUMNS}, epoch, bytes) FROM STDIN"
COPY_EXECUTIONS: Final = f"COPY executions ({EXECUTION_COLUMNS}) FROM STDIN"
COPY_EVENTS: Final = f"COPY events ({EVENT_COLUMNS}) FROM STDIN"
COPY_TRAIL: Final = "COPY trail (seq, type, body, hash) FROM STDIN"
SET_BYTES: Final = """UPDATE sessions SET bytes = (
    SELECT coalesce(sum(length(body)), 0) FROM events WHERE session_id = sessions.id)"""
SET_LAST_ID: Final = "SELECT setval('session_ids', %s)"
LAST_ID: Final = "SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM session_ids"
SET_ASIDE: Final = "ALTER SCHEMA cellgate RENAME TO {}"
ANALYZE: Final = "ANALYZE sessions, executions, events, trail"
