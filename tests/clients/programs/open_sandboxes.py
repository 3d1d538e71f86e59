"""Run by the clients' interpreter: OpenSandbox's SDKs, LangChain's backend and LiteLLM, at our door.

Arguments as in server.py, and which client. Prints one JSON object with what happened.
"""

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

URL, TOKEN, FOLDER, WHICH = sys.argv[1:]
DOMAIN = f"{URL.removeprefix('http://')}/opensandbox"
"""What a user of the SDKs sets, as the variable OPEN_SANDBOX_DOMAIN or here."""
IMAGE = "opensandbox/code-interpreter:v1.1.0"


def with_sdk():
    return asyncio.run(_sdk())


async def _sdk():
    """The first example of the SDK for sandboxes, then the rest of what it has."""
    from opensandbox.config import ConnectionConfig
    from opensandbox.manager import SandboxManager
    from opensandbox.models.sandboxes import SandboxFilter
    from opensandbox.sandbox import Sandbox

    config = ConnectionConfig(domain=DOMAIN, api_key=TOKEN)
    found = {}
    sandbox = await Sandbox.create(
        "ubuntu", connection_config=config, env={"SET": "yes"}, metadata={"who": "us & them"}
    )
    done = await sandbox.commands.run("echo 'Hello Sandbox!'")
    found["hello"] = [done.logs.stdout[0].text, done.exit_code]
    info = await sandbox.get_info()
    found["info"] = [info.status.state, info.metadata, info.image.image, info.expires_at > info.created_at]
    renewed = await sandbox.renew(timedelta(minutes=30))
    found["renewed"] = renewed.expires_at > info.expires_at
    found["patched"] = (await sandbox.patch_metadata({"more": "1"})).metadata
    found |= await _commands(sandbox.commands)
    found |= await _files(sandbox)
    metrics = await sandbox.get_metrics()
    found["metrics"] = 0 < metrics.memory_used_in_mib < metrics.memory_total_in_mib
    async with await SandboxManager.create(connection_config=config) as manager:
        wanted = SandboxFilter(states=["Running"], metadata={"who": "us & them"})
        listed = await manager.list_sandbox_infos(wanted)
        found["all"] = [each.id == sandbox.id for each in listed.sandbox_infos]
        again = await Sandbox.connect(sandbox.id, connection_config=config)
        found["again"] = (await again.commands.run("echo $SET")).text
        await again.close()
        asked = {
            "snapshot": manager.create_snapshot(sandbox.id),
            "egress": sandbox.get_egress_policy(),
            "session": sandbox.commands.create_session(),
            "port": sandbox.get_endpoint(8080),
            "file": sandbox.files.read_file("/nothing"),
        }
        found["refused"] = {name: await _refused(call) for name, call in asked.items()}
        await sandbox.destroy()
        found["ended"] = (await manager.list_sandbox_infos(wanted)).sandbox_infos
    return found


async def _refused(call):
    """The status of a refusal."""
    from opensandbox.exceptions import SandboxException

    try:
        await call
    except SandboxException as error:
        return getattr(error, "status_code", None)
    return None


async def _commands(commands):
    from opensandbox.models.execd import ExecutionHandlers, RunCommandOpts

    found, lines = {}, []

    async def note(message):
        lines.append(message.text)

    handlers = ExecutionHandlers(on_stdout=note)
    streamed = await commands.run("for i in {1..3}; do echo $i; done; exit 4", handlers=handlers)
    found["streamed"] = [lines, streamed.exit_code, streamed.error.name]
    opts = RunCommandOpts(working_directory="/tmp", envs={"OWN": "1"}, timeout=timedelta(seconds=30))
    found["options"] = (await commands.run("pwd; echo $SET $OWN", opts=opts)).text
    late = await commands.run("sleep 60", opts=RunCommandOpts(timeout=timedelta(seconds=1)))
    found["late"] = late.error.traceback
    begun = await commands.run("echo one; sleep 60", opts=RunCommandOpts(background=True))
    logs = await commands.get_background_command_logs(begun.id)
    while not logs.content:
        logs = await commands.get_background_command_logs(begun.id, logs.cursor)
    running = (await commands.get_command_status(begun.id)).running
    await commands.interrupt(begun.id)
    status = await commands.get_command_status(begun.id)
    while status.running:
        await asyncio.sleep(0.1)
        status = await commands.get_command_status(begun.id)
    found["background"] = [logs.content, running, status.error, status.content]
    return found


