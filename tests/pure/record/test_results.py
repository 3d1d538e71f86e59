"""The result of an execution, from its events."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from cellgate.execution.answer_size import DEFAULT_SIZE, AnswerSize, images_in, shorten
from cellgate.execution.pictures import Images
from cellgate.execution.results import ResultBuilder
from cellgate.wire.answers import Result
from cellgate_kernels.protocol.outputs import text as text_of
from tests.pure.record.test_notebook import Events, notebook_of
from tests.support.examples import examples

FINISHED = {
    "status": "ok",
    "cause": None,
    "execution_count": 3,
    "error": None,
    "started_at": "2026-11-21T10:00:02.000000Z",
    "finished_at": "2026-11-21T10:00:09.000000Z",
    "duration_ms": 7000.0,
    "queue_ms": 1000.0,
    "truncated": False,
    "kernel": {"state": "idle", "replaced": False},
}
ERROR = {
    "ename": "ValueError",
    "evalue": "\x1b[31mno\x1b[0m",
    "traceback": ["\x1b[31mValueError\x1b[0m", "  line 1"],
}


def builder(*events: tuple[str, dict[str, Any]]) -> ResultBuilder:
    """A builder that got these events, numbered and dated as the record does."""
    built = ResultBuilder()
    for seq, (event_type, fields) in enumerate(events, 1):
        at = f"2026-11-21T10:00:{seq:02}.000000Z"
        built.apply({"seq": seq, "session": "s", "execution": "e1", "type": event_type, "at": at, **fields})
    return built


def builtins(result: Result) -> dict[str, Any]:
    """The result as its JSON has it."""
    decoded: dict[str, Any] = json.loads(msgspec.json.encode(result))
    return decoded


QUEUED = ("queued", {"position": 0, "code": "f()", "msg_id": "m"})
STARTED = ("started", {"execution_count": 3, "code": "f()"})


def stream(text: str, name: str = "stdout") -> tuple[str, dict[str, Any]]:
    return "stream", {"name": name, "text": text}


def test_fields_that_a_later_version_recorded_are_passed_over() -> None:
    error = {**ERROR, "later": 1}
    package = {"name": "six", "version": "1.17", "later": 1}
    result = builder(
        QUEUED,
        STARTED,
        ("file", {"action": "created", "path": "a", "size": 1, "sha256": "0" * 64, "later": 1}),
        ("packages", {"action": "installed", "packages": [package]}),
        (
            "finished",
            {**FINISHED, "status": "error", "error": error, "kernel": {"state": "idle", "later": 1}},
        ),
    ).result()
    assert result.error is not None
    assert (result.error.ename, result.kernel.state) == ("ValueError", "idle")
    assert [(each.name, each.action) for each in result.packages] == [("six", "installed")]
    assert [(each.path, each.action) for each in result.files] == [("a", "created")]


def test_a_finished_result_has_every_field_of_the_wire_contract() -> None:
    shown = ("execute_result", {"execution_count": 3, "data": {"text/plain": "42"}, "metadata": {}})
    result = builder(
        QUEUED, STARTED, stream("out\n"), stream("err\n", "stderr"), shown, ("finished", FINISHED)
    ).result()
    assert builtins(result) == {
        "session": "s",
        "execution": "e1",
        **FINISHED,
        "outputs": [
            {"output_type": "stream", "name": "stdout", "text": "out\n"},
            {"output_type": "stream", "name": "stderr", "text": "err\n"},
            {
                "output_type": "execute_result",
                "execution_count": 3,
                "data": {"text/plain": "42"},
                "metadata": {},
            },
        ],
        "stdout": "out\n",
        "stderr": "err\n",
        "text": "out\nerr\n42",
        "files": [],
        "packages": [],
    }
    last = ["outputs", "stdout", "stderr", "text", "files", "packages"]
    assert [*builtins(result)] == ["session", "execution", *FINISHED, *last]


def test_files_that_a_cell_wrote_are_in_its_result() -> None:
    written = {"path": "a.csv", "size": 3, "sha256": "ab", "action": "created"}
    removed = {"path": "b.csv", "size": None, "sha256": None, "action": "deleted"}
    events = [QUEUED, STARTED, ("file", written), ("file", removed), ("finished", FINISHED)]
    assert builtins(builder(*events).result())["files"] == [written]


def test_packages_that_a_cell_installed_are_in_its_result() -> None:
    package = {"name": "six", "version": "1.0", "sha256": "ab", "requested": True}
    installed = ("packages", {"action": "installed", "packages": [package]})
    result = builtins(builder(QUEUED, STARTED, installed, ("finished", FINISHED)).result())
    assert result["packages"] == [{**package, "action": "installed"}]


@pytest.mark.parametrize(
    ("events", "status"),
    [
        ([], "queued"),
        ([QUEUED], "queued"),
        ([QUEUED, STARTED], "running"),
        ([QUEUED, stream("x")], "running"),  # a silent cell has no `started`
        ([QUEUED, STARTED, ("finished", FINISHED)], "ok"),
    ],
)
def test_the_status_so_far(events: list[tuple[str, dict[str, Any]]], status: str) -> None:
    built = builder(*events)
    assert built.result().status == status
    assert built.finished == (status == "ok")


def test_the_result_of_a_running_cell_has_its_output_so_far_and_all_fields() -> None:
    so_far = builder(QUEUED, STARTED, stream("half")).result()
    assert (so_far.stdout, so_far.execution_count) == ("half", 3)
    assert so_far.started_at == "2026-11-21T10:00:02.000000Z"
    assert [*builtins(so_far)] == [*builtins(builder(QUEUED, STARTED, ("finished", FINISHED)).result())]


def test_what_a_thread_prints_after_the_end_changes_the_output_but_not_the_status() -> None:
    result = builder(QUEUED, STARTED, ("finished", FINISHED), stream("late")).result()
    assert (result.status, result.stdout) == ("ok", "late")


def test_plain_strips_ansi_codes_from_outputs_texts_and_the_error() -> None:
    ended = {**FINISHED, "status": "error", "error": ERROR}
    built = builder(QUEUED, STARTED, stream("\x1b[1mbold\x1b[0m\n"), ("error", ERROR), ("finished", ended))
    result = built.result(plain=True)
    assert "\\x1b" not in repr(result)
    assert result.stdout == "bold\n"
    assert result.error.traceback == ["ValueError", "  line 1"]
    assert "\x1b[31m" in built.result().error.evalue
    assert "\x1b" not in built.result().text


DIED = {"ename": "KernelDied", "evalue": "The kernel was ended by SIGSEGV.", "traceback": []}
STOPPED = {"ename": "KeyboardInterrupt", "evalue": "", "traceback": ["KeyboardInterrupt"]}
KILLED = {"ename": "CellTimeout", "evalue": "The cell ran longer than its 5 s.", "traceback": []}
TOO_LONG = "[cellgate: The cell ran longer than 5 s; its output until then is above.]"
LATE = {"status": "timeout", "cause": "cell_timeout", "timeout": 5.0}


@pytest.mark.parametrize(
    ("shown", "end", "text"),
    [
        ([], {"error": DIED}, "out\n[cellgate: KernelDied: The kernel was ended by SIGSEGV.]"),
        # An error that the cell showed before is not what ended its kernel.
        (
            [STOPPED],
            {"error": DIED},
            "out\nKeyboardInterrupt\n[cellgate: KernelDied: The kernel was ended by SIGSEGV.]",
        ),
        ([STOPPED], {"error": STOPPED, **LATE}, f"out\nKeyboardInterrupt\n{TOO_LONG}"),
        ([], {"error": KILLED, **LATE}, "out\n[cellgate: CellTimeout: The cell ran longer than its 5 s.]"),
        # Records from before `timeout` don't say how long it was.
        ([STOPPED], {"error": STOPPED, **LATE, "timeout": UNSET}, "out\nKeyboardInterrupt"),
        (
            [],
            {"status": "interrupted", "cause": "deleted", "error": None},
            "out\n[cellgate: This cell was ended early: interrupted (deleted).]",
        ),
        (
            [STOPPED],
            {"status": "interrupted", "cause": "interrupt_requested", "error": STOPPED},
            "out\nKeyboardInterrupt",
        ),
        ([STOPPED], {"cause": "gateway_restart", "error": DIED}, "out\nKeyboardInterrupt"),
        ([ERROR], {"status": "error", "cause": None, "error": ERROR}, "out\nValueError\n  line 1"),
    ],
)
def test_text_says_why_a_cell_ended_as_its_notebook_does(
    shown: list[dict[str, Any]], end: dict[str, Any], text: str
) -> None:
    end = {"status": "died", "cause": "kernel_exit", **end}
    given = {name: value for name, value in {**FINISHED, **end}.items() if value is not UNSET}
    cell = [QUEUED, STARTED, stream("out\n"), *(("error", error) for error in shown), ("finished", given)]
    result = builder(*cell).result()
    assert (result.text, result.stdout, len(result.outputs)) == (text, "out\n", 1 + len(shown))
    events = Events()
    for event_type, fields in cell:
        events.add(event_type, "e1", **fields)
    (exported,) = notebook_of(events)["cells"]
    assert text_of(exported["outputs"]) == text


@pytest.mark.parametrize(
    ("end", "text"),
    [
        ({"status": "cancelled", "cause": "kernel_died"}, "This cell did not run (kernel_died)."),
        ({"error": DIED}, "This cell did not run (kernel_exit)."),
        ({"error": DIED, "sent": False}, f"This cell did not run (kernel_exit): {DIED['evalue']}"),
        # The kernel may have died before it said that the cell had started.
        ({"error": DIED, "sent": True}, f"KernelDied: {DIED['evalue']}"),
    ],
)
def test_text_says_whether_a_cell_ran(end: dict[str, Any], text: str) -> None:
    end = {**FINISHED, "status": "died", "cause": "kernel_exit", "started_at": None, **end}
    result = builder(QUEUED, ("finished", end)).result()
    assert (result.text, result.outputs) == (f"[cellgate: {text}]", [])


def test_max_text_cuts_every_text_and_leaves_what_programs_render() -> None:
    long = "0123456789" * 500
    error = {"ename": "E", "evalue": long, "traceback": [long, long]}
    data = {"text/plain": long, "text/html": long, "image/png": long}
    events = [
        stream(long),
        stream(long, "stderr"),
        ("display_data", {"data": data, "metadata": {}}),
        ("error", error),
        ("finished", {**FINISHED, "status": "error", "error": error}),
    ]
    result = builder(QUEUED, STARTED, *events).result(size=AnswerSize(1000))
    out, err, shown, failed = result.outputs
    texts = [result.stdout, result.stderr, result.text, out["text"], err["text"]]
    texts += [shown["data"]["text/plain"], result.error.evalue, "\n".join(failed["traceback"])]
    assert [len(text) for text in texts] == [1000] * len(texts)
    assert all("GET /v1/sessions/s/executions/e1" in text for text in texts)
    assert all(text.startswith("0123") for text in texts)
    assert texts[0].endswith("789")
    assert shown["data"]["text/html"] == shown["data"]["image/png"] == long


def json_size(result: Result) -> int:
    return len(msgspec.json.encode(result))


def display(**data: str) -> tuple[str, dict[str, Any]]:
    return "display_data", {
        "data": {name.replace("_", "/"): value for name, value in data.items()},
        "metadata": {},
    }


@pytest.mark.parametrize("letter", ["x", "\u4e2d", "\x01", "\U0001f600"])
@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_an_answer_of_the_default_size_shows_both_ends_of_each_text(name: str, letter: str) -> None:
    long = f"begin{letter * 2_000_000}end"
    error = {"ename": letter * 300_000, "evalue": long, "traceback": [long, long]}
    ended = ("finished", {**FINISHED, "status": "error", "error": error})
    built = builder(QUEUED, STARTED, stream(long, name), ("error", error), ended)
    result = built.result(size=DEFAULT_SIZE)
    assert json_size(result) <= 1_000_000
    out, failed = result.outputs
    assert result.error is not None
    cut = [getattr(result, name), result.text, out["text"], result.error.evalue, failed["evalue"]]
    for text in cut:
        assert 10_000 < len(text) <= 100_000
        assert text.startswith("begin")
        assert "characters, cut here; GET /v1/sessions/s/executions/e1" in text
    assert (
        f"[cellgate: {len(long)} characters, cut here; GET /v1/sessions/s/executions/e1/output/0 has"
        in out["text"]
    )
    assert "GET /v1/sessions/s/executions/e1?max_text=0 has them all" in result.text
    assert getattr(built.result(), name) == long


def test_what_fits_is_shown_as_it_is() -> None:
    events = [stream("a" * 50_000), display(text_html="b" * 400_000, image_png="A" * 4_000_000)]
    built = builder(QUEUED, STARTED, *events, ("finished", FINISHED))
    assert built.result(size=DEFAULT_SIZE) == built.result()


def test_what_a_program_renders_is_left_out_if_there_is_no_room() -> None:
    page = display(text_plain="a page", text_html="<p>" * 1_000_000)
    after = [display(text_html="<p>short</p>"), stream("end\n")]
    built = builder(QUEUED, STARTED, page, *after, ("finished", FINISHED))
    result = built.result(size=DEFAULT_SIZE)
    where = "GET /v1/sessions/s/executions/e1/output/0?type=text/html has it"
    left_out = f"a page\n[cellgate: text/html, 3000002 bytes, is left out; {where}]"
    assert result.outputs[0]["data"] == {"text/plain": left_out}
    assert result.outputs[1:] == built.result().outputs[1:]


def test_images_have_their_own_room() -> None:
    events = [display(text_plain=f"image {number}", image_png="A" * 3_000_000) for number in range(3)]
    built = builder(QUEUED, STARTED, *events, ("finished", FINISHED))
    first, second, third = built.result(size=DEFAULT_SIZE).outputs
    assert [first, second] == built.result().outputs[:2]
    where = "GET /v1/sessions/s/executions/e1/output/2?type=image/png has it"
    assert third["data"] == {
        "text/plain": f"image 2\n[cellgate: image/png, 2250001 bytes, is left out; {where}]"
    }
    by_url = built.result(size=DEFAULT_SIZE, images=Images.URL)
    assert by_url == built.result(images=Images.URL)


def test_of_too_many_outputs_the_first_are_shown() -> None:
    events = [display(text_plain=f"{number:05}") for number in range(20_000)]
    result = builder(QUEUED, STARTED, *events, ("finished", FINISHED)).result(size=DEFAULT_SIZE)
    assert json_size(result) <= 1_000_000
    *shown, last = result.outputs
    assert shown[-1]["data"]["text/plain"] == f"{len(shown) - 1:05}"
    whole = "GET /v1/sessions/s/executions/e1?max_text=0 has them"
    assert (
        last["data"]["text/plain"] == f"[cellgate: {20_000 - len(shown)} more outputs are left out; {whole}]"
    )
    assert result.text.endswith("19999")


def test_a_last_stream_is_cut_to_the_room_that_there_is() -> None:
    events = [event for _ in range(20) for event in (stream("a" * 90_000), stream("b" * 90_000, "stderr"))]
    result = builder(QUEUED, STARTED, *events, ("finished", FINISHED)).result(size=DEFAULT_SIZE)
    assert 950_000 < json_size(result) <= 1_000_000
    *_, cut, left_out = result.outputs
    assert "[cellgate: 90000 characters, cut here; GET " in cut["text"]
    assert "more outputs are left out" in left_out["data"]["text/plain"]


def test_of_an_execution_that_is_not_kept_another_run_has_the_whole() -> None:
    events = [stream("a" * 200_000), display(image_png="A" * 9_000_000)]
    result = builder(QUEUED, STARTED, *events, ("finished", FINISHED)).result(size=DEFAULT_SIZE, kept=False)
    out, picture = result.outputs
    marked = [result.text, result.stdout, out["text"], picture["data"]["text/plain"]]
    assert all("; a run with ?max_text=0 has" in text for text in marked)
    assert "GET" not in str(builtins(result))


@given(
    outputs=st.lists(
        st.tuples(
            st.sampled_from(["stdout", "stderr", "text_plain", "text_html", "image_png", "application_json"]),
            st.sampled_from(["a", "\u4e2d", "\x00"]),
            st.integers(0, 9_000),
        ),
        max_size=12,
    ),
    text=st.sampled_from([100, 1_000, 5_000]),
)
@examples(60)
def test_no_answer_is_larger_than_its_size(outputs: list[tuple[str, str, int]], text: int) -> None:
    size = AnswerSize(text, 30_000, 6_000)
    events = [
        stream(letter * length, kind) if kind.startswith("std") else display(**{kind: letter * length})
        for kind, letter, length in outputs
    ]
    result = builder(QUEUED, STARTED, *events, ("finished", FINISHED)).result(size=size)
    in_json, as_files = images_in(result.outputs)
    assert json_size(result) - in_json <= size.json
    assert as_files <= size.images
    assert len(result.outputs) <= len(builder(QUEUED, STARTED, *events).result().outputs)


def test_an_empty_traceback_stays_empty_when_texts_are_cut() -> None:
    error = {"ename": "KernelDied", "evalue": "The kernel ended.", "traceback": []}
    result = builder(QUEUED, ("finished", {**FINISHED, "status": "died", "error": error})).result(
        size=AnswerSize(100)
    )
    assert builtins(result)["error"] == error


@pytest.mark.parametrize("limit", [0, 1, 99, 100, 101, 500])
@pytest.mark.parametrize("length", [0, 1, 100, 101, 102, 499, 500, 501, 5000])
def test_shortening_never_lengthens_and_keeps_half_of_the_limit_for_the_text(limit: int, length: int) -> None:
    text = ("abcdefg" * 1000)[:length]
    short = shorten(text, limit, "GET there")
    assert len(short) <= len(text)
    if short != text:
        mark = short[short.index("\n[") : short.index("]\n") + 2]
        head, tail = short.split(mark)
        assert text.startswith(head)
        assert text.endswith(tail)
        assert len(short) == max(limit, len(mark) + limit // 2)
