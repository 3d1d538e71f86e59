"""``cellgate mcp`` as a language model's program has it: the SDK's own client over stdio, a real gateway."""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import nbformat
import pytest
from mcp import Client, StdioServerParameters
from mcp_types import ImageContent, TextContent

from tests.support.commands import INSTALLED, cellgate, environment
from tests.support.server import IN_TIME, TOKEN, GatewayProcess, until
from tests.support.terminal import Terminal

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
SHOW = f"display({{'image/png': '{PNG}', 'text/plain': '<a picture>'}}, raw=True)"


@asynccontextmanager
async def serving(gateway: GatewayProcess, folder: Path, *words: str) -> AsyncIterator[Client]:
    """A client of a server process of its own."""
    parameters = StdioServerParameters(
        command=str(INSTALLED),
        args=["mcp", "--notebooks", str(folder), *words],
        env=environment(CELLGATE_URL=gateway.url, CELLGATE_TOKEN=TOKEN),
        cwd=folder,
    )
    async with asyncio.timeout(100), Client(parameters) as client:
        yield client


async def call(client: Client, tool: str, **arguments: Any) -> str:
    """The text of a tool's answer that is no error."""
    answer = await client.call_tool(tool, arguments)
    text = "\n".join(part.text for part in answer.content if isinstance(part, TextContent))
    assert not answer.is_error, text
    return text


async def refused(client: Client, tool: str, **arguments: Any) -> str:
    """The text of a tool's error."""
    answer = await client.call_tool(tool, arguments)
    assert answer.is_error
    return "\n".join(part.text for part in answer.content if isinstance(part, TextContent))


async def test_code_runs_in_one_session_that_ends_with_the_client(
    gateway: GatewayProcess, tmp_path: Path
) -> None:
    async with serving(gateway, tmp_path) as client:
        tools = {tool.name for tool in (await client.list_tools()).tools}
        assert tools == {
            *(
                "run_code",
                "run_blocks",
                "read_output",
                "list_files",
                "read_file",
                "write_file",
                "make_folder",
                "move_file",
                "install_packages",
                "list_variables",
            ),
            *("run_program", "start_program", "list_programs", "read_program", "write_program"),
            *("end_program", "open_port"),
            *("make_checkpoint", "roll_back", "undo_last_cell"),
            *("interrupt", "restart", "branch_session", "try_alternatives", "export_notebook"),
        }
        assert await call(client, "run_code", code="x = 20; open('made.txt', 'w').write('it')") == (
            "2\n[files written: made.txt (2 bytes)]"
        )
        assert await call(client, "run_code", code="x + 1") == "21"
        assert await call(client, "run_code", code="y = 0") == "[no output]"
        assert await call(client, "list_variables") == "x: int  20\ny: int  0"
        failed = await call(client, "run_code", code="1 / y")
        assert "ZeroDivisionError: division by zero" in failed
        answer = await client.call_tool("run_code", {"code": SHOW})
        text, image = answer.content
        assert isinstance(text, TextContent)
        assert isinstance(image, ImageContent)
        assert (text.text, image.mime_type, image.data) == ("<a picture>", "image/png", PNG)
        where = await call(client, "export_notebook")
        notebook = nbformat.read(where.removeprefix("written: ").partition(" (")[0], as_version=4)
        nbformat.validate(notebook)
        assert [cell.source for cell in notebook.cells][1:4] == ["x + 1", "y = 0", "1 / y"]
        session = notebook.metadata.cellgate.session
    ended = until(lambda: gateway.model(session)["state"] == "ended", "the session has not ended")
    assert ended


