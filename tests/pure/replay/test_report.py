"""The report of a replay as JSON: what is in it, in which order, and what is left out."""

from __future__ import annotations

import json
from typing import Any

from cellgate.replay.environment import EnvironmentLock, compare_locks, seeds_report
from cellgate.replay.files import restored_file
from cellgate.replay.report import NewRun, build_report, write
from cellgate.wire.answers import NotebookFacts, NotebookReport, ReplayFacts, ReplayReport

AT = "2026-03-01T09:30:00.000000Z"
CHECK = compare_locks(EnvironmentLock("3.11.2", {"six": "1.0"}), EnvironmentLock("3.11.2", {"numpy": "2.0"}))
FILES = [restored_file("a.csv"), restored_file("b.csv", "It is not there any more.")]
SEEDS = seeds_report(None, "0")


def printed(text: str) -> dict[str, Any]:
    return {"output_type": "stream", "name": "stdout", "text": text}


def cell(number: int, *outputs: dict[str, Any], status: str = "ok") -> dict[str, Any]:
    known = {"execution": f"e{number}", "status": status}
    return {
        "cell_type": "code",
        "source": f"f({number})",
        "outputs": [*outputs],
        "metadata": {"cellgate": known},
    }


NOTEBOOK = {
    "nbformat": 4,
    "metadata": {},
    "cells": [cell(1, printed("a\n")), cell(2, printed("1\n")), cell(3, status="cancelled")],
}
RUNS = [NewRun("ok", [printed("a\n")], AT), NewRun("ok", [printed("2\n")], AT), None]
DIFF = "--- recorded\n+++ replayed\n@@ -1 +1 @@\n-1\n+2"
FINDINGS: dict[str, Any] = {
    "rtol": 0.5,
    "verdict": "different",
    "same": 1,
    "normalised": 0,
    "unjudged": 0,
    "different": 1,
    "skipped": 1,
    "cells": [
        {
            "cell": 1,
            "execution": "e1",
            "source": "f(1)",
            "verdict": "equal",
            "same": True,
            "status": {"recorded": "ok", "now": "ok"},
            "normalised": [],
        },
        {
            "cell": 2,
            "execution": "e2",
            "source": "f(2)",
            "verdict": "different",
            "same": False,
            "status": {"recorded": "ok", "now": "ok"},
            "normalised": [],
            "difference": "stdout: the text differs",
            "differences": [{"part": "stdout", "note": "the text differs", "judged": True, "diff": DIFF}],
        },
        {
            "cell": 3,
            "execution": "e3",
            "source": "f(3)",
            "verdict": "skipped",
            "same": None,
            "reason": "It did not run then.",
        },
    ],
}
ENVIRONMENT = {
    "agreement": "different",
    "changes": [
        {"name": "numpy", "recorded": None, "now": "2.0"},
        {"name": "six", "recorded": "1.0", "now": None},
    ],
}
RESTORED = [
    {"path": "a.csv", "restored": True},
    {"path": "b.csv", "restored": False, "reason": "It is not there any more."},
]


def as_text(value: dict[str, Any]) -> bytes:
    """The JSON, with its keys in this order."""
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def test_the_report_of_a_session_is_what_it_was_byte_for_byte() -> None:
    facts = ReplayFacts(
        session="s",
        head="ab",
        kernel="python3",
        isolation=None,
        replayed_at=AT,
        gateway_version="1",
        environment=CHECK.report(),
        hash_seed=SEEDS,
        files=FILES,
    )
    assert write(build_report(ReplayReport, facts, NOTEBOOK, RUNS, 0.5), "json") == as_text(
        {
            "session": "s",
            "head": "ab",
            "kernel": "python3",
            "isolation": None,
            "replayed_at": AT,
            "gateway_version": "1",
            "environment": ENVIRONMENT,
            "hash_seed": {"recorded": None, "now": "0"},
            "files": RESTORED,
            **FINDINGS,
        }
    )


NOTEBOOK_FACTS = NotebookFacts(
    file="a.ipynb",
    session=None,
    replay_session="replay-1",
    kernel="python3",
    isolation="container",
    replayed_at=AT,
    environment=CHECK.report(),
    hash_seed=SEEDS,
    files=FILES,
)


def test_the_report_of_a_file_names_the_file_and_no_record() -> None:
    assert write(build_report(NotebookReport, NOTEBOOK_FACTS, NOTEBOOK, RUNS, 0.5), "json") == as_text(
        {
            "file": "a.ipynb",
            "session": None,
            "replay_session": "replay-1",
            "kernel": "python3",
            "isolation": "container",
            "replayed_at": AT,
            "environment": ENVIRONMENT,
            "hash_seed": {"recorded": None, "now": "0"},
            "files": RESTORED,
            **FINDINGS,
        }
    )
