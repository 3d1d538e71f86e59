"""The start of a session whose kernel has the standard environment, against one with the minimal environment.

Both are cold starts on one server, in turn, with no module imported in advance and none by the cell: what
packages lie in the environment should not matter. The environments are made in a temporary folder, of what
the package index or uv's cache has.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.figures import Figure, at_most, quantile, summary
from benchmarks.options import Options, say
from benchmarks.servers import cellgate
from benchmarks.sessions import Session
from benchmarks.starts import COLD
from cellgate_kernels.specs.environments import Environment
from cellgate_kernels.specs.install import create_environment, install_kernelspec

KERNELS = {Environment.STANDARD: "python3", Environment.MINIMAL: "minimal"}


def measure(options: Options) -> Sequence[Figure]:
    """The ratio of the p50s, and both p50s, each to the result of the first cell."""
    spent: dict[Environment, list[float]] = {each: [] for each in KERNELS}
    rounds = options.count(30, 2)
    with _kernelspecs() as folder:
        settings = (f"--ServeApp.kernel_dirs={folder}", "--pool-size", "1", "--no-fork-server")
        with cellgate(options.backend, *settings) as server, server.client() as client:
            for number in range(-1, rounds):
                for environment, kernel in KERNELS.items():
                    session = Session(client, f"{kernel}-{number}", COLD | {"kernel": kernel})
                    seconds = session.started + session.execute("1+1")
                    session.end()
                    server.settle()
                    if number >= 0:  # the first of each finds its files not in memory yet
                        spent[environment].append(seconds)
                say(f"environments: round {number + 1} of {rounds}")
    standard, minimal = (quantile(spent[each], 0.5) for each in KERNELS)
    return [
        Figure(
            "cold session, standard against minimal environment, p50", standard / minimal, "x", at_most(1.05)
        ),
        *(
            Figure(f"  {each}, p50", quantile(seconds, 0.5) * 1000, "ms", details=summary(seconds))
            for each, seconds in spent.items()
        ),
    ]


@contextmanager
def _kernelspecs() -> Iterator[Path]:
    """A folder with a kernelspec for each of the environments."""
    with tempfile.TemporaryDirectory(prefix="bench-", dir="/tmp") as name:
        prefix = Path(name)
        for environment, kernel in KERNELS.items():
            made = create_environment(prefix / environment, say, requirements=environment.lock)
            folder = install_kernelspec(made, prefix, name=kernel).parent
        yield folder
