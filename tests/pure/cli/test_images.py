"""Pictures on terminals: which protocol is chosen, what is drawn, what is refused."""

from __future__ import annotations

import base64
import io
import re
import struct
import zlib
from pathlib import Path

import pytest
from PIL import Image

from cellgate.cli.terminal.images import Handling, Pictures, Protocol, draw, terminal_protocol, understood
from cellgate.cli.terminal.screen import present_data


def png(width: int = 3, height: int = 7, colour: str = "red") -> bytes:
    made = io.BytesIO()
    Image.new("RGB", (width, height), colour).save(made, "PNG")
    return made.getvalue()


@pytest.mark.parametrize(
    ("variables", "protocol"),
    [
        ({"TERM": "xterm-kitty"}, Protocol.KITTY),
        ({"TERM": "xterm-256color", "KITTY_WINDOW_ID": "1"}, Protocol.KITTY),
        ({"TERM": "xterm-256color", "TERM_PROGRAM": "ghostty"}, Protocol.KITTY),
        ({"TERM": "xterm-256color", "TERM_PROGRAM": "iTerm.app"}, Protocol.ITERM),
        ({"TERM": "xterm-256color", "LC_TERMINAL": "iTerm2"}, Protocol.ITERM),
        ({"TERM": "dumb", "KITTY_WINDOW_ID": "1"}, None),
        ({}, None),
    ],
)
def test_variables_tell_the_protocol(variables: dict[str, str], protocol: Protocol | None) -> None:
    assert terminal_protocol(variables) is protocol


@pytest.mark.parametrize(
    ("answer", "protocol"),
    [
        (b"\x1b_Gi=31;OK\x1b\\\x1b[?62;c", Protocol.KITTY),
        (b"\x1b_Gi=31;EINVAL:no\x1b\\\x1b[?62;4;6c", Protocol.SIXEL),
        (b"\x1b[?62;4;22c", Protocol.SIXEL),
        (b"\x1b[?4;6c", None),
        (b"\x1b[?64;14;24c", None),
        (b"", None),
    ],
)
def test_a_terminal_s_own_answer_tells_the_protocol(answer: bytes, protocol: Protocol | None) -> None:
    """In the answer to DA1 the first number is the terminal's kind; a 4 after it means sixel."""
    assert understood(answer) is protocol


def test_kitty_gets_a_picture_made_here_in_pieces() -> None:
    noise = Image.effect_noise((100, 100), 90)
    data = io.BytesIO()
    noise.save(data, "GIF")
    sequence = draw(data.getvalue(), Protocol.KITTY)
    pieces = re.findall(r"\x1b_G(a=T,f=100,q=2,)?m=([01]);([A-Za-z0-9+/=]+)\x1b\\", sequence)
    assert "".join(f"\x1b_G{head}m={more};{piece}\x1b\\" for head, more, piece in pieces) + "\n" == sequence
    assert [more for _, more, _ in pieces] == ["1"] * (len(pieces) - 1) + ["0"]
    assert all(len(piece) <= 4096 for *_, piece in pieces)
    shown = Image.open(io.BytesIO(base64.b64decode("".join(piece for *_, piece in pieces))))
    assert (shown.format, shown.size) == ("PNG", (100, 100))


def test_iterm_gets_a_picture_with_its_size() -> None:
    found = re.fullmatch(
        r"\x1b\]1337;File=inline=1;size=(\d+);preserveAspectRatio=1:([A-Za-z0-9+/=]+)\x07\n",
        draw(png(), Protocol.ITERM),
    )
    assert found is not None
    data = base64.b64decode(found[2])
    assert int(found[1]) == len(data)
    assert Image.open(io.BytesIO(data)).size == (3, 7)


def test_sixel_gets_each_colour_of_each_six_rows() -> None:
    two = Image.new("RGB", (8, 7), "white")
    two.paste("red", (0, 0, 8, 6))
    data = io.BytesIO()
    two.save(data, "PNG")
    sequence = draw(data.getvalue(), Protocol.SIXEL)
    head, body = re.fullmatch(r'\x1bP0;1;0q"1;1;8;7((?:#\d+;2;\d+;\d+;\d+)+)(.*)\x1b\\\n', sequence).groups()  # type: ignore[union-attr]
    colours = {text: number for number, text in re.findall(r"#(\d+);2;(\d+;\d+;\d+)", head)}
    # Six red rows are all six bits (63 + 63 is ~), the one white row below is the lowest (63 + 1 is @).
    assert body == f"#{colours['100;0;0']}!8~-#{colours['100;100;100']}!8@"


@pytest.mark.parametrize("protocol", list(Protocol))
def test_what_is_no_picture_or_a_bomb_is_not_drawn(protocol: Protocol) -> None:
    header = b"IHDR" + struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    bomb = png()[:12] + header + struct.pack(">I", zlib.crc32(header)) + png()[33:]
    for data in (b"", b"GIF89a", png()[:40], b"\x1b]0;evil\x07", bomb):
        assert draw(data, protocol) == ""


def test_what_is_not_shown_is_saved_and_no_file_is_replaced(tmp_path: Path) -> None:
    content = base64.b64encode(png()).decode()
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "4-1.png").write_text("mine")
    pictures = Pictures(Handling.SHOW, tmp_path / "figures", {"TERM": "dumb"})
    names = []
    for cell in (4, 4, 5):
        shown = present_data({"image/png": content, "text/plain": "<Figure>"}, pictures, cell)
        assert shown is not None
        assert shown.sequence == ""
        names.append(shown.note)
    assert names == [
        f"[image/png 3x7 saved: {tmp_path}/figures/{name}.png]" for name in ("4-2", "4-3", "5-1")
    ]
    assert (tmp_path / "figures" / "4-1.png").read_text() == "mine"
    assert (tmp_path / "figures" / "5-1.png").read_bytes() == png()


def test_nothing_is_written_where_pictures_are_only_described(tmp_path: Path) -> None:
    pictures = Pictures(Handling.NONE, tmp_path / "figures", None)
    content = base64.b64encode(png()).decode()
    shown = present_data({"image/png": content}, pictures, 1)
    assert shown is not None
    assert shown.note == "[image/png 3x7]"
    assert list(tmp_path.iterdir()) == []