async def test_models_are_told_what_tools_change(gateway: GatewayProcess, tmp_path: Path) -> None:
    async with serving(gateway, tmp_path) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    hints = {name: tool.annotations for name, tool in tools.items()}
    reading = {name for name, each in hints.items() if each is not None and each.read_only_hint}
    assert reading == {
        *("read_output", "list_programs", "read_program", "list_files", "read_file", "list_variables")
    }
    for each in hints.values():
        assert each is not None
        assert None not in (each.read_only_hint, each.destructive_hint, each.idempotent_hint)
    kept = {name for name, each in hints.items() if each is not None and not each.destructive_hint}
    assert not kept & {"run_code", "write_file", "restart", "roll_back", "end_program"}
    (words,) = (
        each["enum"]
        for each in tools["run_code"].input_schema["properties"]["language"]["anyOf"]
        if "enum" in each
    )
    assert words == ["python", "bash", "javascript", "typescript"]


async def test_refusals_begin_with_a_reason(gateway: GatewayProcess, tmp_path: Path) -> None:
    async with serving(gateway, tmp_path) as client:
        for tool, arguments, said in (
            (
                "run_code",
                {"code": "1", "time_out": 5},
                "run_code has no argument 'time_out'; did you mean timeout?",
            ),
            ("run_code", {"code": "1", "qqq": 5}, "run_code has no argument 'qqq'; there are code, timeout,"),
            ("restart", {"now": True}, "restart has no argument 'now'; it has none"),
            ("run_kode", {}, "there is no tool 'run_kode'; did you mean run_code?"),
            ("run_code", {}, "the arguments of run_code can't be used: code: Field required"),
            ("run_code", {"code": "1", "timeout": "x"}, "the arguments of run_code can't be used: timeout: "),
            ("run_code", {"code": "1", "language": "cobol"}, ""),
            ("read_file", {"path": "../x"}, ""),
        ):
            assert (await refused(client, tool, **arguments)).startswith(f"bad_request: {said}")
        assert (await refused(client, "read_file", path="absent")).startswith("not_found: ")
        assert await call(client, "run_code", code="echo $((6 * 7))", language="sh") == "42\n"


async def test_help_is_text(gateway: GatewayProcess, tmp_path: Path) -> None:
    async with serving(gateway, tmp_path) as client:
        assert "Return the number of items in a container." in await call(client, "run_code", code="len?")


@pytest.mark.nightly
async def test_a_branch_is_tried_without_harm_to_the_session(gateway: GatewayProcess, tmp_path: Path) -> None:
    async with serving(gateway, tmp_path) as client:
        await call(client, "run_code", code="x = [1]")
        branch = await call(client, "branch_session")
        assert await call(client, "run_code", code="x.append(2); x", branch=branch) == "[1, 2]"
        assert await call(client, "run_code", code="x") == "[1]"
        wrong = await client.call_tool("run_code", {"code": "x", "branch": "another"})
        assert wrong.is_error
    assert until(lambda: gateway.model(branch)["state"] == "ended", "the branch has not ended")


async def test_alternatives_are_tried_without_harm_to_the_session(
    gateway: GatewayProcess, tmp_path: Path
) -> None:
    async with serving(gateway, tmp_path, "--max-text", "1000") as client:
        await call(client, "run_code", code="x = [1]")
        cells = ["x.append(2); x", "1 / 0", "print('a' * 5000 + 'z')"]
        answer = await client.call_tool("try_alternatives", {"cells": cells})
        texts = [part.text for part in answer.content if isinstance(part, TextContent)]
        assert texts[:3] == ["[cellgate: alternative 1]", "[1, 2]", "[cellgate: alternative 2]"]
        assert "ZeroDivisionError" in texts[3]
        assert texts[4] == "[cellgate: alternative 3]"
        words = re.search("read_output with execution '([^']+)' and branch '([^']+)'", texts[5])
        assert words is not None
        execution, branch = words.groups()
        rest = await call(client, "read_output", execution=execution, branch=branch, start=4990, length=11)
        assert rest.startswith("a" * 10 + "z\n")
        wrong = await client.call_tool("run_code", {"code": "x", "branch": branch})
        assert wrong.is_error
        assert await call(client, "run_code", code="x") == "[1]"


