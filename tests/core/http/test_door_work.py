"""What takes long at the doors is done in threads, as for the gateway's own interface."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
import requests

from cellgate.doors import agentrun, dify, replit, terrarium
from cellgate.doors.base import DoorHandler, Ran, Script
from cellgate.doors.terrarium import TerrariumHandler
from cellgate.wire.answers import Result
from cellgate_kernels.base.resources import MIB
from cellgate_kernels.base.threads import ThreadLanes
from cellgate_kernels.codec.encoding import STEP
from tests.support.listening import listening
from tests.support.server import PATIENCE


class Returned(TerrariumHandler):
    """A script that leaves the files that it was given."""

    async def run_once(self, script: Script) -> Ran:
        return Ran(Result(session="s", execution="e", status="ok"), script.files)


class Watched:
    """The module base64, which notes the threads that it is called in."""

    def __init__(self) -> None:
        self.threads: list[int] = []

    def __getattr__(self, name: str) -> Any:
        self.threads.append(threading.get_ident())
        return getattr(base64, name)


async def answered(handler: type[DoorHandler], body: dict[str, Any]) -> requests.Response:
    """What a door's handler answers, with threads for what takes long."""
    lanes = ThreadLanes(1)
    try:
        async with listening({"/door": handler}, lanes=lanes) as (port, _):
            url = f"http://127.0.0.1:{port}/door"
            return await asyncio.to_thread(requests.post, url, json=body, timeout=PATIENCE)
    finally:
        lanes.close()
        lanes.cells.close()


def outcome(size: int) -> Result:
    outputs = [
        {"output_type": "stream", "name": "stdout", "text": "\x01" * size},
        {"output_type": "execute_result", "data": {"text/plain": "2"}, "metadata": {}},
    ]
    text = "\x01" * size + "2"
    return Result(session="s", execution="e", status="ok", outputs=outputs, stdout="\x01" * size, text=text)


@pytest.mark.parametrize(("size", "here"), [(100, True), (MIB, False)])
@pytest.mark.parametrize(
    ("module", "handler", "body", "told"),
    [
        (
            dify,
            dify.DifyRunHandler,
            {"language": "python3", "code": "1"},
            lambda it: it.json()["data"]["stdout"],
        ),
        (agentrun, agentrun.AgentRunHandler, {"code": "1"}, lambda a: a.json()["output"]),
        (replit, replit.ReplitHandler, {"code": "1", "files": {}}, lambda a: a.text),
    ],
)
async def test_a_large_answer_is_made_in_a_thread(
    monkeypatch: pytest.MonkeyPatch,
    module: Any,
    handler: type[DoorHandler],
    body: dict[str, Any],
    told: Callable[[requests.Response], str],
    size: int,
    here: bool,
) -> None:
    threads: list[int] = []
    made = module._answer

    def noted(*args: Any, **kwargs: Any) -> list[bytes]:
        threads.append(threading.get_ident())
        parts: list[bytes] = made(*args, **kwargs)
        assert max(map(len, parts)) <= 6 * STEP, "others have their turn between the steps"
        return parts

    async def run_once(*_: object) -> Ran:
        return Ran(outcome(size), {})

    monkeypatch.setattr(module, "_answer", noted)
    monkeypatch.setattr(handler, "run_once", run_once)
    answer = await answered(handler, body)
    assert told(answer) == "\x01" * size
    assert [thread == threading.get_ident() for thread in threads] == [here]


@pytest.mark.parametrize(("size", "here"), [(100, True), (MIB, False)])
async def test_large_files_of_terrarium_are_read_and_written_in_a_thread(
    monkeypatch: pytest.MonkeyPatch, size: int, here: bool
) -> None:
    watched = Watched()
    monkeypatch.setattr(terrarium, "base64", watched)
    data = base64.b64encode(bytes(size)).decode()
    body = {"code": "1", "files": [{"filename": "a.bin", "b64_data": data}]}
    answer = await answered(Returned, body)
    assert json.loads(answer.text)["output_files"] == [{"filename": "a.bin", "b64_data": data}]
    assert [thread == threading.get_ident() for thread in watched.threads] == [here, here]


@pytest.mark.parametrize(
    ("handler", "seconds"), [(agentrun.AgentRunHandler, 20), (TerrariumHandler, 25)], ids=["AgentRun", "Khoj"]
)
async def test_a_script_ends_before_its_client_gives_up(
    monkeypatch: pytest.MonkeyPatch, handler: type[DoorHandler], seconds: float
) -> None:
    asked: list[Script] = []

    async def run_once(_: DoorHandler, script: Script) -> Ran:
        asked.append(script)
        return Ran(Result(session="s", execution="e", status="timeout"), {})

    monkeypatch.setattr(handler, "run_once", run_once)
    await answered(handler, {"code": "1"})
    assert [script.timeout for script in asked] == [seconds]
