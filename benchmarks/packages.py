"""Installing pandas: the first time with an empty cache, against the second time in a new session.

The kernels' environment has only ipykernel, so pandas and all its dependencies come from the index that pip
is configured to use on this machine: the first figure includes the network. Each round has a new gateway with
an empty cache. The time is that of the request, from sending it to its answer: compilation happens
afterwards, beside the import, which is measured too.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.client import AnswerError, HttpClient
from benchmarks.figures import Figure, at_most, quantile, summary
from benchmarks.options import Options, say
from benchmarks.servers import Server, cellgate
from benchmarks.sessions import Session
from cellgate_kernels.specs.install import create_environment, install_kernelspec

PACKAGE = "pandas"


def measure(options: Options) -> Sequence[Figure]:
    """The ratio of the p50s, both p50s, and how long the import takes afterwards."""
    first: list[float] = []
    second: list[float] = []
    imports: list[float] = []
    rounds = options.count(5, 1)
    with _kernelspecs() as folder:
        settings = ("--allow-package", PACKAGE, "--pool-size", "2", f"--ServeApp.kernel_dirs={folder}")
        for number in range(rounds):
            with cellgate(options.backend, *settings) as server, server.client() as client:
                first.append(_install(server, client, "first")[0])
                seconds, imported = _install(server, client, "second")
            second.append(seconds)
            imports.append(imported)
            last = f"first {first[-1]:.1f} s, second {second[-1] * 1000:.0f} ms"
            say(f"packages: round {number + 1} of {rounds}, {last}")
    ratio = quantile(second, 0.5) / quantile(first, 0.5)
    return [
        Figure(
            f"second install of {PACKAGE} in a new session, against the first, p50", ratio, "x", at_most(0.2)
        ),
        Figure("  first, p50", quantile(first, 0.5) * 1000, "ms", at_most(4000), details=summary(first)),
        Figure("  second, p50", quantile(second, 0.5) * 1000, "ms", at_most(1000), details=summary(second)),
        Figure(f"  import {PACKAGE} after it, p50", quantile(imports, 0.5) * 1000, "ms"),
    ]


@contextmanager
def _kernelspecs() -> Iterator[Path]:
    """A folder of kernelspecs whose only environment has nothing but ipykernel."""
    with tempfile.TemporaryDirectory(prefix="bench-", dir="/tmp") as name:
        prefix = Path(name)
        requirements = prefix / "requirements.txt"
        requirements.write_text("ipykernel\n")
        environment = create_environment(prefix, say, requirements=requirements)
        yield install_kernelspec(environment, prefix).parent


def _install(server: Server, client: HttpClient, name: str) -> tuple[float, float]:
    """Seconds that the install took in a new session, and the import after it."""
    session = Session(client, name)
    begun = time.perf_counter()
    answer = client.request("POST", f"{session.path}/packages", {"install": [PACKAGE]})
    elapsed = time.perf_counter() - begun
    installed = {package["name"] for package in answer.json(200)["installed"]}
    if PACKAGE not in installed:
        raise AnswerError(f"{PACKAGE} was not installed: {sorted(installed)}")
    imported = session.execute(f"import {PACKAGE}")
    session.end()
    server.settle()
    return elapsed, imported
