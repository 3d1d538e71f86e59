"""Output events as notebook outputs, as text, and under caps."""

from __future__ import annotations

import re
import tracemalloc
from typing import Any

import msgspec
import nbformat
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from nbclient import client as nbclient
from nbformat import v4

from cellgate_kernels.base.resources import MIB
from cellgate_kernels.protocol import outputs as rendering
from cellgate_kernels.protocol.outputs import (
    LEAST_COST,
    KernelEvent,
    OutputArea,
    OutputCaps,
    OutputLimiter,
    plain,
    render_stream,
    stderr,
    stdout,
    strip_ansi,
    text,
)
from tests.support.examples import examples

RED = "\x1b[31mred\x1b[0m"
some = examples()


def stream(content: str, name: str = "stdout") -> KernelEvent:
    return KernelEvent("stream", {"name": name, "text": content})


def display(value: str, display_id: str | None = None, event_type: str = "display_data") -> KernelEvent:
    fields: dict[str, Any] = {"data": {"text/plain": value}, "metadata": {}}
    if display_id is not None:
        fields["display_id"] = display_id
    if event_type == "execute_result":
        fields["execution_count"] = 1
    return KernelEvent(event_type, fields)


def update(value: str, display_id: str) -> KernelEvent:
    return display(value, display_id, "update_display_data")


def clear(*, wait: bool) -> KernelEvent:
    return KernelEvent("clear_output", {"wait": wait})


def error(*traceback: str, ename: str = "E", evalue: str = "v") -> KernelEvent:
    return KernelEvent("error", {"ename": ename, "evalue": evalue, "traceback": list(traceback)})


def fold(*events: KernelEvent) -> list[dict[str, Any]]:
    """The outputs of the events, after nbformat has found them valid."""
    area = OutputArea()
    for event in events:
        area.apply(event.type, event.content)
    outputs = area.outputs()
    validate(outputs)
    return outputs


def validate(outputs: list[dict[str, Any]]) -> None:
    cell = v4.new_code_cell(outputs=nbformat.from_dict(outputs))
    nbformat.validate(v4.new_notebook(cells=[cell]))


def shown(outputs: list[dict[str, Any]]) -> list[str]:
    """Each output as one short string."""
    return [o["text"] if o["output_type"] == "stream" else o["data"]["text/plain"] for o in outputs]


# Streams as a screen shows them


@pytest.mark.parametrize(
    ("written", "seen"),
    [
        ("a\nb\n", "a\nb\n"),
        ("10%\r20%\r30%", "30%"),
        ("a long line\rshort", "short"),
        ("kept\n10%\r20%\nkept too", "kept\n20%\nkept too"),
        ("10%\r", "10%\r"),
        ("10%\r\ndone", "10%\r\ndone"),
        ("dos\r\r\nlines\r\r\n", "dos\r\nlines\r\n"),
        (f"10%\r{RED}", RED),
        ("abc\b\bX", "aX"),
        ("\b\bX", "X"),
        ("a\n\bX", "a\nX"),
        ("ab\bc\b\b", ""),
        ("12/100\b\b\b\b\b\b\r13/100", "13/100"),
        (f"{RED}\bd", "\x1b[31mre\x1b[0md"),
        (f"{RED}\b\b\b\b|", "\x1b[31m\x1b[0m|"),
        ("\x1b\bx", "\x1bx"),
    ],
)
def test_carriage_returns_and_backspaces_are_shown_as_on_a_screen(written: str, seen: str) -> None:
    assert render_stream(written) == seen


screen_text = st.lists(
    st.sampled_from(["a", "bc", "é", "\n", "\r", "\r\n", "\b", "\b\b", "\x1b[31m", "\x1b[0m", " "]),
    max_size=12,
).map("".join)


@some
@given(screen_text)
def test_carriage_returns_follow_nbclients_rule(written: str) -> None:
    """Without backspaces, which nbclient's expression misses, and double returns, where it loses lines."""
    written = re.sub("\r+", "\r", written.replace("\b", ""))
    assert render_stream(written) == nbclient._RGX_CARRIAGERETURN.sub("", written)


def as_typed(line: str) -> str:
    """One character after another, as a typist would see it."""
    shown: list[str] = []
    for character in line:
        match character:
            case "\b":
                del shown[-1:]
            case "\r":
                shown.clear()
            case _:
                shown.append(character)
    return "".join(shown)