async def _files(sandbox):
    from opensandbox.models.filesystem import (
        ContentReplaceEntry,
        DirectoryListEntry,
        MoveEntry,
        SearchEntry,
        WriteEntry,
    )

    files, found = sandbox.files, {}
    await files.write_files([WriteEntry(path="/tmp/own/hello.txt", data="Hello World", mode=644)])
    found["file"] = await files.read_file("/tmp/own/hello.txt")
    texts = SearchEntry(path="/tmp/own", pattern="*.txt")
    found["searched"] = [each.path for each in await files.search(texts)]
    await files.delete_files(["/tmp/own/hello.txt"])
    found["deleted"] = [each.path for each in await files.search(texts)]
    await files.create_directories([WriteEntry(path="made/deep", mode=750)])
    await files.write_files(
        [WriteEntry(path="made/a.sh", data="echo ran", mode=755), WriteEntry(path="made/b", data=b"\0\xff")]
    )
    found["ran"] = (await sandbox.commands.run("./made/a.sh")).text
    found["bytes"] = list(await files.read_bytes("/workspace/made/b"))
    await files.replace_contents([ContentReplaceEntry(path="made/a.sh", old_content="ran", new_content="x")])
    await files.move_files([MoveEntry(src="made/a.sh", dest="made/deep/c.sh")])
    entries = await files.list_directory(DirectoryListEntry(path="made", depth=2))
    found["listed"] = [[each.path, each.entry_type, each.mode] for each in entries]
    found["replaced"] = await files.read_file("made/deep/c.sh")
    found["told"] = (await files.get_file_info(["made/b"]))["made/b"].size
    await files.delete_directories(["made"])
    return found


def with_code():
    return {"async": asyncio.run(_code()), "sync": _code_in_sync()}


async def _code():
    """The first examples of the SDK for code."""
    from code_interpreter import CodeInterpreter, SupportedLanguage
    from opensandbox import Sandbox
    from opensandbox.config import ConnectionConfig
    from opensandbox.models.execd import ExecutionHandlers

    config = ConnectionConfig(domain=DOMAIN, api_key=TOKEN, request_timeout=timedelta(seconds=60))
    sandbox = await Sandbox.create(
        IMAGE,
        connection_config=config,
        entrypoint=["/opt/code-interpreter/code-interpreter.sh"],
        env={"PYTHON_VERSION": "3.11"},
    )
    found = {}
    async with sandbox:
        interpreter = await CodeInterpreter.create(sandbox=sandbox)
        codes = interpreter.codes
        context = await codes.create_context(SupportedLanguage.PYTHON)
        ran = await codes.run("import sys\nprint(sys.version)\nresult = 2 + 2\nresult", context=context)
        found["result"] = [
            ran.result[0].text,
            bool(ran.logs.stdout),
            ran.execution_count > 0,
            ran.complete is not None,
        ]
        found["kept"] = (await codes.run("result", context=context)).result[0].text
        failed = await codes.run("result")
        found["apart"] = [failed.error.name, bool(failed.error.traceback)]
        await codes.run("x = 42", language=SupportedLanguage.PYTHON)
        found["default"] = (await codes.run("x", language=SupportedLanguage.PYTHON)).result[0].text
        found["bash"] = (await codes.run("echo $PYTHON_VERSION", language=SupportedLanguage.BASH)).text
        found["contexts"] = [each.id == context.id for each in await codes.list_contexts("python")]
        found["one"] = (await codes.get_context(context.id)).language
        found["interrupted"] = await _interrupt(codes, ExecutionHandlers)
        await codes.delete_contexts("python")
        found["none"] = await codes.list_contexts("python")
        await sandbox.kill()
    return found


