"""The record as a notebook: valid for nbformat whatever happened, and true to what happened."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec
import nbformat
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from cellgate.record.chain import GENESIS, link
from cellgate.record.export.notebook import Export, Notebook
from cellgate.record.export.survey import ListedRows, Survey
from cellgate.record.rows import EventRow, SessionRow
from cellgate.testing.record_store import session_row
from tests.support.examples import examples

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


def rows_of(events: list[dict[str, Any]]) -> list[EventRow]:
    rows, head = [], GENESIS
    for event in events:
        body = msgspec.json.encode(event)
        head = link(head, body)
        rows.append(EventRow(7, event["seq"], event["type"], event["execution"], body, head))
    return rows


def made_of(events: Events, session: SessionRow = SESSION, **options: Any) -> Notebook:
    rows, survey = rows_of(events.all), Survey()
    for row in rows:
        survey.add(row)
    export = Export("0.1.0", "2026-11-21T12:00:00.000000Z", **options)
    return Notebook(session, survey, ListedRows(rows), export)


def notebook_of(events: Events, session: SessionRow = SESSION, **options: Any) -> dict[str, Any]:
    """The notebook, found valid."""
    notebook = made_of(events, session, **options).whole()
    nbformat.validate(nbformat.from_dict(notebook))
    return notebook


def shown_hash(events: Events) -> str:
    return rows_of(events.all)[-1].hash.hex()


def shown(cell: Mapping[str, Any]) -> list[str]:
    """The text of a cell's outputs."""
    return [output.get("text") or output["data"]["text/plain"] for output in cell["outputs"]]


def test_a_session_without_cells_is_a_valid_notebook() -> None:
    events = Events()
    events.add("session", None, state="idle", cause="created")
    assert notebook_of(events)["cells"] == []


