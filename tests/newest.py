"""Tries the newest release of each client in an environment of its own: ``make newest-clients``.

    python -m tests.newest FOLDER [NAME...]

Their tests at each change have the versions that ``tests/clients/programs/requirements.txt`` allows. This one
says what will not work for whoever installs a client today, before a user does. One that can't be installed,
or whose tests fail, does not keep the next from its turn; any makes the exit code 1. Nothing is tried twice,
and nothing is changed but the folder, which has an environment and a log for each.

It starts pip's uv, npm and pytest, and imports nothing of Cellgate.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import venv
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
UV = ROOT / "kernels" / "cellgate_kernels" / "specs" / "uv_command.py"
FRAMEWORKS, CLIENTS, DOORS, OPENSANDBOX = (
    f"tests/clients/test_{name}.py" for name in ("frameworks", "clients", "doors", "opensandbox")
)
OURS = ("httpcore2[asyncio]", "msgspec")
"""What Cellgate's Python client needs."""
INSTALL_SECONDS, TEST_SECONDS = 900, 600


@dataclass(frozen=True, slots=True)
class Client:
    """Packages that are used together, and the tests that use them. `in_node`: whether they are npm's."""

    name: str
    packages: tuple[str, ...]
    tests: tuple[str, ...]
    in_node: bool = False


TABLE = (
    Client("e2b", ("e2b-code-interpreter",), (f"{DOORS}::test_e2b",)),
    Client(
        "openai-agents", ("openai-agents", "e2b-code-interpreter"), (f"{DOORS}::test_e2b_in_openai_agents",)
    ),
    Client("e2b-js", ("@e2b/code-interpreter",), (f"{DOORS}::test_e2b_in_node",), in_node=True),
    Client("azure-autogen", ("autogen-ext[azure]", "aiohttp"), (f"{DOORS}::test_azure_in_autogen",)),
    Client("azure-langchain", ("langchain-azure-dynamic-sessions",), (f"{DOORS}::test_azure_in_langchain",)),
    Client(
        "azure-llama-index",
        ("llama-index-tools-azure-code-interpreter",),
        (f"{DOORS}::test_azure_in_llama_index",),
    ),
    Client("azure-semantic-kernel", ("semantic-kernel",), (f"{DOORS}::test_azure_in_semantic_kernel",)),
    Client("librechat", ("@librechat/agents",), (f"{DOORS}::test_librechat",), in_node=True),
    Client(
        "opensandbox",
        ("opensandbox-code-interpreter",),
        (f"{OPENSANDBOX}::test_sandboxes", f"{OPENSANDBOX}::test_code"),
    ),
    Client("opensandbox-langchain", ("langchain-opensandbox",), (f"{OPENSANDBOX}::test_langchain",)),
    Client("opensandbox-litellm", ("litellm[proxy]",), (f"{OPENSANDBOX}::test_litellm",)),
    Client("piston", ("aiopyston",), (f"{DOORS}::test_piston",)),
    Client("replit", ("replit-code-exec",), (f"{DOORS}::test_replit",)),
    Client("smolagents", ("smolagents",), (f"{FRAMEWORKS}::test_smolagents",)),
    Client("autogen", ("autogen-agentchat", "autogen-ext"), (f"{FRAMEWORKS}::test_autogen",)),
    Client("langchain", ("langchain-core",), (f"{FRAMEWORKS}::test_langchain",)),
    Client("pydantic-ai", ("pydantic-ai-slim",), (f"{FRAMEWORKS}::test_pydantic_ai",)),
    Client("agent-framework", ("agent-framework-core",), (f"{FRAMEWORKS}::test_agent_framework",)),
    Client("llama-index", ("llama-index-core",), (f"{FRAMEWORKS}::test_llama_index",)),
    Client(
        "autogen-jupyter",
        ("autogen-ext[docker-jupyter-executor]",),
        (f"{CLIENTS}::test_autogen_and_ag2[autogen]",),
    ),
    Client("jupyter-server", ("jupyter-server",), (f"{CLIENTS}::test_jupyter_server_with_a_gateway_url",)),
    Client(
        "papermill",
        ("papermill", "nbclient", "jupyter-server", "ipykernel"),
        (f"{CLIENTS}::test_nbclient_and_papermill",),
    ),
    Client("jupyter-kernel-client", ("jupyter-kernel-client",), (f"{CLIENTS}::test_jupyter_kernel_client",)),
)


class Broken(Exception):
    """A client can't be installed, or its tests fail; in words."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a client. `why`: what broke, if anything did."""

    name: str
    versions: str
    why: str = ""


