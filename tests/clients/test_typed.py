"""What type checkers and editors find in programs that use the client: ours are right, mistakes are seen."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.clients.processes import COMPLETE, ENVIRONMENT
from tests.support.requirements import require

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs" / "tutorials").glob("*.md")))
EXAMPLES = sorted((ROOT / "docs" / "examples").glob("*.py"))

MISTAKES = """\
session.run("1", timout=3)
session.run(5)
result.txt
session.explore(["1"], keep="best")
gateway.session(limits={"memroy": "1g"})
gateway.session(limits={"memory": [1]})
gateway.session(network="yes")
gateway.session(checkpoint="always")
session.branch(workspace="none")
session.run("1", language="phyton")
session.run("1", packages="yes")
session.files.put("a")
session.files.put("a", 5)
session.rum("1")
gateway.sesion()
session.run_program(["ls"])
session.checkpoint(5)
session.undo("x")
result.images[0].bas64
session.run_blocks(5)
result.cause.lenght
gateway.session(env={"A": 1})
"""
BLOCKING = """\
from cellgate.client import Gateway, Result

with Gateway.sync("http://127.0.0.1:8888") as gateway, gateway.session() as session:
    result: Result = session.run("1")
"""
ASYNCHRONOUS = """\
from cellgate.client import Gateway, Result


async def main() -> None:
    gateway = Gateway("http://127.0.0.1:8888")
    async with gateway.session() as session:
        result: Result = await session.run("1")
"""


def by_mypy(folder: Path) -> dict[str, set[int]]:
    """The lines that mypy complains of, by file."""
    words = ["-m", "mypy", "--strict", "--ignore-missing-imports", "--no-error-summary", "--config-file="]
    done = subprocess.run(
        [sys.executable, *words, f"--cache-dir={folder / 'cache'}", "."],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    found: dict[str, set[int]] = {}
    for name, line in re.findall(r"^(\S+\.py):(\d+): error", done.stdout, re.M):
        found.setdefault(name, set()).add(int(line))
    assert done.returncode == bool(found), done.stdout + done.stderr
    return found


def by_pyright(folder: Path) -> dict[str, set[int]]:
    """The lines that pyright complains of, as an editor shows them, by file."""
    program = ENVIRONMENT / "node_modules" / ".bin" / "pyright"
    if not COMPLETE.exists() or not program.exists():
        require("clients", "pyright is not installed; run: make clients")
    done = subprocess.run(
        [program, "--outputjson", "--pythonpath", sys.executable, "."],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    found: dict[str, set[int]] = {}
    for each in json.loads(done.stdout)["generalDiagnostics"]:
        if each["severity"] == "error" and each.get("rule") != "reportMissingImports":
            found.setdefault(Path(each["file"]).name, set()).add(each["range"]["start"]["line"] + 1)
    return found


CHECKERS = pytest.mark.parametrize("check", [by_mypy, by_pyright], ids=["mypy", "pyright"])


@CHECKERS
def test_our_own_programs_have_no_mistakes(
    check: Callable[[Path], dict[str, set[int]]], tmp_path: Path
) -> None:
    """All of the README, the tutorials and the examples that import the client."""
    for page in PAGES:
        for number, code in enumerate(re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S)):
            if "import" in code and "cellgate" in code:
                (tmp_path / f"{page.stem.lower().replace('-', '_')}_{number}.py").write_text(code)
    for example in EXAMPLES:
        (tmp_path / f"example_{example.name}").write_text(example.read_text())
    assert len(list(tmp_path.glob("*.py"))) > len(EXAMPLES)
    assert check(tmp_path) == {}


@CHECKERS
def test_mistakes_are_found_in_both_faces(
    check: Callable[[Path], dict[str, set[int]]], tmp_path: Path
) -> None:
    """Each of them, and nothing else."""
    mistakes = MISTAKES.splitlines()
    awaited = [f"await {line}" if re.match(r"session\.(files\.)?\w+\(", line) else line for line in mistakes]
    (tmp_path / "blocking.py").write_text(BLOCKING + "".join(f"    {line}\n" for line in mistakes))
    (tmp_path / "asynchronous.py").write_text(ASYNCHRONOUS + "".join(f"        {line}\n" for line in awaited))
    planted = {
        name: set(range(first, first + len(mistakes)))
        for name, first in (
            ("blocking.py", BLOCKING.count("\n") + 1),
            ("asynchronous.py", ASYNCHRONOUS.count("\n") + 1),
        )
    }
    assert check(tmp_path) == planted
