"""``cellgate console`` in a pseudo-terminal: what a user types and sees, and what is recorded of it."""

from __future__ import annotations

import base64
import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cellgate.cli.terminal.guard import RESET, Guard, Outlet
from tests.support.server import TOKEN, GatewayProcess
from tests.support.terminal import Terminal

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
CONTROL_C, CONTROL_D, UP, TAB, ENTER = "\x03", "\x04", "\x1b[A", "\t", "\r"


@pytest.fixture
def console(gateway: GatewayProcess, session: str, tmp_path: Path) -> Iterator[Terminal]:
    """A console for `session` that shows its prompt."""
    with start(gateway, session, tmp_path) as terminal:
        terminal.until(f"{session}>")
        yield terminal
        terminal.send(CONTROL_D)
        assert terminal.ended() == 0


def start(gateway: GatewayProcess, session: str, folder: Path, *words: str) -> Terminal:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CELLGATE_")}
    environment |= {"CELLGATE_URL": gateway.url, "CELLGATE_TOKEN": TOKEN}
    command = str(Path(sys.executable).with_name("cellgate"))
    return Terminal([command, "console", session, *words], folder, environment)


def codes(gateway: GatewayProcess, session: str) -> list[str]:
    return [event["code"] for event in gateway.recorded(session) if event["type"] == "started"]


def test_entries_are_cells_of_the_session_and_the_kernel_says_when_they_are_complete(
    gateway: GatewayProcess, session: str, console: Terminal
) -> None:
    # All of it typed before any answer: nothing is lost on the way.
    console.send("x = 20\rfor i in range(2):\rprint('line', x + i)\r\rx * 2\r")
    console.until("line 20\r\nline 21\r\n")
    console.until(r"Out\[3\]: 40\r\n")
    console.send("%%bash\recho from $((6 * 7))\r\r")
    console.until("from 42\r\n")
    console.until(f"{session}>")
    assert codes(gateway, session) == [
        "x = 20",
        "for i in range(2):\n    print('line', x + i)",
        "x * 2",
        "%%bash\necho from $((6 * 7))",
    ]
    # Up goes through the two lines of the latest entry to the one before.
    console.send(UP * 3 + ENTER)
    console.until(r"Out\[5\]: 40\r\n")


def test_help_is_shown(console: Terminal) -> None:
    console.send("len?\r")
    console.until("Return the number of items in a container.")


def test_the_kernel_completes(console: Terminal, session: str) -> None:
    console.send("a_long_name_of_mine = 'found'; print(6 * 7)\r")
    console.until("42\r\n")
    console.send("a_long_na" + TAB)
    console.until("me_of_mine")
    console.send(ENTER)
    console.until(r"Out\[2\]: 'found'\r\n")


def test_colours_errors_and_bars_are_shown_and_nothing_else_of_the_terminal_is_touched(
    console: Terminal, session: str
) -> None:
    console.send("1 / 0\r")
    console.until("ZeroDivisionError.*division by zero\r\n")
    assert b"\x1b[31mZeroDivisionError" in console.raw
    console.until(f"{session}>")
    console.send(r"print('a\rb\x1b[32mgreen\x1b[0m\x1b]0;title\x07\x1b[2Jend')" + "\r")
    console.until("greenend\r\n")
    assert b"a\rb\x1b[32mgreen\x1b[0mend" in console.raw
    # prompt_toolkit may send it, a cell's does not arrive.
    assert b"\x1b]0;title" not in console.raw


def test_input_is_asked_for_and_a_password_is_not_shown(console: Terminal, session: str) -> None:
    console.send("name = input('who? ')\r")
    console.until(r"who\? ")
    console.send("Ada\r")
    console.until(f"{session}>")
    console.send("import getpass; word = getpass.getpass('word: ')\r")
    console.until("word: ")
    console.send("secret-of-mine\r")
    console.until(f"{session}>")
    console.send("name, len(word)\r")
    console.until(r"Out\[3\]: \('Ada', 14\)\r\n")
    assert b"secret-of-mine" not in console.raw
    console.send("input('left' + ' alone')\r")
    console.until("left alone")
    console.send(CONTROL_D)
    console.until("KeyboardInterrupt")


def test_control_c_interrupts_the_cell_and_its_kernel_stays(console: Terminal, session: str) -> None:
    console.send("print('on', y := 1, flush=True)\x1b\rwhile True: y += 1\r\r")
    console.until("on 1\r\n")
    console.send(CONTROL_C)
    console.until("KeyboardInterrupt")
    console.until(f"{session}>")
    # At the prompt it only drops the entry.
    console.send("half" + CONTROL_C)
    console.until(f"{session}>")
    console.send("y >= 1\r")
    console.until(r"Out\[\d+\]: True\r\n")