async def _interrupt(codes, handlers):
    """Interrupt a cell from its own beginning on."""
    begun = asyncio.get_running_loop().create_future()

    async def note(_):
        begun.set_result(None)

    code = "print('begun', flush=True)\nimport time; time.sleep(60)"
    known = asyncio.get_running_loop().create_future()

    async def know(init):
        known.set_result(init.id)

    running = asyncio.create_task(codes.run(code, handlers=handlers(on_init=know, on_stdout=note)))
    await begun
    await codes.interrupt(await known)
    return (await running).error.name


def _code_in_sync():
    import httpx
    from code_interpreter import CodeInterpreterSync
    from opensandbox import SandboxSync
    from opensandbox.config import ConnectionConfigSync

    config = ConnectionConfigSync(
        domain=DOMAIN,
        api_key=TOKEN,
        request_timeout=timedelta(seconds=60),
        transport=httpx.HTTPTransport(limits=httpx.Limits(max_connections=20)),
    )
    sandbox = SandboxSync.create(IMAGE, connection_config=config, env={"PYTHON_VERSION": "3.11"})
    with sandbox:
        interpreter = CodeInterpreterSync.create(sandbox=sandbox)
        result = interpreter.codes.run("result = 2 + 2\nresult")
        sandbox.kill()
    return result.result[0].text


def with_langchain():
    """Its backend for deep agents: first as its page shows it, then as it finds sandboxes by itself."""
    from langchain_opensandbox import OpenSandboxSandbox
    from opensandbox.config.connection_sync import ConnectionConfigSync
    from opensandbox.sync.sandbox import SandboxSync

    config = ConnectionConfigSync(domain=DOMAIN, api_key=TOKEN)
    sandbox = SandboxSync.create("python:3.11-slim", connection_config=config)
    backend = OpenSandboxSandbox(sandbox=sandbox)
    done = backend.execute("echo a; echo; echo b; exit 3")
    found = {"executed": [done.output, done.exit_code]}
    backend.upload_files(
        [("/tmp/fib.py", b"a, b = 0, 1\nfor _ in range(30):\n    a, b = b, a + b\nprint(a)")]
    )
    found["fib"] = backend.execute("python /tmp/fib.py").output
    found["down"] = backend.download_files(["/tmp/fib.py"])[0].content[:4].decode()
    written = backend.write("/workspace/a.txt", "one\ntwo\n")
    found["written"] = written.error
    found["edited"] = backend.edit("/workspace/a.txt", "two", "2").error
    found["listed"] = [each["path"] for each in backend.ls("/workspace").entries]
    found["matched"] = [each["line"] for each in backend.grep("^2$|2", "/workspace").matches]
    sandbox.kill()
    backend.close()
    return found | asyncio.run(_execute_python())


async def _execute_python():
    """The tool for a graph's thread: it makes the thread's sandbox, and finds it again."""
    from langchain_opensandbox.tools import execute_python

    os.environ.update(OPENSANDBOX_URL=DOMAIN, OPENSANDBOX_API_KEY=TOKEN)

    runtime = SimpleNamespace(config={"configurable": {"thread_id": "thread 1"}})
    code = "open('/tmp/kept', 'a').write('x')\nprint('one')\nprint(open('/tmp/kept').read())"
    told = [await execute_python.coroutine(code, runtime) for _ in range(2)]
    return {"tool": told}


CODE = "x = 6\nprint(x * 7)"