async def test_the_session_goes_on_as_the_first_alternative_that_ends_well(
    gateway: GatewayProcess, tmp_path: Path
) -> None:
    async with serving(gateway, tmp_path) as client:
        await call(client, "run_code", code="x = 1")
        told = await call(client, "try_alternatives", cells=["1 / 0", "x = 2; x", "x = 3"], keep_first=True)
        assert "[cellgate: alternative 2, as which the session goes on]\n2" in told
        assert await call(client, "run_code", code="x") == "2"
        with_one = await call(client, "try_alternatives", cells=["x = 4", "x = 5"], keep_first=True)
        assert with_one.startswith("[cellgate: alternative 1, as which the session goes on]")
        assert await call(client, "run_code", code="x") == "4"


@pytest.mark.nightly
async def test_a_checkpoint_is_gone_back_to(gateway: GatewayProcess, tmp_path: Path) -> None:
    async with serving(gateway, tmp_path) as client:
        await call(client, "run_code", code="x = 1")
        assert "not_found: The session has no checkpoint" in await refused(client, "undo_last_cell")
        assert await call(client, "make_checkpoint", name="good") == "good"
        for code in ("x = 2", "x = 3"):
            await call(client, "run_code", code=code)
        told = await call(client, "roll_back", checkpoint="good")
        assert told == "went back to the checkpoint 'good'; cells undone: 2"
        assert await call(client, "run_code", code="x") == "1"
        assert await call(client, "roll_back") == "went back to the checkpoint 'good'; cells undone: 1"
        assert "conflict: " in await refused(client, "make_checkpoint", name="good")
        assert "not_found: " in await refused(client, "roll_back", checkpoint="another")


async def test_cells_are_undone_in_a_session_that_makes_checkpoints(
    gateway: GatewayProcess, tmp_path: Path
) -> None:
    async with serving(gateway, tmp_path, "--checkpoints") as client:
        await call(client, "run_code", code="x = 1; open('a', 'w').write('1')")
        await client.call_tool("run_code", {"code": "x = 2; import os; os.remove('a'); os._exit(1)"})
        assert await call(client, "undo_last_cell") == "went back to the checkpoint 'auto-1'; cells undone: 1"
        assert await call(client, "run_code", code="x, open('a').read()") == "(1, '1')"


async def test_models_are_told_what_cells_find(gateway: GatewayProcess, tmp_path: Path) -> None:
    told = gateway.get("/v1/info").json()["environment"]["python3"]
    numpy = told["packages"]["numpy"]
    async with serving(gateway, tmp_path) as client:
        instructions = client.instructions or ""
    assert f"\nPython {told['python']} with numpy {numpy}, pandas " in instructions
    assert "1 GiB of memory" in instructions
    assert "Packages can't be added" in instructions
    assert len(instructions) < 2000
    async with serving(gateway, tmp_path, "--language", "bash") as client:
        assert "Python 3" not in (client.instructions or "")


async def test_long_texts_are_cut_and_can_be_read_on(
    gateway: GatewayProcess, tmp_path: Path, session: str
) -> None:
    async with serving(gateway, tmp_path, "--session", session, "--max-text", "1000") as client:
        cut = await call(client, "run_code", code="print('a' * 5000 + 'z')")
        assert len(cut) == 1000
        assert cut.startswith("aaa")
        assert cut.endswith("az\n")
        execution = cut.partition("read_output with execution '")[2].partition("'")[0]
        rest = await call(client, "read_output", execution=execution, start=4990, length=11)
        assert rest == "a" * 10 + "z\n[cellgate: 5002 characters in all; read on at start 5001]"
        assert "not_found" in await refused(client, "read_output", execution="absent")
    assert gateway.model(session)["state"] == "idle"


