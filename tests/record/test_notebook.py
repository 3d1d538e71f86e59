"""The record as a notebook: valid for nbformat whatever happened, and true to what happened."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec
import nbformat
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.record.journal import EventRow
from gateway.record.notebook import build_notebook, event_of, render
from tests.record.conftest import session_row

LANGUAGE = {
    "name": "python",
    "version": "3.11.7",
    "mimetype": "text/x-python",
    "file_extension": ".py",
    "pygments_lexer": "ipython3",
    "nbconvert_exporter": "python",
    "codemirror_mode": {"name": "ipython", "version": 3},
}
SESSION = session_row(
    7,
    "analysis",
    environment={
        "kernel_info": {
            "implementation": "ipython",
            "implementation_version": "9.1",
            "language_info": LANGUAGE,
        },
        "display_name": "Python 3",
        "packages": {"numpy": "2.3"},
    },
)


class Events:
    """Events of a session, numbered and dated as they are added."""

    def __init__(self) -> None:
        self.all: list[dict[str, Any]] = []

    def add(self, event_type: str, execution: str | None, **fields: Any) -> None:
        seq = len(self.all) + 1
        at = f"2026-11-21T10:00:{seq % 60:02}.000000Z"
        event = {"seq": seq, "session": "analysis", "execution": execution, "type": event_type, "at": at}
        self.all.append({**event, **fields})

    def queue(self, execution: str, **fields: Any) -> None:
        self.add("queued", execution, position=0, code=f"run({execution!r})", msg_id="m", **fields)

    def start(self, execution: str, count: int | None) -> None:
        self.add("started", execution, execution_count=count, code=f"run({execution!r})")

    def finish(self, execution: str, status: str = "ok", **fields: Any) -> None:
        values: dict[str, Any] = {
            "cause": None,
            "execution_count": None,
            "error": None,
            "started_at": None,
            "finished_at": "2026-11-21T11:00:00.000000Z",
            "duration_ms": 12.5,
            "queue_ms": 0.5,
            "truncated": False,
            "kernel": {"state": "idle", "replaced": False},
        }
        self.add("finished", execution, status=status, **{**values, **fields})

    def display(
        self, execution: str, text: str, display_id: str | None = None, kind: str = "display_data"
    ) -> None:
        fields: dict[str, Any] = {"data": {"text/plain": text}, "metadata": {}}
        if display_id is not None:
            fields["display_id"] = display_id
        self.add(kind, execution, **fields)


def notebook_of(events: Events, **options: Any) -> dict[str, Any]:
    """The notebook, found valid."""
    known = {"head": "ab" * 32, "gateway_version": "0.1.0", "exported_at": "2026-11-21T12:00:00.000000Z"}
    notebook = build_notebook(SESSION, events.all, **{**known, **options})
    nbformat.validate(nbformat.from_dict(notebook))
    return notebook


def shown(cell: Mapping[str, Any]) -> list[str]:
    """The text of a cell's outputs."""
    return [output.get("text") or output["data"]["text/plain"] for output in cell["outputs"]]


def test_a_session_without_cells_is_a_valid_notebook() -> None:
    events = Events()
    events.add("session", None, state="idle", cause="created")
    assert notebook_of(events)["cells"] == []


def test_one_cell_with_all_that_is_known_of_it() -> None:
    events = Events()
    events.queue("0123abcd")
    events.start("0123abcd", 4)
    events.add("stream", "0123abcd", name="stdout", text="a")
    events.add("stream", "0123abcd", name="stdout", text="b")
    events.finish("0123abcd", execution_count=4)
    (cell,) = notebook_of(events)["cells"]
    assert cell == {
        "cell_type": "code",
        "id": "0123abcd",
        "execution_count": 4,
        "source": "run('0123abcd')",
        "outputs": [{"output_type": "stream", "name": "stdout", "text": "ab"}],
        "metadata": {
            "execution": {
                "iopub.status.busy": "2026-11-21T10:00:02.000000Z",
                "iopub.execute_input": "2026-11-21T10:00:02.000000Z",
                "shell.execute_reply": "2026-11-21T11:00:00.000000Z",
                "iopub.status.idle": "2026-11-21T11:00:00.000000Z",
            },
            "cellgate": {
                "execution": "0123abcd",
                "seq": [1, 5],
                "status": "ok",
                "cause": None,
                "duration_ms": 12.5,
            },
        },
    }


