"""Sessions in bash and in JavaScript over HTTP, and blocks in several languages."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import nbformat
import pytest
from jupyter_client.kernelspec import KernelSpecManager
from nbclient import NotebookClient

from tests.conftest import StartGateway
from tests.support.server import IN_TIME, GatewayProcess, until

_nbformat: Any = nbformat

LANGUAGES = ("bash", "javascript")
CODE = {
    "bash": {
        "set": "x=41",
        "get": "echo $((x + 1))",
        "fail": "exit_with() { return 3; }; exit_with",
        "file": "echo made > made.txt",
        "wait": "echo begun; sleep 600",
        "waits": "bash -c 'trap \"\" INT; sleep 600'",
        "exit": "exit 3",
        "lost": 'echo "[$x]"; cat made.txt',
        "unset": "[]\nmade\n",
    },
    "javascript": {
        "set": "let x = 41",
        "get": "console.log(x + 1)",
        "fail": "throw new RangeError('too much')",
        "file": "await Deno.writeTextFile('made.txt', 'made\\n')",
        "wait": "while (true) { /* for ever */ }",
        "waits": "new Deno.Command('sleep', { args: ['600'] }).outputSync()",
        "exit": "Deno.exit(3)",
        "lost": "console.log('[' + (typeof x) + ']'); console.log(await Deno.readTextFile('made.txt'))",
        "unset": "[undefined]\nmade\n\n",
    },
}
ERRORS = {"bash": ("ExitStatus", "3"), "javascript": ("RangeError", "too much")}
SPECS = {"bash": ("bash", "bash", ".sh"), "javascript": ("deno", "typescript", ".ts")}


@pytest.fixture
def any_gateway(sandbox: None, start_gateway: StartGateway) -> GatewayProcess:
    """A gateway that keeps no kernel warm."""
    return start_gateway(backend="sandbox", pool_size=0, interrupt_grace=20)


def notebook(gateway: GatewayProcess, session: str) -> Any:
    """The export, valid."""
    exported = _nbformat.reads(gateway.get(f"/v1/sessions/{session}/notebook").body.decode(), as_version=4)
    _nbformat.validate(exported)
    assert (exported.nbformat, exported.nbformat_minor) == (4, 5)
    return exported


def test_a_session_of_another_language_is_a_session(any_gateway: GatewayProcess) -> None:
    """Variables, errors, files, interrupts, deadlines, deaths, restarts and the notebook."""
    for language in LANGUAGES:
        gateway, session, code = any_gateway, f"in-{language}", CODE[language]
        model = gateway.post("/v1/sessions", {"session": session, "language": language}).json()
        kernelspec, named, extension = SPECS[language]
        assert model["kernel"] == kernelspec
        gateway.execute(session, code["set"])
        assert gateway.execute(session, code["get"])["stdout"] == "42\n"
        failed = gateway.execute(session, code["fail"])
        assert failed["status"] == "error"
        assert (failed["error"]["ename"], failed["error"]["evalue"]) == ERRORS[language]
        made = gateway.execute(session, code["file"])
        assert [file["path"] for file in made["files"]] == ["made.txt"]

        timed_out = gateway.execute(session, code["wait"], timeout=IN_TIME)
        assert (timed_out["status"], timed_out["kernel"]["state"]) == ("timeout", "idle")
        assert gateway.execute(session, code["get"])["stdout"] == "42\n"
        ended = gateway.execute(session, code["exit"])
        assert (ended["status"], ended["cause"]) == ("died", "kernel_exit")
        gateway.execute(session, code["set"])
        assert gateway.post(f"/v1/sessions/{session}/restart").status == 200
        assert gateway.execute(session, code["lost"])["stdout"] == code["unset"]

        exported = notebook(gateway, session)
        assert exported.metadata.kernelspec.name == kernelspec
        assert exported.metadata.kernelspec.language == named
        assert exported.metadata.language_info.name == named
        assert exported.metadata.language_info.file_extension == extension
        assert exported.cells[1].source == code["get"]
        assert exported.cells[1].outputs[0].text == "42\n"
        verified = gateway.get(f"/v1/sessions/{session}/audit/verify").json()
        assert verified["valid"]


def test_a_cell_that_hears_no_interrupt_ends_with_its_kernel(start_gateway: StartGateway) -> None:
    gateway = start_gateway(pool_size=0, interrupt_grace=0.2)
    for language in LANGUAGES:
        gateway.execute(language, CODE[language]["set"], language=language)
        gateway.execute(language, CODE[language]["file"])
        killed = gateway.execute(language, CODE[language]["waits"], timeout=IN_TIME)
        assert (killed["status"], killed["error"]["ename"]) == ("timeout", "CellTimeout")
        assert gateway.execute(language, CODE[language]["lost"])["stdout"] == CODE[language]["unset"]


def test_a_language_stands_beside_a_kernel(gateway: GatewayProcess, session: str) -> None:
    def make(**fields: object) -> tuple[int, Any]:
        answer = gateway.post("/v1/sessions", {"session": session, **fields})
        return answer.status, answer.json()

    status, problem = make(language="cobol")
    assert status == 400
    assert "python, bash, sh, javascript, js, typescript, ts" in problem["detail"]
    assert make(kernel="bash", language="python")[0] == 400
    assert gateway.get(f"/v1/sessions/{session}").status == 404
    status, model = make(language="SH", kernel="bash")
    assert (status, model["kernel"]) == (201, "bash")
    assert make(language="bash")[0] == 200
    assert make(language="py")[0] == 409
    for name in ("js", "ts", "typescript"):
        shot = gateway.post("/v1/execute", {"code": "typeof 1", "language": name}).json()
        assert shot["text"] == '"number"'
    assert gateway.post("/v1/execute", {"code": "1", "language": "bash", "kernel": "python3"}).status == 400
    specs = gateway.get("/api/kernelspecs").json()["kernelspecs"]
    assert {name: spec["spec"]["language"] for name, spec in specs.items()} == {
        "python3": "python",
        "bash": "bash",
        "deno": "typescript",
    }


def test_kernels_of_further_languages_are_kept_warm_if_they_should(start_gateway: StartGateway) -> None:
    gateway = start_gateway(pool_size=1, warm_kernels="bash")
    until(lambda: gateway.get("/v1/info").json()["pool"]["warm"] == 2, "there are not two warm kernels")
    assert gateway.execute("work", "echo warm", language="bash")["stdout"] == "warm\n"


def test_a_session_that_was_ended_comes_back_in_its_language(gateway: GatewayProcess, session: str) -> None:
    first = gateway.execute(session, "echo $BASH_VERSION", language="bash")
    assert first["status"] == "ok"
    gateway.delete(f"/v1/sessions/{session}")
    assert gateway.execute(session, 'echo "$BASH_VERSION"')["stdout"] == first["stdout"]


def test_code_in_another_language_is_a_cell_of_the_same_session(
    gateway: GatewayProcess, session: str
) -> None:
    gateway.execute(session, "open('data', 'w').write('from python')")
    shown = gateway.execute(session, "console.log(Deno.readTextFileSync('data'))", language="js")
    assert shown["stdout"] == "from python\n"
    assert gateway.execute(session, "cat data", language="bash")["stdout"] == "from python"
    failed = gateway.execute(session, "throw new Error('no')", language="ts")
    assert (failed["status"], failed["error"]["ename"]) == ("error", "CalledProcessError")
    assert "Error: no" in failed["stderr"]
    assert gateway.execute(session, "1", language="python")["text"] == "1"
    answer = gateway.post(f"/v1/sessions/{session}/execute", {"code": "1", "language": "cobol"})
    assert (answer.status, answer.reason) == (400, "bad_request")
    sources = [cell.source for cell in notebook(gateway, session).cells]
    assert sources[1].startswith("%%script env -u FORCE_COLOR NO_COLOR=1 deno run ")


BLOCKS = [
    {"language": "python", "code": "n = 6; open('n', 'w').write(str(n))"},
    {"language": "js", "code": "// filename: double.js\nconsole.log(2 * Number(Deno.readTextFileSync('n')))"},
    {"language": "typescript", "code": "const n: number = 7;\nconsole.log(n)"},
    {"language": "sh", "code": "cat n double.js | head -1"},
]


def test_blocks_of_four_languages_run_again_in_plain_jupyter(
    gateway: GatewayProcess,
    session: str,
    kernel_prefix: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done = gateway.post(f"/v1/sessions/{session}/execute-blocks", {"blocks": BLOCKS}, timeout=120).json()
    assert (done["exit_code"], [block["status"] for block in done["blocks"]]) == (0, ["ok"] * 4)
    exported = notebook(gateway, session)
    assert exported.cells[1].outputs[0].text == "12\n"
    recorded = [cell.outputs for cell in exported.cells]

    specs = KernelSpecManager(kernel_dirs=[str(kernel_prefix / "kernels")], ensure_native_kernel=False)
    environment = Path(specs.get_kernel_spec("python3").argv[0]).parent
    monkeypatch.setenv("PATH", str(environment), prepend=":")
    (tmp_path / "double.js").write_text("// filename: double.js\n")
    spec = {"argv": [str(environment / "python"), "-m", "ipykernel_launcher", "-f", "{connection_file}"]}
    (tmp_path / "kernels" / "python3").mkdir(parents=True)
    (tmp_path / "kernels" / "python3" / "kernel.json").write_text(
        json.dumps(spec | {"display_name": "plain", "language": "python"})
    )
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    NotebookClient(exported, timeout=60, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert [cell.outputs for cell in exported.cells] == recorded


def test_kernels_of_other_languages_say_which_blocks_they_run(gateway: GatewayProcess, session: str) -> None:
    """Bash starts other languages' programs; Deno's kernel runs its own alone."""
    gateway.post("/v1/sessions", {"session": session, "language": "bash"})
    blocks = [
        {"language": "bash", "code": "x=5"},
        {
            "language": "python",
            "code": "import numpy\nprint('END')\n'''\nEND\n'''\nprint(numpy.arange(3).sum())",
        },
        {"language": "js", "code": "console.log(`a${1}b`)"},
        {"language": "bash", "code": "echo $x"},
    ]
    done = gateway.post(f"/v1/sessions/{session}/execute-blocks", {"blocks": blocks}, timeout=120).json()
    assert (done["exit_code"], done["output"]) == (0, "END\n3\na1b\n5\n")
    other = f"{session}-js"
    gateway.post("/v1/sessions", {"session": other, "language": "js"})
    try:
        refused = gateway.post(f"/v1/sessions/{other}/execute-blocks", {"blocks": blocks[:1]})
        assert (refused.status, refused.reason) == (400, "bad_request")
        assert "only in javascript and typescript" in refused.json()["detail"]
    finally:
        gateway.delete(f"/v1/sessions/{other}")


def test_a_bundle_says_how_to_get_the_kernel(gateway: GatewayProcess, session: str) -> None:
    for language, package in (("bash", "bash_kernel==0."), ("js", "deno==2.")):
        key = f"{session}-{language}"
        gateway.execute(key, "1" if language == "js" else "true", language=language)
        bundle = zipfile.ZipFile(io.BytesIO(gateway.get(f"/v1/sessions/{key}/bundle").body))
        gateway.delete(f"/v1/sessions/{key}")
        assert bundle.read("requirements.txt").decode().startswith(package)
        assert package.partition("=")[0] in bundle.read("README.md").decode()


def test_a_session_of_bash_is_replayed(gateway: GatewayProcess, session: str) -> None:
    for code in ("x=41", "echo $((x + 1))", "echo two lines; echo of it >&2", "ls /nonexistent"):
        gateway.execute(session, code, language="bash")
    report = gateway.post(f"/v1/sessions/{session}/replay", timeout=120).json()
    assert (report["same"], report["different"]) == (4, 0), report


@pytest.fixture
def out_of_memory() -> dict[str, str]:
    """How a cell of each language ends: bash gives up by itself, and Deno refuses the array."""
    return {"bash": "died", "javascript": "error"}


def test_memory_beyond_the_limit_is_the_cells_error_or_the_kernels_end(
    any_gateway: GatewayProcess, out_of_memory: dict[str, str]
) -> None:
    grow = {
        "bash": "x=x; while true; do x=$x$x; done",
        "javascript": "const all = []; while (true) all.push(new Uint8Array(50_000_000).fill(1))",
    }
    for language, code in grow.items():
        body = {"session": language, "language": language, "limits": {"memory": "512m"}}
        assert any_gateway.post("/v1/sessions", body).status == 201
        result = any_gateway.execute(language, code, timeout=60)
        assert result["status"] == out_of_memory[language], result
        assert any_gateway.execute(language, CODE[language]["set"])["status"] == "ok"
