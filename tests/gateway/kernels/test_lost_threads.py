"""What loggers hear of branches, and what threads that a branch does not have may have held at the fork."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cellgate_kernels.base.branching import BranchSpec, BranchWorkspace
from tests.gateway.kernels.test_branch import backend, copied
from tests.gateway.kernels.test_checkpoints import Session, launcher, session
from tests.gateway.kernels.test_kernel import folders, new_launcher, printed

__all__ = ["backend", "folders", "launcher", "new_launcher", "session"]  # fixtures


async def test_a_logger_hears_what_cells_log(session: Session) -> None:
    await session.run("import logging; logging.basicConfig(filename='run.log', level='DEBUG', force=True)")
    branch = await session.kernel.branch(BranchSpec(BranchWorkspace.SHARED))
    session.kernels.append(branch)
    await printed(branch, "logging.debug('in the branch')")
    held = await session.checkpoint()
    await session.run("logging.debug('in the session'); logging.disable(logging.INFO)")
    await session.roll_back(held)
    await session.run("logging.debug('after the undo')")
    heard = (session.kernel.workspace / "run.log").read_text()
    assert heard == "".join(
        f"DEBUG:root:{words}\n" for words in ("in the branch", "in the session", "after the undo")
    )
    # What a cell has set is so in a branch too.
    await session.run("logging.disable(logging.INFO)")
    await session.roll_back(await session.checkpoint())
    assert await session.run("print(logging.root.manager.disable)") == "20\n"


LOGS = (
    "import logging, threading; logging.basicConfig(filename='run.log', level='DEBUG', force=True)\n"
    # The handler's file stays the parent's, which a branch has no name for.
    "on = True; logged = f'/proc/self/fd/{logging.root.handlers[0].stream.fileno()}'\n"
    "def work():\n    while on: logging.debug('y' * 200)"
)
WRITES = (
    "import array, fcntl, os, termios, threading; reader, writer = os.pipe(); file = open(writer, 'wb')\n"
    "def unread(pipe):\n    count = array.array('i', [0]); fcntl.ioctl(pipe, termios.FIONREAD, count)\n"
    "    return count[0]\n"
    "def work(): file.write(b'x' * 2**20)"
)
IMPORTS = (
    "import threading, time; open('slowly.py', 'w').write('import time; time.sleep(600)')\n"
    "def work(): import slowly"
)
HOLDS = "import tempfile, threading, time\ndef work():\n    with tempfile._once_lock: time.sleep(600)"


@pytest.mark.parametrize(
    ("does", "reached", "check"),
    [
        (
            LOGS,
            "os.path.getsize('run.log')",
            "logging.info('said'); print('ok' if 'INFO:root:said\\n' in open(logged) else 'no')",
        ),
        (WRITES, "unread(reader) == 2**16", "file.flush(); print('ok')"),
        (
            IMPORTS,
            "'slowly' in sys.modules",
            "open('slowly.py', 'w').write('x = \"ok\"')\nimport slowly; print(slowly.x)",
        ),
        (
            HOLDS,
            "tempfile._once_lock.locked()",
            "tempfile.tempdir = None; tempfile.gettempdir(); print('ok')",
        ),
    ],
    ids=["logs", "writes", "imports", "holds a module's lock"],
)
async def test_what_a_lost_thread_held_is_free(session: Session, does: str, reached: str, check: str) -> None:
    starts = "thread = threading.Thread(target=work, daemon=True); thread.start()"
    waits = f"import os, sys, time\nwhile not {reached}: time.sleep(0.001)"
    await session.run(f"{does}\n{starts}\n{waits}")
    spec = replace(await copied(session.kernel), anyway=True)
    branch = await session.kernel.branch(spec)
    session.kernels.append(branch)
    assert await printed(branch, check) == "ok\n"