def test_positions_in_line_for_a_kernel_change_nothing_of_the_cell() -> None:
    events = Events()
    events.queue("0123abcd", cell_id="of-a-client", silent=True)
    for position in (2, 0):
        waiting = {"position": position, "code": "", "msg_id": "m", "waiting_for": "kernel"}
        events.add("queued", "0123abcd", **waiting)
    events.start("0123abcd", 4)
    events.finish("0123abcd", execution_count=4)
    notebook = notebook_of(events)
    (cell,) = notebook["cells"]
    assert (cell["id"], cell["source"]) == ("of-a-client", "run('0123abcd')")
    assert cell["metadata"]["cellgate"]["silent"] is True
    assert cell["metadata"]["cellgate"]["seq"] == [1, 5]
    # One that ended in line has no other source than its request.
    del events.all[3:]
    assert notebook_of(events)["cells"][0]["source"] == "run('0123abcd')"


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
                "hash": shown_hash(events),
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
            "rows": 0,
            "head": "00" * 32,
            "gateway_version": "0.1.0",
            "outputs": True,
            "output_cap": 16 * 1024 * 1024,
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
    session = structs.replace(
        SESSION, kernel="other", environment={"kernel_info": {"language_info": language}}
    )
    notebook = notebook_of(Events(), session)
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
    assert shown(cells[1]) == ["[cellgate: This cell did not run (cancelled).]"]
    assert cells[1]["outputs"][0]["metadata"] == {"cellgate": {"note": True}}
    assert cells[1]["execution_count"] is None
    assert cells[1]["metadata"] == {
        "cellgate": {
            "execution": "b",
            "seq": [2, 6],
            "status": "cancelled",
            "cause": "cancelled",
            "duration_ms": 12.5,
            "note": "This cell did not run (cancelled).",
            "hash": rows_of(events.all)[5].hash.hex(),
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
    assert shown(cell) == ["half", "[cellgate: CellTimeout: Too long.]"]
    assert "shell.execute_reply" not in cell["metadata"]["execution"]
    known = cell["metadata"]["cellgate"]
    assert (known["note"], known["kernel_replaced"], known["truncated"]) == (
        "CellTimeout: Too long.",
        True,
        True,
    )


@pytest.mark.parametrize(("lost", "answered"), [({"cause": "deleted", "files": "none"}, True), ({}, False)])
def test_a_cell_that_says_what_was_lost_before_it_was_answered(
    lost: dict[str, str], *, answered: bool
) -> None:
    """A record from before losses were described keeps the notebook that it had: a bundle holds that too."""
    events = Events()
    events.queue("a")
    events.start("a", 1)
    events.finish("a", "ok", kernel={"state": "idle", "replaced": True, **lost})
    (cell,) = notebook_of(events)["cells"]
    assert ("shell.execute_reply" in cell["metadata"]["execution"]) is answered
    assert cell["metadata"]["cellgate"]["kernel_replaced"] is True


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


def test_the_session_as_its_rows_tell_it_counts_before_its_own_row() -> None:
    """So that a notebook can be made again of the rows alone, wherever they are."""
    events = Events()
    environment = {"display_name": "Python", "kernel_id": "k", "python": "3.12.1", "packages": {"six": "1"}}
    told = {"principal": "eve", "created_at": "then", "metadata": {"a": 1}, "limits": {"cpus": 2}}
    told |= {"isolation": "gvisor", "kernel": "py", "last_activity": "then", "gateway_version": "0.0.9"}
    events.add("session", None, state="idle", cause="created", environment=environment, **told)
    events.add("file", None, path="b.csv", size=3, sha256="cd", action="uploaded")
    events.add("file", None, path="a.csv", size=1, sha256="ab", action="uploaded")
    events.add("file", "a", path="out.csv", size=1, sha256="ef", action="created")
    events.add("file", None, path="b.csv", action="deleted")
    known = notebook_of(events)["metadata"]["cellgate"]
    assert {key: known[key] for key in ("principal", "created_at", "isolation", "packages", "python")} == {
        "principal": "eve",
        "created_at": "then",
        "isolation": "gvisor",
        "packages": {"six": "1"},
        "python": "3.12.1",
    }
    assert (known["limits"], known["metadata"], known["recorded_by"]) == ({"cpus": 2}, {"a": 1}, "0.0.9")
    assert known["input_files"] == [{"path": "a.csv", "sha256": "ab", "size": 1}]
    assert (known["rows"], known["head"]) == (5, shown_hash(events))


def test_a_cell_without_a_word_of_its_end_gets_one() -> None:
    """Of a cell that shows its own KeyboardInterrupt none is needed."""
    events = Events()
    for execution in ("a", "b"):
        events.queue(execution)
        events.start(execution, 1)
    events.add("error", "b", ename="KeyboardInterrupt", evalue="", traceback=[])
    for execution in ("a", "b"):
        events.finish(execution, "interrupted", cause="kernel_restarted")
    quiet, loud = notebook_of(events)["cells"]
    assert shown(quiet) == ["[cellgate: This cell was ended early: interrupted (kernel_restarted).]"]
    assert [output["output_type"] for output in loud["outputs"]] == ["error"]


def test_a_clients_cell_ids_are_kept_where_nbformat_allows_them() -> None:
    events = Events()
    for execution, cell_id in (("a", "mine"), ("b", "mine"), ("c", "not this"), ("d", "a"), ("e", None)):
        events.queue(execution, cell_id=cell_id)
    assert [cell["id"] for cell in notebook_of(events)["cells"]] == ["mine", "b", "c", "d", "e"]


def test_what_is_too_long_for_a_notebook_is_cut_and_says_so() -> None:
    events = Events()
    events.queue("a")
    events.start("a", 1)
    events.add("stream", "a", name="stdout", text="begin" + "x" * 5000 + "end")
    events.add("display_data", "a", data={"image/png": "y" * 5000, "text/html": "<b>"}, metadata={})
    events.finish("a")
    (cell,) = notebook_of(events, cap=100)["cells"]
    text, image = cell["outputs"]
    assert text["text"].startswith("beginx")
    assert text["text"].endswith("xend")
    assert "5008 characters, cut here; the bundle has them all" in text["text"]
    assert len(text["text"]) < 250
    assert image["data"] == {
        "text/html": "<b>",
        "text/plain": "[cellgate: image/png, 5000 characters, is in the bundle]",
    }
    (whole,) = notebook_of(events, cap=None)["cells"]
    assert [len(whole["outputs"][0]["text"]), len(whole["outputs"][1]["data"]["image/png"])] == [5008, 5000]


def written(events: Events, **options: Any) -> None:
    """What is written is what nbformat writes of the same notebook, and reads back as it."""
    found = "".join(made_of(events, **options).write())
    read = nbformat.reads(found, as_version=4)
    assert found == nbformat.writes(read) + "\n"
    seal = read.metadata.cellgate.pop("seal")
    assert len(seal.cells) == len(read.cells)
    assert read == nbformat.from_dict(made_of(events, **options).whole())


def test_written_is_what_nbformat_writes_and_reads() -> None:
    events = Events()
    written(events)
    events.queue("a")
    events.add("stream", "a", name="stdout", text="one\ntwo ü\n")
    data = {"text/html": "a\nb", "image/svg+xml": "<\n>", "application/json": {"b": [1.5, None], "a": {}}}
    events.add("display_data", "a", data={**data, "application/x": "a\nb", "image/png": "i\n"}, metadata={})
    written(events)


# ---- anything that may happen -----------------------------------------------------------------------------

some = examples()
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
    written(events, outputs=outputs)
    assert notebook_of(events, outputs=outputs) == notebook