async def test_files_are_written_read_and_listed(
    gateway: GatewayProcess, tmp_path: Path, session: str
) -> None:
    async with serving(gateway, tmp_path, "--session", session) as client:
        assert await call(client, "list_files") == "[no files]"
        assert await call(client, "write_file", path="d/t.txt", text="0123456789") == (
            "created d/t.txt, 10 bytes"
        )
        assert await call(client, "read_file", path="d/t.txt") == "0123456789"
        part = await call(client, "read_file", path="d/t.txt", start=2, length=3)
        assert part == "234\n[cellgate: there is more; read on at start 5]"
        code = f"import base64; _ = open('p.png', 'wb').write(base64.b64decode('{PNG}'))"
        await call(client, "run_code", code=code + "; _ = open('b', 'wb').write(bytes(9))")
        assert await call(client, "list_files") == (
            f"9  b\nd/\n10  d/t.txt\n{len(base64.b64decode(PNG))}  p.png"
        )
        (picture,) = (await client.call_tool("read_file", {"path": "p.png"})).content
        assert isinstance(picture, ImageContent)
        assert picture.data == PNG
        assert "is not text" in await refused(client, "read_file", path="b")
        assert "bad_request" in await refused(client, "read_file", path="../../etc/passwd")
        assert "bad_request" in await refused(client, "write_file", path="/etc/x", text="")
        assert "not_found" in await refused(client, "read_file", path="absent")


@pytest.mark.nightly
async def test_folders_are_made_and_files_moved(
    gateway: GatewayProcess, tmp_path: Path, session: str
) -> None:
    async with serving(gateway, tmp_path, "--session", session) as client:
        assert await call(client, "make_folder", path="empty/below") == "empty/below is there"
        await call(client, "write_file", path="d/t.txt", text="12")
        assert await call(client, "move_file", path="d", to="e/f") == "moved, with 1 file"
        assert await call(client, "list_files") == "e/\ne/f/\n2  e/f/t.txt\nempty/\nempty/below/"
        assert "conflict" in await refused(client, "move_file", path="e/f/t.txt", to="empty/below")
        assert "not_found" in await refused(client, "move_file", path="absent", to="there")
        assert "bad_request" in await refused(client, "make_folder", path="../up")


@pytest.mark.nightly
async def test_blocks_say_their_exit_code(gateway: GatewayProcess, tmp_path: Path, session: str) -> None:
    async with serving(gateway, tmp_path, "--session", session) as client:
        markdown = "```python\nprint(1)\n```\n\n```sh\necho 2; exit 3\n```\n\n```python\n3\n```\n"
        text = await call(client, "run_blocks", markdown=markdown)
        assert text.startswith("1\n")
        assert "2\n" in text
        assert text.endswith("[cellgate: exit code 3]")
        assert "bad_request" in await refused(client, "run_blocks", markdown="```cobol\n```")


async def test_a_program_says_what_it_wrote_and_how_it_ended(gateway: GatewayProcess, tmp_path: Path) -> None:
    async with serving(gateway, tmp_path) as client:
        script = "echo out; echo err >&2; exit 3"
        text = await call(client, "run_program", argv=["sh", "-c", script])
        assert text == "out\n\nerr\n\n[cellgate: exit code 3]"
        text = await call(client, "run_program", argv=["sleep", "600"], timeout=0.2)
        assert text == "[cellgate: ended by SIGTERM, timeout]"
        assert "No such file" in await refused(client, "run_program", argv=["no-such-program"])
        assert await call(client, "run_code", code="echo $((6 * 7))", language="bash") == "42\n"


