"""``cellgate setup`` where it fails; where it succeeds, all other tests stand on it.

The set-ups here install nothing but tiny wheels, from an index of the tests' own.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

import pytest

from cellgate.cli.main import main
from cellgate_kernels.specs.catalog import data_folder
from tests.support.wheels import Index, build_wheel

PATIENCE = 60.0
ROOT = Path(__file__).parents[3]


def cellgate(words: list[str]) -> int:
    """`main`, whose set-up leaves with its exit code."""
    try:
        return main(words)
    except SystemExit as leaving:
        return int(leaving.code or 0)


def test_a_requirements_file_that_is_not_there_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["setup", "--prefix", str(tmp_path), "--requirements", "absent.txt"]) == 2
    assert capsys.readouterr().err == "cellgate: --requirements: there is no file absent.txt\n"
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    """An index of one package, apple."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    build_wheel(wheels, "apple")
    served = Index(wheels)
    yield served
    served.close()


@pytest.fixture
def environ(tmp_path: Path, index: Index, monkeypatch: pytest.MonkeyPatch) -> Mapping[str, str]:
    """Variables with which pip, and uv by it, ask that index alone, and only once."""
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    settings = {
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_INDEX_URL": index.url,
        "PIP_RETRIES": "0",
        "UV_CACHE_DIR": str(tmp_path / "cache"),
        "NO_PROXY": "127.0.0.1",
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    return settings


@pytest.fixture
def words(tmp_path: Path, index: Index) -> list[str]:
    """A set-up of apple alone; with its hash, so that no time is spent on pip."""
    requirements = tmp_path / "requirements.txt"
    [wheel] = index.folder.iterdir()
    requirements.write_text(f"apple==1.0 --hash=sha256:{sha256(wheel.read_bytes()).hexdigest()}\n")
    return ["setup", "--prefix", str(tmp_path / "prefix"), "--requirements", str(requirements)]


def is_finished(prefix: Path) -> bool:
    """Whether there is a whole environment, with apple in it."""
    environment = data_folder(prefix) / "environment"
    return bool(list(environment.glob("*.sha256")) and list(environment.glob("lib/*/site-packages/apple")))


def test_steps_are_told_and_a_second_set_up_has_none(
    tmp_path: Path, environ: Mapping[str, str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    environment = data_folder(tmp_path / "prefix") / "environment"
    assert cellgate(words) == 0
    assert capsys.readouterr().out.splitlines()[:4] == [
        f"making the kernel environment in {environment} ...",
        "downloading, installing and compiling its packages ...",
        "writing the kernelspecs and matplotlib's list of fonts ...",
        f"kernel environment  {environment}",
    ]
    assert is_finished(tmp_path / "prefix")
    assert cellgate(words) == 0
    assert "making" not in capsys.readouterr().out


def choice(prefix: Path) -> object:
    """What is kept of the choice."""
    return json.loads((data_folder(prefix) / "environment.json").read_text())


def test_a_set_up_that_names_no_list_keeps_the_one_of_before(
    tmp_path: Path, environ: Mapping[str, str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    plain = words[:3]
    assert cellgate(words) == 0
    assert choice(tmp_path / "prefix") == {"requirements": str(tmp_path / "requirements.txt")}
    capsys.readouterr()
    assert cellgate(plain) == 0
    assert f"packages            {tmp_path}/requirements.txt\n" in capsys.readouterr().out
    assert is_finished(tmp_path / "prefix")
    (tmp_path / "requirements.txt").unlink()
    assert cellgate(plain) == 2
    assert capsys.readouterr().err == (
        f"cellgate: the environment in {tmp_path}/prefix was made from {tmp_path}/requirements.txt,"
        " which is not there any more: name a list with --requirements, or --environment standard\n"
    )
    assert is_finished(tmp_path / "prefix")


def test_a_choice_is_kept_even_if_it_could_not_be_made(
    tmp_path: Path, environ: Mapping[str, str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The index of this test has none of the packages."""
    plain = words[:3]
    assert cellgate([*plain, "--environment", "minimal"]) == 1
    assert choice(tmp_path / "prefix") == {"environment": "minimal"}
    assert cellgate(plain) == 1
    assert choice(tmp_path / "prefix") == {"environment": "minimal"}
    assert cellgate([*plain, "--environment", "standard"]) == 1
    assert choice(tmp_path / "prefix") == {"environment": "standard"}


def test_a_choice_that_can_t_be_read_is_not_taken_for_none(
    tmp_path: Path, environ: Mapping[str, str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = data_folder(tmp_path / "prefix") / "environment.json"
    path.parent.mkdir(parents=True)
    path.write_text('{"environment": "maximal"}')
    assert cellgate(words[:3]) == 2
    assert capsys.readouterr().err.startswith(f"cellgate: {path} is damaged (")
    assert cellgate(words) == 0


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (["--environment", "maximal"], "--environment"),
        (["--environment", "minimal", "--requirements", "mine.txt"], "not both"),
    ],
)
def test_a_wrong_choice_changes_nothing(
    tmp_path: Path, wrong: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cellgate(["setup", "--prefix", str(tmp_path), *wrong]) == 2
    assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def made_by(words: Sequence[str]) -> str:
    """The commands that make would run."""
    command = ["make", "--dry-run", "--no-print-directory", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_a_place_where_no_environment_can_be_is_told_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["setup", "--prefix", "/dev/null/x"]) == 1
    assert capsys.readouterr().err == (
        "cellgate: The environment's choice can't be read:"
        " Not a directory (/dev/null/x/share/cellgate/environment.json)\n"
    )


def test_make_sets_up_again_for_another_environment_only(tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "uv").touch()
    kept = data_folder(venv) / "environment.json"
    kept.parent.mkdir(parents=True)
    kept.write_text('{"environment":"minimal"}\n')
    (venv / ".setup-done").touch()
    setup = f"{venv}/bin/cellgate setup"
    # With the shell's variable of that name nothing is meant.
    for words in ((), ("ENVIRONMENT=minimal",)):
        assert setup not in made_by(["setup", f"VENV={venv}", *words])
    assert f"{setup} --environment standard\n" in made_by(["setup", f"VENV={venv}", "ENVIRONMENT=standard"])
    (venv / ".setup-done").unlink()
    assert f"{setup} \n" in made_by(["setup", f"VENV={venv}"])


def made(venv: Path) -> Path:
    """What make takes for a set-up that is finished."""
    (venv / "bin").mkdir(parents=True)
    for name in ("bin/uv", ".setup-done"):
        (venv / name).touch()
    return venv


@pytest.mark.parametrize("folder", ["inside", "specs/container/python3"])
def test_what_python_writes_beside_modules_is_no_reason_to_set_up_again(tmp_path: Path, folder: str) -> None:
    words = ["setup", f"VENV={made(tmp_path / 'venv')}"]
    place = ROOT / "kernels" / "cellgate_kernels" / folder
    written = place / "__pycache__"
    had = written.exists()
    written.mkdir(exist_ok=True)
    try:
        assert "pip install" not in made_by(["--what-if", str(written.relative_to(ROOT)), *words])
    finally:
        if not had:
            written.rmdir()
    kept = next(path for path in sorted(place.iterdir()) if path.is_file())
    assert "pip install" in made_by(["--what-if", str(kept.relative_to(ROOT)), *words])


def test_make_run_takes_a_port_of_its_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["run", f"VENV={made(tmp_path / 'venv')}"]
    serve = f"exec {tmp_path}/venv/bin/cellgate serve"
    # Not the shell's variable of that name, which is for other programs.
    monkeypatch.setenv("PORT", "3000")
    assert made_by(words).split() == serve.split()
    assert made_by([*words, "PORT=9100"]).split() == [*serve.split(), "--port", "9100"]
    both = made_by([*words, "PORT=9100", "ARGS=--backend sandbox"])
    assert both.split() == [*serve.split(), "--port", "9100", "--backend", "sandbox"]


def test_who_only_serves_gets_no_test_tools_and_no_list_of_packages(tmp_path: Path) -> None:
    words = [f"VENV={tmp_path}/venv"]
    installs = [line for line in made_by(["run", *words]).splitlines() if " pip install " in line]
    # On a terminal uv would list each package.
    assert all("--quiet" in line for line in installs)
    assert [line.rpartition("--editable ")[2] for line in installs if "--editable" in line] == [
        '".[server,html,mcp,otel]"'
    ]
    made(tmp_path / "venv")
    tools = '--editable ".[server,test,check]"'
    for target in ("test", "test-fast", "check"):
        assert tools in made_by([target, *words]), target
    assert tools not in made_by(["setup", *words])
    # All that is locked is there already.
    (tmp_path / "venv" / ".tools-done").touch()
    assert tools not in made_by(["test", *words])
    locked = made_by(["-W", "pyproject.toml", "setup", "LOCKED=1", *words])
    assert f"touch {tmp_path}/venv/.tools-done" in locked


def make_setup(tmp_path: Path, python: str) -> subprocess.CompletedProcess[str]:
    """`make setup` with this program as Python."""
    program = tmp_path / "python3"
    program.write_text(f"#!/bin/sh\n{python}\n")
    program.chmod(0o755)
    words = ["make", "--no-print-directory", "setup", f"VENV={tmp_path}/venv", f"PYTHON={program}"]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)


def test_make_says_which_python_it_needs(tmp_path: Path) -> None:
    done = make_setup(tmp_path, "exit 1")
    assert done.returncode == 2
    said = f"Python 3.11 or newer is needed, and {tmp_path}/python3 is none."
    assert done.stderr.startswith(f"{said} Name one: make setup PYTHON=python3.12\n")
    assert not (tmp_path / "venv").exists()


def test_make_makes_half_an_environment_anew(tmp_path: Path) -> None:
    """What venv leaves where ensurepip is a package that is not installed."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True, timeout=60)
    done = make_setup(tmp_path, f'echo "$@" >> {tmp_path}/calls; [ "$2" = "import tomllib" ]')
    assert done.returncode == 2
    assert (tmp_path / "calls").read_text() == f"-c import tomllib\n-m venv --clear {tmp_path}/venv\n"


def test_packages_that_can_t_be_installed_end_in_uv_s_own_words(
    tmp_path: Path, environ: Mapping[str, str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "requirements.txt").write_text(f"no-such-package==1.0 --hash=sha256:{'0' * 64}\n")
    assert cellgate(words) == 1
    error = capsys.readouterr().err
    assert "no-such-package" in error
    assert "setup.log" in error
    assert "Traceback" not in error


def test_without_the_network_it_says_so_and_can_be_called_again(
    tmp_path: Path,
    environ: Mapping[str, str],
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    assert cellgate(words) == 1
    error = capsys.readouterr().err
    assert "Failed to fetch: http://127.0.0.1:9/simple/apple/" in error.replace("`", "")
    assert "call this again" in error
    assert not is_finished(tmp_path / "prefix")
    monkeypatch.setenv("PIP_INDEX_URL", environ["PIP_INDEX_URL"])
    assert cellgate(words) == 0
    assert is_finished(tmp_path / "prefix")


def test_a_full_disk_is_an_error_in_words(
    tmp_path: Path, environ: Mapping[str, str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    root = data_folder(tmp_path / "prefix")
    root.mkdir(parents=True)
    (root / "setup.log").symlink_to("/dev/full")
    assert cellgate(words) == 1
    assert capsys.readouterr().err == (
        f"cellgate: The kernel environment can't be made in {root}: No space left on device\n"
    )


Begin = Callable[[], "subprocess.Popen[str]"]


@pytest.fixture
def begin(environ: Mapping[str, str], words: list[str]) -> Iterator[Begin]:
    """Starts a set-up as a program of its own, in a process group of its own."""
    begun: list[subprocess.Popen[str]] = []

    def start() -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "cellgate.cli.main", *words]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        begun.append(subprocess.Popen(command, text=True, start_new_session=True, **pipes))
        return begun[-1]

    yield start
    for process in begun:
        process.kill()
        process.communicate()


def test_one_that_is_interrupted_ends_its_programs_and_can_be_called_again(
    tmp_path: Path, index: Index, begin: Begin, words: list[str]
) -> None:
    index.hang.add("apple")
    process = begin()
    assert index.hanging.wait(PATIENCE)
    process.send_signal(signal.SIGINT)  # to it alone: on a terminal uv would get one too
    output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    with (data_folder(tmp_path / "prefix") / "setup.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # it would fail if uv were left
    assert "Traceback" not in output
    assert not is_finished(tmp_path / "prefix")
    index.release()
    assert cellgate(words) == 0
    assert is_finished(tmp_path / "prefix")


def test_one_that_is_killed_leaves_uv_for_whose_end_the_next_one_waits(
    tmp_path: Path, index: Index, begin: Begin
) -> None:
    index.hang.add("apple")
    killed = begin()
    assert index.hanging.wait(PATIENCE)
    killed.kill()
    killed.wait(PATIENCE)
    after = begin()
    assert after.stdout is not None
    assert after.stdout.readline() == "waiting for another set-up in the same place to end ...\n"
    index.release()
    output, _ = after.communicate(timeout=PATIENCE)
    assert after.returncode == 0, output
    assert is_finished(tmp_path / "prefix")


def first_line(prefix: Path, tmp_path: Path) -> str:
    """The first line of a gateway whose interpreter has this prefix; it then finds no kernel to serve."""
    code = f"import sys; sys.prefix = {str(prefix)!r}; from cellgate.cli.main import main; main(sys.argv[1:])"
    serve = ("serve", "--backend", "process", "--port", "0", "--data-dir", str(tmp_path / "data"))
    done = subprocess.run(
        [sys.executable, "-c", code, *serve], capture_output=True, text=True, check=False, timeout=PATIENCE
    )
    assert 'There is no kernelspec "python3"' in done.stderr
    return done.stdout.splitlines()[0]


def choose(prefix: Path, words: list[str]) -> None:
    """Let the first set-up below a prefix install an apple."""
    data_folder(prefix).mkdir(parents=True)
    (data_folder(prefix) / "environment.json").write_text(json.dumps({"requirements": words[-1]}))


def test_the_first_start_makes_the_environment(
    tmp_path: Path, environ: Mapping[str, str], words: list[str]
) -> None:
    prefix = tmp_path / "prefix"
    choose(prefix, words)
    environment = data_folder(prefix) / "environment"
    assert first_line(prefix, tmp_path) == f"making the kernel environment in {environment} ..."
    assert is_finished(prefix)


def test_a_gateway_in_a_cache_has_its_environment_in_a_folder_that_stays(
    tmp_path: Path, environ: Mapping[str, str], words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ``uvx`` starts it; uv itself makes no environment in its cache."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "CACHEDIR.TAG").write_text("Signature: 8a477f597d28d172789f06886806bc55")
    this = f"{version('cellgate')}-python{sys.version_info.major}.{sys.version_info.minor}"
    kept = tmp_path / "share" / "cellgate-kernels" / this
    choose(kept, words)
    environment = data_folder(kept) / "environment"
    prefix = cache / "archive-v0" / "b"
    assert first_line(prefix, tmp_path) == f"making the kernel environment in {environment} ..."
    assert is_finished(kept)
    assert not prefix.exists()


def test_a_start_that_can_not_make_the_environment_ends(
    tmp_path: Path,
    environ: Mapping[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The index of this test has none of the packages."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "prefix"))
    data = str(tmp_path / "data")
    assert cellgate(["serve", "--backend", "process", "--port", "0", "--data-dir", data]) == 1
    assert "The kernel environment can't be made" in capsys.readouterr().err
    assert not list(tmp_path.glob("data/*"))
