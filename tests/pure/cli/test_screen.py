"""What a run shows: outputs as text, plain lines for logs, and a bar that a cell's output can't spoil."""

from __future__ import annotations

import base64
import io
import re
import struct
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from cellgate.cli.terminal.images import Handling, Pictures
from cellgate.cli.terminal.live_screen import Live, make_screen
from cellgate.cli.terminal.screen import Plain, Seen, describe, describe_data, summary
from cellgate.client import (
    DisplayData,
    ErrorInfo,
    ErrorRaised,
    Event,
    ExecuteResult,
    Finished,
    KernelInfo,
    Started,
    Stream,
    UpdateDisplayData,
)

PNG = base64.b64encode(
    b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" + struct.pack(">II", 640, 480) + b"\x08"
).decode()

DESCRIBED = Pictures(Handling.NONE, Path("nowhere"), None)


def event(kind: type[Event], **fields: Any) -> Any:
    return kind(seq=1, session="s", type=kind.__name__, **fields)


def stream(text: str, name: str = "stdout") -> Any:
    return event(Stream, text=text, name=name)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ({"image/png": PNG, "text/plain": "<Figure>"}, "[image/png 640x480]"),
        ({"image/png": PNG[:20] + "\n" + PNG[20:]}, "[image/png 640x480]"),
        ({"image/png": "aGk="}, "[image/png 1 KB]"),
        ({"image/jpeg": "x" * 4096}, "[image/jpeg 3 KB]"),
        ({"image/svg+xml": "<svg/>" * 1000}, "[image/svg+xml 6 KB]"),
        ({"text/html": "<table>", "text/plain": "a  b"}, "a  b"),
        ({"application/json": {"a": 1}}, '{"a":1}'),
        ({"application/x": "a"}, "[application/x]"),
        ({"text/markdown": "# a", "text/plain": "<IPython.core.display.Markdown object>"}, "# a"),
        ({}, ""),
    ],
)
def test_a_mime_bundle_in_one_line_or_as_its_plain_text(data: dict[str, Any], text: str) -> None:
    assert describe_data(data) == text


def test_which_events_show_something() -> None:
    assert describe(event(ExecuteResult, data={"text/plain": "2"})) == "2"
    assert describe(event(DisplayData, data={"text/plain": "shown"})) == "shown"
    assert describe(event(UpdateDisplayData, data={"text/plain": "again"})) == ""
    assert describe(event(ErrorRaised, ename="E", evalue="v", traceback=["a", "b"])) == "a\nb"
    assert describe(event(ErrorRaised, ename="E", evalue="v")) == "E: v"
    assert describe(event(Finished)) == ""


def test_how_a_cell_ended() -> None:
    assert summary(event(Finished, status="ok", duration_ms=1234.5)) == "ok 1.23 s"
    ended = event(
        Finished, status="timeout", cause="cell_timeout", truncated=True, kernel=KernelInfo(replaced=True)
    )
    assert summary(ended) == "timeout (cell_timeout) output cut"


def test_a_remark_says_why_a_cell_ended_unless_its_output_does() -> None:
    died = event(
        Finished,
        status="died",
        cause="kernel_exit",
        error=ErrorInfo(ename="KernelDied", evalue="The kernel was ended by \x1b[31mSIGSEGV."),
    )
    seen = Seen()
    assert [*seen.remarks(died)] == ["This cell did not run (kernel_exit)."]
    seen.event(event(Started))
    assert [*seen.remarks(died)] == ["KernelDied: The kernel was ended by SIGSEGV."]
    stopped = event(Finished, status="interrupted", cause="interrupt_requested")
    assert [*seen.remarks(stopped)] == ["This cell was ended early: interrupted (interrupt_requested)."]
    seen.event(event(ErrorRaised, ename="KeyboardInterrupt"))
    assert [*seen.remarks(stopped)] == []
    late = event(Finished, status="timeout", cause="cell_timeout", timeout=0.25)
    assert [*seen.remarks(late)] == ["The cell ran longer than 0.25 s; its output until then is above."]


def test_plain_output_goes_where_it_came_from(capsys: pytest.CaptureFixture[str]) -> None:
    with Plain(2, DESCRIBED) as screen:
        screen.begin(1, "code")
        screen.event(stream("a\nb"))
        screen.event(stream("warned\n", "stderr"))
        screen.event(stream("c"))
        screen.event(event(ExecuteResult, data={"text/plain": "\x1b[31m2\x1b[0m"}))
        screen.event(stream("open"))
        screen.end(1, event(Finished, status="ok", duration_ms=10.0))
        screen.event(stream("last"))
    captured = capsys.readouterr()
    assert captured.out == "a\nbc\n2\nopen\nlast\n"
    assert captured.err == "warned\n[1/2] ok 0.01 s\n"


