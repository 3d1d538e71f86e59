"""Tools of a session as agents on providers' APIs use them, against a real gateway."""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from cellgate.client import Gateway, InvalidInput
from cellgate.integrations.anthropic import AnthropicTools
from cellgate.integrations.openai import OpenAITools
from cellgate.integrations.tools import SessionTools
from tests.support.commands import cellgate, environment
from tests.support.server import TOKEN, GatewayProcess, until

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
SHOW = f"display({{'image/png': '{PNG}', 'text/plain': '<a picture>'}}, raw=True)"


@pytest.fixture
def client(gateway: GatewayProcess) -> Gateway:
    return Gateway(gateway.url, TOKEN)


def chat(call: str, name: str, **arguments: Any) -> dict[str, Any]:
    """A call in a reply of Chat Completions."""
    return {"id": call, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


def use(call: str, name: str, **arguments: Any) -> dict[str, Any]:
    """A call in a message of Anthropic's."""
    return {"type": "tool_use", "id": call, "name": name, "input": arguments}


async def test_chat_completions(client: Gateway) -> None:
    async with OpenAITools(client.session()) as tools:
        calls = [chat("a", "run_code", code="x = 6\n" + SHOW), chat("b", "run_code", code="x * 7")]
        shown, answered, pictures = await tools.messages(calls)
        assert shown == {
            "role": "tool",
            "tool_call_id": "a",
            "content": "<a picture>\n[cellgate: pictures: 1, in the user's next message]",
        }
        assert answered == {"role": "tool", "tool_call_id": "b", "content": "42"}
        assert pictures["role"] == "user"
        assert pictures["content"][1]["image_url"]["url"] == f"data:image/png;base64,{PNG}"
        failed = await tools.messages(
            [chat("c", "run_code", code="1 / 0"), chat("d", "read_file", path="absent"), chat("e", "other")]
        )
        raised, refused, unknown = (each["content"] for each in failed)
        assert "ZeroDivisionError: division by zero" in raised
        assert refused.startswith("not_found: ")
        assert unknown.startswith("bad_request: there is no tool 'other'")
        # Of servers that only speak as OpenAI's do.
        odd = [
            {"id": "f", "function": {"name": "list_files", "arguments": None}},
            {"id": "g", "function": {"name": "run_code", "arguments": {"code": "x"}}},
            {"id": "h", "function": {"name": "run_code", "arguments": "{code: x}"}},
        ]
        listed, ran, wrong = (each["content"] for each in await tools.messages(odd))
        assert (listed, ran) == ("[no files]", "6")
        assert wrong.startswith("bad_request: the arguments of run_code can't be used")
        with pytest.raises(InvalidInput, match="no tool calls of OpenAI's"):
            await tools.messages([{"function": "run_code"}])
        assert await tools.messages(None) == []
        name = tools.session.name
    assert (await client.get_session(name)).state == "ended"


async def test_models_see_no_files_of_the_kernel(client: Gateway) -> None:
    async with OpenAITools(client.session()) as tools:
        code = "import warnings\nwarnings.warn('mine')\nimport sys\nsys.exit(3)"
        (answer,) = await tools.messages([chat("a", "run_code", code=code)])
        assert "<cell>:2: UserWarning: mine" in answer["content"]
        assert "SystemExit: 3" in answer["content"]
        for hidden in ("ipykernel", "site-packages", "To exit"):
            assert hidden not in answer["content"]


async def test_responses(client: Gateway) -> None:
    async with OpenAITools(client.session()) as tools:
        output = [
            {"type": "reasoning", "summary": []},
            {"type": "function_call", "call_id": "a", "name": "run_code", "arguments": '{"code": "40 + 2"}'},
            {
                "type": "function_call",
                "call_id": "b",
                "name": "run_code",
                "arguments": json.dumps({"code": SHOW}),
            },
        ]
        assert await tools.outputs(output) == [
            {"type": "function_call_output", "call_id": "a", "output": "42"},
            {
                "type": "function_call_output",
                "call_id": "b",
                "output": [
                    {"type": "input_text", "text": "<a picture>"},
                    {"type": "input_image", "image_url": f"data:image/png;base64,{PNG}"},
                ],
            },
        ]
        assert await tools.outputs([{"type": "message", "content": []}]) == []


def test_messages_of_anthropic_with_branch_and_undo_in_a_program_that_does_not_await(client: Gateway) -> None:
    with AnthropicTools.sync(client.session(checkpoint="auto")) as tools:

        def told(*content: dict[str, Any]) -> list[str]:
            results = tools.results(content)
            assert [each["tool_use_id"] for each in results] == [
                each["id"] for each in content if each["type"] == "tool_use"
            ]
            return [each["content"][0]["text"] for each in results]

        assert told({"type": "text", "text": "I count."}) == []
        assert told(use("a", "run_code", code="x = [1]; x"), use("b", "run_code", code="x.append(2); x")) == [
            "[1]",
            "[1, 2]",
        ]
        assert told(use("c", "undo_last_cell")) == ["went back to the checkpoint 'auto-1'; cells undone: 1"]
        (branch,) = told(use("d", "branch_session"))
        assert told(
            use("e", "run_code", code="x.append(3); x", branch=branch), use("f", "run_code", code="x")
        ) == ["[1, 3]", "[1]"]
        alternatives = told(use("g", "try_alternatives", cells=["x[0]"]))
        assert alternatives == ["[cellgate: alternative 1]"]
        (picture,) = tools.results([use("h", "run_code", code=SHOW)])
        source = {"type": "base64", "media_type": "image/png", "data": PNG}
        assert picture["content"][1] == {"type": "image", "source": source}
        assert "is_error" not in picture
        (refused,) = tools.results([use("i", "run_code", code="x", branch="another")])
        assert refused["is_error"] is True
        with pytest.raises(InvalidInput, match="no content of Anthropic's"):
            tools.results([{"type": "tool_use", "id": 1}])


async def test_programs_and_files(client: Gateway) -> None:
    async with SessionTools(client.session(), max_text=1000) as tools:
        answer = await tools.answer("run_program", {"argv": ["sh", "-c", "echo out; exit 3"]})
        assert answer.content == ["out\n\n[cellgate: exit code 3]"]
        assert (await tools.answer("write_file", {"path": "d/a.txt", "text": "0123"})).text == (
            "created d/a.txt, 4 bytes"
        )
        assert (await tools.answer("list_files")).text == "d/\n4  d/a.txt"
        await tools.session.files.put("p.png", base64.b64decode(PNG))
        assert [each.data for each in (await tools.answer("read_file", {"path": "p.png"})).pictures] == [PNG]
        cut = (await tools.answer("run_code", {"code": "print('a' * 5000 + 'z')"})).text
        assert len(cut) == 1000
        execution = cut.partition("read_output with execution '")[2].partition("'")[0]
        rest = await tools.answer("read_output", {"execution": execution, "start": "4999", "length": 2})
        assert rest.text == "az\n[cellgate: 5002 characters in all; read on at start 5001]"


async def test_a_call_that_is_taken_back_interrupts_its_cell(
    client: Gateway, gateway: GatewayProcess, session: str
) -> None:
    async with OpenAITools(client.session(session)) as tools:
        endless = "print('on', flush=True)\nwhile True: pass"
        running = asyncio.create_task(tools.messages([chat("a", "run_code", code=endless)]))
        await asyncio.to_thread(until, lambda: gateway.printed(session, "on\n"), "the cell has not begun")
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

        def interrupted() -> bool:
            executions = gateway.get(f"/v1/sessions/{session}/executions").json()["executions"]
            return bool(executions[-1]["status"] == "interrupted")

        await asyncio.to_thread(until, interrupted, "the cell runs on")


def test_the_command_prints_them() -> None:
    done = cellgate("tools", "--format", "anthropic", "run_code", "undo_last_cell")
    assert done.returncode == 0, done.stderr
    assert [each["name"] for each in json.loads(done.stdout)] == ["run_code", "undo_last_cell"]
    wrong = cellgate("tools", "run_cod")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "did you mean run_code" in wrong.stderr


# ---- the examples, with a model that is a script


@contextmanager
def provider(answer: Callable[[str, dict[str, Any]], dict[str, Any]]) -> Iterator[str]:
    """A provider's address, whose model answers as the function does: path and body to body."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            sent = json.dumps(answer(self.path, body)).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(sent)))
            self.end_headers()
            self.wfile.write(sent)

        def log_message(self, *words: Any) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def run_example(name: str, gateway: GatewayProcess, **variables: str) -> str:
    done = subprocess.run(
        [sys.executable, EXAMPLES / name, "What is six times seven?"],
        env=environment(CELLGATE_URL=gateway.url, CELLGATE_TOKEN=TOKEN, **variables),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_example_for_openai(gateway: GatewayProcess) -> None:
    def model(path: str, body: dict[str, Any]) -> dict[str, Any]:
        assert (path, body["model"]) == ("/v1/chat/completions", "scripted")
        assert body["tools"][0]["function"]["name"] == "run_code"
        last = body["messages"][-1]
        reply: dict[str, Any] = {"role": "assistant", "content": f"It is {last['content']}."}
        if last["role"] == "user":
            reply = {**reply, "content": None, "tool_calls": [chat("a", "run_code", code="6 * 7")]}
        return {"choices": [{"message": reply}]}

    with provider(model) as url:
        assert run_example(
            "openai_agent.py", gateway, OPENAI_BASE_URL=f"{url}/v1", OPENAI_MODEL="scripted"
        ) == ("It is 42.\n")


def test_the_example_for_anthropic(gateway: GatewayProcess) -> None:
    def model(path: str, body: dict[str, Any]) -> dict[str, Any]:
        assert (path, body["model"]) == ("/v1/messages", "scripted")
        assert body["tools"][0]["name"] == "run_code"
        last = body["messages"][-1]["content"]
        if isinstance(last, str):
            return {"content": [use("a", "run_code", code="6 * 7")]}
        return {"content": [{"type": "text", "text": f"It is {last[0]['content'][0]['text']}."}]}

    with provider(model) as url:
        assert run_example(
            "anthropic_agent.py", gateway, ANTHROPIC_BASE_URL=url, ANTHROPIC_MODEL="scripted"
        ) == ("It is 42.\n")
