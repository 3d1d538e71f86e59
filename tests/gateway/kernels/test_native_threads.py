"""Packages that start threads of their own, used and closed in a branch, beside it, and after an undo."""

from __future__ import annotations

import inspect
import platform

import pytest

from cellgate_kernels.base.branching import BranchSpec, BranchWorkspace, Obstacle, ObstacleKind
from cellgate_kernels.base.errors import CannotBranch
from tests.gateway.kernels.test_branch import backend, copied
from tests.gateway.kernels.test_checkpoints import Session, launcher, session
from tests.gateway.kernels.test_kernel import folders, new_launcher, printed
from tests.support import native_thread
from tests.support.branch_cells import Thing
from tests.support.nightly import mostly_nightly

__all__ = ["backend", "folders", "launcher", "new_launcher", "session"]  # fixtures

SHARED = BranchSpec(BranchWorkspace.SHARED)
FILL = "execute('create or replace table t as select range x from range(300000)')"
SUM = "execute('select sum(x) from t').fetchone()"
SQL = "sql('select sum(x) from range(300000) t(x)').fetchone()"

THINGS = (
    Thing("duckdb", f"import duckdb; c = duckdb.connect(); c.{FILL}; c.{SUM}", f"print(c.{SUM}); c.close()"),
    Thing(
        "duckdb with four threads",
        f"import duckdb; c = duckdb.connect(config={{'threads': 4}}); c.{FILL}; c.{SUM}",
        f"print(c.{SUM}, c.execute(\"select current_setting('threads')\").fetchone()); c.close()",
    ),
    Thing(
        "duckdb's own connection",
        f"import duckdb; duckdb.{SQL}",
        f"print(duckdb.{SQL}); duckdb.close(); duckdb.connect().close()",
    ),
    Thing(
        "a duckdb file",
        f"import duckdb\nwith duckdb.connect('a.db') as c: c.{FILL}\n"
        "stack = [{'deep': [duckdb.connect('a.db')]}]; d = stack[0]['deep'][0]; del d",
        f"with stack[0]['deep'][0] as d: print(d.{SUM})\nstack.clear(); del d\n"
        f"with duckdb.connect('a.db') as d: print(d.{SUM})",
    ),
    Thing(
        "a result that is half read",
        "import duckdb; c = duckdb.connect(); c.execute('select range from range(5)'); c.fetchone()",
        "print(c.fetchall()); c.close()",
    ),
    Thing(
        "pyarrow",
        "import pyarrow as pa, pyarrow.parquet as pq, pyarrow.dataset as ds\n"
        "pq.write_table(pa.table({'x': range(100000)}), 'a.parquet'); data = ds.dataset('a.parquet')\n"
        "data.to_table(use_threads=True).num_rows; f = pq.ParquetFile('a.parquet')",
        "print(data.to_table(use_threads=True).num_rows, f.read(use_threads=True).num_rows)\n"
        "print(pq.read_table('a.parquet').num_rows); f.close(); pa.set_cpu_count(3)",
    ),
    Thing(
        "OpenMP",
        "import numpy as np; from sklearn.ensemble import HistGradientBoostingClassifier as H\n"
        "X = np.arange(4000.0).reshape(2000, 2); y = X[:, 0] > 2000; h = H(max_iter=3).fit(X, y)",
        "print((H(max_iter=3).fit(X, y).predict(X) == y).all()); del h\n"
        "from threadpoolctl import threadpool_limits\n"
        "with threadpool_limits(1): print(H(max_iter=3).fit(X, y).score(X, y))",
    ),
    Thing(
        "BLAS",
        "import numpy as np, scipy.linalg; m = np.ones((400, 400)); (m @ m).sum(), scipy.linalg.svd(m)[1][0]",
        "print((m @ m).sum(), round(scipy.linalg.svd(m)[1][0]))\n"
        "from threadpoolctl import threadpool_limits\nwith threadpool_limits(1): print((m @ m).sum())",
    ),
)


AT_EACH_CHANGE = [each for each in THINGS if each.name in ("duckdb", "a duckdb file", "pyarrow", "OpenMP")]
"""A database that a variable leads to and one that has to be looked for, and one of each other kind."""


@pytest.mark.parametrize("thing", mostly_nightly(THINGS, AT_EACH_CHANGE, lambda thing: thing.name))
async def test_a_package_with_threads_is_used_and_closed(session: Session, thing: Thing) -> None:
    """In each the check uses it and closes it, so that one that needs a lost thread never ends."""
    await session.run(f"{thing.before}; None")
    held = await session.checkpoint()
    branch = await session.kernel.branch(await copied(session.kernel))
    session.kernels.append(branch)
    shown = await printed(branch, thing.check)
    await branch.discard()
    assert await session.run(thing.check) == shown
    for _ in range(2):
        await session.roll_back(held)
        assert await session.run(thing.check) == shown


POLARS = "import polars as pl; pl.DataFrame({'x': [1, 2] * 1000}).group_by('x').len()"
LOCKED = "import duckdb; c = duckdb.connect(); c.execute('SET lock_configuration = true')"


@pytest.mark.parametrize(
    ("code", "name", "ends"), [(POLARS, "polars-0", None), (LOCKED, "duckdb", "c.close(); del c")]
)
async def test_threads_that_can_not_rest_are_named(
    session: Session, code: str, name: str, ends: str | None
) -> None:
    await session.run(f"import duckdb; e = duckdb.connect(config={{'threads': 3}}); {code}; None")
    for ask in (session.checkpoint, lambda: session.kernel.branch(SHARED)):
        with pytest.raises(CannotBranch) as refused:
            await ask()
        assert Obstacle(ObstacleKind.NATIVE_THREAD, name) in refused.value.obstacles
    # What had been sent home is back.
    threads = "print(e.execute(\"select current_setting('threads')\").fetchone())"
    assert await session.run(threads) == "(3,)\n"
    if ends is not None:
        await session.run(ends)
        await session.roll_back(await session.checkpoint())
        assert await session.run(f"{threads}; e.close()") == "(3,)\n"


@pytest.mark.skipif(platform.machine() not in native_thread.CODE, reason="no machine code for this processor")
async def test_a_native_thread_that_never_waits_is_named_beside_duckdb(session: Session) -> None:
    source = inspect.getsource(native_thread)
    name = await session.run(
        f"{source}\nthread = NativeThread(); print(open('/proc/self/comm').read().strip())"
    )
    # Without DuckDB no native thread is looked at.
    await session.checkpoint()
    await session.run("import duckdb")
    for ask in (session.checkpoint, lambda: session.kernel.branch(SHARED)):
        with pytest.raises(CannotBranch) as refused:
            await ask()
        named = Obstacle(ObstacleKind.NATIVE_THREAD, f"{name.strip()} (running)")
        assert refused.value.obstacles == (named,)
    await session.run("thread.rest()")
    await session.roll_back(await session.checkpoint())