def test_the_metadata_say_where_the_notebook_comes_from() -> None:
    assert notebook_of(Events())["metadata"] == {
        "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"},
        "language_info": LANGUAGE,
        "cellgate": {
            "session": "analysis",
            "principal": "ada",
            "state": "idle",
            "created_at": SESSION.created_at,
            "exported_at": "2026-11-21T12:00:00.000000Z",
            "isolation": "sandbox",
            "packages": {"numpy": "2.3"},
            "implementation": "ipython",
            "implementation_version": "9.1",
            "python": "3.11.7",
            "limits": SESSION.limits,
            "metadata": SESSION.metadata,
            "head": "ab" * 32,
            "gateway_version": "0.1.0",
        },
    }


@pytest.mark.parametrize(
    ("language", "kept"),
    [
        (None, None),
        ("python", None),
        ({"version": "3"}, None),
        ({"name": "R", "mimetype": 5, "codemirror_mode": ["x"]}, {"name": "R"}),
        ({"name": "bash", "codemirror_mode": "shell"}, {"name": "bash", "codemirror_mode": "shell"}),
    ],
)
def test_of_a_strange_language_info_only_what_is_valid_is_kept(language: Any, kept: Any) -> None:
    session = replace(SESSION, kernel="other", environment={"kernel_info": {"language_info": language}})
    notebook = build_notebook(session, [], head="", gateway_version="0", exported_at="")
    nbformat.validate(nbformat.from_dict(notebook))
    assert notebook["metadata"].get("language_info") == kept
    assert notebook["metadata"]["kernelspec"]["display_name"] == "other"


def test_cells_are_in_the_order_of_their_start_and_the_cancelled_stay_in_the_queue() -> None:
    events = Events()
    for execution in ("a", "b", "c", "d"):
        events.queue(execution)
    events.start("a", 1)
    events.finish("b", "cancelled", cause="cancelled")
    events.finish("a")
    events.start("d", 2)
    events.finish("d")
    events.start("c", 3)
    events.finish("c")
    cells = notebook_of(events)["cells"]
    assert [cell["id"] for cell in cells] == ["a", "b", "d", "c"]
    assert cells[1]["outputs"] == []
    assert cells[1]["execution_count"] is None
    assert cells[1]["metadata"] == {
        "cellgate": {
            "execution": "b",
            "seq": [2, 6],
            "status": "cancelled",
            "cause": "cancelled",
            "duration_ms": 12.5,
            "note": "This cell did not run.",
        }
    }


def test_a_session_that_still_runs_exports_what_there_is() -> None:
    events = Events()
    events.queue("a")
    events.start("a", 1)
    events.add("stream", "a", name="stdout", text="half")
    events.queue("b")
    running, waiting = notebook_of(events)["cells"]
    assert (shown(running), running["execution_count"]) == (["half"], 1)
    assert running["metadata"]["cellgate"]["status"] == "running"
    assert "iopub.status.idle" not in running["metadata"]["execution"]
    assert waiting["metadata"]["cellgate"]["status"] == "queued"


def test_a_cell_that_ran_out_of_time_keeps_its_output_and_says_why_it_ended() -> None:
    events = Events()
    events.queue("a")
    events.start("a", 1)
    events.add("stream", "a", name="stdout", text="half")
    error = {"ename": "CellTimeout", "evalue": "Too long.", "traceback": []}
    kernel = {"state": "idle", "replaced": True}
    events.finish("a", "timeout", cause="cell_timeout", error=error, kernel=kernel, truncated=True)
    (cell,) = notebook_of(events)["cells"]
    assert shown(cell) == ["half"]
    assert "shell.execute_reply" not in cell["metadata"]["execution"]
    known = cell["metadata"]["cellgate"]
    assert (known["note"], known["kernel_replaced"], known["truncated"]) == (
        "CellTimeout: Too long.",
        True,
        True,
    )


