"""The kernel's spool of messages: written by the image's bootstrap, read by the gateway that adopts."""

from __future__ import annotations

import importlib.util
import os
import uuid
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from jupyter_client.session import Session

from cellgate_kernels.channels.spool import SEGMENT_BYTES, SEGMENTS, Undelivered, read_spool, undelivered
from cellgate_kernels.protocol.messages import Channel, Message

BOOTSTRAP = Path(__file__).parents[3] / "kernels" / "cellgate_kernels" / "inside" / "bootstrap.py"
KEY = b"a key of tests"


@pytest.fixture(scope="module")
def bootstrap() -> ModuleType:
    spec = importlib.util.spec_from_file_location("cellgate_bootstrap", BOOTSTRAP)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Writer:
    """Says things as a kernel does in the name of one cell."""

    def __init__(self, spool: Any) -> None:
        self.spool = spool
        self.session: Any = Session(key=KEY)
        self.cell = {"msg_id": uuid.uuid4().hex, "msg_type": "execute_request"}

    def say(self, kind: str, **content: object) -> None:
        message = self.session.msg(kind, content=content, parent={"header": self.cell})
        self.spool.append(message, self.session.serialize(message))

    def close(self) -> None:
        self.spool.close()


def test_what_was_written_is_read_in_order(bootstrap: ModuleType, tmp_path: Path) -> None:
    writer = Writer(bootstrap.Spool(tmp_path))
    writer.say("status", execution_state="busy")
    writer.say("execute_input", code="1", execution_count=1)
    writer.say("stream", name="stdout", text="one")
    writer.say("comm_msg", data={})
    writer.say("input_request", prompt="?")
    writer.say("execute_reply", status="ok")
    writer.close()
    read = read_spool(tmp_path, KEY)
    assert [(entry.before, entry.message.channel, entry.message.msg_type) for entry in read] == [
        (0, Channel.IOPUB, "status"),
        (0, Channel.IOPUB, "execute_input"),
        (1, Channel.IOPUB, "stream"),
        (2, Channel.STDIN, "input_request"),
        (3, Channel.SHELL, "execute_reply"),
    ]
    assert {entry.message.parent.msg_id for entry in read} == {writer.cell["msg_id"]}
    assert read_spool(tmp_path, b"another key") == []


def test_a_ring_keeps_the_latest_within_its_bound(bootstrap: ModuleType, tmp_path: Path) -> None:
    writer = Writer(bootstrap.Spool(tmp_path))
    for number in range(60):
        writer.say("stream", name="stdout", text=str(number).ljust(500_000))
    writer.say("stream", name="stdout", text="x" * SEGMENT_BYTES)
    writer.say("stream", name="stdout", text="last")
    writer.close()
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= SEGMENTS * SEGMENT_BYTES
    numbers = [entry.before for entry in read_spool(tmp_path, KEY)]
    assert numbers == [*range(numbers[0], 60), 61], "what is too large is left out, and counted"
    assert 20 < numbers[0] < 40


def test_a_full_disk_breaks_nothing(bootstrap: ModuleType, tmp_path: Path) -> None:
    writer = Writer(bootstrap.Spool(tmp_path))
    writer.say("stream", name="stdout", text="before")
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, writer.spool.file)
    os.close(full)
    writer.say("stream", name="stdout", text="lost")
    writer.say("stream", name="stdout", text="after")
    writer.close()
    assert [entry.before for entry in read_spool(tmp_path, KEY)] == [0, 2]


def test_half_an_entry_ends_its_file_only(bootstrap: ModuleType, tmp_path: Path) -> None:
    writer = Writer(bootstrap.Spool(tmp_path))
    writer.say("stream", name="stdout", text="whole")
    writer.say("stream", name="stdout", text="half")
    (file,) = tmp_path.iterdir()
    os.truncate(file, file.stat().st_size - 1)
    writer.close()
    writer.say("stream", name="stdout", text="next")
    writer.close()
    assert [entry.before for entry in read_spool(tmp_path, KEY)] == [0, 2]


def test_a_folder_that_is_gone_breaks_nothing(bootstrap: ModuleType, tmp_path: Path) -> None:
    writer = Writer(bootstrap.Spool(tmp_path / "nothing"))
    writer.say("stream", name="stdout", text="x")
    assert read_spool(tmp_path / "nothing", KEY) == []


def ids(messages: Iterable[Message]) -> list[str]:
    """The ids of messages."""
    return [message.header.msg_id for message in messages]


def test_what_was_on_its_way_at_a_death_is_found(bootstrap: ModuleType, tmp_path: Path) -> None:
    writer = Writer(bootstrap.Spool(tmp_path))
    writer.say("status", execution_state="busy")
    writer.say("stream", name="stdout", text="received")
    writer.say("display_data", data={"text/plain": "on its way"}, metadata={}, transient={})
    writer.say("execute_reply", status="ok")
    writer.say("stream", name="stdout", text="sent before it")
    writer.close()
    sent = ids(entry.message for entry in read_spool(tmp_path, KEY))
    found = undelivered(tmp_path, KEY, [*sent[:2], sent[4]], 10)
    assert (ids(found.messages), found.complete) == ([sent[2]], True)
    # Of a kernel that has died at once nothing was received.
    assert ids(undelivered(tmp_path, KEY, [], 10).messages) == [sent[1], sent[2], sent[4]]
    assert undelivered(tmp_path / "no spool", KEY, sent, 10) == Undelivered((), complete=True)


def test_what_was_received_long_ago_is_not_on_its_way(bootstrap: ModuleType, tmp_path: Path) -> None:
    writer = Writer(bootstrap.Spool(tmp_path))
    for number in range(30):
        writer.say("stream", name="stdout", text=str(number))
    writer.close()
    sent = ids(entry.message for entry in read_spool(tmp_path, KEY))
    # As many as are remembered, so there were more.
    assert ids(undelivered(tmp_path, KEY, sent[10:20], 10).messages) == sent[20:]
    # None of them is in the ring any more: what came after them is not known.
    found = undelivered(tmp_path, KEY, [f"earlier_{number}" for number in range(10)], 10)
    assert (ids(found.messages), found.complete) == (sent, False)
