"""What the interface is for, task by task, with an example of each operation.

``openapi`` puts the examples into the document, where ``api_page`` shows them as commands, grouped by task.
They tell one story: somebody looks at populations in the session `analysis`. Tests compare them with the
schemas, and see to it that every operation is in one task. Values only; nothing here is sent or answered.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Example:
    """A request and its answer. `body` and `answer` are JSON; `answer` is None for what is none.

    `parts`: of its path, where they are not those of `PARTS`. `options`: further words for curl, such as a
    file to send or to write. `command`: the whole command, for what curl can't do.
    """

    query: Mapping[str, str | int] = field(default_factory=dict)
    body: Json | None = None
    answer: Json | None = None
    options: str = ""
    command: str = ""
    parts: Mapping[str, str | int] = field(default_factory=dict)

    def part(self, name: str) -> str | int:
        """What stands in the path for this name."""
        return self.parts.get(name, PARTS[name])


@dataclass(frozen=True, slots=True)
class Task:
    """A task, what to know of it, and the names of the operations for it, the usual one first."""

    title: str
    text: str
    operations: tuple[str, ...]


TASKS = (
    Task(
        "Run cells",
        "A session is made when it is first named, and keeps its variables. With"
        " `Accept: application/x-ndjson` or `text/event-stream` a cell's events are sent as they happen.",
        (
            "run_cell",
            "run_cell_once",
            "run_blocks",
            "list_executions",
            "get_execution",
            "get_output",
            "answer_input",
            "cancel_execution",
            "interrupt_session",
        ),
    ),
    Task(
        "Make and end sessions",
        "Only what differs from the defaults has to be said: another kernel, limits, variables, secrets.",
        ("create_session", "list_sessions", "get_session", "restart_session", "end_session"),
    ),
    Task(
        "Follow a session",
        "Every event has a number, `seq`. A client that was gone continues after the last one it saw.",
        ("follow_events", "open_event_socket"),
    ),
    Task(
        "Exchange files",
        "Cells see these files in their working folder.",
        (
            "put_file",
            "get_file",
            "list_files",
            "upload_files",
            "head_file",
            "move_file",
            "delete_file",
        ),
    ),
    Task(
        "Install packages",
        "What the operator allows is in `packages_allowed` of `GET /v1/info`.",
        ("change_packages", "list_packages"),
    ),
    Task(
        "Branch, go back, try several ways",
        "A branch goes on with a copy of all variables and files; a checkpoint can be gone back to.",
        (
            "branch_session",
            "explore_alternatives",
            "get_tree",
            "make_checkpoint",
            "list_checkpoints",
            "restore_checkpoint",
            "undo_cell",
            "end_checkpoint",
        ),
    ),
    Task(
        "Help people who write cells",
        "These run between the cells of an idle session, and leave no trace in its record.",
        ("complete_code", "inspect_code", "list_variables"),
    ),
    Task(
        "Run programs, and see what they show",
        "Programs run beside a session's cells, in the same sandbox and with the same files.",
        (
            "run_program",
            "list_processes",
            "get_process",
            "write_process_input",
            "signal_process",
            "end_process",
            "open_port",
        ),
    ),
    Task(
        "Export, check, replay",
        "A session's record is an ordinary notebook, with a chain of hashes that shows whether it is whole.",
        ("get_notebook", "get_bundle", "replay_session", "verify_audit", "get_audit"),
    ),
    Task(
        "Ask the gateway",
        "What it offers, and what you may do.",
        ("get_info", "get_me", "open_console", "get_document", "get_document_page"),
    ),
    Task(
        "Operate it",
        "For probes, for Prometheus, and for those who look after it.",
        ("get_health", "get_readiness", "get_metrics", "list_usage", "list_trail"),
    ),
)

PARTS: Mapping[str, str | int] = {
    "session": "analysis",
    "execution": "9f1c2e6a7b3d4c5e8f90a1b2c3d4e5f6",
    "checkpoint": "loaded",
    "process": "p-3f9a52c01be7",
    "port": 8000,
    "index": 0,
    "path": "data/areas.csv",
}
"""What stands in the examples' paths."""

_AT = "2026-03-02T09:30:00.000000Z"
_LATER = "2026-03-02T09:30:00.012000Z"
_DIGEST = "3f786850e387550fdab836ed7e6dc881de23001b7e6dc881de23001b3f786850"
_HEAD = "9c56cc51b374c3ba189210d5b6d4bf57790d351c96c47c02190ecf1e430635ab"
_LIMITS = {
    "memory": 1073741824,
    "cpus": 1.0,
    "pids": 256,
    "disk": 1073741824,
    "cell_timeout": 60.0,
    "idle_timeout": 3600.0,
    "lifetime": 86400.0,
}


