"""What a kernel keeps of its text, as its file is read when it has died; and forged files."""

from __future__ import annotations

import copy
import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellgate_kernels.inside import keeper
from cellgate_kernels.inside import unsent as kept
from cellgate_kernels.protocol.unsent import (
    FILES_BYTES,
    HALF,
    MOST_TEXTS,
    REST,
    SUFFIX,
    LastText,
    LastWords,
    read_last_words,
)


class Writer:
    """A kernel that prints, for one request at a time, and sends what it printed."""

    def __init__(self, folder: Path) -> None:
        self.prefix = str(folder / "k")
        self.file = kept.Unsent(self.prefix, pack)
        self.parent: dict[str, str] = {}
        self.begin("cell")

    def begin(self, cell: str) -> None:
        """Begin a cell."""
        self.parent = {"msg_id": cell, "msg_type": "execute_request"}
        self.file.begin_cell(self.parent)

    def print(self, text: str, name: str = "stdout") -> None:
        """Write to a stream."""
        self.file.keep(name, self.parent, text)

    def send(self, msg_id: str, name: str = "stdout") -> None:
        """Send all that was written to a stream."""
        self.file.take(name)
        self.sent(msg_id, name)

    def sent(self, msg_id: str, name: str = "stdout") -> None:
        """Send what was taken of a stream."""
        message = {
            "header": {"msg_id": msg_id},
            "parent_header": self.parent,
            "content": {"name": name, "text": ""},
        }
        self.file.sent(message)

    def left(self, *received: str) -> list[tuple[str, str]]:
        """The streams and texts that are read, when these messages were received."""
        return [(each.name, each.text) for each in self.words(*received).unsent]

    def words(self, *received: str) -> LastWords:
        """What is read, when these messages were received."""
        return read_last_words(self.prefix, frozenset(received))


def pack(header: Mapping[str, Any]) -> bytes:
    """A header as JSON."""
    return json.dumps(header).encode()


@pytest.fixture
def kernel(tmp_path: Path) -> Writer:
    """A kernel in its first cell."""
    return Writer(tmp_path)


def test_text_counts_as_sent_once_its_message_was_received(kernel: Writer) -> None:
    kernel.print("one ")
    kernel.print("two\n")
    assert kernel.left() == [("stdout", "one two\n")]
    kernel.send("m_1")
    assert kernel.left() == [("stdout", "one two\n")]
    assert kernel.left("m_1") == []
    kernel.print("three\n")
    kernel.send("m_2")
    assert kernel.left("m_1") == [("stdout", "three\n")]
    # Messages come in order: with a later one the earlier ones have come.
    assert kernel.left("m_2") == []


def test_what_is_written_between_taking_and_sending_is_not_sent(kernel: Writer) -> None:
    kernel.print("one\n")
    kernel.file.take("stdout")
    kernel.print("two\n")
    kernel.sent("m_1")
    assert kernel.left("m_1") == [("stdout", "two\n")]


def test_streams_are_told_in_the_order_in_which_they_were_written_to(kernel: Writer) -> None:
    kernel.print("a\n")
    kernel.print("b\n", "stderr")
    kernel.print("c\n")
    assert kernel.left() == [("stdout", "a\n"), ("stderr", "b\n"), ("stdout", "c\n")]
    kernel.send("m_1", "stderr")
    assert kernel.left("m_1") == [("stdout", "a\nc\n")]


def test_cells_are_told_apart(kernel: Writer) -> None:
    kernel.print("first\n")
    first = pack(kernel.parent)
    kernel.begin("other")
    kernel.print("second\n")
    kernel.send("m_1")
    assert kernel.words("m_1") == LastWords((LastText("stdout", first, "first\n"),), complete=True)


def test_the_end_of_a_long_text_is_kept_and_what_is_missing_is_told(kernel: Writer) -> None:
    lines = [f"{number}\n" for number in range(200_000)]
    for line in lines:
        kernel.print(line)
    found = kernel.words()
    text = found.unsent[0].text
    assert HALF / 4 < len(text) < 2 * HALF
    assert "".join(lines).endswith(text)
    assert not found.complete
    kernel.send("m_1")
    kernel.print("end\n")
    end = LastText("stdout", pack(kernel.parent), "end\n")
    assert kernel.words("m_1") == LastWords((end,), complete=True)


def test_a_text_longer_than_the_file_is_kept_by_its_end(kernel: Writer) -> None:
    kernel.print("é" * 1_000_000 + "end")
    [(_, text)] = kernel.left()
    assert text.endswith("éééend")
    assert len(text.encode()) > HALF


