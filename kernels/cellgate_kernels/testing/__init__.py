"""Kernels for tests: they start at once, behave as the test requires, and need no process.

A `FakeLauncher` replaces a ``KernelLauncher``: give it to a real ``KernelPool``, and the pool to the code
under test. A `Behaviour` decides how a kernel runs a cell; the default one reads the cell's code (``slow 5``,
``never``, ``dies``; see `understand`). A `Start` decides how kernels start. With `virtual_time` hours pass in
milliseconds, and a test that waits for an event that never comes fails immediately. A fake
kernel talks to a real ``KernelConnection``: its messages are signed, framed and parsed. There are no sockets,
processes, folders of packages or isolation. docs/how-to/test-with-fakes.md shows how to use it.

``backend`` beside them is the contract of isolation backends; it starts real kernels and needs pytest.
"""

import sys

from cellgate_kernels.testing.cells import (
    Behaviour,
    Cell,
    Interrupted,
    Program,
    answers,
    asks,
    dies,
    fails,
    floods,
    ignores_interrupts,
    lies,
    loses,
    never,
    prints,
    replies_late,
    slow,
    understand,
)
from cellgate_kernels.testing.clock import Stuck, VirtualTimeLoop, virtual_time
from cellgate_kernels.testing.kernels import FakeConnection, FakeHeldFork, FakeKernel, MemorySocket
from cellgate_kernels.testing.launchers import (
    Attempt,
    FakeCatalog,
    FakeLauncher,
    Gate,
    Start,
    at_once,
    fails_to_start,
    never_starts,
    starts_after,
)

if "pytest" in sys.modules:
    sys.modules["pytest"].register_assert_rewrite("cellgate_kernels.testing.backend")

__all__ = [
    "Attempt",
    "Behaviour",
    "Cell",
    "FakeCatalog",
    "FakeConnection",
    "FakeHeldFork",
    "FakeKernel",
    "FakeLauncher",
    "Gate",
    "Interrupted",
    "MemorySocket",
    "Program",
    "Start",
    "Stuck",
    "VirtualTimeLoop",
    "answers",
    "asks",
    "at_once",
    "dies",
    "fails",
    "fails_to_start",
    "floods",
    "ignores_interrupts",
    "lies",
    "loses",
    "never",
    "never_starts",
    "prints",
    "replies_late",
    "slow",
    "starts_after",
    "understand",
    "virtual_time",
]