def _session(**more: Any) -> Json:
    return {
        "session": "analysis",
        "title": None,
        "principal": "default",
        "kernel": "python3",
        "kernel_id": "0f6b7a6e-2b0c-4c35-9a51-6f3f8f0e4d11",
        "state": "idle",
        "cause": None,
        "isolation": "sandbox",
        "created_at": _AT,
        "last_activity": _LATER,
        "execution_count": 1,
        "queue_length": 0,
        "limits": _LIMITS,
        "network": "none",
        "metadata": None,
        "seq": 5,
        "head": _HEAD,
        **more,
    }


def _result(**more: Any) -> Json:
    return {
        "session": "analysis",
        "execution": PARTS["execution"],
        "status": "ok",
        "cause": None,
        "execution_count": 1,
        "error": None,
        "started_at": _AT,
        "finished_at": _LATER,
        "duration_ms": 12.0,
        "queue_ms": 0.4,
        "truncated": False,
        "kernel": {"state": "idle", "replaced": False},
        "outputs": [
            {
                "output_type": "execute_result",
                "data": {"text/plain": "7130"},
                "metadata": {},
                "execution_count": 1,
            }
        ],
        "stdout": "",
        "stderr": "",
        "text": "7130",
        "files": [],
        "packages": [],
        **more,
    }


def _file(action: str | None, path: str = "data/areas.csv") -> Json:
    return {"path": path, "size": 41, "sha256": _DIGEST, "action": action}


def _process(**more: Any) -> Json:
    return {
        "process": PARTS["process"],
        "session": "analysis",
        "state": "running",
        "argv": ["python", "-m", "http.server", "8000"],
        "cwd": ".",
        "pid": 41,
        "exit_code": None,
        "signal": None,
        "cause": None,
        "stdout": "",
        "stderr": "",
        "truncated": False,
        "started_at": _AT,
        "finished_at": None,
        **more,
    }


_PACKAGE = {"name": "humanize", "version": "4.12.1", "sha256": _DIGEST, "requested": True}
_CHECKPOINT = {
    "name": "loaded",
    "seq": 9,
    "head": _HEAD,
    "cells": 2,
    "created_at": _AT,
    "automatic": False,
    "memory": 3145728,
    "files": "reflink",
}
_BRANCHED = {"session": "analysis", "seq": 9, "head": _HEAD}
_EVENT = {"session": "analysis", "execution": PARTS["execution"], "at": _AT}

