"""What programs around a model do with the client: results as data, files from anywhere, the wrong name."""

from __future__ import annotations

import base64
import io
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import pytest

from cellgate.client import Gateway, SyncGateway
from cellgate.integrations.openai import OpenAITools
from cellgate.integrations.tools import SessionTools
from cellgate_kernels.base.resources import MIB
from tests.support.server import TOKEN, GatewayProcess

PIXEL = (
    "from IPython.display import SVG, display; display(SVG('<svg xmlns=\"http://www.w3.org/2000/svg\"/>'))"
)


async def test_an_asynchronous_listener_is_awaited(gateway: GatewayProcess) -> None:
    told = []

    async def listen(event: Any) -> None:
        told.append(event.type)

    async with Gateway(gateway.url, TOKEN).session() as session:
        assert (await session.run("print(1)", on_event=listen)).text == "1\n"
    assert told[-1] == "finished"
    assert "stream" in told


async def test_a_session_s_events_so_far(gateway: GatewayProcess) -> None:
    async with Gateway(gateway.url, TOKEN).session() as session:
        # More than one page of the gateway's.
        await session.run("for i in range(300): print(i, flush=True) or __import__('time').sleep(0.002)")
        whole = [event.seq async for event in session.events(follow=False)]
        assert whole == list(range(1, whole[-1] + 1))
        assert [event.seq async for event in session.events(after=whole[-2], follow=False)] == whole[-1:]
        assert [event async for event in session.events(after=whole[-1], follow=False)] == []


def test_results_as_data(gateway: GatewayProcess) -> None:
    with Gateway.sync(gateway.url, TOKEN) as client, client.session() as session:
        result = session.run(PIXEL)
        found = result.to_dict()
        assert (found["status"], found["session"]) == ("ok", session.name)
        assert json.loads(result.to_json()) == found
        (picture,) = result.images
        assert base64.b64decode(picture.base64) == picture.data
        with pytest.raises(TypeError, match="must be a list of codes"):
            session.explore("x = 1")


def test_alternatives_are_a_sequence_of_results(gateway: GatewayProcess) -> None:
    with Gateway.sync(gateway.url, TOKEN) as client, client.session() as session:
        session.run("x = 1")
        found = session.explore(["x + 1", "1 / 0"])
        assert (len(found), [each.status for each in found]) == (2, ["ok", "error"])
        assert (found[0].text, found[-1].ok) == ("2", False)


def test_files_from_anywhere_under_any_name(gateway: GatewayProcess, tmp_path: Path) -> None:
    local = tmp_path / "a.bin"
    local.write_bytes(b"0123456789")
    with Gateway.sync(gateway.url, TOKEN) as client, client.session("files-from-anywhere") as session:
        session.open()
        with local.open("rb") as file:
            file.read(4)
            assert session.files.put("/workspace/rest", file).size == 6
        assert session.files.put("./memory", io.BytesIO(b"abc")).path == "memory"
        assert session.files.put("bytes", bytearray(b"xy")).size == 2
        assert session.files.get("/mnt/data/rest") == b"456789"
        with local.open() as text, pytest.raises(TypeError, match='open it with "rb"'):
            session.files.put("text", text)
        with tempfile.NamedTemporaryFile("w+") as text, pytest.raises(TypeError, match='open it with "rb"'):
            session.files.put("text", text)  # no io.TextIOBase: a wrapper
        with pytest.raises(TypeError, match=r"source\.read\(\) must return bytes, not NoneType"):
            session.files.put("nothing", SimpleNamespace(read=lambda _: None))
        with pytest.raises(TypeError, match="source must be bytes, str, a Path or an open file, not int"):
            session.files.put("number", 5)
        session.end()


def test_a_pipe_is_sent_as_it_is_read(gateway: GatewayProcess, tmp_path: Path) -> None:
    """An end that nobody knows: of an open pipe, and of one at a path."""
    size = 5 * MIB + 3
    with Gateway.sync(gateway.url, TOKEN) as client, client.session("files-from-a-pipe") as session:
        program = [sys.executable, "-c", f"import os; os.write(1, b'ab'); print('x' * {size - 3})"]
        with subprocess.Popen(program, stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            told: list[tuple[int, int | None]] = []
            asked = _Asked(writer.stdout)
            assert session.files.put("piped", asked, lambda *now: told.append(now)).size == size
        assert told[-1] == (size, None)
        assert max(asked.sizes) <= MIB, "no more of it is in memory at once"
        os.mkfifo(tmp_path / "pipe")
        with subprocess.Popen(["sh", "-c", "echo abc >pipe"], cwd=tmp_path):
            assert session.files.put("path", tmp_path / "pipe").size == 4
        session.end()


class _Asked:
    """A pipe that notes how many bytes it was asked for."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self.sizes: list[int] = []
        self._pipe = pipe

    def seekable(self) -> bool:
        return False

    def read(self, size: int = 1 << 62) -> bytes:
        self.sizes.append(size)
        return self._pipe.read(size)


def test_the_address_and_the_token_of_the_environment(
    gateway: GatewayProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CELLGATE_URL", gateway.url)
    monkeypatch.setenv("CELLGATE_TOKEN", f"{TOKEN}\n")
    with Gateway.sync() as client:
        assert isinstance(client, SyncGateway)
        assert client.me().role == "admin"
    with Gateway.sync(gateway.url, f" {TOKEN}\n") as client:
        assert client.me().role == "admin"
    # It may be for another one.
    assert not Gateway(gateway.url)._calls._server._headers.get("Authorization")


def test_names_of_other_products(gateway: GatewayProcess) -> None:
    with Gateway.sync(gateway.url, TOKEN) as client, client.session() as session:
        face: Any = session
        for name, meant in (
            ("run_code", "session.run(code)"),
            ("close", "session.end()"),
            ("rename", "session.change(title=...)"),
            ("set_title", "session.change(title=...)"),
            ("title", "session.change(title=...)"),
        ):
            with pytest.raises(AttributeError, match="session has no attribute") as refused:
                getattr(face, name)
            assert meant in str(refused.value)
        with pytest.raises(AttributeError, match=r"gateway\.session\(name\)"):
            getattr(client, "create")  # noqa: B009 - as a program has it
    wrong: Any = Gateway(gateway.url, TOKEN)
    with pytest.raises(TypeError, match=r"`async with`; for `with`, .* Gateway\.sync\(\.\.\.\)"), wrong:
        pass


async def test_tools_take_a_session_of_either_face(gateway: GatewayProcess) -> None:
    with Gateway.sync(gateway.url, TOKEN) as client:
        blocking = client.session()
        with SessionTools.sync(blocking) as tools:
            assert tools.run_code("x = 6 * 7; x") == ["42"]
            assert blocking.run("x").text == "42"
            assert tools.session.name == blocking.name
        kept = client.session("either-face")
        assert await SessionTools(kept).run_code("x = 1; x") == ["1"]
        answers = OpenAITools.sync(kept).messages(
            [{"id": "1", "function": {"name": "run_code", "arguments": '{"code": "x + 1"}'}}]
        )
        assert answers[0]["content"] == "2"
        kept.end()
