"""``cellgate run``, ``export`` and ``sessions`` as users call them: processes against a gateway's process."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat import v4

from tests.support.commands import INSTALLED, cellgate


@dataclass(frozen=True)
class Place:
    """A running gateway's data folder and a folder to work in."""

    environment: dict[str, str]
    folder: Path

    def call(self, *argv: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        return cellgate(*argv, cwd=self.folder, env=self.environment, timeout=timeout)

    def start(self, *argv: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [INSTALLED, *argv],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)

    def notebook(self, name: str, *cells: Any) -> None:
        made = v4.new_notebook(cells=list(cells), metadata={"title": "Mine"})
        nbformat.write(made, self.folder / name)

    def read(self, name: str) -> Any:
        notebook = nbformat.read(self.folder / name, as_version=4)
        nbformat.validate(notebook)
        return notebook

    def state(self, session: str) -> str | None:
        listed = json.loads(self.call("sessions", "--json").stdout)
        return next((model["state"] for model in listed if model["session"] == session), None)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Variables that lead commands to a gateway of this module's own."""
    root = tmp_path_factory.mktemp("gateway")
    variables = {
        **os.environ,
        "CELLGATE_DATA_DIR": str(root / "data"),
        "XDG_CONFIG_HOME": str(root / "config"),
    }
    with (root / "log").open("w") as log:
        server = subprocess.Popen(
            [INSTALLED, "serve", "--port", "0", "--pool-size", "1"], env=variables, stdout=log, stderr=log
        )
    try:
        deadline = time.monotonic() + 60
        while not (root / "data" / "gateway.json").exists():
            assert server.poll() is None, (root / "log").read_text()
            assert time.monotonic() < deadline, (root / "log").read_text()
            time.sleep(0.1)
        yield variables
    finally:
        server.terminate()
        try:
            code = server.wait(60)
        finally:
            server.kill()
    assert code == 0, (root / "log").read_text()


@pytest.fixture
def place(environment: dict[str, str], tmp_path: Path) -> Place:
    return Place(environment, tmp_path)


def fresh_session(stderr: str) -> str:
    """The session that a run names at its end."""
    return stderr.rpartition("cellgate export ")[2].strip()


def test_a_notebook_runs_and_comes_back_with_outputs_in_place(place: Place) -> None:
    place.notebook(
        "analysis.ipynb",
        v4.new_markdown_cell("# Title", id="title"),
        v4.new_code_cell("a = 20\nprint('first')", id="one"),
        v4.new_markdown_cell("Then"),
        v4.new_code_cell("", id="blank"),
        v4.new_code_cell("a + 1", id="two"),
    )
    done = place.call("run", "analysis.ipynb", "-o", "out.ipynb")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "first\n21\n"
    assert "[1/2] cell 2: ok" in done.stderr
    assert "[2/2] cell 5: ok" in done.stderr
    assert "written: out.ipynb" in done.stderr
    out = place.read("out.ipynb")
    assert [cell.source for cell in out.cells] == ["# Title", "a = 20\nprint('first')", "Then", "", "a + 1"]
    assert [cell.id for cell in out.cells if cell.cell_type == "code"] == ["one", "blank", "two"]
    assert [cell.execution_count for cell in out.cells if cell.cell_type == "code"] == [1, None, 2]
    assert out.cells[1].outputs[0].text == "first\n"
    assert out.cells[4].outputs[0].data["text/plain"] == "21"
    assert out.metadata.title == "Mine"
    assert out.metadata.kernelspec.name == "python3"
    session = fresh_session(done.stderr)
    assert session.startswith("run-analysis-")
    assert place.state(session) == "ended"


def test_a_notebook_comes_back_as_a_page_with_its_texts(place: Place) -> None:
    place.notebook(
        "analysis.ipynb",
        v4.new_markdown_cell("# A title\n\nwith $e^{x}$"),
        v4.new_code_cell("print('first')"),
        v4.new_markdown_cell("*Then*"),
        v4.new_code_cell("6 * 7"),
    )
    # A module of the user's own that is named like one which the conversion needs.
    place.write("html.py", "raise SystemExit('not this one')")
    done = subprocess.run(
        [INSTALLED, "run", "analysis.ipynb", "-o", "report.html"],
        cwd=place.folder,
        env=place.environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        umask=0o026,
    )
    assert done.returncode == 0, done.stderr
    assert "written: report.html" in done.stderr
    page = (place.folder / "report.html").read_text()
    places = [page.index(part) for part in ("A title", "first\n", "<em>Then</em>", "<pre>42</pre>")]
    assert places == sorted(places)
    assert "<math" in page
    assert "default-src 'none'" in page
    assert (place.folder / "report.html").stat().st_mode & 0o777 == 0o640


def verified(place: Place, name: str) -> tuple[int, str]:
    """What ``cellgate verify`` says of a file: its exit code and its words."""
    done = place.call("verify", name)
    assert done.stderr == ""
    return done.returncode, done.stdout


def test_what_a_command_writes_with_a_seal_verifies_and_what_has_none_is_told_so(place: Place) -> None:
    """A run's notebook is another file than the one that the gateway sealed."""
    place.write("dice.py", "# %%\nprint('one')\n# %% [markdown]\n# text\n# %%\n1 / 0\n# %%\n'never'\n")
    place.write("dice.md", "# Dice\n\n```python\nprint('one')\n```\n")
    for source in ("dice.py", "dice.md"):
        place.call("run", source, "--session", "sealed", "-o", "d.ipynb")
        code, said = verified(place, "d.ipynb")
        assert (code, said[:20]) == (3, "no seal    d.ipynb: ")
        assert "seal" not in place.read("d.ipynb").metadata.cellgate
    found = json.loads(place.call("verify", "d.ipynb", "--json").stdout)
    assert [(each["subject"], each["valid"], each["sealed"]) for each in found] == [("d.ipynb", False, False)]

    for words in (("-o", "e.ipynb"), ("-o", "e.ipynb", "--no-outputs"), ("-o", "e.zip", "--bundle")):
        assert place.call("export", "sealed", *words).returncode == 0
        code, said = verified(place, words[1])
        assert (code, said.startswith(f"valid      {words[1]} (")) == (0, True)
    with zipfile.ZipFile(place.folder / "e.zip") as archive:
        (place.folder / "inner.ipynb").write_bytes(archive.read("work/sealed.ipynb"))
    assert verified(place, "inner.ipynb")[0] == 0
    # A second run of an export: its seal, and what it tells of runs, are not of this one.
    assert place.call("run", "inner.ipynb", "-o", "again.ipynb").returncode == 1
    assert verified(place, "again.ipynb")[0] == 3
    ran, failed, never = place.read("again.ipynb").cells
    assert "cellgate" in ran.metadata
    assert "cellgate" in failed.metadata
    assert (never.metadata, never.outputs) == ({}, [])

    place.write("e.ipynb", (place.folder / "inner.ipynb").read_text().replace("one", "two"))
    assert verified(place, "e.ipynb")[0] == 1
    place.write("page.ipynb", "<html>")
    assert verified(place, "page.ipynb")[0] == 1
    assert place.call("verify", "nowhere.ipynb").returncode == 2

    done = place.call("verify", "again.ipynb", "inner.ipynb", "dice.py", "nowhere.ipynb", "inner.ipynb")
    assert [line[:11] for line in done.stdout.splitlines()] == ["no seal    ", "valid      ", "valid      "]
    assert re.findall(r"(?m)^cellgate: (\S+)", done.stderr) == ["dice.py", "nowhere.ipynb"]
    assert done.returncode == 2
    assert place.call("verify", "inner.ipynb", "again.ipynb").returncode == 3
    assert place.call("verify", "dice.py", "page.ipynb", "inner.ipynb").returncode == 1


def test_a_run_stops_at_the_first_failing_cell(place: Place) -> None:
    place.write("a.py", "# %%\nprint('one')\n# %%\n1 / 0\n# %%\nprint('three')\n")
    done = place.call("run", "a.py", "--output", "out.ipynb")
    assert done.returncode == 1
    assert done.stdout.startswith("one\n")
    assert "ZeroDivisionError: division by zero" in done.stdout
    assert "three" not in done.stdout
    assert "\x1b" not in done.stdout
    assert "[2/3] error" in done.stderr
    assert "\n1 cell was not run after the one that failed; --keep-going runs all\n" in done.stderr
    failed, last = place.read("out.ipynb").cells[1:]
    assert failed.outputs[0].ename == "ZeroDivisionError"
    assert (last.execution_count, last.outputs) == (None, [])


def test_keep_going_runs_the_rest_and_still_fails(place: Place) -> None:
    place.write("a.py", "# %%\n1 / 0\n# %%\nprint('two')\n")
    done = place.call("run", "a.py", "--keep-going")
    assert done.returncode == 1
    assert done.stdout.endswith("two\n")


def test_a_cell_that_may_fail_and_one_that_is_to_be_skipped(place: Place) -> None:
    place.notebook(
        "a.ipynb",
        v4.new_code_cell("1 / 0", metadata={"tags": ["raises-exception"]}),
        v4.new_code_cell("print('never')", metadata={"tags": ["skip-execution"]}),
        v4.new_code_cell("print('after')"),
    )
    done = place.call("run", "a.ipynb")
    assert done.returncode == 0
    assert done.stdout.endswith("after\n")
    assert "never" not in done.stdout


def test_the_python_blocks_of_a_markdown_file_run(place: Place) -> None:
    place.write(
        "a.md", "# Doc\n\n```bash\nexit 1\n```\n\n```python\nx = 2\n```\n\nand\n\n```py\nprint(x)\n```\n"
    )
    done = place.call("run", "a.md", "-o", "out.ipynb")
    assert (done.returncode, done.stdout) == (0, "2\n")
    assert "not run, because not marked as Python: bash (line 3)" in done.stderr
    assert [cell.cell_type for cell in place.read("out.ipynb").cells] == [
        "markdown",
        "code",
        "markdown",
        "code",
    ]


def test_the_readme_of_the_project_runs(place: Place) -> None:
    """Its first block is for the reader's own machine, and says so."""
    readme = Path(__file__).parents[3] / "README.md"
    done = place.call("run", str(readme))
    assert (done.returncode, done.stdout) == (0, "35.4\n"), done.stderr
    assert "not run, because marked no-run: line " in done.stderr


def test_a_named_session_stays_and_is_exported_and_listed(place: Place) -> None:
    place.write("first.py", "kept = 41")
    place.write("second.py", "kept + 1")
    assert place.call("run", "first.py", "--session", "named").returncode == 0
    done = place.call("run", "second.py", "--session", "named", "-o", "second.ipynb")
    assert (done.returncode, done.stdout) == (0, "42\n")
    assert [cell.source for cell in place.read("second.ipynb").cells] == ["kept + 1"]
    assert place.state("named") == "idle"
    table = place.call("sessions", "--state", "idle").stdout
    assert "SESSION" in table
    assert any(line.split()[:2] == ["named", "idle"] for line in table.splitlines())

    assert place.call("export", "named").stdout == "named.ipynb\n"
    assert [cell.source for cell in place.read("named.ipynb").cells] == ["kept = 41", "kept + 1"]
    again = place.call("export", "named")
    assert again.returncode == 2
    assert again.stderr == "cellgate: named.ipynb exists; name a file with -o to replace it\n"
    assert place.call("export", "named", "-o", "named.ipynb", "--no-outputs").returncode == 0
    assert [cell.outputs for cell in place.read("named.ipynb").cells] == [[], []]


def test_a_plot_is_one_line_on_the_screen_and_an_image_in_the_notebook(place: Place) -> None:
    place.write("a.py", "import matplotlib.pyplot as plt\nplt.plot([1, 3, 2])\nplt.show()")
    done = place.call("run", "a.py", "-o", "out.ipynb")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [
        line.startswith("[image/png ") and "x" in line for line in lines if line.startswith("[image")
    ] == [True]
    outputs = place.read("out.ipynb").cells[0].outputs
    assert any("image/png" in output.get("data", {}) for output in outputs)


def test_a_cell_over_its_time_fails_and_keeps_its_output(place: Place) -> None:
    place.write("a.py", "import time\nprint('before', flush=True)\ntime.sleep(60)")
    done = place.call("run", "a.py", "--timeout", "1", "-o", "out.ipynb")
    assert done.returncode == 1
    assert done.stdout.startswith("before\n")
    assert "[1/1] timeout (cell_timeout)" in done.stderr
    assert place.read("out.ipynb").cells[0].outputs[0].text == "before\n"


def test_a_cell_that_asks_for_input_gets_none(place: Place) -> None:
    place.write("a.py", "input('name? ')")
    done = place.call("run", "a.py")
    assert done.returncode == 1
    assert "EOFError" in done.stdout


def test_ctrl_c_interrupts_the_cell_and_leaves_with_130(place: Place) -> None:
    """The output that precedes Ctrl-C also shows that outputs come while the cell still runs."""
    place.write("a.py", "import time\nprint('running', flush=True)\ntime.sleep(300)")
    process = place.start("run", "a.py", "-o", "out.ipynb")
    assert process.stdout is not None
    assert process.stdout.readline() == "running\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "KeyboardInterrupt" in out
    assert "Traceback" not in err
    assert [output.output_type for output in place.read("out.ipynb").cells[0].outputs] == ["stream", "error"]
    assert place.state(fresh_session(err)) == "ended"


def test_a_killed_run_leaves_no_cell_running(place: Place) -> None:
    place.write("a.py", "import time\nprint('running', flush=True)\ntime.sleep(300)")
    process = place.start("run", "a.py", "--session", "killed")
    assert process.stdout is not None
    assert process.stdout.readline() == "running\n"
    assert place.state("killed") == "busy"
    process.kill()
    process.communicate(timeout=60)
    deadline = time.monotonic() + 30
    while place.state("killed") != "idle":
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_on_a_terminal_a_bar_shows_the_way_and_outputs_stand_above_it(place: Place) -> None:
    place.write("a.py", "# %%\nprint('one')\n# %%\nimport time\nprint('two')\ntime.sleep(0.5)\n")
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [INSTALLED, "run", "a.py"],
        cwd=place.folder,
        env={**place.environment, "TERM": "xterm", "COLUMNS": "100"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    received = b""
    try:
        while chunk := os.read(ours, 65536):
            received += chunk
    except OSError:  # Linux: the terminal's other side is closed
        pass
    finally:
        os.close(ours)
    assert process.wait(60) == 0
    text = received.decode()
    assert "1/2" in text
    assert "one\r\n" in text
    assert "two\r\n" in text
    assert "the record stays: cellgate export run-a-" in text


@pytest.mark.parametrize("argv", [("sessions", "--json"), ("run", "many.py")])
def test_a_reader_that_leaves_early_is_no_crash(place: Place, argv: tuple[str, ...]) -> None:
    place.write("many.py", "for i in range(10 ** 5): print(i)")
    process = place.start(*argv)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    error = process.stderr.read()
    process.stderr.close()
    assert process.wait(60) == 141
    assert "Traceback" not in error
    assert "BrokenPipeError" not in error


@pytest.mark.parametrize(
    ("argv", "part"),
    [
        (("--token", "wrong-token"), "oken"),
        (("--kernel", "cobol"), "cobol"),
        (("--session", "a b"), "session key"),
        (("--timeout", "1e12"), "timeout"),
    ],
)
def test_what_the_gateway_refuses_is_one_line_and_exit_code_2(
    place: Place, argv: tuple[str, str], part: str
) -> None:
    place.write("a.py", "print(1)")
    done = place.call("run", "a.py", *argv)
    assert done.returncode == 2
    assert done.stdout == ""
    last = done.stderr.splitlines()[-1]
    assert last.startswith("cellgate: ")
    assert part in last
    assert "Traceback" not in done.stderr


def test_an_unknown_session_can_t_be_exported_and_leaves_no_file(place: Place) -> None:
    done = place.call("export", "never-was", "-o", "out.ipynb")
    assert done.returncode == 2
    assert done.stderr.startswith("cellgate: ")
    assert list(place.folder.iterdir()) == []


def test_a_folder_that_can_t_be_written_is_named(place: Place) -> None:
    place.write("a.py", "1")
    assert place.call("run", "a.py", "--session", "unwritable").returncode == 0
    done = place.call("export", "unwritable", "-o", "nowhere/out.ipynb")
    assert done.returncode == 2
    assert done.stderr == "cellgate: nowhere/out.ipynb can't be written: No such file or directory\n"


def test_a_run_beside_its_data_brings_back_what_it_makes(place: Place) -> None:
    place.write("data.csv", "n\n1\n2\n")
    place.write(
        "sum.py",
        "# %%\nimport os\nn = open('data.csv').read().split()[1:]\n"
        "os.makedirs('out'); print(sum(map(int, n)), file=open('out/sum.txt', 'w'))\n"
        "# %%\nopen('data.csv', 'a').write('3\\n'); open('.hidden', 'w').close()\n",
    )
    done = place.call("run", "sum.py", "--with", "data.csv")
    assert done.returncode == 0, done.stderr
    assert (place.folder / "out" / "sum.txt").read_text() == "3\n"
    assert (place.folder / "data.csv").read_text() == "n\n1\n2\n3\n"
    notes = [line for line in done.stderr.splitlines() if line.startswith("brought back")]
    assert notes == ["brought back: data.csv", "brought back: out/sum.txt"]
    assert sorted(path.name for path in place.folder.iterdir()) == ["data.csv", "out", "sum.py"]
    assert place.state(fresh_session(done.stderr)) == "ended"

    # What the user has changed stays; what could not be brought is not lost with its session.
    place.write("out/sum.txt", "mine\n")
    again = place.call("run", "sum.py", "--with", "data.csv")
    assert again.returncode == 1
    assert "not brought back: out/sum.txt: there is a file of this name, which was not sent" in again.stderr
    session = fresh_session(again.stderr)
    assert f"the session stays: cellgate files ls {session}" in again.stderr
    assert place.state(session) == "idle"
    assert place.call("files", "get", session, "out/sum.txt").stdout == "sum.txt\n"
    assert (place.folder / "sum.txt").read_text() == "6\n"
    assert (place.folder / "out" / "sum.txt").read_text() == "mine\n"

    for _ in range(2):
        done = place.call("run", "sum.py", "--with", "data.csv", "--results", "made")
        assert done.returncode == 0, done.stderr
    assert (place.folder / "made" / "out" / "sum.txt").read_text() == "9\n"
    assert (place.folder / "data.csv").read_text().count("3") == 2
    wrong = place.call("run", "sum.py", "--with", "nowhere.csv")
    assert (wrong.returncode, wrong.stderr) == (2, "cellgate: --with nowhere.csv: there is no such file\n")


def test_who_forgets_to_send_the_data_is_told_how(place: Place) -> None:
    (place.folder / "data").mkdir()
    place.write("data/rows.csv", "a\n1\n")
    place.write("reads.py", "import pandas\npandas.read_csv('data/rows.csv')")
    ran = place.call("run", "reads.py")
    assert ran.returncode == 1
    assert "data/rows.csv is here, and not in the session: --with data/rows.csv sends it\n" in ran.stderr
    assert place.call("run", "reads.py", "--with", "data/rows.csv").returncode == 0
    place.write("odd.py", "open('nowhere.csv')")
    assert "--with" not in place.call("run", "odd.py").stderr


def test_json_is_the_whole_run_alone(place: Place) -> None:
    place.write("data.csv", "n\n1\n")
    place.write(
        "page.md",
        "```python\nprint('a' * 300_000)\n```\n```text\nno cell\n```\n"
        "```python\nopen('data.csv', 'a').write('2\\n'); open('new.txt', 'w').close()\n```\n",
    )
    done = place.call("run", "page.md", "--with", "data.csv", "--json", "-o", "page.ipynb")
    assert (done.returncode, done.stderr) == (0, "")
    told = json.loads(done.stdout)
    assert (told["file"], told["status"], told["not_run"]) == ("page.md", "ok", 0)
    assert told["notebook"] == "page.ipynb"
    assert told["brought_back"] == ["data.csv", "new.txt"]
    assert told["not_brought_back"] == []
    assert told["notices"] == ["not run, because not marked as Python: text (line 4)"]
    assert [cell["result"]["status"] for cell in told["cells"]] == ["ok", "ok"]
    assert told["cells"][0]["result"]["text"] == "a" * 300_000 + "\n"
    code = [cell.cell_type == "code" for cell in place.read("page.ipynb").cells]
    assert all(code[cell["index"]] for cell in told["cells"])
    assert place.state(told["session"]) == "ended"


def test_json_tells_what_failed_and_what_was_not_run(place: Place) -> None:
    may_fail = v4.new_code_cell("1 / 0", metadata={"tags": ["raises-exception"]})
    cells = (may_fail, *map(v4.new_code_cell, ("2 / 0", "import os; os._exit(3)", "3")))
    place.notebook("mine.ipynb", *cells)
    for options, statuses in (
        ((), ["error", "error"]),
        (("--keep-going",), ["error", "error", "died", "ok"]),
    ):
        done = place.call("run", "mine.ipynb", "--json", *options)
        assert done.returncode == 1, done.stderr
        told = json.loads(done.stdout)
        assert [cell["result"]["status"] for cell in told["cells"]] == statuses
        assert [cell["may_fail"] for cell in told["cells"]] == [True, False, False, False][: len(statuses)]
        assert told["status"] == "error"
        assert told["not_run"] == 4 - len(statuses)
        assert told["cells"][0]["result"]["error"]["ename"] == "ZeroDivisionError"

    place.notebook("intended.ipynb", may_fail)
    done = place.call("run", "intended.ipynb", "--json")
    assert (done.returncode, json.loads(done.stdout)["status"]) == (0, "ok")


def test_json_names_the_files_that_stay(place: Place) -> None:
    place.write("make.py", "open('made.txt', 'w').close()")
    place.write("made.txt", "mine")
    done = place.call("run", "make.py", "--with", "make.py", "--json")
    told = json.loads(done.stdout)
    assert (done.returncode, told["status"], told["brought_back"]) == (1, "ok", [])
    (refused,) = told["not_brought_back"]
    assert refused.startswith("made.txt: ")
    assert place.state(told["session"]) == "idle"


def test_a_folder_of_data_is_sent_and_an_existing_session_s_own_files_stay(place: Place) -> None:
    (place.folder / "nb" / "data").mkdir(parents=True)
    place.write("nb/data/a.csv", "7")
    place.write("nb/read.py", "print(open('data/a.csv').read()); open('new', 'w').write('2')")
    assert place.call("exec", "open('own', 'w').write('1')", "--session", "folders").returncode == 0
    done = place.call("run", "nb/read.py", "--files", "nb", "--session", "folders")
    assert (done.returncode, done.stdout) == (0, "7\n1\n"), done.stderr
    assert sorted(path.name for path in (place.folder / "nb").iterdir()) == ["data", "new", "read.py"]


def test_a_script_gets_its_arguments_and_leaves_as_under_python(place: Place) -> None:
    place.write(
        "report.py",
        "import argparse\n"
        "parser = argparse.ArgumentParser()\n"
        "parser.add_argument('--year', type=int)\n"
        "print('year', parser.parse_args().year)\n"
        "# %%\n"
        "import sys\n"
        "print(sys.argv)\n"
        "sys.exit(0)\n"
        "# %%\n"
        "print('never')\n",
    )
    done = place.call("run", "report.py", "--", "--year", "2026")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "year 2026\n['report.py', '--year', '2026']\n"
    assert not re.search("SystemExit|To exit|error", done.stderr)
    told = json.loads(place.call("run", "report.py", "--json").stdout)
    assert (told["status"], told["not_run"]) == ("ok", 1)

    wrong = place.call("run", "report.py", "--", "--year", "soon")
    assert wrong.returncode == 2
    assert "usage: report.py [-h] [--year YEAR]" in wrong.stderr
    unseparated = place.call("run", "report.py", "--year", "2026")
    assert unseparated.returncode == 2
    assert "put -- before what is for report.py itself" in unseparated.stderr


@pytest.mark.parametrize(
    ("code", "exit_code", "words"),
    [
        ("import sys\nsys.exit(3)", 3, ""),
        ("raise SystemExit('it is late')", 1, "it is late\n"),
        ("quit()", 0, ""),
        ("breakpoint()", 1, "a debugger, which needs a person who types"),
    ],
    ids=["number", "words", "quit", "breakpoint"],
)
def test_how_a_script_ends(place: Place, code: str, exit_code: int, words: str) -> None:
    place.write("script.py", code)
    done = place.call("run", "script.py")
    assert done.returncode == exit_code, done.stderr
    assert words in done.stderr


def test_a_notebook_takes_no_arguments(place: Place) -> None:
    place.notebook("cells.ipynb", v4.new_code_cell("1"))
    refused = place.call("run", "cells.ipynb", "--", "--year", "2026")
    assert refused.returncode == 2
    assert "no Python script" in refused.stderr


def test_a_file_is_written_where_the_user_says(place: Place) -> None:
    assert place.call("exec", "--session", "getting", "_ = open('a.csv', 'w').write('n')").returncode == 0
    done = place.call("files", "get", "getting", "a.csv", "-o", "mine.csv")
    assert (done.returncode, done.stdout) == (0, "mine.csv\n"), done.stderr
    assert (place.folder / "mine.csv").read_text() == "n"
    place.write("like.csv", "")
    assert (place.folder / "mine.csv").stat().st_mode == (place.folder / "like.csv").stat().st_mode
    place.call("session", "end", "getting")


@pytest.mark.parametrize(
    ("spec", "code", "shown"),
    [
        ({"name": "bash", "display_name": "Bash", "language": "bash"}, "echo hi $((6*7))", "hi 42"),
        (
            {"name": "deno", "display_name": "Deno", "language": "typescript"},
            "const n: number = 6; console.log(`hi ${n * 7}`)",
            "hi 42",
        ),
        ({"name": "my-env", "display_name": "Mine", "language": "python"}, "print('hi', 6 * 7)", "hi 42"),
    ],
)
def test_a_notebook_runs_in_its_own_language(
    place: Place, spec: dict[str, str], code: str, shown: str
) -> None:
    made = v4.new_notebook(cells=[v4.new_code_cell(code)], metadata={"kernelspec": spec})
    nbformat.write(made, place.folder / "a.ipynb")
    done = place.call("run", "a.ipynb", "-o", "done.ipynb")
    assert (done.returncode, shown in done.stdout) == (0, True), (done.stdout, done.stderr)
    assert place.read("done.ipynb").cells[0].outputs[0].text == f"{shown}\n"


def test_a_notebook_of_a_language_that_is_not_here_is_refused_before_a_cell_runs(place: Place) -> None:
    spec = {"name": "ir", "display_name": "R", "language": "R"}
    cells = [v4.new_code_cell("y = 3"), v4.new_code_cell("y")]
    nbformat.write(v4.new_notebook(cells=cells, metadata={"kernelspec": spec}), place.folder / "r.ipynb")
    before = place.call("sessions", "--json").stdout
    done = place.call("run", "r.ipynb")
    assert (done.returncode, done.stdout) == (2, "")
    assert "r.ipynb: the notebook is for the kernelspec 'ir' of R" in done.stderr
    assert place.call("sessions", "--json").stdout == before
    forced = place.call("run", "r.ipynb", "--language", "python")
    assert (forced.returncode, "3" in forced.stdout) == (0, True)


def test_a_script_looks_beside_itself(place: Place) -> None:
    place.write("data.csv", "the data")
    place.write(
        "s.py",
        'from pathlib import Path\nprint((Path(__file__).resolve().parent / "data.csv").read_text())\n'
        "print(Path(__file__).name)",
    )
    done = place.call("run", "s.py", "--with", "data.csv")
    assert (done.returncode, done.stdout.split()) == (0, ["the", "data", "s.py"]), done.stderr


def test_a_notebook_that_is_not_quite_valid_runs_and_becomes_valid(place: Place) -> None:
    cells = [
        {"cell_type": "markdown", "metadata": {}, "source": None, "outputs": [], "execution_count": None},
        {"cell_type": "code", "id": "a b/é", "source": "print('ran')", "attachments": {}},
    ]
    metadata = {"title": 5, "kernelspec": {"display_name": "Python"}, "language_info": {}}
    place.write("a.ipynb", json.dumps({"nbformat": 4, "metadata": metadata, "cells": cells}))
    done = place.call("run", "a.ipynb", "-o", "done.ipynb")
    assert (done.returncode, "ran" in done.stdout) == (0, True), done.stderr
    assert "left out: metadata.title, metadata.kernelspec" in done.stderr
    assert place.read("done.ipynb").cells[1].outputs[0].text == "ran\n"
