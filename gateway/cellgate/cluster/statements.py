"""Every SQL statement of a cluster, by name, beside the record's in its schema. Text alone.

Each is one statement outside of any transaction block: whoever pauses in between holds nothing. All times are
the database's. `owners` says which node has a key (`node`; NULL: none), which one had it before the last
claim (`former`), and where the session's files are (`home`): a claim leaves that alone, and `SETTLE` changes
it once the claiming node has no older files. `claims` counts the claims of a key: a release names the one
that it ends, so one that comes late ends no later one. A claim of another node's key also raises the epoch of
the session's record. `uses` has what each principal's sessions use at each node: number, bytes of memory,
processors and bytes of disk. `allotments` has what each node uses of the quotas that are allotted, what it
holds and what it lacks: three lists in the order of `allotment.Flow`. In both, all of a principal is one row,
which its updates lock, so sums are exact.
"""

from __future__ import annotations

from typing import Final

TABLES: Final = """
CREATE TABLE IF NOT EXISTS nodes (
    id text PRIMARY KEY,
    incarnation bigint NOT NULL,
    url text NOT NULL,
    state text NOT NULL,
    capacity integer NOT NULL,
    used integer NOT NULL,
    warm integer NOT NULL,
    takeovers bigint NOT NULL,
    lease double precision NOT NULL,
    beat_at timestamptz NOT NULL,
    steady_since timestamptz NOT NULL
) WITH (fillfactor = 50);
CREATE TABLE IF NOT EXISTS owners (
    principal text NOT NULL,
    key text NOT NULL,
    node text,
    home text NOT NULL,
    former text,
    claims bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (principal, key)
) WITH (fillfactor = 50);
ALTER TABLE owners ADD COLUMN IF NOT EXISTS claims bigint NOT NULL DEFAULT 0;
CREATE TABLE IF NOT EXISTS uses (
    principal text COLLATE "C" PRIMARY KEY,
    by_node jsonb NOT NULL
) WITH (fillfactor = 50);
CREATE TABLE IF NOT EXISTS allotments (
    principal text COLLATE "C" PRIMARY KEY,
    by_node jsonb NOT NULL
) WITH (fillfactor = 50);
CREATE INDEX IF NOT EXISTS owners_of_node ON owners (node) WHERE node IS NOT NULL
"""

_LEASE = "make_interval(secs => %(lease)s)"
STEADY: Final = f"""(SELECT beat_at > clock_timestamp() - {_LEASE} / 2
    AND steady_since < clock_timestamp() - {_LEASE} FROM me)"""  # noqa: S608
"""Whether this node may declare others dead. After an outage of the database the beats of all nodes are old,
and the first to be back would find the others dead. Nodes' last beats are up to a beat apart, and the first
ones afterwards as well, so for another node to look dead, this one must have missed half of its lease.
"""
_ME = """me AS MATERIALIZED (SELECT * FROM nodes
    WHERE id = %(node)s AND incarnation = %(incarnation)s)"""
_HEARD = f"me.beat_at BETWEEN clock_timestamp() - {_LEASE} AND clock_timestamp() + {_LEASE}"
_LIVES = """n.beat_at > clock_timestamp() - make_interval(secs => n.lease)
    AND n.beat_at < clock_timestamp() + make_interval(secs => n.lease)"""
_GONE = f"NOT EXISTS (SELECT FROM nodes AS n WHERE n.id = o.node AND {_LIVES})"
_MAY_LIVE = f"(({_LIVES}) OR NOT {STEADY})"

_NODE = """id, url, state, capacity, used, warm, takeovers, lease, beat_at,
    extract(epoch FROM clock_timestamp() - beat_at)::float8"""

# ---- nodes ------------------------------------------------------------------------------------------------

JOIN: Final = """INSERT INTO nodes AS n
    VALUES (%(node)s, 1, %(url)s, 'up', 0, 0, 0, 0, %(lease)s, clock_timestamp(), clock_timestamp())
    ON CONFLICT (id) DO UPDATE SET incarnation = n.incarnation + 1, url = excluded.url, state = 'up',
        takeovers = 0, lease = excluded.lease, beat_at = clock_timestamp(), steady_since = clock_timestamp()
    RETURNING incarnation"""