@some
@given(st.text("ab\b\r", min_size=1, max_size=20))
@example("aaaa\b\rbc\b\b")
def test_long_lines_are_rendered_as_short_ones_are(part: str) -> None:
    """Long ones go a quicker way through their backspaces."""
    line = part.rstrip("\r")
    assert render_stream(line) == as_typed(line)
    assert render_stream(line * 300) == as_typed(line * 300)


@some
@given(screen_text, screen_text)
@example("aaaa\b", "\rbc\b\b")
def test_a_stream_may_be_rendered_at_any_time(first: str, second: str) -> None:
    assert render_stream(render_stream(first) + second) == render_stream(first + second)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("written", "length"),
    [
        ("".join(f"\r{n:>7}/100000" for n in range(20_000)), 14),
        ("x" * 600_000, 600_000),
        ("x" * 200_000 + "\b\x1b[m" * 100_000, 400_000),
        ("x\b" * 100_000, 0),
        ("\x1b[" + "1" * 600_000, 600_002),
    ],
    ids=["progress bar", "long line", "colours between backspaces", "backspaces", "broken escape"],
)
def test_rendering_takes_linear_time(written: str, length: int) -> None:
    """Quadratic work on these would take many minutes; the time limit catches it."""
    assert len(render_stream(written)) == length
    strip_ansi(written)


@some
@given(screen_text)
def test_backspaces_erase_what_is_before_them(written: str) -> None:
    """As if each character were looked at by itself, from the end of the line."""
    written = written.replace("\r", "")
    assert render_stream(written) == "\n".join(map(erased, written.split("\n")))


def erased(line: str) -> str:
    expected, to_erase = list[str](), 0
    for piece in reversed(re.findall("\x1b\\[[0-9]*m|.", line)):
        if piece == "\b":
            to_erase += 1
        elif piece.startswith("\x1b") or not to_erase:
            expected.append(piece)
        else:
            to_erase -= 1
    return "".join(reversed(expected))


@pytest.mark.parametrize("written", ["x\b" * 60_000, "\x1b[m\b" * 40_000])
def test_what_is_erased_takes_no_memory(written: str) -> None:
    tracemalloc.start()
    try:
        rendered = render_stream(written)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    kept = rendered.count("\x1b")
    # The last summand is what Python itself takes at a first call, and what measures coverage.
    assert peak < 3 * len(written) + kept * 100 + 100_000


def test_a_progress_bar_of_many_updates_is_one_line() -> None:
    area = OutputArea()
    for n in range(100_000):
        area.apply("stream", {"name": "stderr", "text": f"\r{n + 1}/100000"})

    assert area.outputs() == [{"output_type": "stream", "name": "stderr", "text": "100000/100000"}]


# The output area


def test_neighbouring_text_of_one_stream_is_one_output() -> None:
    outputs = fold(stream("a"), stream("b\n"), stream("!", "stderr"), stream("c"), display("D"), stream("d"))

    assert [(o["output_type"], o.get("name")) for o in outputs] == [
        ("stream", "stdout"),
        ("stream", "stderr"),
        ("stream", "stdout"),
        ("display_data", None),
        ("stream", "stdout"),
    ]
    assert shown(outputs) == ["ab\n", "!", "c", "D", "d"]


def test_a_carriage_return_reaches_back_over_messages() -> None:
    assert shown(fold(stream("10%\r"), stream("20%"), stream("\r30%\n"))) == ["30%\n"]


def test_results_displays_and_errors_become_their_nbformat_outputs() -> None:
    outputs = fold(
        display("<Figure>", "id"), display("2", event_type="execute_result"), error("line", evalue="bad")
    )

    assert outputs == [
        {"output_type": "display_data", "data": {"text/plain": "<Figure>"}, "metadata": {}},
        {"output_type": "execute_result", "data": {"text/plain": "2"}, "metadata": {}, "execution_count": 1},
        {"output_type": "error", "ename": "E", "evalue": "bad", "traceback": ["line"]},
    ]


def test_json_stays_json() -> None:
    data = {"application/json": {"a": [1, None]}, "application/vnd.x+json": [1.5], "text/plain": "{}"}

    assert fold(KernelEvent("display_data", {"data": data, "metadata": {}}))[0]["data"] == data


def test_events_that_make_no_output_change_nothing() -> None:
    events = [KernelEvent(kind, {}) for kind in ("queued", "started", "input_request", "finished", "session")]

    assert shown(fold(stream("a"), *events, stream("b"))) == ["ab"]


def test_fields_of_a_record_row_stay_out_of_the_outputs() -> None:
    """The export folds whole rows in, with their seq, session and time."""
    row = {"seq": 7, "session": "s", "execution": "e", "at": "2026-11-21T10:00:00Z", "type": "x"}
    events = (stream("a"), display("d", "id"), display("2", event_type="execute_result"), error("t"))

    assert fold(*(KernelEvent(e.type, {**row, **e.content}) for e in events)) == fold(*events)


