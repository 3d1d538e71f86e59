"""What must work in a branch: cells for the parent, and cells that use what they left in the branch.

A list of values; ``tests/gateway/kernels/test_branch.py`` runs them. A check runs in the branch and again in
the parent, and prints its `shows` in both. Files are in the workspace, which the test has copied.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Thing:
    """`before` runs in the parent; `check` runs after the branch was made, and prints `shows` if given."""

    name: str
    before: str
    check: str
    shows: str | None = "ok\n"


def _holds(name: str, before: str, condition: str) -> Thing:
    return Thing(name, before, f"print('ok' if ({condition}) else 'no')")


# What needs no package but those that each environment has.
PLAIN = (
    _holds("variables", "numbers = list(range(1000))", "sum(numbers) == 499500"),
    _holds("functions", "def double(x):\n    return 2 * x", "double(21) == 42"),
    _holds("classes", "class Point:\n    x = 1\npoint = Point()", "isinstance(point, Point) and point.x"),
    _holds("inputs and outputs", "6 * 7", "42 in Out.values() and '6 * 7' in In"),
    _holds(
        "sources",
        "import inspect\ndef with_mark():\n    return 'mark of the source'",
        "'mark of the source' in inspect.getsource(with_mark)",
    ),
    Thing(
        "tracebacks show cells",
        "def fails():\n    raise KeyError('its line is shown')",
        "import traceback\ntry:\n    fails()\nexcept KeyError:\n"
        "    print('ok' if \"raise KeyError('its line is shown')\" in traceback.format_exc() else 'no')",
    ),
    _holds(
        "generators", "steps = iter(i * i for i in range(10)); next(steps); next(steps)", "next(steps) == 4"
    ),
    _holds(
        "databases in memory",
        "import sqlite3; db = sqlite3.connect(':memory:'); db.execute('create table t(x)');"
        " db.execute('insert into t values (7)')",
        "db.execute('select x from t').fetchone() == (7,)",
    ),
    Thing(
        "loggers",
        "import logging, sys\nlog = logging.getLogger('mine')\n"
        "log.addHandler(logging.StreamHandler(sys.stdout))",
        "log.warning('ok')",
    ),
    Thing("streams that were kept", "kept_stream = sys.stdout", "kept_stream.write('ok\\n'); None"),
    _holds("files that are open", "opened = open('/workspace/kept.txt')", "opened.closed is False"),
    _holds(
        "locks that are held",
        "import threading; lock = threading.Lock(); lock.acquire(); None",
        "lock.locked()",
    ),
    Thing("new threads", "", "t = threading.Thread(target=lambda: print('ok')); t.start(); t.join()"),
    Thing(
        "thread pools",
        "",
        "from concurrent.futures import ThreadPoolExecutor\n"
        "with ThreadPoolExecutor(2) as pool:\n    print('ok' if sum(pool.map(abs, [-1, -2])) == 3 else 'no')",
    ),
    Thing("raw output", "", "import os; os.write(1, b'ok\\n'); import time; time.sleep(0.3)"),
    Thing(
        "programs", "", "import subprocess; print(subprocess.check_output(['echo', 'ok'], text=True), end='')"
    ),
    Thing("shell lines", "", "!echo ok", "ok\r\n"),
    Thing(
        "forked workers",
        "",
        "import multiprocessing\nwith multiprocessing.get_context('fork').Pool(2) as pool:\n"
        "    print('ok' if pool.map(abs, [-1, -2]) == [1, 2] else 'no')",
    ),
    Thing(
        "spawned workers",
        "",
        "with multiprocessing.get_context('spawn').Pool(1) as pool:\n"
        "    print('ok' if pool.map(abs, [-1, -2]) == [1, 2] else 'no')",
    ),
    Thing("await in cells", "import asyncio", "await asyncio.sleep(0.01); print('ok')"),
    Thing(
        "threads of asyncio",
        "await asyncio.to_thread(len, [])",
        "print(await asyncio.to_thread(lambda: 'ok'))",
    ),
    Thing(
        "tasks in the background",
        "ticks = []\nasync def tick():\n    while True:\n        ticks.append(1)\n"
        "        await asyncio.sleep(0.01)\nticking = asyncio.create_task(tick())",
        "before = len(ticks); await asyncio.sleep(0.2); print('ok' if len(ticks) > before else 'no')",
    ),
    _holds(
        "context variables",
        "import contextvars, decimal; which = contextvars.ContextVar('which'); which.set('mine');"
        " decimal.getcontext().prec = 50",
        "which.get() == 'mine' and decimal.getcontext().prec == 50",
    ),
    Thing(
        "magics of its own",
        "from IPython.core.magic import register_line_magic\n@register_line_magic\ndef mine(line):\n"
        "    print(line)\nNone",
        "%mine ok",
    ),
    Thing(
        "reloaded modules",
        "open('/tmp/reloaded_module.py', 'w').write('x = 1\\n'); sys.path.append('/tmp')\n"
        "%load_ext autoreload\n%autoreload 2\nimport reloaded_module",
        "print('ok' if reloaded_module.x == 1 else 'no')",
    ),
    Thing("packages' command", "", "%pip --version", None),
    _holds(
        "mapped files", "import mmap; mapped = mmap.mmap(-1, 10); mapped[:2] = b'ok'", "mapped[:2] == b'ok'"
    ),
    Thing(
        "shared memory",
        "from multiprocessing.shared_memory import SharedMemory; shared = SharedMemory(create=True, size=10)",
        "shared.buf[0] = 5; print('ok' if shared.buf[0] == 5 else 'no')",
    ),
    Thing(
        "displays that are updated",
        "shown = display('first', display_id=True)",
        "shown.update('second'); print('ok')",
    ),
)

# With the standard environment.
PACKAGES = (
    _holds(
        "linear algebra",
        "import numpy as np; m = np.ones((400, 400)); s = (m @ m).sum()",
        "(m @ m).sum() == s",
    ),
    _holds("decompositions", "import scipy.linalg; scipy.linalg.svd(m)", "scipy.linalg.svd(m)[1][0] > 399"),
    _holds(
        "tables",
        "import pandas as pd; table = pd.DataFrame({'k': [1, 1, 2], 'v': [1, 2, 3]})",
        "table.groupby('k').v.sum().to_dict() == {1: 3, 2: 3}",
    ),
    _holds(
        "regressions",
        "import statsmodels.api as sm; x = sm.add_constant(np.arange(10.0)); sm.OLS(x[:, 1], x).fit()",
        "round(sm.OLS(np.arange(10.0), x).fit().params[1], 6) == 1",
    ),
    _holds(
        "forests on threads",
        "from sklearn.ensemble import RandomForestClassifier, HistGradientBoostingClassifier\n"
        "from sklearn.cluster import KMeans\nX = np.arange(400.0).reshape(200, 2); y = (X[:, 0] > 200)\n"
        "forest = RandomForestClassifier(4, n_jobs=2).fit(X, y)",
        "forest.predict(X).shape == (200,)",
    ),
    _holds(
        "OpenMP",
        "boosted = HistGradientBoostingClassifier(max_iter=3).fit(X, y)",
        "HistGradientBoostingClassifier(max_iter=3).fit(X, y).predict(X).sum() == y.sum()",
    ),
    _holds(
        "clusters", "KMeans(2, n_init=1).fit(X); None", "len(set(KMeans(2, n_init=1).fit(X).labels_)) == 2"
    ),
    _holds(
        "joblib's workers",
        "from joblib import Parallel, delayed; Parallel(2)(delayed(abs)(-n) for n in range(4)); None",
        "Parallel(2)(delayed(abs)(-n) for n in range(4)) == [0, 1, 2, 3]",
    ),
    Thing(
        "plots",
        "import matplotlib.pyplot as plt\nfigure, axes = plt.subplots(); axes.plot([1, 2]); plt.close()",
        "axes.plot([2, 1]); display(figure); print('ok' if len(axes.lines) == 2 else 'no')",
    ),
    _holds(
        "arrow",
        "import pyarrow as pa; arrow = pa.table({'x': [1, 2]})",
        "pa.concat_tables([arrow, arrow])['x'].to_pylist() == [1, 2, 1, 2]",
    ),
    _holds(
        "analytical databases",
        "import duckdb; duck = duckdb.connect(); duck.execute('create table t as select 7 x'); None",
        "duck.execute('select x from t').fetchall() == [(7,)]",
    ),
    Thing(
        "progress bars",
        "from tqdm import tqdm\nfor _ in tqdm(range(2)): pass",
        "import io\nfor _ in tqdm(range(2), file=io.StringIO()): pass\nprint('ok')",
    ),
    Thing(
        "widgets",
        "import ipywidgets; slider = ipywidgets.IntSlider(3)",
        "slider.value = 4; print('ok' if slider.value == 4 else 'no')",
    ),
)
