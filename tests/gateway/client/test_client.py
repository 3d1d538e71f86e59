"""The Python client as a program uses it, awaiting and blocking, against a real gateway."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import threading
import zipfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from cellgate.client import (
    CellFailed,
    Conflict,
    ConnectionFailed,
    Event,
    Finished,
    Gateway,
    GatewayError,
    InvalidInput,
    NotAuthenticated,
    NotFound,
    Overloaded,
    QuotaExceeded,
    RequestRefused,
    Result,
    Session,
    Stream,
)
from cellgate.client.errors import gateway_error
from cellgate.execution.markdown import fences
from cellgate_kernels.base.errors import InvalidInput as KernelsInvalidInput
from tests.support.server import TOKEN, GatewayProcess


@pytest.fixture
def client(gateway: GatewayProcess) -> Gateway:
    return Gateway(gateway.url, TOKEN)


@pytest.fixture
def blocking(gateway: GatewayProcess) -> Iterator[Any]:
    with Gateway.sync(gateway.url, TOKEN) as face:
        yield face


# ---- awaiting


async def test_a_session_without_a_name_ends_with_its_block(client: Gateway) -> None:
    async with client.session(metadata={"of": "a test"}) as session:
        await session.run("x = 20")
        result = await session.run("x + 1")
        assert (result.text, result.ok, result.check() is result) == ("21", True, True)
        assert (await session.model()).metadata == {"of": "a test"}
    assert (await session.model()).state == "ended"


async def test_a_session_in_a_language_and_a_cell_in_another(client: Gateway) -> None:
    async with client.session(language="bash") as session:
        await session.run("x=41; echo $x > x")
        assert (await session.run("echo $((x + 1))")).stdout == "42\n"
        assert (await session.run("print(1 + int(open('x').read()))", language="python")).stdout == "42\n"
    assert (await client.execute_once("40 + 2", language="ts")).text == "42"


async def test_a_session_with_a_name_stays_unless_it_should_not(client: Gateway, session: str) -> None:
    async with client.session(session) as first:
        await first.run("x = 5")
    assert (await client.session(session).run("x")).text == "5"
    async with client.session(session, keep=False) as last:
        await last.run("x")
    assert (await last.model()).state == "ended"
    await last.end()


async def test_a_cell_that_fails_is_a_result_until_it_is_checked(client: Gateway, session: str) -> None:
    seen: list[Event] = []
    result = await client.session(session).run("{}['key']", on_event=seen.append)
    assert result.status == "error"
    assert [event.type for event in seen] == ["queued", "started", "error", "finished"]
    with pytest.raises(CellFailed, match="KeyError: 'key'") as caught:
        result.check()
    assert (caught.value.reason, caught.value.ename) == ("cell_failed", "KeyError")
    assert (caught.value.status, isinstance(caught.value, GatewayError)) == ("error", True)


async def test_events_are_iterated_as_they_happen(client: Gateway, session: str) -> None:
    """The first one is read while the cell still waits for what the reader does next."""
    work = client.session(session)
    code = "import os, time\nprint('begun', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.01)"
    text = ""
    last = None
    async with contextlib.aclosing(work.stream(code)) as events:
        async for event in events:
            last = event
            if isinstance(event, Stream):
                text += event.text
                await work.files.put("go", b"")
    assert text == "begun\n"
    assert isinstance(last, Finished)
    assert last.status == "ok"


async def test_a_kernel_is_asked_between_its_cells(client: Gateway, session: str) -> None:
    work = client.session(session)
    await work.run("a_long_name = [1, 2, 3]")
    found = await work.complete("a_long + 1", cursor=6)
    assert (found.matches, found.start, found.end) == (["a_long_name"], 0, 6)
    told = await work.inspect("len", detail=1)
    assert told.found
    assert "Signature: len(obj, /)" in told.text
    (variable,) = (await work.variables()).variables
    assert (variable.name, variable.type, variable.summary) == ("a_long_name", "list", "3 items")


async def test_sessions_are_found_and_tell_what_they_use(client: Gateway, session: str) -> None:
    work = client.session(session)
    ran = [(await work.run(code)).execution for code in ("1", "2")]
    assert [each.execution async for each in client.executions(session, newest=True)] == ran[::-1]
    (model,) = [each async for each in client.sessions(search=session, state="live", usage=True)]
    assert model.executions == 2
    assert (await work.model(usage=True)).executions == 2
    newest = [each.session async for each in client.sessions(newest=True)]
    assert newest == [each.session async for each in client.sessions()][::-1]


async def test_files_go_in_and_out(client: Gateway, session: str, tmp_path: Path) -> None:
    files = client.session(session).files
    data = os.urandom(3_000_000)
    (tmp_path / "in.bin").write_bytes(data)
    told: list[tuple[int, int | None]] = []

    def tell(done: int, total: int | None) -> None:
        told.append((done, total))

    model = await files.put("a b/ü.bin", tmp_path / "in.bin", tell)
    assert (model.action, model.size, told[-1]) == ("created", len(data), (len(data), len(data)))
    assert told == sorted(told)
    assert (await files.put("text", "grüße")).size == 7
    assert [each.path async for each in files.list()] == ["a b/ü.bin", "text"]
    told.clear()
    await files.save("a b/ü.bin", tmp_path / "out.bin", tell)
    assert (tmp_path / "out.bin").read_bytes() == data
    assert told[-1] == (len(data), len(data))
    await files.save("a b/ü.bin", str(tmp_path / "named.bin"))
    assert (tmp_path / "named.bin").read_bytes() == data
    assert await files.get("text") == "grüße".encode()
    parts = [await files.get("text", start=at, length=size) for at, size in ((0, 2), (5, 9), (7, 1), (0, 0))]
    assert parts == [b"gr", b"\x9fe", b"", b""]
    await files.remove("text")
    with pytest.raises(NotFound):
        await files.get("text")
    with pytest.raises(RequestRefused):
        await files.put("../out", b"")


async def test_an_upload_that_is_too_large_is_refused_with_the_reason(
    client: Gateway, tmp_path: Path
) -> None:
    with (tmp_path / "large").open("wb") as file:
        file.truncate(40_000_000)
    async with client.session(limits={"disk": "16m"}) as session:
        with pytest.raises(QuotaExceeded) as caught:
            await session.files.put("large", tmp_path / "large")
    assert caught.value.reason == "quota_exceeded"


async def test_blocks_notebook_and_replay(client: Gateway, session: str, tmp_path: Path) -> None:
    work = client.session(session)
    done = await work.run_blocks([("python", "print(1)"), ("sh", "echo 2")])
    assert (done.exit_code, done.output, [each.ok for each in done.blocks]) == (0, "1\n2\n", [True, True])
    assert (await work.run_blocks("```python\n1 / 0\n```")).exit_code == 1
    notebook = await work.notebook()
    assert ["".join(cell["source"]) for cell in notebook["cells"]] == [
        "print(1)",
        "%%bash\necho 2",
        "1 / 0\n",
    ]
    await work.save_notebook(tmp_path / "saved.ipynb")
    assert json.loads((tmp_path / "saved.ipynb").read_text())["cells"] == notebook["cells"]
    await work.save_notebook(tmp_path / "saved.html")
    assert (tmp_path / "saved.html").read_text().startswith("<!DOCTYPE html>")
    await work.save_notebook(tmp_path / "saved.zip")
    assert zipfile.is_zipfile(tmp_path / "saved.zip")
    for wrong in ("saved.pdf", "saved.sh"):
        with pytest.raises(InvalidInput):
            await work.save_notebook(tmp_path / wrong)
        assert not (tmp_path / wrong).exists()
    for plain in ("run-2026.11.27", "saved.ipynb.part"):
        await work.save_notebook(tmp_path / plain)
    await work.save_notebook(tmp_path / "saved.json", form="ipynb")
    for plain in ("run-2026.11.27", "saved.ipynb.part", "saved.json"):
        assert json.loads((tmp_path / plain).read_text())["cells"] == notebook["cells"]
    report = await work.replay(anyway=True)
    assert report.same + report.different == 3


async def test_interrupt_and_restart(client: Gateway, session: str) -> None:
    work = client.session(session)
    await work.run("x = 1")
    on = asyncio.Event()

    def see(event: Event) -> None:
        if isinstance(event, Stream):
            on.set()

    code = "import time\nprint('on', flush=True)\ntime.sleep(60)"
    running = asyncio.create_task(work.run(code, on_event=see))
    await on.wait()
    await work.interrupt()
    assert (await running).status == "interrupted"
    await work.restart()
    assert (await work.run("x")).error.ename == "NameError"  # type: ignore[union-attr]


async def begun(session: Session) -> None:
    """Returns when a cell of the session has said so."""
    async with asyncio.timeout(30):
        async with aclosing(session.events()) as events:
            async for event in events:
                if isinstance(event, Stream) and "began" in event.text:
                    return


@pytest.mark.parametrize("watched", [False, True], ids=["waiting", "with-events"])
async def test_a_run_that_its_caller_gives_up_is_interrupted(
    client: Gateway, session: str, watched: bool
) -> None:
    work = client.session(session)
    await work.run("x = 0")
    running = asyncio.create_task(
        work.run(
            "x = 1; print('began', flush=True)\nwhile True: pass",
            on_event=(lambda _: None) if watched else None,
        )
    )
    await begun(work)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(running, 0)
    assert (await work.run("x")).text == "1"
    stopped = [each.status async for each in client.executions(session)][1]
    assert stopped == "interrupted"


async def test_ctrl_c_in_a_program_interrupts_the_cell_that_it_waits_for(
    gateway: GatewayProcess, client: Gateway, session: str
) -> None:
    work = client.session(session)
    await work.open()
    code = (
        "import sys; from cellgate import Gateway\n"
        "with Gateway.sync(*sys.argv[1:3]) as face:\n"
        "    face.session(sys.argv[3]).run('print(\"began\", flush=True)\\nwhile True: pass')"
    )
    program = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, gateway.url, TOKEN, session, stderr=asyncio.subprocess.PIPE
    )
    await begun(work)
    program.send_signal(signal.SIGINT)
    _, errors = await program.communicate()
    assert b"KeyboardInterrupt" in errors
    async with asyncio.timeout(20):
        assert (await work.run("1 + 1")).text == "2"
    assert [each.status async for each in client.executions(session)] == ["interrupted", "ok"]


async def test_a_run_may_go_on_without_its_caller(client: Gateway, session: str) -> None:
    work = client.session(session)
    await work.run("x = 0")
    code = "import time; print('began', flush=True); time.sleep(1); x = 1"
    running = asyncio.create_task(work.run(code, on_cancel="continue"))
    await begun(work)
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    assert (await work.run("x")).text == "1"
    with pytest.raises(InvalidInput, match="on_cancel"):
        await work.run("1", on_cancel="stop")  # type: ignore[arg-type]


async def test_blocks_end_with_their_caller_if_that_was_asked_for(client: Gateway, session: str) -> None:
    work = client.session(session)
    await work.open()
    blocks = [("python", "x = 1\nprint('began', flush=True)\nwhile True: pass"), ("python", "x = 2")]
    running = asyncio.create_task(work.run_blocks(blocks, on_disconnect="interrupt"))
    await begun(work)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert (await work.run("x")).text == "1"
    assert [each.status async for each in client.executions(session)] == ["interrupted", "ok"]


async def test_a_plot_is_saved_as_a_picture(client: Gateway, session: str, tmp_path: Path) -> None:
    code = "import matplotlib.pyplot as plt; plt.plot([1, 2]); plt.show(); print(input(), input())"
    result = await client.session(session).run(code, stdin="a\nb\n")
    assert len(repr(result)) < 150
    (image,) = result.check().images
    image.save(tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    assert "a b" in result.text


async def test_refusals_have_types(gateway: GatewayProcess, client: Gateway, session: str) -> None:
    with pytest.raises(NotAuthenticated):
        await Gateway(gateway.url, "wrong").session(session).run("1")
    with pytest.raises(NotFound):
        await client.get_session(session)
    with pytest.raises(RequestRefused):
        await client.session(session).run("1", timeout=-1)
    for kind in (InvalidInput, RequestRefused, GatewayError, KernelsInvalidInput):
        with pytest.raises(kind, match="no name"):
            _ = client.session().files
    with pytest.raises(ConnectionFailed) as caught:
        await Gateway("http://127.0.0.1:9").get_session("s")
    assert caught.value.reason == "unreachable"


@pytest.mark.parametrize(
    ("reason", "kind"),
    [("queue_full", Overloaded), ("environment_differs", Conflict), ("of_tomorrow", GatewayError)],
)
def test_each_reason_has_its_class(reason: str, kind: type[GatewayError]) -> None:
    error = gateway_error(429, reason, "No", retry_after=2)
    assert (type(error), error.reason, error.retry_after) == (kind, reason, 2)


# ---- repeats


@contextlib.asynccontextmanager
async def losing(
    gateway: GatewayProcess, abandon: Callable[[bytes], bool]
) -> AsyncIterator[tuple[str, list[bytes]]]:
    """The URL of a way to the gateway that passes requests on and loses the answers that `abandon` picks."""
    host, port = gateway.host.split(":")
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        lengths = [int(x.split(b":")[1]) for x in head.lower().split(b"\r\n") if b"content-length" in x]
        body = await reader.readexactly(sum(lengths))
        heads.append(head)
        inner, outer = await asyncio.open_connection(host, int(port))
        outer.write(head.replace(writer.get_extra_info("sockname")[0].encode(), host.encode()) + body)
        answer = await inner.read()
        if not abandon(head):
            writer.write(answer)
            await writer.drain()
        for each in (writer, outer):
            each.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", heads


@pytest.mark.alone
async def test_a_cell_whose_answer_was_lost_has_run_once(gateway: GatewayProcess, session: str) -> None:
    lost: list[bytes] = []

    def abandon(head: bytes) -> bool:
        if b"/execute " in head and not lost:
            lost.append(head)
            return True
        return False

    async with losing(gateway, abandon) as (url, heads):
        work = Gateway(url, TOKEN).session(session)
        result = await work.run("print(1); open('runs', 'a').write('x')")
        assert (result.stdout, len(lost)) == ("1\n", 1)
        assert await work.files.get("runs") == b"x"
    keys = [x for head in heads if b"/execute " in head for x in head.split(b"\r\n") if b"Idempotency" in x]
    assert len(keys) == 2
    assert keys[0] == keys[1]


async def test_what_has_an_effect_is_not_repeated_and_repeats_end(
    gateway: GatewayProcess, session: str
) -> None:
    async with losing(gateway, lambda _: True) as (url, heads):
        client = Gateway(url, TOKEN)
        for call, expected in (
            (client.interrupt(session), 1),
            (client.execute_blocks(session, [("python", "1")]), 1),
            (client.get_session(session), 3),
            (client.execute(session, "1"), 3),
        ):
            heads.clear()
            with pytest.raises(ConnectionFailed):
                await call
            assert len(heads) == expected


# ---- blocking


def test_the_blocking_face_has_the_same_methods(blocking: Any) -> None:
    with blocking.session() as session:
        assert session.run("6 * 7").text == "42"
        session.files.put("x", b"1")
        assert [each.path for each in session.files.list()] == ["x"]
        events = session.stream("print('a')")
        assert any(isinstance(event, Stream) for event in events)  # left in the middle
        name = session.name
        with pytest.raises(NotFound) as caught:
            session.files.get("absent")
        assert caught.value.reason == "not_found"
    assert blocking.get_session(name).state == "ended"
    assert "run" in dir(session)
    assert session.run.__doc__.startswith("Run a cell")
    assert "Gateway('http://" in repr(blocking)


def test_the_example_of_the_documentation_runs(
    gateway: GatewayProcess,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = (Path(__file__).parents[3] / "docs" / "reference" / "python.md").read_text()
    code = next(iter(fences(text))).content.replace("http://127.0.0.1:8888", gateway.url)
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "python.md", "exec"), {"token": TOKEN})
    assert capsys.readouterr().out == "3\n"
    assert (tmp_path / "sum.ipynb").is_file()


async def test_the_blocking_face_works_where_a_loop_runs(gateway: GatewayProcess) -> None:
    """As in a notebook, where the cell itself runs in a loop."""
    with Gateway.sync(gateway.url, TOKEN) as face, face.session() as session:
        assert session.run("1 + 1").text == "2"


def test_leaving_an_iteration_early_interrupts_the_cell(blocking: Any, session: str) -> None:
    work = blocking.session(session)
    for event in work.stream("print('on', flush=True)\nwhile True: pass"):
        if isinstance(event, Stream):
            break
    assert work.run("'next'").text == "'next'"


def test_its_thread_ends_with_it(gateway: GatewayProcess) -> None:
    before = set(threading.enumerate())
    face = Gateway.sync(gateway.url, TOKEN)
    assert set(threading.enumerate()) > before
    face.close()
    face.close()
    with pytest.raises(RuntimeError, match="closed"):
        face.get_session("s")
    assert set(threading.enumerate()) <= before


# ---- what a notebook shows


def result(*outputs: dict[str, Any], text: str = "text") -> Result:
    return Result(session="s", execution="e", status="ok", outputs=list(outputs), text=text)


def shown(**data: str) -> dict[str, Any]:
    return {"output_type": "display_data", "data": data, "metadata": {}}


def test_a_result_of_text_shows_itself_as_text() -> None:
    made = result({"output_type": "stream", "name": "stdout", "text": "1 < 2"}, text="1 < 2")
    assert made._repr_mimebundle_() == {"text/plain": "1 < 2"}


def test_a_result_with_pictures_and_pages_shows_them_where_no_script_runs() -> None:
    made = result(
        {"output_type": "stream", "name": "stdout", "text": "1 < 2"},
        shown(**{"image/png": 'QUJD"><script>', "text/plain": "p"}),
        shown(**{"image/svg+xml": "<svg onload='alert(1)'/>"}),
        shown(**{"text/html": "<script>alert(1)</script>"}),
        {"output_type": "error", "ename": "E", "evalue": "<b>", "traceback": []},
    )
    page = made._repr_mimebundle_()["text/html"]
    assert "1 &lt; 2" in page
    assert "<script" not in page
    assert "<svg" not in page
    assert 'src="data:image/png;base64,QUJD&quot;' in page
    assert '<iframe sandbox="" srcdoc="&lt;script&gt;' in page
    assert "E: &lt;b&gt;" in page