class ScriptedModel(BaseHTTPRequestHandler):
    """A model that wants to run code once, and then says what came of it."""

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.answer(self.of_responses(body) if "input" in body else self.of_chat(body))

    def of_chat(self, body):
        outputs = [each["content"] for each in body["messages"] if each["role"] == "tool"]
        name = body["tools"][0]["function"]["name"]
        call = {
            "id": "call_1",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps({"code": CODE})},
        }
        said = {"role": "assistant", "content": f"It is {outputs[0].strip()}." if outputs else None}
        choice = {"index": 0, "message": said, "finish_reason": "stop" if outputs else "tool_calls"}
        if not outputs:
            said["tool_calls"] = [call]
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        return {
            "id": "c",
            "object": "chat.completion",
            "created": 1,
            "model": "m",
            "choices": [choice],
            "usage": usage,
        }

    def of_responses(self, body):
        given = body["input"] if isinstance(body["input"], list) else []
        outputs = [each["output"] for each in given if each.get("type") == "function_call_output"]
        name = body["tools"][0]["name"]
        call = {
            "type": "function_call",
            "id": "fc_1",
            "call_id": "call_1",
            "name": name,
            "status": "completed",
        }
        text = {
            "type": "output_text",
            "text": f"It is {outputs[0].strip()}." if outputs else "",
            "annotations": [],
        }
        said = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [text]}
        output = said if outputs else {**call, "arguments": json.dumps({"code": CODE})}
        return {
            "id": "r",
            "object": "response",
            "created_at": 1,
            "model": "m",
            "status": "completed",
            "output": [output],
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": body["tools"],
            "usage": {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2},
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "metadata": {},
            "temperature": 1.0,
            "top_p": 1.0,
        }

    def answer(self, told):
        data = json.dumps(told).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


def with_litellm():
    """LiteLLM's proxy as its page configures it, before a model that knows no code interpreter."""
    model = ThreadingHTTPServer(("127.0.0.1", 0), ScriptedModel)
    threading.Thread(target=model.serve_forever, daemon=True).start()
    port = _free_port()
    config = Path(FOLDER, "config.json")
    config.write_text(
        json.dumps(
            {
                "model_list": [
                    {
                        "model_name": "scripted",
                        "litellm_params": {
                            "model": "openai/scripted",
                            "api_base": f"http://127.0.0.1:{model.server_port}/v1",
                            "api_key": "none",
                        },
                    }
                ],
                "general_settings": {"master_key": "sk-proxy"},
                "litellm_settings": {
                    "callbacks": ["code_interpreter_interception"],
                    "code_interpreter_interception_params": {
                        "enabled": True,
                        "sandbox_tool_name": "cellgate",
                    },
                },
                "sandbox_tools": [
                    {
                        "sandbox_tool_name": "cellgate",
                        "litellm_params": {
                            "sandbox_provider": "opensandbox",
                            "api_base": f"{URL}/opensandbox/v1",
                            "api_key": TOKEN,
                        },
                    }
                ],
            }
        )
    )
    command = [Path(sys.executable).with_name("litellm"), "--config", config, "--port", str(port)]
    with Path(FOLDER, "proxy.log").open("wb") as log:
        options = ["--host", "127.0.0.1", "--telemetry", "False"]
        proxy = subprocess.Popen([*command, *options], stdout=log, stderr=subprocess.STDOUT)
    try:
        address = f"http://127.0.0.1:{port}"
        _wait_for(f"{address}/health/liveliness", proxy)
        question = "What is 6 * 7?"
        tools = [{"type": "code_interpreter", "container": {"type": "auto"}}]
        chat = {"model": "scripted", "messages": [{"role": "user", "content": question}], "tools": tools}
        told = _post(f"{address}/v1/chat/completions", chat)
        found = {"chat": told["choices"][0]["message"]["content"]}
        told = _post(f"{address}/v1/responses", {"model": "scripted", "input": question, "tools": tools})
        found["responses"] = _text_of(told)
        return found
    finally:
        proxy.terminate()
        proxy.wait(20)
        model.shutdown()


def _text_of(told):
    return [part["text"] for item in told["output"] if item["type"] == "message" for part in item["content"]]


def _free_port():
    import socket

    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def _wait_for(address, proxy):
    end = time.monotonic() + 80
    while time.monotonic() < end and proxy.poll() is None:
        try:
            urllib.request.urlopen(address, timeout=5).close()
        except (urllib.error.URLError, OSError):
            time.sleep(0.3)
        else:
            return
    raise RuntimeError(Path(FOLDER, "proxy.log").read_text()[-5000:])


def _post(address, body):
    headers = {"Content-Type": "application/json", "Authorization": "Bearer sk-proxy"}
    request = urllib.request.Request(address, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=80) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        raise RuntimeError(error.read()[-2000:], Path(FOLDER, "proxy.log").read_text()[-5000:]) from None


print(json.dumps(globals()[f"with_{WHICH}"]()))
