"""``cellgate environment``: what operators add, renew and remove, where it goes wrong, and what is left.

The environments here have nothing but tiny wheels, from an index of the tests' own; one of them is called
ipykernel. Kernels in real ones are in ``tests/gateway/sessions/test_named_environments.py``.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from cellgate.cli.main import main
from cellgate_kernels.specs.added_environments import LOCK, AddedEnvironments, keep_in_use
from cellgate_kernels.specs.catalog import data_folder
from tests.support.wheels import Index, build_wheel

PATIENCE = 60.0

Cellgate = Callable[..., tuple[int, str, str]]


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    """An index of a kernel, a pip and an apple, which alone is asked."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    for name in ("ipykernel", "pip", "apple"):
        build_wheel(wheels, name)
    served = Index(wheels)
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    settings = {
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_INDEX_URL": served.url,
        "PIP_RETRIES": "0",
        "UV_CACHE_DIR": str(tmp_path / "cache"),
        "NO_PROXY": "127.0.0.1",
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    yield served
    served.close()


@pytest.fixture
def cellgate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Cellgate:
    """Calls ``cellgate environment`` for a prefix; returns its exit code and what it printed."""

    def call(*words: str) -> tuple[int, str, str]:
        try:
            code = main(["environment", *words, "--prefix", str(tmp_path / "prefix")])
        except SystemExit as leaving:
            code = int(leaving.code or 0)
        return code, *capsys.readouterr()

    return call


def hashed(index: Index, name: str, digest: str = "") -> str:
    wheel = (index.folder / f"{name}-1.0-py3-none-any.whl").read_bytes()
    return f"{name}==1.0 --hash=sha256:{digest or sha256(wheel).hexdigest()}"


def listed(tmp_path: Path, *lines: str) -> str:
    path = tmp_path / "list.txt"
    path.write_text("".join(f"{line}\n" for line in lines))
    return str(path)


def told(cellgate: Cellgate) -> list[dict[str, object]]:
    code, out, _ = cellgate("ls", "--json")
    assert code == 0
    found: list[dict[str, object]] = json.loads(out)
    return found


def folders(tmp_path: Path) -> set[Path]:
    return set((data_folder(tmp_path / "prefix") / "environments").iterdir())


def test_an_environment_is_added_renewed_and_removed(
    tmp_path: Path, index: Index, cellgate: Cellgate
) -> None:
    assert cellgate("ls")[1] == (
        "No environments: cellgate environment add NAME --requirements FILE adds one.\n"
    )
    code, out, _ = cellgate("add", "fruit", "--requirements", listed(tmp_path, "apple"))
    assert code == 0
    [environment] = told(cellgate)
    [folder] = folders(tmp_path)
    digest = str(environment["digest"])
    assert folder.name == digest[:16]
    assert environment == {
        "name": "fruit",
        "digest": digest,
        "python": ".".join(map(str, sys.version_info[:3])),
        "packages": 3,
        "from": "",
        "folder": str(folder),
    }
    assert out.splitlines() == [
        "choosing the versions of its packages ...",
        f"making the environment in {folder} ...",
        "downloading, installing and compiling its packages ...",
        "writing its start-up files and matplotlib's list of fonts ...",
        "environment         fruit",
        f"digest              {digest}",
        f"packages            3, for Python {environment['python']}",
        f"folder              {folder}",
    ]
    lock = (data_folder(folder) / LOCK).read_text()
    wheel = sha256((index.folder / "apple-1.0-py3-none-any.whl").read_bytes()).hexdigest()
    assert lock.startswith(f"apple==1.0 \\\n    --hash=sha256:{wheel}\nipykernel==1.0 ")
    assert index.url not in lock
    assert list(folder.glob("lib/*/site-packages/apple"))
    # There is nothing newer.
    code, out, _ = cellgate("build", "fruit")
    assert code == 0
    assert "3 packages of these versions are there already" in out
    assert "fruit is as new as it can be: nothing has changed.\n" in out
    assert folders(tmp_path) == {folder}
    build_wheel(index.folder, "apple", "1.1")
    assert cellgate("build", "fruit")[0] == 0
    [renewed] = folders(tmp_path)
    assert renewed != folder
    assert "apple==1.1" in (data_folder(renewed) / LOCK).read_text()
    assert [each["folder"] for each in told(cellgate)] == [str(renewed)]
    assert cellgate("remove", "fruit") == (0, "removed             fruit\n", "")
    assert told(cellgate) == []
    assert folders(tmp_path) == set()


def test_one_is_made_of_another_and_what_is_the_same_is_made_once(
    tmp_path: Path, index: Index, cellgate: Cellgate
) -> None:
    assert cellgate("add", "fruit", "--requirements", listed(tmp_path, "apple"))[0] == 0
    build_wheel(index.folder, "apple", "1.1")
    build_wheel(index.folder, "pear", requires=["apple"])
    assert cellgate("add", "copy", "--from", "fruit")[0] == 0
    assert len(folders(tmp_path)) == 1
    assert cellgate("add", "basket", "--from", "fruit", "--requirements", listed(tmp_path, "pear"))[0] == 0
    lock = (data_folder(Path(str(told(cellgate)[0]["folder"]))) / LOCK).read_text()
    assert [line.split(" ")[0] for line in lock.splitlines() if "==" in line] == [
        "apple==1.0",
        "ipykernel==1.0",
        "pear==1.0",
        "pip==1.0",
    ]
    code, out, _ = cellgate("ls")
    assert [line.split()[:4] for line in out.splitlines()] == [
        ["NAME", "PYTHON", "PACKAGES", "FROM"],
        *(
            [name, told(cellgate)[0]["python"], *rest]
            for name, *rest in (("basket", "4", "fruit"), ("copy", "3", "fruit"), ("fruit", "3", "-"))
        ),
    ]
    # The folder stays for the other name.
    assert cellgate("remove", "fruit")[0] == 0
    assert len(folders(tmp_path)) == 2
    code, _, err = cellgate("build", "basket")
    assert code == 2
    assert err == "cellgate: There is no environment 'fruit'. Added so far: basket, copy\n"


def test_what_fails_leaves_the_environment_as_it_was(
    tmp_path: Path, index: Index, cellgate: Cellgate
) -> None:
    code, _, err = cellgate("add", "fruit", "--requirements", listed(tmp_path, "plum"))
    assert code == 1
    assert "Because plum was not found in the package registry" in err
    assert told(cellgate) == []
    assert folders(tmp_path) == set()
    assert cellgate("add", "fruit", "--requirements", listed(tmp_path, "apple"))[0] == 0
    before = told(cellgate)
    index.fail.add("apple")
    assert cellgate("build", "fruit")[0] == 1
    index.fail.clear()
    build_wheel(index.folder, "apple", "1.1")
    index.cut.add("apple")
    assert cellgate("build", "fruit")[0] == 1
    assert told(cellgate) == before
    assert len(folders(tmp_path)) == 1


def test_a_list_with_hashes_is_taken_as_it_is(tmp_path: Path, index: Index, cellgate: Cellgate) -> None:
    build_wheel(index.folder, "apple", "1.1")
    whole = listed(tmp_path, hashed(index, "apple"), hashed(index, "ipykernel"))
    assert cellgate("add", "fruit", "--requirements", whole)[0] == 0
    assert [each["packages"] for each in told(cellgate)] == [2]
    assert cellgate("build", "fruit")[1].count("nothing has changed") == 1
    code, _, err = cellgate("add", "other", "--from", "fruit", "--requirements", whole)
    assert (code, err) == (2, "cellgate: a list with hashes is whole: leave out --from, or the hashes\n")
    code, _, err = cellgate("add", "other", "--requirements", listed(tmp_path, hashed(index, "apple")))
    assert code == 2
    assert "The list has no ipykernel" in err
    wrong = listed(tmp_path, hashed(index, "apple", "0" * 64), hashed(index, "ipykernel"))
    code, _, err = cellgate("add", "other", "--requirements", wrong)
    assert code == 1
    assert "Hash mismatch for `apple==1.0`" in err
    assert [each["name"] for each in told(cellgate)] == ["fruit"]
    assert len(folders(tmp_path)) == 1


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["add", "Fruit"], "'Fruit' can't be the name of an environment, which has 1 to 40 of a-z"),
        (["add", "python3"], "'python3' can't be the name of an environment: it is one of Cellgate's own"),
        (["add", "mine"], "'mine' is a kernelspec of this gateway; choose another name"),
        (["add", "x", "--from", "nothing"], "There is no environment 'nothing'. Added so far: none"),
        (
            ["add", "x", "--python", "three"],
            "--python 'three' is neither a version, such as 3.12, nor a path",
        ),
        (["add", "x", "--python", "./python"], "--python ./python: give a version, or the whole path"),
        (["add", "x", "--python", "/nowhere/python"], "/nowhere/python can't be started: No such file"),
        (["build", "x"], "There is no environment 'x'. Added so far: none"),
        (["remove", "../kernels"], "There is no environment '../kernels'"),
        (["remove", "mine"], "There is no environment 'mine'"),
        (["build", "x", "--from", "minimal"], "--from is an option of cellgate environment add"),
        (["install", "x"], "cellgate environment does not know 'install'; did you mean add?"),
        (["add"], "usage: cellgate environment add NAME"),
    ],
)
def test_what_is_refused_changes_nothing(
    tmp_path: Path, index: Index, cellgate: Cellgate, words: list[str], told: str
) -> None:
    kernelspec = data_folder(tmp_path / "prefix") / "kernels" / "mine"
    kernelspec.mkdir(parents=True)
    (kernelspec / "kernel.json").write_text('{"argv": ["/bin/false"], "language": "python"}')
    if words[0] == "add" and "--from" not in words and len(words) > 1:
        words = [*words, "--requirements", listed(tmp_path, "apple")]
    code, _, err = cellgate(*words)
    assert code == 2
    assert told in err
    assert [each.name for each in kernelspec.parent.iterdir()] == ["mine"]
    assert not list(data_folder(tmp_path / "prefix").glob("environments/*"))


