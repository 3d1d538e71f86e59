"""A gateway, and a program that asks it, in a network of their own: for what is at ports that nobody chooses.

    python -m tests.support.own_network DATA NAME=VALUE... -- COMMAND...

starts a gateway with these options, runs the command with the gateway's URL behind its words, stops the
gateway, and ends as the command has ended. `run_in_own_network` calls it below bubblewrap, which makes the
network. What listens on this machine for other reasons is neither seen nor disturbed.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.commands import INSTALLED
from tests.support.families import running
from tests.support.server import GatewayProcess

BUBBLEWRAP = ("bwrap", "--dev-bind", "/", "/", "--unshare-net", "--die-with-parent", "--")
DEADLINE = 120.0
MOST_SHOWN = 10_000


def run_in_own_network(
    folder: Path,
    options: Mapping[str, object],
    command: Sequence[str | Path],
    env: Mapping[str, str] | None = None,
) -> str:
    """Return what the command has printed. Fails the test if it fails. `env`: of the gateway, too."""
    output, log = folder / "own-network.out", folder / "own-network.log"
    given = [f"{name}={value}" for name, value in options.items()]
    ours = [sys.executable, "-m", __spec__.name, folder / "data", *given, "--", *command]
    with running([*BUBBLEWRAP, *ours], output, log, env) as process:
        status = process.wait(DEADLINE)
    assert status == 0, log.read_text()[-MOST_SHOWN:]
    return output.read_text()


def main(words: Sequence[str]) -> int:
    """Do what the module's text says."""
    split = words.index("--")
    data, *given = words[:split]
    options = dict(each.split("=", 1) for each in given)
    process = GatewayProcess(Path(data), "process", command=INSTALLED, **options)
    try:
        ended = subprocess.run([*words[split + 1 :], process.url], check=False).returncode
        return ended or process.stop()
    finally:
        process.kill()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