def test_halves_of_letters_are_words(kernel: Writer) -> None:
    kernel.print("a\ud800b")
    assert kernel.left() == [("stdout", "a\\ud800b")]


def test_what_was_left_in_the_pipes_is_the_last_cells(kernel: Writer) -> None:
    kernel.print("printed\n")
    kernel.send("m_1")
    out, err = b"from C\n", b"fault \xff\n"
    Path(kernel.prefix + REST).write_bytes(bytes([0, 0, 0, len(out), 0, 0, 0, len(err)]) + out + err)
    assert kernel.left("m_1") == [("stdout", "from C\n"), ("stderr", "fault \ufffd\n")]
    assert kernel.words("m_1").complete


def test_the_keeper_reads_pipes_that_were_made_larger(kernel: Writer) -> None:
    kernel.print("printed\n")
    kernel.send("m_1")
    reader, writer = os.pipe()
    try:
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, keeper.PIPE_BYTES)
        os.write(writer, b"a" * 3 * keeper.REST_BYTES + b"end")
        rest = keeper.read_rest(reader)
    finally:
        os.close(writer)
    assert len(rest) == 3 * keeper.REST_BYTES + 3
    kept_of_it = rest[-keeper.REST_BYTES :]
    Path(kernel.prefix + REST).write_bytes(len(rest).to_bytes(4, "big") + bytes(4) + kept_of_it)
    words = kernel.words("m_1")
    assert [(each.name, each.text) for each in words.unsent] == [("stdout", kept_of_it.decode())]
    assert not words.complete


def test_of_texts_without_number_the_last_are_read(kernel: Writer) -> None:
    """A kernel that writes one letter to each stream in turn, and one that says so without having done it."""
    for number in range(MOST_TEXTS):
        kernel.print(chr(97 + number % 26), ("stdout", "stderr")[number % 2])
    words = kernel.words()
    assert len(words.unsent) == MOST_TEXTS
    assert words.complete
    kernel.print("1")
    kernel.print("2", "stderr")
    words = kernel.words()
    assert [each.text for each in words.unsent[-2:]] == ["1", "2"]
    assert len(words.unsent) == MOST_TEXTS
    assert not words.complete


def test_nothing_is_known_of_a_kernel_that_kept_nothing(kernel: Writer) -> None:
    assert kernel.words() == LastWords((), complete=True)
    Path(kernel.prefix + SUFFIX).unlink()
    assert kernel.words() == LastWords((), complete=False)


def test_both_files_fit_into_what_is_allowed_for_them(kernel: Writer) -> None:
    assert Path(kernel.prefix + SUFFIX).stat().st_size + 8 + 2 * 65536 <= FILES_BYTES
    assert kept.HALF == HALF
    assert kept.SUFFIX == SUFFIX


def test_a_fork_sees_whether_its_request_is_the_latest(kernel: Writer) -> None:
    kernel.file.count_request()
    fork = copy.copy(kernel.file)
    assert fork.is_of_latest_request()
    kernel.file.count_request()
    assert not fork.is_of_latest_request()


def test_a_kernel_without_a_place_for_it_prints_all_the_same(tmp_path: Path) -> None:
    kernel = Writer(tmp_path / "nowhere")
    kernel.file.count_request()
    assert not kernel.file.is_of_latest_request()
    kernel.print("text")
    kernel.send("m_1")
    assert kernel.left() == []


def test_a_file_is_read_only_if_it_is_one(kernel: Writer) -> None:
    kernel.print("text")
    path = Path(kernel.prefix + SUFFIX)
    path.rename(path.with_name("other"))
    path.symlink_to("other")
    assert kernel.left() == []
    path.unlink()
    os.mkfifo(path)
    assert kernel.left() == []


@given(data=st.binary(max_size=400), at=st.integers(0, 300), rest=st.binary(max_size=60))
def test_forged_files_are_read_as_far_as_they_make_sense(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, at: int, rest: bytes
) -> None:
    kernel = Writer(tmp_path_factory.mktemp("forged"))
    kernel.print("text\n")
    kernel.send("m_1")
    path = Path(kernel.prefix + SUFFIX)
    good = path.read_bytes()
    path.write_bytes(good[:at] + data)
    Path(kernel.prefix + REST).write_bytes(rest)
    for each in kernel.words("m_1").unsent:
        assert each.name in ("stdout", "stderr")
        assert len(each.text) <= len(data) + len(good)