BEAT: Final = f"""WITH beaten AS (UPDATE nodes SET
        steady_since = CASE WHEN beat_at < clock_timestamp() - {_LEASE} / 2
            OR greatest(beat_at, steady_since) > clock_timestamp()
            THEN clock_timestamp() ELSE steady_since END,
        beat_at = clock_timestamp(), capacity = %(capacity)s, used = %(used)s, warm = %(warm)s,
        takeovers = %(takeovers)s, incarnation = %(incarnation)s,
        state = CASE WHEN incarnation = %(incarnation)s THEN state ELSE 'up' END,
        url = %(url)s, lease = %(lease)s
        WHERE id = %(node)s AND incarnation <= %(incarnation)s RETURNING id)
    SELECT {_NODE}, EXISTS (SELECT FROM beaten) FROM nodes ORDER BY id"""  # noqa: S608
"""A clock of the database that was set back counts as a silence of all nodes. A lower incarnation than this
process' own is that of an older copy of the database, which was restored: incarnations only rise.

Returns all nodes as they were before, with the age of their last beat, and whether this node has one."""
LIST: Final = f"SELECT {_NODE} FROM nodes ORDER BY id"  # noqa: S608
DRAIN: Final = "UPDATE nodes SET state = 'draining' WHERE id = %s AND state = 'up' RETURNING id"


def _removed(of_whom: str, table: str = "uses", names: str = "") -> str:
    """Return the parts of a statement that remove what a table has of the nodes in `gone`, and rows that have
    no other node's. `names` ends the parts' names.

    All nodes lock the rows in one order, so they never wait for each other in a circle. `rest` is read from
    the locked rows, which may be newer than the statement's snapshot.
    """
    return f"""rest{names} AS MATERIALIZED (SELECT u.principal, u.by_node - g.id AS by_node
        FROM {table} AS u JOIN gone AS g ON u.by_node ? g.id WHERE {of_whom}
        ORDER BY u.principal FOR UPDATE OF u),
    emptied{names} AS (DELETE FROM {table} AS u USING rest{names} AS r
        WHERE u.principal = r.principal AND r.by_node = jsonb_build_object()),
    reduced{names} AS (UPDATE {table} AS u SET by_node = r.by_node FROM rest{names} AS r
        WHERE u.principal = r.principal AND r.by_node <> jsonb_build_object())"""  # noqa: S608


REMOVE: Final = f"""WITH gone AS (DELETE FROM nodes AS n WHERE id = %s
        AND (state = 'down' OR NOT ({_LIVES})) RETURNING id),
    freed AS (UPDATE owners SET node = NULL WHERE node IN (SELECT id FROM gone)),
    {_removed("TRUE")}, {_removed("TRUE", "allotments", "_allotments")}
    SELECT id FROM gone"""  # noqa: S608
LEAVE: Final = "UPDATE nodes SET state = 'down' WHERE id = %(node)s AND incarnation = %(incarnation)s"

# ---- owners -----------------------------------------------------------------------------------------------

_OF_ONE = "o.principal = %(principal)s AND o.key = %(key)s"
_OTHER = f"""CASE WHEN o.node = %(node)s THEN NULL
    WHEN o.node <> %(node)s AND NOT ({STEADY} AND {_GONE}) THEN o.node
    WHEN o.home <> %(node)s AND EXISTS (SELECT FROM nodes AS n
        WHERE n.id = o.home AND n.state = 'up' AND {_MAY_LIVE}) THEN o.home END"""
"""The other node that has a key, or that is to have it, because it has the files and opens sessions."""
FIND: Final = f"""WITH {_ME}, found AS MATERIALIZED (SELECT
        CASE WHEN o.node = %(node)s THEN o.node ELSE {_OTHER} END AS node
        FROM owners AS o WHERE {_OF_ONE})
    SELECT f.node, n.url FROM found AS f LEFT JOIN nodes AS n ON n.id = f.node
    WHERE f.node IS NOT NULL"""  # noqa: S608
"""Returns no row for a key that this node may claim."""
HOME: Final = f"""WITH {_ME} SELECT n.id, n.url FROM owners AS o JOIN nodes AS n ON n.id = o.home
    WHERE {_OF_ONE} AND n.state <> 'down' AND (n.id = %(node)s OR {_MAY_LIVE})"""  # noqa: S608
