"""``python -m benchmarks [NAME ...]``: progress on stderr, one table on stdout, all details into ``--json``.

Exit code 0 if every target is met, 1 if one is missed.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path

import psutil

from benchmarks import (
    asleep,
    branches,
    containers,
    cpu,
    files,
    flood,
    forks,
    former,
    hostile,
    memory,
    one_shot,
    record,
    roundtrip,
    starts,
    undo,
    wire,
)
from benchmarks.figures import Figure, table
from benchmarks.options import Options, say

BENCHMARKS = {
    "roundtrip": roundtrip.measure,
    "starts": starts.measure,
    "cpu": cpu.measure,
    "flood": flood.measure,
    "memory": memory.measure,
    "wire": wire.measure,
    "record": record.measure,
    "one_shot": one_shot.measure,
    "files": files.measure,
    "containers": containers.measure,
    "asleep": asleep.measure,
    "forks": forks.measure,
    "branches": branches.measure,
    "undo": undo.measure,
    "former": former.measure,
    "hostile": hostile.measure,
}
SPECIAL = {"containers", "asleep", "forks", "branches", "undo", "former"}
"""These need a container engine, root besides, bubblewrap, or another checkout."""
USUAL = [name for name in BENCHMARKS if name not in SPECIAL]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; the exit code says whether all targets are met."""
    parsed = _parser().parse_args(arguments)
    options = Options(parsed.backend, parsed.peer_python, parsed.quick, parsed.former)
    figures: list[Figure] = []
    try:
        for name in parsed.names or USUAL:
            say(f"{name} ...")
            figures += BENCHMARKS[name](options)
    finally:
        # Also if a benchmark fails: the figures before it took minutes.
        _tell(figures, options, parsed.json)
    return 1 if any(figure.met is False for figure in figures) else 0


def _tell(figures: list[Figure], options: Options, path: Path | None) -> None:
    if path is not None:
        content = {"machine": _machine(), "backend": options.backend, "figures": [asdict(f) for f in figures]}
        path.write_text(json.dumps(content, indent=2) + "\n")
    print(table(figures))
    if options.quick:
        say("A quick run shows that the benchmarks work; its figures mean nothing.")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.split("\n", 1)[0])
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help=f"of {', '.join(BENCHMARKS)}; if none, all but {', '.join(sorted(SPECIAL))}",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures and details there")
    parser.add_argument(
        "--backend", default="process", choices=["process", "sandbox", "docker"], help="of our kernels"
    )
    parser.add_argument("--quick", action="store_true", help="a trial run with few rounds")
    parser.add_argument(
        "--former", type=Path, metavar="DIR", help="for `former`: a checkout of the code to compare with"
    )
    parser.add_argument(
        "--peer-python",
        type=Path,
        default=Path(sys.executable),
        metavar="FILE",
        help="interpreter that has jupyter_kernel_gateway (default: this one)",
    )
    return parser


def _machine() -> dict[str, object]:
    packages = ("cellgate", "jupyter_client", "jupyter_kernel_gateway", "pyzmq", "tornado")
    installed = {package.name: package.version for package in metadata.distributions()}
    return {
        "platform": platform.platform(),
        "python": platform.python_version(),
        "processors": psutil.cpu_count(),
        "memory_mb": psutil.virtual_memory().total // 1_000_000,
        "packages": {name: installed.get(name) for name in packages},
    }


if __name__ == "__main__":
    raise SystemExit(main())