def test_an_error_that_is_among_the_outputs_is_not_repeated() -> None:
    events = Events()
    error = {"ename": "ValueError", "evalue": "no", "traceback": ["ValueError: no"]}
    events.queue("a")
    events.start("a", 1)
    events.add("error", "a", **error)
    events.finish("a", "error", error=error)
    (cell,) = notebook_of(events)["cells"]
    assert cell["outputs"] == [{"output_type": "error", **error}]
    assert "note" not in cell["metadata"]["cellgate"]


def test_a_display_id_changes_outputs_of_earlier_cells() -> None:
    """By an update and by another display of the same id, as in Jupyter."""
    events = Events()
    for execution in ("a", "b", "c"):
        events.queue(execution)
        events.start(execution, 1)
    events.display("a", "old", "bar")
    events.display("b", "again", "bar")
    events.display("b", "other", "different")
    events.display("c", "new", "bar", "update_display_data")
    a, b, c = notebook_of(events)["cells"]
    assert (shown(a), shown(b), shown(c)) == (["new"], ["new", "other"], [])
    del events.all[-1]
    a, b, c = notebook_of(events)["cells"]
    assert (shown(a), shown(b)) == (["again"], ["again", "other"])


def test_output_after_the_end_belongs_to_its_cell() -> None:
    events = Events()
    events.queue("a")
    events.start("a", 1)
    events.finish("a", execution_count=1)
    events.add("stream", "a", name="stderr", text="late")
    (cell,) = notebook_of(events)["cells"]
    assert shown(cell) == ["late"]
    assert cell["metadata"]["cellgate"]["status"] == "ok"


def test_silent_and_unstored_cells_are_marked() -> None:
    """A silent cell has no `started`: it keeps its place in the queue, and its reply's time."""
    events = Events()
    events.queue("a", silent=True)
    events.finish("a")
    events.queue("b", store_history=False, silent=False)
    silent, unstored = notebook_of(events)["cells"]
    assert silent["metadata"]["cellgate"]["silent"] is True
    assert "note" not in silent["metadata"]["cellgate"]
    assert silent["metadata"]["execution"].keys() == {"shell.execute_reply", "iopub.status.idle"}
    assert unstored["metadata"]["cellgate"]["store_history"] is False
    assert "silent" not in unstored["metadata"]["cellgate"]


def test_without_outputs_neither_outputs_nor_counts_are_there() -> None:
    events = Events()
    events.queue("a")
    events.start("a", 1)
    events.display("a", "x", "d")
    events.finish("a", execution_count=1)
    (cell,) = notebook_of(events, outputs=False)["cells"]
    assert (cell["outputs"], cell["execution_count"], cell["source"]) == ([], None, "run('a')")
    assert cell["metadata"]["cellgate"]["status"] == "ok"


def test_ids_of_cells_are_those_of_executions_where_nbformat_allows_them() -> None:
    events = Events()
    ids = ["0123abcd-ef_2", "a b", "ü", "x" * 64, "x" * 65]
    for execution in ids:
        events.queue(execution)
    found = [cell["id"] for cell in notebook_of(events)["cells"]]
    assert (found[0], found[3]) == (ids[0], ids[3])
    assert len(set(found)) == 5


def test_the_hash_of_a_cells_last_row_is_told() -> None:
    body = msgspec.json.encode(
        {"seq": 1, "session": "s", "execution": "a", "type": "queued", "at": "", "code": "1", "msg_id": "m"}
    )
    event = event_of(EventRow(7, 1, "queued", "a", body, bytes(range(32))))
    notebook = build_notebook(SESSION, [event], head="", gateway_version="0", exported_at="")
    assert notebook["cells"][0]["metadata"]["cellgate"]["hash"] == bytes(range(32)).hex()


