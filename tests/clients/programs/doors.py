"""Run by the clients' interpreter: clients of other systems, unchanged, at the gateway's doors for them.

Arguments as in server.py, and which client. Prints one JSON object with what happened.
"""

import asyncio
import json
import os
import re
import sys
import time
from io import BytesIO
from pathlib import Path

URL, TOKEN, FOLDER, WHICH = sys.argv[1:]
AZURE = f"{URL}/azure"
PLOT = "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()"
FAR = 2**32


def point_at_us():
    """What a user of E2B's SDK sets."""
    os.environ.update(E2B_API_URL=f"{URL}/e2b", E2B_SANDBOX_URL=f"{URL}/e2b", E2B_API_KEY=TOKEN)


def with_e2b():
    from e2b_code_interpreter import Sandbox

    point_at_us()
    found = {}
    with Sandbox.create(timeout=60, metadata={"who": "us"}, envs={"SET": "yes"}) as sandbox:
        seen = []
        ran = sandbox.run_code(
            "print('hi')\nx = 6\n[x, x * 7]", on_stdout=lambda line: seen.append(line.line)
        )
        found["cell"] = [ran.results[0].json, ran.logs.stdout, seen]
        found["kept"] = sandbox.run_code("x").text
        found["error"] = sandbox.run_code("1 / 0").error.name
        found["env"] = sandbox.run_code("import os; os.environ['SET']").text
        found["picture"] = sandbox.run_code(PLOT).results[0].png[:4]
        context = sandbox.create_code_context()
        found["context"] = sandbox.run_code("x", context=context).error.name
        sandbox.files.write("a/b.txt", "written")
        found["files"] = [sandbox.files.read("a/b.txt"), [each.name for each in sandbox.files.list("a")]]
        sandbox.files.write("packed", "x" * 100_000, gzip=True)
        found["packed"] = len(sandbox.files.read("packed", gzip=True))
        done = sandbox.commands.run("cat a/b.txt; echo no >&2")
        found["command"] = [done.stdout, done.stderr, done.exit_code]
        found["refused"] = [
            _refused(lambda: sandbox.commands.run("true", cwd="/nothing")),
            _refused(lambda: sandbox.commands.connect(999999)),
        ]
        info = sandbox.get_info()
        found["info"] = [info.metadata, sandbox.is_running()]
        (metrics,) = sandbox.get_metrics()
        found["metrics"] = [0 < metrics.mem_used < metrics.mem_total, metrics.cpu_count == info.cpu_count]
        found["again"] = Sandbox.connect(sandbox.sandbox_id).run_code("x").text
        sandbox.run_code("let q = 41", language="javascript")
        found["language"] = sandbox.run_code("q + 1", language="js").text
        (copy,) = sandbox.fork(timeout=60)
        copy.run_code("x += 1")
        found["fork"] = [copy.run_code("x").text, sandbox.run_code("x").text, copy.kill()]
        found["folder"] = sandbox.commands.run("pwd", cwd="/tmp").stdout
        found["joined"] = _join(sandbox)
        found["resized"] = _resize(sandbox)
        found["watched"] = _watch(sandbox)
    found["ended"] = sandbox.is_running()
    return found


def _refused(call):
    """What a call raises, and whether it says of what."""
    from e2b import SandboxException

    try:
        call()
    except SandboxException as error:
        return [type(error).__name__, "nothing" in str(error) or "999999" in str(error)]
    return None


def _join(sandbox):
    """Follow a command that another client began, and answer it."""
    from e2b import CommandExitException

    begun = sandbox.commands.run("echo before; read x; echo got $x; exit 3", background=True, stdin=True)
    next(out for out, _, _ in begun if out)
    joined = sandbox.commands.connect(begun.pid)
    sandbox.commands.send_stdin(begun.pid, "a line\n")
    try:
        joined.wait()
    except CommandExitException as error:
        return [error.stdout, error.exit_code]
    return None


def _resize(sandbox):
    """Resize a terminal, which another client then follows."""
    from e2b import PtySize

    begun = sandbox.pty.create(PtySize(rows=24, cols=80))
    sandbox.pty.resize(begun.pid, PtySize(rows=31, cols=97))
    joined = sandbox.pty.connect(begun.pid)
    sandbox.pty.send_stdin(begun.pid, b"stty size; exit\n")
    shown = []
    joined.wait(on_pty=shown.append)
    return "31 97" in b"".join(shown).decode()


def _watch(sandbox):
    """Ask what has changed in a folder; then follow it, as the async client does."""
    watch = sandbox.files.watch_dir("a", recursive=True)
    sandbox.files.write("a/new.txt", "new")
    asked = [[event.type.value, event.name] for event in watch.get_new_events()]
    watch.stop()
    return asked, asyncio.run(_follow_folder(sandbox.sandbox_id))