def tried(client: Client, folder: Path) -> Outcome:
    """Install the newest release of a client, and run its tests."""
    environment = folder / client.name
    versions = ""
    try:
        versions = versions_of(client.packages, _installed(client, environment))
        (environment / ".setup-done").touch()
        told = {"CELLGATE_CLIENTS": str(environment), "CELLGATE_REQUIRE": "clients,newest-clients,sandbox"}
        pytest = (sys.executable, "-m", "pytest", "--nightly", "-q", "-p", "no:cacheprovider")
        _run((*pytest, *client.tests), TEST_SECONDS, environ={**os.environ, **told})
    except Broken as broken:
        (folder / f"{client.name}.log").write_text(str(broken))
        return Outcome(client.name, versions, why(str(broken)))
    return Outcome(client.name, versions)


def _installed(client: Client, environment: Path) -> str:
    """Install a client's packages; a line with name and version of each that is there then. Raises Broken."""
    if client.in_node:
        environment.mkdir(parents=True, exist_ok=True)
        npm = ("npm", "--prefix", str(environment), "--loglevel=error")
        _run((*npm, "install", "--no-audit", "--no-fund", *client.packages), INSTALL_SECONDS)
        told = json.loads(_run((*npm, "list", "--json", "--depth=0"), INSTALL_SECONDS))
        return "\n".join(f"{name}=={found['version']}" for name, found in told["dependencies"].items())
    venv.create(environment, clear=True)
    python = str(environment / "bin" / "python")
    uv = (sys.executable, str(UV), "pip")
    _run((*uv, "install", "--quiet", "--python", python, *client.packages, *OURS), INSTALL_SECONDS)
    return _run((*uv, "freeze", "--quiet", "--python", python), INSTALL_SECONDS)


def _run(command: Sequence[str], seconds: float, environ: dict[str, str] | None = None) -> str:
    """What a command prints. Raises Broken, with all that it said."""
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Broken(f"took longer than {seconds:g} s: {' '.join(command)}") from None
    if done.returncode != 0:
        raise Broken(done.stdout or f"ended with {done.returncode}")
    return done.stdout


def versions_of(packages: Iterable[str], frozen: str) -> str:
    """The versions that were installed of these packages, of a list as pip's `freeze` makes it."""
    found = dict(line.split("==", 1) for line in frozen.splitlines() if "==" in line)
    names = (re.split(r"[\[<>=]", package)[0] for package in packages)
    return ", ".join(f"{name} {found[name].strip()}" for name in names if name in found)


def why(said: str) -> str:
    """The line that tells best why something broke, of all that it said."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    said_by_pytest = [line.removeprefix("E ").strip() for line in lines if line.startswith("E ")]
    found = said_by_pytest or lines or [""]
    # An assertion is about the exit code of a client, which says before it what was wrong.
    named = [line for line in found if re.match(r"(?!AssertionError)\w*(Error|Exception)\b", line)]
    return (named or found)[-1][:200]


def told(outcomes: Iterable[Outcome]) -> str:
    """What is said at the end: a line for each client, those that broke last."""
    ordered = sorted(outcomes, key=lambda outcome: bool(outcome.why))
    return "\n".join(
        f"{'BROKEN' if each.why else 'works ':7}{each.name:23}{each.versions or 'not installed'}"
        + (f"\n{'':7}{each.why}" if each.why else "")
        for each in ordered
    )


def main(words: Sequence[str], attempt: Callable[[Client, Path], Outcome] = tried) -> int:
    """Try all clients, or those that are named; 1 if any broke."""
    parser = argparse.ArgumentParser(prog="python -m tests.newest")
    parser.add_argument("folder", type=Path, help="where their environments are made")
    parser.add_argument("names", nargs="*", metavar="NAME", help="which clients; default: all")
    given = parser.parse_args(words)
    if unknown := set(given.names) - {client.name for client in TABLE}:
        parser.error(f"there is no client {min(unknown)!r}")
    given.folder.mkdir(parents=True, exist_ok=True)
    folder = given.folder.resolve()
    outcomes = []
    for client in TABLE:
        if not given.names or client.name in given.names:
            print(f"{client.name} ...", flush=True)
            outcomes.append(attempt(client, folder))
    print(f"\n{told(outcomes)}\n")
    broken = [outcome for outcome in outcomes if outcome.why]
    if broken:
        print(f"{len(broken)} of {len(outcomes)} are broken; all that was said is in {folder}/NAME.log")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
