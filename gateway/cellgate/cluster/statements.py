"""Every SQL statement of a cluster, by name, beside the record's in its schema. Text alone.

Each is one statement outside of any transaction block: whoever pauses in between holds nothing. All times are
the database's. `owners` says which node has a key (`node`; NULL: none), and which one had it last (`home`),
where the session's files are, and both before the last claim (`former`, `former_home`). `claims` counts the
claims of a key: a release names the one that it ends, so one that comes late ends no later one. A claim of
another node's key also raises the epoch of the session's record.
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
    former_home text,
    claims bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (principal, key)
) WITH (fillfactor = 50);
ALTER TABLE owners ADD COLUMN IF NOT EXISTS claims bigint NOT NULL DEFAULT 0;
CREATE TABLE IF NOT EXISTS node_keys (
    purpose text PRIMARY KEY,
    key bytea NOT NULL
);
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
_LIVES = "n.beat_at > clock_timestamp() - make_interval(secs => n.lease)"
_GONE = f"NOT EXISTS (SELECT FROM nodes AS n WHERE n.id = o.node AND {_LIVES})"

_NODE = """id, url, state, capacity, used, warm, takeovers, lease, beat_at,
    extract(epoch FROM clock_timestamp() - beat_at)::float8"""

# ---- nodes ------------------------------------------------------------------------------------------------

JOIN: Final = """INSERT INTO nodes AS n
    VALUES (%(node)s, 1, %(url)s, 'up', 0, 0, 0, 0, %(lease)s, clock_timestamp(), clock_timestamp())
    ON CONFLICT (id) DO UPDATE SET incarnation = n.incarnation + 1, url = excluded.url, state = 'up',
        takeovers = 0, lease = excluded.lease, beat_at = clock_timestamp(), steady_since = clock_timestamp()
    RETURNING incarnation"""
KEY: Final = """INSERT INTO node_keys AS k VALUES (%(purpose)s, %(key)s)
    ON CONFLICT (purpose) DO UPDATE SET key = k.key RETURNING key"""
"""Returns the key that all nodes have for a purpose; the first node's is made."""
BEAT: Final = f"""WITH beaten AS (UPDATE nodes SET
        steady_since = CASE WHEN beat_at < clock_timestamp() - {_LEASE} / 2
            THEN clock_timestamp() ELSE steady_since END,
        beat_at = clock_timestamp(), capacity = %(capacity)s, used = %(used)s, warm = %(warm)s,
        takeovers = %(takeovers)s
        WHERE id = %(node)s AND incarnation = %(incarnation)s RETURNING id)
    SELECT {_NODE}, EXISTS (SELECT FROM beaten) FROM nodes ORDER BY id"""  # noqa: S608
"""Returns all nodes as they were before, with the age of their last beat, and whether this node has one."""
LIST: Final = f"SELECT {_NODE} FROM nodes ORDER BY id"  # noqa: S608
DRAIN: Final = "UPDATE nodes SET state = 'draining' WHERE id = %s AND state = 'up' RETURNING id"
REMOVE: Final = f"""WITH gone AS (DELETE FROM nodes AS n WHERE id = %s
        AND (state = 'down' OR NOT {_LIVES}) RETURNING id),
    freed AS (UPDATE owners SET node = NULL WHERE node IN (SELECT id FROM gone))
    SELECT id FROM gone"""  # noqa: S608
LEAVE: Final = "UPDATE nodes SET state = 'down' WHERE id = %(node)s AND incarnation = %(incarnation)s"

# ---- owners -----------------------------------------------------------------------------------------------

_OTHERS = f"o.node <> %(node)s AND NOT ({STEADY} AND {_GONE})"
_OF_ONE = "o.principal = %(principal)s AND o.key = %(key)s"
FIND: Final = f"""WITH {_ME} SELECT o.node, n.url FROM owners AS o LEFT JOIN nodes AS n ON n.id = o.node
    WHERE {_OF_ONE} AND (o.node = %(node)s OR {_OTHERS})"""  # noqa: S608
"""Returns no row for a key that this node may claim."""
CLAIM: Final = f"""WITH {_ME},
    other AS MATERIALIZED (SELECT o.node, n.url FROM owners AS o LEFT JOIN nodes AS n ON n.id = o.node
        WHERE {_OF_ONE} AND {_OTHERS}),
    mine AS (INSERT INTO owners AS o (principal, key, node, home, claims)
        SELECT %(principal)s, %(key)s, id, id, 1 FROM me WHERE NOT EXISTS (SELECT FROM other)
        ON CONFLICT (principal, key) DO UPDATE SET node = excluded.node, home = excluded.home,
            former = o.node, former_home = o.home, claims = o.claims + 1
            WHERE o.node IS NULL OR NOT ({_OTHERS})
        RETURNING former, former_home, claims),
    raised AS (UPDATE sessions SET epoch = epoch + 1
        WHERE principal = %(principal)s AND key = %(key)s AND (SELECT former FROM mine) <> %(node)s
        RETURNING epoch)
    SELECT EXISTS (SELECT FROM me), (SELECT node FROM other), (SELECT url FROM other),
        EXISTS (SELECT FROM mine), (SELECT former FROM mine), (SELECT former_home FROM mine),
        (SELECT epoch FROM raised), (SELECT claims FROM mine)"""  # noqa: S608
"""Returns whether this process is its node's; the other node that has the key, if any, with its address;
whether the key is this node's now, and who had it before; the epoch, and the number of the claim.

The key of another node that lives is not touched. If that changes just then, the row's own condition decides.
"""
_MINE = """o.node = %(node)s AND EXISTS (SELECT FROM me)"""
_OF_KEY = "o.principal = s.principal AND o.key = s.key"


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