async def _follow_folder(identifier):
    from e2b import FileNotFoundException
    from e2b_code_interpreter import AsyncSandbox

    sandbox = await AsyncSandbox.connect(identifier)
    seen = asyncio.Queue()
    watch = await sandbox.files.watch_dir("a", seen.put, include_entry=True)
    await sandbox.files.rename("a/new.txt", "a/newer.txt")
    events = [await seen.get() for _ in range(2)]
    await watch.stop()
    ended = asyncio.Queue()
    await sandbox.files.watch_dir("a", seen.put, on_exit=ended.put, timeout=0.5)
    told = [[each.type.value, each.name, each.entry and each.entry.size] for each in events]
    try:
        await sandbox.files.watch_dir("nothing", seen.put)
    except FileNotFoundException:
        return [*told, type(await ended.get()).__name__]


def with_e2b_pause():
    from e2b import SandboxQuery, SandboxState
    from e2b_code_interpreter import Sandbox

    point_at_us()
    sandbox = Sandbox.create(timeout=60)
    sandbox.run_code("x = 6")
    paused = [sandbox.pause(), sandbox.pause(), sandbox.is_running(), sandbox.get_info().state.value]
    pages = [Sandbox.list(query=SandboxQuery(state=[each])) for each in SandboxState]
    listed = {each.sandbox_id for page in pages for each in page.next_items()} == {sandbox.sandbox_id}
    again = Sandbox.connect(sandbox.sandbox_id, timeout=60)
    found = {"paused": paused, "listed": listed, "resumed": [again.run_code("x").text, again.is_running()]}
    again.beta_pause()
    return {**found, "killed": again.kill()}


def with_e2b_auto_pause():
    from e2b import SandboxState
    from e2b_code_interpreter import Sandbox

    point_at_us()
    sandbox = Sandbox.create(timeout=3, lifecycle={"on_timeout": "pause"})
    sandbox.run_code("x = 6")
    lifecycle = dict(sandbox.get_info().lifecycle)
    while sandbox.get_info().state is not SandboxState.PAUSED:
        time.sleep(0.1)
    running = sandbox.is_running()
    again = Sandbox.connect(sandbox.sandbox_id, timeout=60)
    found = {"lifecycle": lifecycle, "running": running}
    return {**found, "resumed": [again.run_code("x").text, again.is_running()], "killed": again.kill()}


def with_openai_agents():
    point_at_us()
    return asyncio.run(_in_agents_sandbox())


async def _in_agents_sandbox():
    """All calls of the client for E2B in OpenAI's Agents SDK, in a session's order; then its next life."""
    from agents.extensions.sandbox.e2b import E2BSandboxClient, E2BSandboxClientOptions
    from agents.sandbox.entries import File
    from agents.sandbox.manifest import Environment, Manifest
    from agents.sandbox.snapshot import LocalSnapshotSpec

    client = E2BSandboxClient()
    options = E2BSandboxClientOptions("e2b_code_interpreter", timeout=300, exposed_ports=(8000,))
    session = await client.create(
        snapshot=LocalSnapshotSpec(base_path=Path(FOLDER, "snapshots")),
        manifest=Manifest(
            entries={"in.txt": File(content=b"in")}, environment=Environment(value={"SET": "yes"})
        ),
        options=options,
    )
    found = {}
    async with session:
        ran = await session.exec("cat in.txt; echo $SET; pwd; echo no >&2; exit 3")
        found["exec"] = [ran.stdout.decode(), ran.stderr.decode(), ran.exit_code]
        await session.mkdir("a", parents=True)
        await session.write(Path("a/b.bin"), BytesIO(bytes(range(256))))
        found["file"] = (await session.read(Path("a/b.bin"))).read() == bytes(range(256))
        found["listed"] = sorted(Path(each.path).name for each in await session.ls("."))
        found["running"] = await session.running()
        begun = await session.pty_exec_start("read x; echo got $x", shell=True, tty=True, yield_time_s=0.5)
        typed = await session.pty_write_stdin(session_id=begun.process_id, chars="typed\n", yield_time_s=2)
        found["terminal"] = "got typed" in (begun.output + typed.output).decode()
        begun = await session.pty_exec_start("echo begun; sleep 60", shell=True, yield_time_s=2)
        found["background"] = [begun.output.decode(), begun.process_id is not None]
        found["port"] = (await session.resolve_exposed_port(8000)).host.startswith("8000-")
    first = session.state.sandbox_id
    again = await client.resume(session.state)
    async with again:
        found["resumed"] = (await again.read(Path("a/b.bin"))).read() == bytes(range(256))
        found["in another sandbox"] = again.state.sandbox_id != first
    return found


class Credential:
    """What stands in for Microsoft Entra's."""

    def get_token(self, *scopes, **options):
        from azure.core.credentials import AccessToken

        return AccessToken(TOKEN, FAR)