"""Returns the node that has the files of a key's session; no row if it is gone."""
FILES_AT: Final = f"SELECT o.home FROM owners AS o WHERE {_OF_ONE} AND o.home <> %(node)s"  # noqa: S608
"""Returns another node that has the files of a key's session, even if it is gone."""
CLAIM: Final = f"""WITH {_ME},
    found AS MATERIALIZED (SELECT {_OTHER} AS node FROM owners AS o WHERE {_OF_ONE}),
    other AS MATERIALIZED (SELECT f.node, n.url FROM found AS f LEFT JOIN nodes AS n ON n.id = f.node
        WHERE f.node IS NOT NULL),
    mine AS (INSERT INTO owners AS o (principal, key, node, home, claims)
        SELECT %(principal)s, %(key)s, id, id, 1 FROM me WHERE {_HEARD} AND NOT EXISTS (SELECT FROM other)
        ON CONFLICT (principal, key) DO UPDATE
            SET node = excluded.node, former = o.node, claims = o.claims + 1
            WHERE ({_OTHER}) IS NULL
        RETURNING former, home, claims),
    raised AS (UPDATE sessions SET epoch = epoch + 1
        WHERE principal = %(principal)s AND key = %(key)s AND (SELECT former FROM mine) <> %(node)s
        RETURNING epoch)
    SELECT (SELECT {_HEARD} FROM me), (SELECT node FROM other), (SELECT url FROM other),
        EXISTS (SELECT FROM mine), (SELECT former FROM mine), (SELECT home FROM mine),
        (SELECT epoch FROM raised), (SELECT claims FROM mine)"""  # noqa: S608
"""Returns whether this node has beaten within its lease (NULL: the node is another process); the other node
that has the key or is to have it, if any, with its address; whether the key is this node's now, who had it
before, and where its files are; the epoch, and the number of the claim.

A node that has not beaten claims nothing, because others could take that at once. The key of another node
that lives is not touched. If that changes just then, the row's own condition decides.
"""
_MINE = """o.node = %(node)s AND EXISTS (SELECT FROM me)"""
_OF_KEY = "o.principal = s.principal AND o.key = s.key"


SETTLE: Final = f"""WITH {_ME} UPDATE owners AS o SET home = o.node WHERE {_OF_ONE} AND {_MINE}"""  # noqa: S608
"""Makes this node the home of a key that it has."""


def _release(which: str) -> str:
    """Return a statement that frees keys of a node whose session has ended, and keeps the home of each.

    A session that has not ended stays with its node: its kernel is left to the node's next process, or its
    end waits to be written.
    """
    recorded = f"EXISTS (SELECT FROM sessions AS s WHERE {_OF_KEY})"
    left_open = f"EXISTS (SELECT FROM sessions AS s WHERE {_OF_KEY} AND s.state <> 'ended')"
    return f"""WITH {_ME},
        forgotten AS (DELETE FROM owners AS o WHERE {_MINE} AND {which} AND NOT {recorded})
        UPDATE owners AS o SET node = NULL
            WHERE {_MINE} AND {which} AND {recorded} AND NOT {left_open}"""  # noqa: S608


RELEASE_ENDED: Final = _release("TRUE")
"""Frees all keys of a node whose session has ended, or never began."""
RELEASE: Final = _release(f"{_OF_ONE} AND o.claims = coalesce(%(claims)s::bigint, o.claims)")
HELD: Final = "SELECT principal, key FROM owners WHERE node = %(node)s"

# ---- quotas -----------------------------------------------------------------------------------------------

_USED = f"""SELECT coalesce(sum((e.value->>0)::bigint), 0)::bigint AS sessions,
        coalesce(sum((e.value->>1)::bigint), 0)::bigint AS memory,
        coalesce(round(sum((e.value->>2)::numeric), 6), 0)::float8 AS cpus,
        coalesce(sum((e.value->>3)::bigint), 0)::bigint AS disk
    FROM jsonb_each(u.by_node) AS e JOIN nodes AS n ON n.id = e.key
    WHERE e.key <> %(node)s AND n.state <> 'down' AND {_MAY_LIVE}"""  # noqa: S608
_USED_BY_OTHERS = f"""WITH {_ME} SELECT u.principal, o.sessions, o.memory, o.cpus, o.disk
    FROM uses AS u, LATERAL ({_USED}) AS o"""  # noqa: S608
USES_OF_OTHERS: Final = f"{_USED_BY_OTHERS} WHERE u.principal = ANY(%(principals)s)"
"""Returns what principals use at the other nodes, but for those that this one may find dead."""
FIRST_USES: Final = f"""{_USED_BY_OTHERS}
    WHERE u.principal > %(after)s AND (o.sessions > 0 OR o.disk > 0) ORDER BY u.principal LIMIT %(limit)s"""