@pytest.mark.nightly
async def test_a_program_goes_on_is_fed_and_ended(gateway: GatewayProcess, tmp_path: Path) -> None:
    async def written(client: Client, process: str, text: str) -> str:
        """What it shows, once that has the text."""
        while text not in (shown := await call(client, "read_program", process=process)):
            await call(client, "run_program", argv=["sleep", "0.05"])
        return shown

    async with serving(gateway, tmp_path) as client:
        assert await call(client, "list_programs") == "[no programs]"
        answer = await call(client, "start_program", argv=["sh", "-c", "cat; echo end; exit 4"], stdin=True)
        process, _, said = answer.partition(" ")
        assert said == "is running"
        assert await call(client, "write_program", process=process, text="given\n") == "sent"
        assert await written(client, process, "given") == "given\n\n[cellgate: running]"
        await call(client, "write_program", process=process, text="", end=True)
        assert await written(client, process, "exit code") == "given\nend\n\n[cellgate: exit code 4]"
        assert "conflict" in await refused(client, "write_program", process=process, text="late")

        endless = (await call(client, "start_program", argv=["sleep", "600"])).partition(" ")[0]
        assert await call(client, "run_code", code="6 * 7") == "42"
        listed = (await call(client, "list_programs")).splitlines()
        assert listed[0] == f"{process}  exit code 4  sh -c 'cat; echo end; exit 4'"
        assert listed[-1] == f"{endless}  running  sleep 600"
        assert await call(client, "end_program", process=endless) == "asked to end"
        assert await written(client, endless, "ended") == "[cellgate: ended by SIGTERM, terminated]"
        assert "not_found" in await refused(client, "read_program", process="p-absent")


@pytest.mark.nightly
async def test_a_port_that_nobody_serves_is_refused(gateway: GatewayProcess, tmp_path: Path) -> None:
    async with serving(gateway, tmp_path) as client:
        assert "--ports-port" in await refused(client, "open_port", port=8000)


async def test_what_runs_is_interrupted_and_a_restart_forgets(
    gateway: GatewayProcess, tmp_path: Path, session: str
) -> None:
    async with serving(gateway, tmp_path, "--session", session) as client:
        await call(client, "run_code", code="x = 1")
        endless = "print('on', flush=True)\nwhile True: pass"
        running = asyncio.create_task(call(client, "run_code", code=endless))
        await asyncio.to_thread(until, lambda: gateway.printed(session, "on\n"), "the cell has not begun")
        await call(client, "interrupt")
        assert "[cellgate: interrupted" in await running
        late = await call(client, "run_code", code=endless, timeout=IN_TIME)
        assert "[cellgate: timeout, cell_timeout]" in late
        assert f"[cellgate: The cell ran longer than {IN_TIME:g} s; its output until then is above.]" in late
        assert await call(client, "run_code", code="x") == "1"
        await call(client, "restart")
        assert "NameError" in await call(client, "run_code", code="x")
        dead = await call(client, "run_code", code="import os; os._exit(3)")
        assert "[cellgate: KernelDied: The kernel exited with code 3.]\n" in dead


async def test_a_call_that_is_taken_back_takes_its_cell_with_it(
    gateway: GatewayProcess, tmp_path: Path, session: str
) -> None:
    async with serving(gateway, tmp_path, "--session", session) as client:
        endless = "print('on', flush=True)\nwhile True: pass"
        running = asyncio.create_task(client.call_tool("run_code", {"code": endless}))
        await asyncio.to_thread(until, lambda: gateway.printed(session, "on\n"), "the cell has not begun")
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

        def ended() -> bool:
            executions = gateway.get(f"/v1/sessions/{session}/executions").json()["executions"]
            return bool(executions[-1]["status"] == "interrupted")

        await asyncio.to_thread(until, ended, "the cell runs on")
        assert await call(client, "run_code", code="'next'") == "'next'"


@pytest.mark.parametrize("words", [("--notebooks", "no-such-folder"), ("--max-text", "5"), ("word",)])
def test_wrong_usage_is_told(gateway: GatewayProcess, tmp_path: Path, words: tuple[str, ...]) -> None:
    done = cellgate("mcp", "--url", gateway.url, *words, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("cellgate: ")


def test_whoever_types_it_is_told_what_starts_it_and_how_it_ends(
    gateway: GatewayProcess, tmp_path: Path
) -> None:
    variables = environment(CELLGATE_URL=gateway.url, CELLGATE_TOKEN=TOKEN)
    with Terminal([str(INSTALLED), "mcp"], tmp_path, variables) as terminal:
        terminal.until("Ctrl-D ends it")
        terminal.send("\x04")
        assert terminal.ended() == 0