def test_rendered_is_what_nbformat_writes_and_reads() -> None:
    events = Events()
    events.queue("a")
    events.add("stream", "a", name="stdout", text="one\ntwo ü\n")
    notebook = notebook_of(events)
    written = render(notebook)
    assert written.decode() == nbformat.writes(nbformat.from_dict(notebook)) + "\n"
    assert nbformat.reads(written.decode(), as_version=4) == nbformat.from_dict(notebook)
    assert b'\n "cells": [\n' in written


# ---- anything that may happen -----------------------------------------------------------------------------

some = settings(deadline=None, max_examples=100)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
counts = st.none() | st.integers(0, 99)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | texts,
    lambda inner: st.lists(inner, max_size=2),
    max_leaves=3,
)
bundles = st.dictionaries(st.sampled_from(["text/plain", "image/png", "x"]) | texts, texts, max_size=2).map(
    lambda data: {
        mime: value for mime, value in data.items() if not re.fullmatch(r"application/(.*\+)?json", mime)
    }
)
displays = st.fixed_dictionaries(
    {
        "data": st.tuples(bundles, st.dictionaries(st.just("application/json"), json_values)).map(
            lambda both: {**both[0], **both[1]}
        ),
        "metadata": st.dictionaries(texts, json_values, max_size=1),
    },
    optional={"display_id": st.sampled_from(["d1", "d2"])},
)
errors = st.fixed_dictionaries({"ename": texts, "evalue": texts, "traceback": st.lists(texts, max_size=2)})
happenings = st.one_of(
    st.tuples(st.just("queued"), st.fixed_dictionaries({"position": counts, "code": texts, "msg_id": texts})),
    st.tuples(st.just("started"), st.fixed_dictionaries({"execution_count": counts, "code": texts})),
    st.tuples(
        st.just("stream"),
        st.fixed_dictionaries({"name": st.sampled_from(["stdout", "stderr"]), "text": texts}),
    ),
    st.tuples(st.just("display_data"), displays),
    st.tuples(st.just("update_display_data"), displays.map(lambda shown: {"display_id": "d1", **shown})),
    st.tuples(
        st.just("execute_result"),
        st.tuples(displays, counts).map(lambda both: {**both[0], "execution_count": both[1]}),
    ),
    st.tuples(st.just("clear_output"), st.fixed_dictionaries({"wait": st.booleans()})),
    st.tuples(st.just("error"), errors),
    st.tuples(st.just("input_request"), st.just({"prompt": "?", "password": False})),
    st.tuples(st.just("session"), st.just({"state": "dead", "cause": "kernel_exit"})),
    st.tuples(
        st.just("finished"),
        st.fixed_dictionaries(
            {
                "status": st.sampled_from(["ok", "error", "timeout", "interrupted", "died", "cancelled"]),
                "cause": st.none() | texts,
                "execution_count": counts,
                "error": st.none() | errors,
                "started_at": st.none(),
                "finished_at": st.just("2026-11-21T11:00:00.000000Z"),
                "duration_ms": st.none() | st.floats(0, 1e6),
                "queue_ms": st.none(),
                "truncated": st.booleans(),
                "kernel": st.fixed_dictionaries({"state": texts, "replaced": st.booleans()}),
            }
        ),
    ),
)


@some
@given(st.lists(st.tuples(st.sampled_from(["a", "b", "ü"]), happenings), max_size=25), st.booleans())
def test_whatever_happened_the_notebook_is_valid(
    happened: list[tuple[str, tuple[str, dict[str, Any]]]], outputs: bool
) -> None:
    """Any event at any time: a cell stands for each run, and the file reads back as the same notebook."""
    events = Events()
    for execution, (event_type, fields) in happened:
        events.add(event_type, None if event_type == "session" else execution, **fields)
    notebook = notebook_of(events, outputs=outputs)
    executions = {event["execution"] for event in events.all} - {None}
    assert {cell["metadata"]["cellgate"]["execution"] for cell in notebook["cells"]} == executions
    assert len(notebook["cells"]) == len(executions)
    read = nbformat.reads(render(notebook).decode(), as_version=4)
    assert read == nbformat.from_dict(notebook)
    assert notebook_of(events, outputs=outputs) == notebook