"""Returns the same of the first principals, by name, of those that use something there."""
WRITE_USE: Final = f"""WITH {_ME}, written AS (INSERT INTO uses AS u (principal, by_node)
        SELECT %(principal)s, jsonb_build_object(id, jsonb_build_array(%(sessions)s::bigint,
            %(memory)s::bigint, %(cpus)s::float8, %(disk)s::bigint)) FROM me
    ON CONFLICT (principal) DO UPDATE SET by_node = u.by_node || excluded.by_node
        WHERE NOT EXISTS (SELECT FROM ({_USED}) AS o
            WHERE o.sessions + %(sessions)s > %(most_sessions)s::bigint
                OR o.memory + %(memory)s > %(most_memory)s::bigint
                OR o.cpus + %(cpus)s > %(most_cpus)s::float8
                OR o.disk + %(disk)s > %(most_disk)s::bigint)
    RETURNING principal)
    SELECT EXISTS (SELECT FROM me), EXISTS (SELECT FROM written)"""  # noqa: S608
"""Replaces what a principal uses at this node, unless it is too much together with the others' use. A limit
that is NULL is none. Returns whether the node is this process, and whether the use was replaced.
"""
REMOVE_USE: Final = f"""WITH {_ME}, gone AS (SELECT id FROM me),
    {_removed("u.principal = %(principal)s")}
    SELECT EXISTS (SELECT FROM me), TRUE"""  # noqa: S608
"""Removes what a principal used at this node; returns the same."""
REMOVE_USES: Final = f"""WITH gone AS (SELECT %(node)s::text AS id), {_removed("TRUE")}
    SELECT id FROM gone"""  # noqa: S608
"""Removes what a former process of this node used."""

_OTHERS = f"""FROM jsonb_each(a.by_node) AS e JOIN nodes AS n ON n.id = e.key
    WHERE e.key <> %(node)s AND n.state <> 'down' AND {_MAY_LIVE}"""
_PARTS = f"(SELECT jsonb_agg(e.value) {_OTHERS})"
PARTS_OF_OTHERS: Final = f"""WITH {_ME} SELECT a.principal, {_PARTS} FROM allotments AS a
    WHERE a.principal = ANY(%(principals)s)"""  # noqa: S608
"""Returns the parts of the other nodes, but for those that this one may find dead."""
WRITE_PARTS: Final = f"""WITH {_ME}, written AS (INSERT INTO allotments AS a (principal, by_node)
        SELECT p.key, jsonb_build_object(id, p.value->0) FROM me, jsonb_each(%(asked)s::jsonb) AS p
        ORDER BY p.key COLLATE "C"
    ON CONFLICT (principal) DO UPDATE SET by_node = a.by_node || excluded.by_node
        WHERE NOT EXISTS (SELECT FROM jsonb_array_elements_text(%(asked)s::jsonb->excluded.principal->1)
                WITH ORDINALITY AS m(most, flow)
            WHERE m.most::bigint < (%(asked)s::jsonb->excluded.principal->0->1->>(m.flow::int - 1))::bigint
                + (SELECT coalesce(sum((e.value->1->>(m.flow::int - 1))::bigint), 0) {_OTHERS}))
    RETURNING principal)
    SELECT p.key, EXISTS (SELECT FROM me), w.principal IS NOT NULL,
        (SELECT {_PARTS} FROM allotments AS a WHERE a.principal = p.key)
    FROM jsonb_object_keys(%(asked)s::jsonb) AS p(key) LEFT JOIN written AS w ON w.principal = p.key"""  # noqa: S608
"""Replaces a node's parts of many principals, each unless the parts of all would be more than a limit.

`asked` is an object with the part and the limits of each principal; a limit that is null is none. As in
`_removed`, all nodes lock the rows in one order. Returns for each principal whether the node is this process,
whether its part was replaced, and the parts of the others.
"""
REMOVE_PARTS: Final = f"""WITH {_ME}, gone AS (SELECT id FROM me),
    {_removed("u.principal = ANY(%(principals)s)", "allotments")}
    SELECT id FROM gone"""  # noqa: S608
"""Removes a node's parts of some principals."""
REMOVE_ALL_PARTS: Final = f"""WITH gone AS (SELECT %(node)s::text AS id), {_removed("TRUE", "allotments")}
    SELECT id FROM gone"""  # noqa: S608
"""Removes the parts of a former process of this node."""