@pytest.mark.parametrize(
    ("events", "left"),
    [
        ([stream("a"), clear(wait=False)], []),
        ([stream("a"), clear(wait=False), stream("b")], ["b"]),
        ([stream("a"), clear(wait=True)], ["a"]),
        ([stream("a"), clear(wait=True), stream("b"), stream("c")], ["bc"]),
        ([stream("a"), clear(wait=True), display("b")], ["b"]),
        ([stream("a"), clear(wait=True), clear(wait=False), stream("b"), stream("c")], ["bc"]),
        ([display("a", "i"), clear(wait=True), update("b", "i")], ["b"]),
        ([display("a", "i"), clear(wait=True), update("b", "i"), stream("c")], ["c"]),
        ([display("a", "i"), clear(wait=False), display("b"), update("c", "i")], ["b"]),
    ],
)
def test_clear_output(events: list[KernelEvent], left: list[str]) -> None:
    assert shown(fold(*events)) == left


def test_a_display_id_changes_all_its_outputs() -> None:
    outputs = fold(
        display("a", "i"), display("other", "j"), display("b", "i", "execute_result"), update("c", "i")
    )

    assert shown(outputs) == ["c", "other", "c"]
    assert [o["output_type"] for o in outputs] == ["display_data", "display_data", "execute_result"]


def test_showing_a_display_id_again_changes_the_first() -> None:
    assert shown(fold(display("a", "i"), display("b", "i"))) == ["b", "b"]


def test_a_later_cell_can_change_a_display() -> None:
    area = OutputArea()
    area.apply("display_data", display("a", "i").content)

    assert area.update_display("i", {"text/plain": "z"}, {"k": 1})
    assert not area.update_display("unknown", {"text/plain": "z"}, {})
    assert area.outputs() == [
        {"output_type": "display_data", "data": {"text/plain": "z"}, "metadata": {"k": 1}}
    ]


def test_a_cleared_display_can_be_changed_no_more() -> None:
    area = OutputArea()
    for event in (display("a", "i"), clear(wait=False)):
        area.apply(event.type, event.content)

    assert not area.update_display("i", {}, {})


def test_outputs_are_fresh_each_time() -> None:
    area = OutputArea()
    for event in (stream("a"), display("b"), error("c")):
        area.apply(event.type, event.content)
    for output in area.outputs():
        output.clear()
    area.outputs()[1]["data"].clear()

    assert [o["output_type"] for o in area.outputs()] == ["stream", "display_data", "error"]
    assert area.outputs()[1]["data"] == {"text/plain": "b"}


# Outputs as text


def test_text_is_what_a_reader_sees() -> None:
    outputs = fold(
        stream(f"{RED} 10%\r{RED} 20%"),
        stream("warning\n", "stderr"),
        display("2", event_type="execute_result"),
        error("\x1b[31mTraceback\x1b[0m", "E: v"),
        error(),
    )

    assert text(outputs) == "red 20%\nwarning\n2\nTraceback\nE: v\nE: v"
    assert stdout(outputs) == f"{RED} 20%"
    assert stderr(outputs) == "warning\n"
    assert text([]) == stdout([]) == ""


@pytest.mark.parametrize(
    ("data", "read"),
    [
        ({"text/plain": "[1, 2]", "text/html": "<ul>"}, "[1, 2]"),
        ({"text/plain": "x", "text/latex": "$x$"}, "x"),
        ({"text/plain": "<IPython.core.display.Markdown object>", "text/markdown": "# Title"}, "# Title"),
        ({"text/plain": "<IPython.core.display.Latex object>", "text/latex": "$x$"}, "$x$"),
        (
            {"text/plain": "<IPython.core.display.JSON object>", "application/json": {"a": [1, "é"]}},
            '{"a":[1,"é"]}',
        ),
        (
            {"text/plain": "<IPython.core.display.HTML object>", "text/html": "<b>"},
            "<IPython.core.display.HTML object>",
        ),
        ({"image/png": "aGk="}, "[image/png]"),
        ({}, ""),
    ],
)
def test_text_of_a_display(data: dict[str, Any], read: str) -> None:
    assert text(fold(KernelEvent("display_data", {"data": data, "metadata": {}}))) == read


