"""Frameworks of agents with Cellgate's classes, and the documentation's examples; the models are scripts."""

from __future__ import annotations

from pathlib import Path

from tests.clients.processes import run_client
from tests.support.server import GatewayProcess


def test_smolagents(gateway: GatewayProcess, tmp_path: Path) -> None:
    """An agent with tools and variables, an answer of 300 kB, errors, pictures, a kernel that dies."""
    assert run_client(gateway, "frameworks.py", tmp_path, "smolagents") == {
        "example": 42,
        "tool": 8,
        "long": 300_000,
        "error": True,
        "picture": "PNG",
        "value": "[1, 2]",
        "logs": "said\n",
        "died": True,
        "refused": True,
    }


def test_autogen(gateway: GatewayProcess, tmp_path: Path) -> None:
    """Blocks in two languages, exit codes, files, cancellation, restart, and a component's config."""
    assert run_client(gateway, "frameworks.py", tmp_path, "autogen") == {
        "example": "It is 42.",
        "shown": True,
        "blocks": [0, ["42", "2"]],
        "failed": [3, False],
        "unknown": [1, True],
        "files": ["\ufffdPNG", "it"],
        "gone": ["there"],
        "cancelled": True,
        "after": "6\n",
        "restarted": "False\n",
        "stored": True,
        "loaded": "1\n",
    }


def test_ag2_coding(gateway: GatewayProcess, tmp_path: Path) -> None:
    """An agent of AG2 0.x: blocks as cells and as programs, files both ways, and none through a link."""
    assert run_client(gateway, "frameworks.py", tmp_path, "ag2_coding") == {
        "protocol": True,
        "agent": "exitcode: 0 (execution succeeded)\nCode output: 42\n",
        "made": [3, "42\n", True],
        "text": "it",
        "again": ["['n', '99']\n", [], []],
        "restarted": "False\n",
        "unknown": 1,
        "fresh": [
            4,
            ["__main__", "/workspace/first.py", "first", "/workspace/first.py", "False", "42"],
            ["first.py"],
        ],
        "alone": 1,
        "slow": [124, "1"],
    }


def test_langchain(gateway: GatewayProcess, tmp_path: Path) -> None:
    """Tools with and without await, undo, a picture, and a refusal."""
    assert run_client(gateway, "frameworks.py", tmp_path, "langchain") == {
        "example": "It is 42.",
        "told": ["code"],
        "blocking": ["1", "2"],
        "undone": "went back to the checkpoint 'auto-1'; cells undone: 1",
        "value": "1",
        "files": "[no files]",
        "picture": ["image", "image/png"],
        "refused": ["error", "bad_request"],
    }


def test_pydantic_ai(gateway: GatewayProcess, tmp_path: Path) -> None:
    """An agent with the toolset: calls at once in their order, undo, a picture, a refusal, state."""
    assert run_client(gateway, "frameworks.py", tmp_path, "pydantic_ai") == {
        "example": "It is 42.",
        "told": ["code"],
        "shown": "42",
        "in order": ["0.2", "0", "went back to the checkpoint 'auto-1'; cells undone: 1", "0.2"],
        "picture": ["image/png", "PNG"],
        "refused": ["failed", "bad_request"],
        "kept": "0.2",
    }


def test_agent_framework(gateway: GatewayProcess, tmp_path: Path) -> None:
    """Agents with the provider: calls at once in their order, undo, a picture, a refusal, state."""
    assert run_client(gateway, "frameworks.py", tmp_path, "agent_framework") == {
        "example": "It is 42.",
        "told": ["code"],
        "shown": "42",
        "instructed": True,
        "in order": ["0.2", "0", "went back to the checkpoint 'auto-1'; cells undone: 1", "0.2"],
        "picture": "image/png",
        "refused": "bad_request",
        "kept": "0.2",
        "few": ["list_files"],
    }


def test_llama_index(gateway: GatewayProcess, tmp_path: Path) -> None:
    """Tools with and without await, undo, a picture, and a refusal."""
    assert run_client(gateway, "frameworks.py", tmp_path, "llama_index") == {
        "example": "It is 42.",
        "told": ["code"],
        "blocking": ["1", "2"],
        "undone": "went back to the checkpoint 'auto-1'; cells undone: 1",
        "value": "1",
        "files": "[no files]",
        "picture": ["image/png", "PNG"],
        "refused": [True, "bad_request"],
    }