EXAMPLES: Mapping[str, Example] = {
    # ---- run cells
    "run_cell": Example(body={"code": "4835 + 1550 + 745"}, answer=_result()),
    "run_cell_once": Example(
        body={"code": "print(6 * 7)", "timeout": 10},
        answer=_result(
            session="one-shot-1c0d6f0e-52c5-4a8f-9d0a-3a3b6c0e7f55",
            outputs=[{"output_type": "stream", "name": "stdout", "text": "42\n"}],
            stdout="42\n",
            text="42\n",
        ),
    ),
    "run_blocks": Example(
        body={
            "blocks": [{"language": "python", "code": "n = 6"}, {"language": "bash", "code": "echo done"}],
            "timeout": 30,
        },
        answer={
            "blocks": [
                _result(outputs=[], text=""),
                _result(
                    execution="b2f0c6c1d7a84f4fa6a8c5d8f1f8a7e0",
                    execution_count=2,
                    outputs=[{"output_type": "stream", "name": "stdout", "text": "done\n"}],
                    stdout="done\n",
                    text="done\n",
                ),
            ],
            "exit_code": 0,
            "output": "done\n",
            "problem": None,
        },
    ),
    "list_executions": Example(
        query={"limit": 20},
        answer={
            "executions": [
                {
                    "session": "analysis",
                    "execution": PARTS["execution"],
                    "number": 1,
                    "status": "ok",
                    "created_at": _AT,
                    "first_seq": 2,
                    "last_seq": 5,
                }
            ],
            "next": None,
        },
    ),
    "get_execution": Example(answer=_result()),
    "get_output": Example(query={"type": "text/plain"}),
    "answer_input": Example(body={"value": "Asia"}),
    "cancel_execution": Example(),
    "interrupt_session": Example(),
    # ---- sessions
    "create_session": Example(
        body={"session": "analysis", "limits": {"memory": "2g", "cell_timeout": 120}},
        answer=_session(limits={**_LIMITS, "memory": 2147483648, "cell_timeout": 120.0}),
    ),
    "list_sessions": Example(
        query={"state": "live", "limit": 20}, answer={"sessions": [_session()], "next": None}
    ),
    "get_session": Example(answer=_session()),
    "restart_session": Example(answer=_session(cause="restarted", execution_count=0)),
    "end_session": Example(),
    # ---- follow
    "follow_events": Example(
        query={"after": 3},
        answer={
            "events": [
                {"seq": 4, **_EVENT, "type": "stream", "name": "stdout", "text": "42\n"},
                {
                    "seq": 5,
                    **_EVENT,
                    "type": "finished",
                    "status": "ok",
                    "cause": None,
                    "execution_count": 1,
                    "error": None,
                    "started_at": _AT,
                    "finished_at": _LATER,
                    "duration_ms": 12.0,
                    "queue_ms": 0.4,
                    "truncated": False,
                    "kernel": {"state": "idle", "replaced": False},
                },
            ],
            "next": 5,
        },
    ),
    "open_event_socket": Example(
        command="""echo '{"execute": {"code": "6 * 7"}}' | websocat -n -H "Authorization: Bearer $TOKEN" """
        "ws${URL#http}/v1/sessions/analysis/ws"
    ),
    # ---- files
    "put_file": Example(options="-T areas.csv", answer=_file("modified")),
    "get_file": Example(options="-o areas.csv"),
    "list_files": Example(
        answer={
            "files": [{"path": "data/areas.csv", "size": 41, "modified": _AT, "sha256": _DIGEST}],
            "next": None,
            "complete": True,
        },
    ),
    "upload_files": Example(
        options="-F file=@areas.csv -F file=@names.csv",
        answer={"files": [_file("created", "areas.csv"), _file("created", "names.csv")]},
    ),
    "move_file": Example(
        parts={"path": "names.csv"},
        query={"move_to": "data/names.csv"},
        answer={
            "files": [
                {"path": "names.csv", "size": None, "sha256": None, "action": "removed"},
                _file("created", "data/names.csv"),
            ]
        },
    ),
    "delete_file": Example(),
    "head_file": Example(),
    # ---- packages
    "change_packages": Example(
        body={"install": ["humanize>=4"]},
        answer={"installed": [_PACKAGE], "removed": [], "packages": [_PACKAGE]},
    ),
    "list_packages": Example(answer={"packages": [_PACKAGE]}),
    # ---- branches and checkpoints
    "branch_session": Example(
        body={"session": "analysis-log"}, answer=_session(session="analysis-log", branched_from=_BRANCHED)
    ),
    "explore_alternatives": Example(
        body={"cells": ["fit(degree=1)", "fit(degree=2)"], "keep": "first_ok"},
        answer={
            "results": [
                {**_result(session="analysis-4d1f0c2a-1", text="0.91"), "branch": "chosen"},
                {**_result(session="analysis-4d1f0c2a-2", text="0.97"), "branch": "ended"},
            ]
        },
    ),
    "get_tree": Example(
        answer={
            "session": "analysis",
            "ancestors": [],
            "branches": [
                {
                    "session": "analysis-log",
                    "state": "idle",
                    "created_at": _LATER,
                    "branched_from": _BRANCHED,
                }
            ],
            "checkpoints": [_CHECKPOINT],
            "complete": True,
        },
    ),
    "make_checkpoint": Example(body={"name": "loaded"}, answer=_CHECKPOINT),
    "list_checkpoints": Example(answer={"checkpoints": [_CHECKPOINT]}),
    "restore_checkpoint": Example(
        body={"checkpoint": "loaded"},
        answer=_session(cause="rolled_back", rolled_back={"checkpoint": "loaded", "undone": 1}),
    ),
    "undo_cell": Example(
        answer=_session(cause="rolled_back", rolled_back={"checkpoint": "auto-2", "undone": 1})
    ),
    "end_checkpoint": Example(),
    # ---- introspection
    "complete_code": Example(
        body={"code": "popul"},
        answer={"matches": ["population"], "start": 0, "end": 5, "types": ["instance"], "truncated": False},
    ),
    "inspect_code": Example(
        body={"code": "population"},
        answer={
            "found": True,
            "text": "Type:        dict\nString form: {'Asia': 4835, 'Africa': 1550}",
            "data": {"text/plain": "Type:        dict\nString form: {'Asia': 4835, 'Africa': 1550}"},
        },
    ),
    "list_variables": Example(
        answer={
            "variables": [
                {"name": "population", "type": "dict", "summary": "{'Asia': 4835, 'Africa': 1550}", "size": 2}
            ],
            "truncated": False,
        },
    ),
    # ---- programs
    "run_program": Example(
        body={"argv": ["python", "-m", "http.server", "8000"], "wait": False}, answer=_process()
    ),
    "list_processes": Example(answer={"processes": [_process()]}),
    "get_process": Example(answer=_process()),
    "write_process_input": Example(body={"data": "one line\n", "close": True}),
    "signal_process": Example(body={"signal": "INT"}),
    "end_process": Example(),
    "open_port": Example(
        answer={
            "session": "analysis",
            "port": 8000,
            "url": "http://127.0.0.1:8889/sessions/analysis/ports/8000/?ticket=...",
            "expires_in": 60.0,
        },
    ),
    # ---- record
    "get_notebook": Example(options="-o analysis.ipynb", answer={"nbformat": 4, "nbformat_minor": 5}),
    "get_bundle": Example(options="-o analysis.zip"),
    "replay_session": Example(
        body={"rtol": 1e-9},
        answer={
            "session": "analysis",
            "head": _HEAD,
            "kernel": "python3",
            "isolation": "sandbox",
            "replayed_at": _LATER,
            "gateway_version": "0.1.0",
            "environment": {"agreement": "same", "changes": []},
            "hash_seed": {"recorded": "0", "now": "0"},
            "files": [{"path": "data/areas.csv", "restored": True}],
            "rtol": 1e-9,
            "verdict": "equal",
            "same": 1,
            "normalised": 0,
            "unjudged": 0,
            "different": 0,
            "skipped": 0,
            "cells": [
                {
                    "cell": 1,
                    "execution": PARTS["execution"],
                    "source": "4835 + 1550 + 745",
                    "verdict": "equal",
                    "same": True,
                    "status": {"recorded": "ok", "now": "ok"},
                    "normalised": [],
                }
            ],
        },
    ),
    "verify_audit": Example(answer={"valid": True, "rows": 5, "head": _HEAD}),
    "get_audit": Example(options="-o analysis.ndjson"),
    # ---- the gateway
    "get_info": Example(
        answer={
            "version": "0.1.0",
            "backend": "sandbox",
            "isolation": "sandbox",
            "default_kernel": "python3",
            "kernelspecs": {"python3": {"display_name": "Python 3", "language": "python"}},
            "limits": _LIMITS,
            "ceilings": {
                "memory": 8589934592,
                "cpus": 4.0,
                "pids": 4096,
                "disk": 107374182400,
                "cell_timeout": 3600.0,
                "lifetime": 604800.0,
            },
            "environment": {
                "python3": {
                    "name": "standard",
                    "python": "3.13.5",
                    "packages": {"numpy": "2.3.1", "pandas": "2.3.0"},
                    "programs": ["bash", "git"],
                }
            },
            "packages_allowed": ["humanize"],
            "packages": [],
            "open_network": False,
            "network": None,
            "doors": [],
            "ports": False,
            "ports_url": None,
            "pool": {
                "warm": 2,
                "starting": 0,
                "in_use": 1,
                "ending": 0,
                "waiting": 0,
                "longest_wait": 0.0,
                "held": 0,
                "max_kernels": 64,
            },
            "fork_server": {"python3": "on"},
            "containers": None,
            "sessions": {"starting": 0, "idle": 1, "busy": 0, "asleep": 0, "dead": 0, "ended": 0},
        },
    ),
    "get_me": Example(
        answer={
            "principal": "default",
            "role": "admin",
            "scopes": ["run", "read", "files", "packages", "metrics"],
            "quotas": {"sessions": {"limit": None, "used": 1}},
        },
    ),
    "open_console": Example(answer={"url": "http://127.0.0.1:8888/?ticket=...", "expires_in": 60.0}),
    "get_document": Example(options="-o openapi.json", answer={"openapi": "3.1.0"}),
    "get_document_page": Example(options="-o cellgate.html"),
    "get_health": Example(answer={"status": "ok"}),
    "get_readiness": Example(answer={"status": "ready", "missing": [], "sessions_not_recorded": 0}),
    "get_metrics": Example(),
    "list_usage": Example(
        query={"limit": 100},
        answer={
            "principals": [
                {
                    "principal": "default",
                    "role": "admin",
                    "quotas": {"sessions": {"limit": None, "used": 1}},
                }
            ],
            "next": None,
        },
    ),
    "list_trail": Example(
        query={"limit": 100},
        answer={
            "entries": [
                {
                    "hash": _HEAD,
                    "entry": {
                        "seq": 1,
                        "type": "begun",
                        "at": _AT,
                        "session_id": 1,
                        "principal": "default",
                        "session": "analysis",
                    },
                }
            ],
            "next": None,
        },
    ),
}
"""The example of each operation, by its name."""