@pytest.mark.parametrize(
    ("coded", "bare"),
    [
        (RED, "red"),
        ("\x1b[38;5;28;01mNone\x1b[39;00m", "None"),
        ("50%\x1b[K\x1b[2A\x1b[?25l", "50%"),
        ("\x1b]8;;https://example.org\x1b\\link\x1b]8;;\x07", "link"),
        ("\x1bP0;1q~~\x1b\\after", "after"),
        ("\x1b(Btext\x1b7\x1bM", "text"),
        ("cut \x1b[3", "cut [3"),
        ("cut \x1b]0;title", "cut ]0;title"),
        ("\x1b", ""),
    ],
)
def test_strip_ansi(coded: str, bare: str) -> None:
    assert strip_ansi(coded) == bare


@some
@given(st.text(st.sampled_from("\x1b[](;1mP\\\x07K x")))
def test_no_escape_character_survives(coded: str) -> None:
    bare = strip_ansi(coded)
    assert "\x1b" not in bare
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rendering, "_LONG", 0)
        assert strip_ansi(coded) == bare, "a long text is no other"


def test_plain_strips_every_string_and_leaves_the_original() -> None:
    data = {"text/plain": RED, "application/json": {"k": [RED, 1]}}
    outputs = fold(
        stream(RED), KernelEvent("display_data", {"data": data, "metadata": {}}), error(RED, evalue=RED)
    )
    before = msgspec.json.encode(outputs)

    stripped = plain(outputs)

    assert stripped == [
        {"output_type": "stream", "name": "stdout", "text": "red"},
        {
            "output_type": "display_data",
            "data": {"text/plain": "red", "application/json": {"k": ["red", 1]}},
            "metadata": {},
        },
        {"output_type": "error", "ename": "E", "evalue": "red", "traceback": ["red"]},
    ]
    assert msgspec.json.encode(outputs) == before


# Caps


def size_of(event: KernelEvent) -> int:
    return len(msgspec.json.encode(event.content))


def admit(limiter: OutputLimiter, *events: KernelEvent) -> list[KernelEvent]:
    return [passed for event in events for passed in limiter.admit(event, size_of(event))]


def is_marker(event: KernelEvent) -> bool:
    return b"[cellgate:" in msgspec.json.encode(event.content)


def test_output_under_the_caps_passes_untouched() -> None:
    limiter = OutputLimiter(OutputCaps())
    events = [stream("a"), display("b", "i"), update("c", "i"), clear(wait=True), error("d")]

    assert admit(limiter, *events) == events
    assert (limiter.truncated, limiter.dropped_text, limiter.dropped_data) == (False, 0, 0)


def test_text_is_cut_at_the_cap_and_says_so_once() -> None:
    limiter = OutputLimiter(OutputCaps(text=1000))
    first, crossing, late = stream("a" * 500), stream("b" * 5000, "stderr"), stream("c" * 700)

    passed = admit(limiter, first, crossing, late, late)

    mark = "\n[cellgate: output cut here, the cap of 1000 bytes of text per cell is reached]\n"
    kept = 1000 - size_of(first)
    assert passed == [first, stream("b" * kept, "stderr"), stream(mark, "stderr")]
    assert limiter.truncated
    assert limiter.dropped_text == size_of(crossing) - kept + 2 * size_of(late)
    assert limiter.dropped_data == 0


def test_a_cut_keeps_characters_whole() -> None:
    limiter = OutputLimiter(OutputCaps(text=1000))

    kept, _ = admit(limiter, stream("€" * 900))

    assert kept.content["text"] == "€" * 333


def test_a_bundle_beyond_the_cap_is_left_out_whole_and_named() -> None:
    limiter = OutputLimiter(OutputCaps(data=2 * MIB))
    image = KernelEvent("display_data", {"data": {"image/png": "A" * 3 * MIB}, "metadata": {}})

    (marker,) = admit(limiter, image)

    assert marker.type == "display_data"
    assert marker.content["data"] == {
        "text/plain": "[cellgate: image/png left out (3 MiB), beyond the cap of 2 MiB of data per cell]"
    }
    assert limiter.dropped_data == size_of(image)
    assert admit(limiter, display("small")) == []
    validate(fold(marker))


def test_the_caps_of_text_and_data_are_apart() -> None:
    limiter = OutputLimiter(OutputCaps(text=1000, data=1000))
    admit(limiter, stream("a" * 2000))

    assert not limiter.wants("stream")
    assert not limiter.wants("clear_output")
    assert admit(limiter, display("b")) == [display("b")]
    assert limiter.wants("display_data")


def test_empty_events_cost_too() -> None:
    limiter = OutputLimiter(OutputCaps(text=10 * LEAST_COST))

    assert len(admit(limiter, *[clear(wait=False)] * 1000)) == 10 + 1


