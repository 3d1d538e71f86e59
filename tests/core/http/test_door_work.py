"""What takes long at the doors is done in threads, as for the gateway's own interface."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from typing import Any

import pytest
import requests

from cellgate.doors import terrarium
from cellgate.doors.base import Ran, Script
from cellgate.doors.terrarium import TerrariumHandler
from cellgate.wire.answers import Result
from cellgate_kernels.limits import MIB
from cellgate_kernels.threads import ThreadLanes
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


@pytest.mark.parametrize(("size", "here"), [(100, True), (MIB, False)])
async def test_large_files_of_terrarium_are_read_and_written_in_a_thread(
    monkeypatch: pytest.MonkeyPatch, size: int, here: bool
) -> None:
    watched = Watched()
    monkeypatch.setattr(terrarium, "base64", watched)
    data = base64.b64encode(bytes(size)).decode()
    body = {"code": "1", "files": [{"filename": "a", "b64_data": data}]}
    lanes = ThreadLanes(1)
    try:
        async with listening({"/terrarium": Returned}, lanes=lanes) as (port, _):
            url = f"http://127.0.0.1:{port}/terrarium"
            answer = await asyncio.to_thread(requests.post, url, json=body, timeout=PATIENCE)
    finally:
        lanes.close()
        lanes.cells.close()
    assert json.loads(answer.text)["output_files"] == [{"filename": "a", "b64_data": data}]
    assert [thread == threading.get_ident() for thread in watched.threads] == [here, here]
