"""Which replies of kernels tell of a file that a session lacks, and what is said then."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import structs

from cellgate.channels.missing_files import MOST_BYTES, MOST_NAMES, MissingFiles
from cellgate_kernels.protocol.messages import Channel, Message, new_message

ERROR = "[Errno 2] No such file or directory: "


def reply(evalue: Any = f"{ERROR}'data.csv'", **changes: Any) -> Message:
    content = {"status": "error", "ename": "FileNotFoundError", "evalue": evalue, "traceback": []} | changes
    return new_message(Channel.SHELL, "execute_reply", content, session="s")


def test_each_name_is_told_once_and_not_too_many() -> None:
    missing = MissingFiles("key")
    told = missing.line(reply())
    assert told is not None
    assert "`cellgate files put key data.csv`" in told
    assert told.count("\n") == 1
    assert missing.line(reply()) is None
    names = [f"{number}.csv" for number in range(MOST_NAMES)]
    lines = [missing.line(reply(f"{ERROR}'{name}'")) for name in names]
    assert [line is not None for line in lines] == [True] * (MOST_NAMES - 1) + [False]


@pytest.mark.parametrize(
    "evalue",
    [
        f"{ERROR}'/data.csv'",
        f"{ERROR}'../data.csv'",
        f"{ERROR}'a/../../data.csv'",
        f"{ERROR}'~/data.csv'",
        f"{ERROR}'-data.csv'",
        f"{ERROR}'git'",
        f"{ERROR}'.netrc'",
        f"{ERROR}''",
        f"{ERROR}'{'n' * 300}.csv'",
        f"{ERROR}'a\nb.csv'",
        f"{ERROR}'a\x1b[2Jb.csv'",
        f"{ERROR}'a\u202eb.csv'",
        f"{ERROR}'a.csv' -> 'b.csv'",
        f"see {ERROR}'data.csv'",
        "data.csv",
        "",
        7,
        None,
        ["a"],
    ],
)
def test_no_other_name_is_told(evalue: object) -> None:
    assert MissingFiles("key").line(reply(evalue)) is None


@pytest.mark.parametrize(
    "changes", [{"status": "ok"}, {"status": "aborted"}, {"status": 1}, {"ename": "OSError"}, {"ename": None}]
)
def test_only_a_file_not_found_error_ends_a_cell_so(changes: dict[str, object]) -> None:
    assert MissingFiles("key").line(reply(**changes)) is None


def test_what_is_no_reply_or_too_much_is_not_read() -> None:
    missing = MissingFiles("key")
    deep = b'{"FileNotFoundError":' + b"[" * 100_000
    wide = json.dumps({"status": "error", "traceback": ["FileNotFoundError" * MOST_BYTES]}).encode()
    for content in (b"", b"FileNotFoundError", b"\xff FileNotFoundError", deep, wide):
        assert missing.line(structs.replace(reply(), content_frame=content)) is None
    assert missing.line(structs.replace(reply(), unread=True)) is None
    assert missing.line(reply()) is not None


def test_words_of_the_command_are_quoted() -> None:
    told = MissingFiles("key").line(reply(f"{ERROR}'./in put/$(x).csv'"))
    assert told is not None
    assert "`cellgate files put key 'in put/$(x).csv' 'in put/$(x).csv'`" in told