def test_a_list_that_is_none_is_refused(tmp_path: Path, cellgate: Cellgate) -> None:
    assert cellgate("add", "x")[2] == (
        "cellgate: name a list of packages with --requirements, an environment with --from, or both\n"
    )
    assert cellgate("add", "x", "--requirements", "absent.txt")[2] == (
        "cellgate: --requirements: there is no file absent.txt\n"
    )
    assert (
        "the list, line 1: a list has only names of packages, not '-e .'"
        in (cellgate("add", "x", "--requirements", listed(tmp_path, "-e ."))[2])
    )
    (tmp_path / "list.txt").write_bytes(b"\xff")
    assert "is no text" in cellgate("add", "x", "--requirements", str(tmp_path / "list.txt"))[2]
    (tmp_path / "list.txt").write_bytes(b"#" * (1024 * 1024 + 1))
    assert (
        "is larger than a list of packages can be"
        in (cellgate("add", "x", "--requirements", str(tmp_path / "list.txt"))[2])
    )


def test_one_that_is_added_twice_says_what_to_do(tmp_path: Path, index: Index, cellgate: Cellgate) -> None:
    words = ["add", "fruit", "--requirements", listed(tmp_path, "apple")]
    assert cellgate(*words)[0] == 0
    before = told(cellgate)
    build_wheel(index.folder, "apple", "1.1")
    code, _, err = cellgate(*words)
    assert code == 2
    assert err == (
        "cellgate: There is an environment 'fruit' already: `cellgate environment build fruit` renews it,"
        " `cellgate environment remove fruit` removes it\n"
    )
    assert told(cellgate) == before


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_build_is_never_offered_and_cleaned_up(
    tmp_path: Path, index: Index, cellgate: Cellgate, sent: signal.Signals
) -> None:
    assert cellgate("add", "fruit", "--requirements", listed(tmp_path, "apple"))[0] == 0
    before = told(cellgate)
    [folder] = folders(tmp_path)
    build_wheel(index.folder, "pear")
    whole = listed(tmp_path, hashed(index, "pear"), hashed(index, "ipykernel"))
    index.hang.add("pear-1.0-py3-none-any.whl")
    add = ["environment", "add", "basket", "--requirements", whole]
    words = [sys.executable, "-m", "cellgate", *add, "--prefix", str(tmp_path / "prefix")]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        assert index.hanging.wait(PATIENCE)
        [half] = [each for each in folders(tmp_path) if (each / "bin").exists() and each != folder]
        process.send_signal(sent)
        if sent == signal.SIGINT:
            assert process.wait(PATIENCE) == 130
            assert folders(tmp_path) == {folder}
        index.release()
        process.wait(PATIENCE)
    assert told(cellgate) == before
    # Waits until what the killed one had started has ended.
    assert cellgate("build", "fruit")[0] == 0
    assert not half.exists()
    assert folders(tmp_path) == {folder}
    assert cellgate(*add[1:])[0] == 0
    assert half.exists()