def test_an_error_passes_after_the_caps_are_reached() -> None:
    """A flood of output must not take away the reason why the cell ended."""
    limiter = OutputLimiter(OutputCaps(text=1000, data=1000))
    admit(limiter, stream("a" * 2000), display("b" * 2000))
    question = KernelEvent("input_request", {"prompt": "?", "password": False})
    begun = KernelEvent("started", {"execution_count": 1, "code": "c" * 9000})

    assert admit(limiter, error("line"), question, begun) == [error("line"), question, begun]


def test_a_huge_traceback_keeps_its_end() -> None:
    limiter = OutputLimiter(OutputCaps(text=1000))

    (cut,) = admit(limiter, error(*["frame" * 20] * 100, "the end", ename="ValueError", evalue="why"))

    assert (cut.content["ename"], cut.content["evalue"]) == ("ValueError", "why")
    assert is_marker(KernelEvent("", {"line": cut.content["traceback"][0]}))
    assert cut.content["traceback"][1] == "frame" * 20
    assert cut.content["traceback"][-1] == "the end"
    assert limiter.truncated


def test_a_value_beyond_the_cap_is_cut_too() -> None:
    limiter = OutputLimiter(OutputCaps(text=1000))

    (cut,) = admit(limiter, error("line" * 900, evalue="é" * 5000))

    assert cut.content["evalue"] == "é" * 499
    assert len(cut.content["traceback"]) == 1


def test_what_is_not_wanted_is_counted_without_decoding() -> None:
    limiter = OutputLimiter(OutputCaps(text=0, data=0))
    admit(limiter, stream("a"), display("b"))
    text_before, data_before = limiter.dropped_text, limiter.dropped_data

    limiter.drop("stream", 10_000)
    limiter.drop("execute_result", 20_000)

    assert limiter.dropped_text == text_before + 10_000
    assert limiter.dropped_data == data_before + 20_000


@pytest.mark.parametrize(
    "last",
    [
        [update("z" * 100_000, "i")],
        [display("z" * 100_000, "i")],
        [clear(wait=True), update("z" * 100_000, "i")],
    ],
)
def test_an_event_counts_for_every_output_it_rewrites(last: list[KernelEvent]) -> None:
    """Else a thousand tiny displays and one large update would make a notebook of gigabytes."""
    limiter = OutputLimiter(OutputCaps(data=1_000_000))
    shows = [display(".", "i")] * 50

    passed = admit(limiter, *shows, *last)

    assert passed[:-1] == [*shows, *last[:-1]]
    assert is_marker(passed[-1])


def test_updates_of_one_display_cost_no_more_than_themselves() -> None:
    limiter = OutputLimiter(OutputCaps(data=200 * LEAST_COST))
    frames = [
        event for _ in range(90) for event in (clear(wait=True), display("frame", "i"), update("f", "i"))
    ]

    assert admit(limiter, *frames) == frames


ids = st.sampled_from([None, "i", "j"])
texts = st.text(st.sampled_from("aé€\n\r"), max_size=300)
any_event = st.one_of(
    st.builds(stream, texts, st.sampled_from(["stdout", "stderr"])),
    st.builds(display, texts, ids, st.sampled_from(["display_data", "execute_result"])),
    st.builds(update, texts, st.sampled_from(["i", "j"])),
    st.builds(clear, wait=st.booleans()),
    st.builds(lambda lines: error(*lines), st.lists(texts, max_size=3)),
)


@examples(200)
@given(st.lists(any_event, max_size=30), st.integers(0, 1500), st.integers(0, 3000))
def test_no_sequence_of_events_gets_beyond_the_caps(
    events: list[KernelEvent], text_cap: int, data_cap: int
) -> None:
    limiter = OutputLimiter(OutputCaps(text=text_cap, data=data_cap))

    passed = admit(limiter, *events)

    kept = [event for event in passed if not is_marker(event)]
    assert len(passed) - len(kept) <= 3
    assert sum(len(e.content["text"].encode()) for e in kept if e.type == "stream") <= text_cap
    assert len(kept) <= 2 * text_cap / LEAST_COST + data_cap / LEAST_COST + 1
    bundles = [o["data"] for o in fold(*passed) if "data" in o]
    assert len(b"".join(msgspec.json.encode(b) for b in bundles if "[cellgate:" not in str(b))) <= data_cap
    if not limiter.truncated:
        assert passed == events
        assert limiter.dropped_text == limiter.dropped_data == 0