def with_autogen():
    from autogen_core import CancellationToken
    from autogen_core.code_executor import CodeBlock
    from autogen_ext.code_executors.azure import ACADynamicSessionsCodeExecutor

    executor = ACADynamicSessionsCodeExecutor(AZURE, Credential(), work_dir=FOLDER, timeout=30)
    token = CancellationToken()
    with asyncio.Runner() as loop:

        def run(code):
            return loop.run(executor.execute_code_blocks([CodeBlock(code, "python")], token))

        said, failed = run("print('hi')"), run("1 / 0")
        Path(FOLDER, "in file.csv").write_text("a,b")
        loop.run(executor.upload_files(["in file.csv"], token))
        read = run("print(open('in file.csv').read())\nopen('out.txt', 'w').write('made')")
        made = loop.run(executor.download_files(["out.txt"], token))
        return {
            "cell": [said.exit_code, "hi" in said.output],
            "failed": [failed.exit_code, "ZeroDivisionError" in failed.output],
            "read": "a,b" in read.output,
            "listed": sorted(loop.run(executor.get_file_list(token))),
            "made": [Path(path).read_text() for path in made],
            "packages": "pandas" in loop.run(executor.get_available_packages(token)),
        }


def with_langchain():
    from langchain_azure_dynamic_sessions import SessionsBashTool, SessionsPythonREPLTool

    tool = SessionsPythonREPLTool(
        pool_management_endpoint=AZURE, access_token_provider=lambda: TOKEN, session_id="sess/ 1"
    )
    shell = SessionsBashTool(pool_management_endpoint=AZURE, access_token_provider=lambda: TOKEN)
    found = {
        "value": json.loads(tool.invoke("6 * 7"))["result"],
        "printed": json.loads(tool.invoke("```python\nprint('x')\n```"))["stdout"],
        "picture": tool.execute(PLOT)["result"]["format"],
        "shell": "hi" in str(shell.invoke("echo hi; exit 3")),
    }
    tool.upload_file(data=BytesIO(b"123"), remote_file_path="x y.txt")
    found["listed"] = [each.filename for each in tool.list_files()]
    found["file"] = tool.download_file(remote_file_path="x y.txt").read().decode()
    return found


def with_llama_index():
    from azure.core.credentials import AccessToken
    from llama_index.tools.azure_code_interpreter import AzureCodeInterpreterToolSpec

    spec = AzureCodeInterpreterToolSpec(AZURE, local_save_path=FOLDER)
    spec.access_token = AccessToken(TOKEN, FAR)
    path = Path(FOLDER, "f.txt")
    path.write_text("abc")
    found = {"value": spec.code_interpreter("1 + 1")["properties"]["result"]}
    spec.upload_file(local_file_path=str(path))
    found["listed"] = [each.filename for each in spec.list_files()]
    found["file"] = spec.download_file_to_local("/mnt/data/f.txt").read().decode()
    return found


def with_semantic_kernel():
    """It wants https; `ca.pem` in the folder is whom to trust."""
    import ssl

    from httpx import AsyncClient
    from semantic_kernel.core_plugins.sessions_python_tool.sessions_python_plugin import SessionsPythonTool

    trusted = AsyncClient(verify=ssl.create_default_context(cafile=str(Path(FOLDER, "ca.pem"))), timeout=60)
    tool = SessionsPythonTool(
        auth_callback=lambda: TOKEN,
        pool_management_endpoint=AZURE,
        http_client=trusted,
        enable_dangerous_file_uploads=True,
        allowed_upload_directories={FOLDER},
    )
    path = Path(FOLDER, "f.txt")
    path.write_text("abc")

    async def use():
        return {
            "cell": re.findall(
                "^(?:42|x)$", await tool.execute_code("```python\nprint('x')\n6 * 7\n```"), re.M
            ),
            "failed": "ZeroDivisionError" in await tool.execute_code("1 / 0"),
            "uploaded": (await tool.upload_file(local_file_path=str(path))).filename,
            "read": "abc" in await tool.execute_code("open('/mnt/data/f.txt').read()"),
            "listed": [each.filename for each in await tool.list_files()],
            "file": (await tool.download_file(remote_file_name="f.txt")).read().decode(),
        }

    return asyncio.run(use())


def with_piston():
    from pyston import File, PystonClient

    async def use():
        client = PystonClient(TOKEN, f"{URL}/piston/api/v2/")
        ran = await client.execute("python", [File("import sys; print(6 * 7); sys.exit(3)")])
        found = {
            "python": "python" in await client.languages(),
            "ran": [ran.run_stage.output, ran.run_stage.code],
        }
        await client.close_session()
        return found

    return asyncio.run(use())


def with_replit():
    from replit_code_exec import code_exec

    return {"ran": code_exec(f"{URL}/replit", TOKEN, "print(6 * 7)")}


print(json.dumps(globals()[f"with_{WHICH}"]()))