def test_folders_stay_while_a_gateway_serves(tmp_path: Path, index: Index, cellgate: Cellgate) -> None:
    assert cellgate("add", "fruit", "--requirements", listed(tmp_path, "apple"))[0] == 0
    [folder] = folders(tmp_path)
    kept = keep_in_use(str(data_folder(tmp_path / "prefix") / "kernels"))
    try:
        build_wheel(index.folder, "apple", "1.1")
        code, out, _ = cellgate("build", "fruit")
        assert code == 0
        assert out.endswith(
            "1 former folder stays while a gateway serves, whose sessions may use it: a later add, build or"
            " remove, when none serves, removes it\n"
        )
        assert folder in folders(tmp_path)
        assert "2 former folders stay while" in cellgate("remove", "fruit")[1]
        assert len(folders(tmp_path)) == 2
    finally:
        os.close(kept)
    assert cellgate("add", "fruit", "--requirements", listed(tmp_path, "apple==1.0"))[0] == 0
    assert folders(tmp_path) == {folder}


def test_a_set_up_renews_the_start_up_files(tmp_path: Path, index: Index, cellgate: Cellgate) -> None:
    assert cellgate("add", "fruit", "--requirements", listed(tmp_path, "apple"))[0] == 0
    [folder] = folders(tmp_path)
    script = data_folder(folder) / "bootstrap.py"
    former = script.read_bytes()
    script.write_text("a former version's")
    AddedEnvironments(tmp_path / "prefix").renew_start_up_files()
    assert script.read_bytes() == former


def test_another_python_of_this_machine(tmp_path: Path, index: Index, cellgate: Cellgate) -> None:
    program = str(Path(sys.executable).resolve())
    words = ["--requirements", listed(tmp_path, "apple"), "--python"]
    assert cellgate("add", "fruit", *words, program)[0] == 0
    code, _, err = cellgate("add", "other", *words, "3.99")
    assert code == 2
    assert "--python 3.99: there is no such Python on this machine. Install it, as by `uv python" in err
    old = tmp_path / "old"
    old.write_text("#!/bin/sh\necho 3 9 cpython 3.9.2 linux-x86_64\n")
    old.chmod(0o755)
    code, _, err = cellgate("add", "other", *words, str(old))
    assert code == 2
    assert "kernels need Python 3.11 or newer" in err
    assert [each["name"] for each in told(cellgate)] == ["fruit"]