class Terminal(io.StringIO):
    """A stream that is one, beside another that is not."""

    def isatty(self) -> bool:
        return True


EVIL = (
    "a\x1b]52;c;ZXZpbA==\x07b\x1b]0;title\x1b\\c\x1b[2J\x1b[H\x1b(0d\x9b2Je\x9d0;f\x1b[31mred\x1b]0;not ended"
)


@pytest.mark.parametrize(("terminal", "name"), [("stderr", "stderr"), ("stdout", "stdout")])
def test_a_cell_has_no_terminal_at_its_will_though_the_other_stream_goes_to_a_file(
    monkeypatch: pytest.MonkeyPatch, terminal: str, name: str
) -> None:
    streams = {"stdout": io.StringIO(), "stderr": io.StringIO(), terminal: Terminal()}
    for each, stream_ in streams.items():
        monkeypatch.setattr(f"sys.{each}", stream_)
    with make_screen(1, DESCRIBED) as screen:
        assert isinstance(screen, Plain)
        screen.begin(1, "code")
        for letter in EVIL:
            screen.event(stream(letter, name))
        screen.event(event(DisplayData, data={"text/plain": f"{EVIL}\n"}))
        screen.note(EVIL)
        screen.end(1, event(Finished, status="ok", duration_ms=10.0))
    shown = streams[terminal].getvalue()
    assert "abcd2Je0;f\x1b[31mred]0;not ended\x1b[0m\n" in shown
    assert re.sub(r"\x1b\[(?:31|0)m", "", shown).replace("\n", "").isprintable()
    if terminal == "stderr":
        assert "[1/1] ok 0.01 s\n" in shown
        assert r"a\x1b]52;c;" in shown, "a remark shows it"


def test_on_a_terminal_remarks_and_unfinished_lines_are_harmless_too() -> None:
    sent = io.StringIO()
    console = Console(
        file=sent, force_terminal=True, width=200, color_system="standard", legacy_windows=False
    )
    with Live(console, 1, DESCRIBED) as screen:
        screen.begin(1, EVIL)
        screen.event(stream(EVIL))
        screen.event(stream("\n" + EVIL))
        screen.note(EVIL)
    assert not re.search(r"\x07|[\x80-\x9f]|\x1b(?!\[[0-9;?]*+[mKAhl])", sent.getvalue())
    assert "\x1b[H" not in sent.getvalue()


def test_without_a_terminal_the_screen_is_plain() -> None:
    assert isinstance(make_screen(1, DESCRIBED), Plain)


def live(*texts: str) -> str:
    """What a terminal of 60 columns would have been sent, without the bar's own lines."""
    sent = io.StringIO()
    console = Console(file=sent, force_terminal=True, width=60, color_system="standard", legacy_windows=False)
    with Live(console, 3, DESCRIBED) as screen:
        screen.begin(1, "first line\nsecond")
        for text in texts:
            screen.event(stream(text))
        screen.end(1, event(Finished, status="error", duration_ms=10.0))
    return sent.getvalue()


def test_live_output_is_whole_lines_above_the_bar() -> None:
    text = live("one\ntw", "o\nthree")
    assert [part in text for part in ("one\n", "two\n", "three\n")] == [True] * 3
    assert "0/3" in text
    assert "[1/3] error 0.01 s" in text


def test_of_overwritten_text_the_last_state_stays() -> None:
    text = live("10%\r", "50%\r", "100%", "\r\n", "0%\rdone\n")
    lines = [line.strip() for line in text.replace("\x1b[2K", "\n").split("\n")]
    assert "100%" in lines
    assert "done" in lines
    assert "10%" not in lines


def test_a_cell_can_colour_but_not_repaint_the_terminal() -> None:
    text = live("\x1b[31mred\x1b[0m \x1b[2J\x1b]0;title\x07here\n")
    assert "\x1b[31mred" in text
    assert "\x1b[2J" not in text
    assert "\x1b]0;" not in text


def test_markup_in_output_is_text() -> None:
    assert "[bold]x[/nothing]" in live("[bold]x[/nothing]\n")


def test_a_long_line_without_end_is_not_held_back() -> None:
    assert live("x" * 20_000).count("x") > 19_990
