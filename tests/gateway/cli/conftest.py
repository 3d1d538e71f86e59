"""A user's shell beside the shared gateway."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.commands import INSTALLED, cellgate, environment
from tests.support.server import TOKEN, GatewayProcess
from tests.support.terminal import Terminal


class Shell:
    """A folder to call commands in, and the gateway that they find."""

    def __init__(self, gateway: GatewayProcess, folder: Path) -> None:
        self.folder = folder
        self.environment = environment(
            CELLGATE_URL=gateway.url, CELLGATE_TOKEN=TOKEN, XDG_CONFIG_HOME=str(folder / "config")
        )

    def call(self, *argv: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """A command, from its start to its end."""
        return cellgate(*argv, stdin=stdin, cwd=self.folder, env=self.environment, timeout=90)

    def lines(self, *argv: str) -> list[str]:
        """The lines on stdout of a command that succeeds."""
        done = self.call(*argv)
        assert (done.returncode, done.stderr) == (0, ""), done
        return done.stdout.splitlines()

    def start(self, *argv: str) -> subprocess.Popen[str]:
        """A command with pipes, to be used with ``with``."""
        return subprocess.Popen(
            [INSTALLED, *argv],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def terminal(self, *argv: str, **variables: str) -> Terminal:
        """A command in a terminal of its own."""
        return Terminal([str(INSTALLED), *argv], self.folder, {**self.environment, **variables})


@pytest.fixture
def shell(gateway: GatewayProcess, tmp_path: Path) -> Shell:
    return Shell(gateway, tmp_path)