def test_pictures_become_files(console: Terminal, session: str, tmp_path: Path) -> None:
    console.send(f"display({{'image/png': '{PNG}', 'text/plain': '<a picture>'}}, raw=True)\r")
    console.until(rf"\[image/png 1x1 saved: {session}-images/1-1.png\]\r\n")
    assert (tmp_path / f"{session}-images" / "1-1.png").read_bytes() == base64.b64decode(PNG)


def test_the_session_stays_and_its_record_is_the_history(
    gateway: GatewayProcess, session: str, tmp_path: Path
) -> None:
    with start(gateway, session, tmp_path) as first:
        first.until(f"{session}>")
        first.send("kept = 7\rexit\r")
        assert first.ended() == 0
    gateway.execute(session, "kept + 1")
    with start(gateway, session, tmp_path) as second:
        second.until(f"{session}>")
        second.send(UP + ENTER)
        second.until(r"Out\[3\]: 8\r\n")
        second.send("quit()\r")
        assert second.ended() == 0
    assert gateway.model(session)["state"] == "idle"


def test_undo_takes_back_the_last_cell_and_is_none_itself(
    gateway: GatewayProcess, session: str, tmp_path: Path
) -> None:
    with start(gateway, session, tmp_path, "--checkpoints") as terminal:
        terminal.until(f"{session}>")
        terminal.send("x = 1\r")
        terminal.until(f"{session}>")
        terminal.send("x = 2\r")
        terminal.until(f"{session}>")
        terminal.send("%undo\r")
        terminal.until("undone: 1 cell; variables and files are as at the checkpoint auto-1")
        terminal.send("x + 41\r")
        terminal.until(r"Out\[2\]: 42\r\n")
        terminal.send(CONTROL_D)
        assert terminal.ended() == 0
    assert codes(gateway, session) == ["x = 1", "x = 2", "x + 41"]


def test_what_can_not_be_undone_is_said(session: str, console: Terminal) -> None:
    console.send("x = 1\r")
    console.until(f"{session}>")
    console.send(" %undo \r")
    console.until("not_found: The session has no checkpoint")
    console.until(f"{session}>")


def test_a_console_needs_a_terminal(gateway: GatewayProcess, session: str, tmp_path: Path) -> None:
    words = [str(Path(sys.executable).with_name("cellgate")), "console", session, "--url", gateway.url]
    with Terminal(["sh", "-c", '"$@" < /dev/null', "sh", *words], tmp_path, dict(os.environ)) as terminal:
        terminal.until("cellgate: console needs a terminal; use cellgate exec")
        assert terminal.ended() == 2


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("plain\ttext\r\n", "plain\ttext\r\n"),
        ("\x1b[1;31mred\x1b[0m\x1b[K", "\x1b[1;31mred\x1b[0m\x1b[K"),
        ("\x1b[2J\x1b[H\x1b[5Dx\x1b[?25l\x1bc", "x"),
        ("\x1b]0;title\x07a\x1b]8;;http://x\x1b\\b\x1bPq#0\x1b\\c", "abc"),
        ("\x07\x9b31m\x00bell", "31mbell"),
        ("\x1b[3Aup", "up"),
        ("a\nb\n\x1b[9Aup\x1b[A", "a\nb\n\x1b[2Aup"),
        ("\x1b[99999999999Aup", "up"),
        ("back\b\bup", "back\b\bup"),
        ("\x1b(0lines\x1b)B\x1b%G", "lines"),
    ],
)
def test_which_control_sequences_a_cell_may_send(given: str, shown: str) -> None:
    assert Guard().feed(given) == shown
    piecewise = Guard()
    assert "".join(piecewise.feed(character) for character in given) == shown


@pytest.mark.parametrize("begun", ["\x1b]8;;", "\x1bP", "\x1b[31", "\x1b_G", "\x1b"])
def test_what_follows_a_sequence_without_end_is_shown(begun: str) -> None:
    text = f"open {begun}\nclosed\nLAST\n"
    shown = Guard().whole(text)
    assert "\x1b" not in shown
    assert shown.endswith("closed\nLAST\n")
    stream = io.StringIO()
    stream.isatty = lambda: True  # type: ignore[method-assign]
    outlet = Outlet(stream)
    for character in text:
        outlet.write(character)
    outlet.end()
    assert stream.getvalue().removesuffix(RESET) == shown


def test_a_sequence_without_end_is_not_kept_for_ever() -> None:
    guard = Guard()
    fed = "".join(guard.feed("\x1b]" + "x" * 5000) for _ in range(3))
    assert "\x1b" not in fed
    assert len(guard._rest) < 20_000
