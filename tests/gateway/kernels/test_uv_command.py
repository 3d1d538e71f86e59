"""uv with pip's settings: what is translated, and that real installs obey it and the lists' hashes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from cellgate_kernels.base.errors import BackendUnavailable
from cellgate_kernels.specs import uv_command as uv_command_module
from cellgate_kernels.specs.addresses import without_secrets
from cellgate_kernels.specs.install import create_environment
from cellgate_kernels.specs.uv_command import UnreadableSettings, is_hashed, pip_settings, uv_command
from tests.support.wheels import Index, build_wheel

PROJECT = Path(__file__).parents[3]
SYSTEM = {"UV_SYSTEM_CERTS": "1"}
"""What stands for pip's own choice of certificates, where nothing else is said."""


@pytest.fixture(autouse=True)
def system_has_certificates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cellgate_kernels.specs.uv_command._system_has_certificates", lambda: True)


@pytest.mark.parametrize(
    ("pip", "variables"),
    [
        ({}, SYSTEM),
        ({"index-url": "https://u:p@one/simple"}, SYSTEM | {"UV_DEFAULT_INDEX": "https://u:p@one/simple"}),
        (
            {"extra-index-url": "\nhttps://two/simple\nfile:///three"},
            SYSTEM
            | {"UV_INDEX": "https://two/simple file:///three", "UV_INDEX_STRATEGY": "unsafe-best-match"},
        ),
        ({"find-links": "/one https://two"}, SYSTEM | {"UV_FIND_LINKS": "/one,https://two"}),
        ({"trusted-host": "one\ntwo:8080"}, SYSTEM | {"UV_INSECURE_HOST": "one two:8080"}),
        ({"cert": "/company.pem"}, {"SSL_CERT_FILE": "/company.pem"}),
        ({"client-cert": "/me.pem"}, SYSTEM | {"SSL_CLIENT_CERT": "/me.pem"}),
        ({"proxy": "http://proxy:3128"}, SYSTEM | {"ALL_PROXY": "http://proxy:3128"}),
        ({"default-timeout": "180"}, SYSTEM | {"UV_HTTP_TIMEOUT": "180"}),
        ({"timeout": "2.5", "default-timeout": "180"}, SYSTEM | {"UV_HTTP_TIMEOUT": "3"}),
        ({"timeout": "soon"}, SYSTEM),
        ({"timeout": "inf"}, SYSTEM),
        ({"timeout": "-1"}, SYSTEM),
        ({"retries": "0"}, SYSTEM | {"UV_HTTP_RETRIES": "0"}),
        ({"no-index": "false", "disable-pip-version-check": "1"}, SYSTEM),
    ],
)
def test_a_setting_of_pip_s_becomes_uv_s(pip: dict[str, str], variables: dict[str, str]) -> None:
    command, environment = uv_command(["pip", "list"], {}, pip)
    assert Path(command[0]).name == "uv"
    assert command[1:] == ["pip", "list"]
    assert environment == variables


def test_no_index_has_no_variable_and_is_an_option() -> None:
    command, _ = uv_command(["pip", "install", "apple"], {}, {"no-index": "true"})
    assert command[1:] == ["pip", "install", "apple", "--no-index"]


def test_what_is_set_for_uv_comes_before_what_is_set_for_pip() -> None:
    environ = {"UV_DEFAULT_INDEX": "https://mine", "SSL_CERT_FILE": "/mine.pem", "PATH": "/bin"}
    pip = {"index-url": "https://pip", "cert": "/pip.pem"}
    assert uv_command([], environ, pip)[1] == environ


@pytest.mark.parametrize(
    "text", ['index-url = "https://mine"', '[[index]]\nurl = "https://mine"', '[pip]\nfind-links = ["/x"]']
)
def test_places_in_a_file_of_uv_s_come_before_pip_s(tmp_path: Path, text: str) -> None:
    (tmp_path / "uv").mkdir()
    (tmp_path / "uv" / "uv.toml").write_text(text)
    pip = {"index-url": "https://pip", "no-index": "true", "find-links": "/pip", "retries": "3"}
    environ = {"XDG_CONFIG_HOME": str(tmp_path)}
    command, environment = uv_command(["pip"], environ, pip)
    assert (command[1:], environment) == (["pip"], environ | SYSTEM | {"UV_HTTP_RETRIES": "3"})
    chosen = {"UV_CONFIG_FILE": str(tmp_path / "uv" / "uv.toml")}
    assert uv_command([], chosen, pip)[1] == chosen | SYSTEM | {"UV_HTTP_RETRIES": "3"}
    assert uv_command([], environ | {"UV_NO_CONFIG": "1"}, pip)[1]["UV_DEFAULT_INDEX"] == "https://pip"


@pytest.mark.parametrize("text", ["concurrent-downloads = 2", "no toml at all ["])
def test_another_file_of_uv_s_leaves_pip_s_places(tmp_path: Path, text: str) -> None:
    (tmp_path / "uv.toml").write_text(text)
    environ = {"UV_CONFIG_FILE": str(tmp_path / "uv.toml")}
    assert uv_command([], environ, {"index-url": "https://pip"})[1]["UV_DEFAULT_INDEX"] == "https://pip"


def test_pip_s_proxy_is_the_only_one_as_in_pip() -> None:
    environ = {"HTTPS_PROXY": "http://other", "all_proxy": "http://other", "NO_PROXY": "*", "PATH": "/bin"}
    environment = uv_command([], environ, {"proxy": "http://pip:3128"})[1]
    assert environment == {"PATH": "/bin", "ALL_PROXY": "http://pip:3128"} | SYSTEM
    assert uv_command([], environ, {})[1] == environ | SYSTEM


def test_the_log_of_a_set_up_has_no_secrets_of_addresses() -> None:
    said = "error: Failed to fetch: `https://u:p@host/simple/x/?token=secret&a=b` (https://key@h)\n"
    assert (
        without_secrets(said) == "error: Failed to fetch: `https://***@host/simple/x/?***` (https://***@h)\n"
    )
    assert without_secrets("why? because\n") == "why? because\n"
    # However long the address is, and whatever surrounds it.
    long = f"https://host/{'x' * 5000}"
    assert without_secrets(f"`{long}?token=secret`, ({long}?secret#sha256=0)") == (
        f"`{long}?***`, ({long}?***#sha256=0)"
    )


def test_the_certificates_of_pip_s_http_library_count() -> None:
    environ = {"REQUESTS_CA_BUNDLE": "/bundle.pem"}
    assert uv_command([], environ, {})[1] == environ | {"SSL_CERT_FILE": "/bundle.pem"}


def test_a_system_without_certificates_leaves_uv_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cellgate_kernels.specs.uv_command._system_has_certificates", lambda: False)
    assert uv_command([], {}, {})[1] == {}


@pytest.fixture
def pip_conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """pip's only configuration, still empty; uv has none, and a cache of its own."""
    path = tmp_path / "pip.conf"
    path.touch()
    for name in (
        "PIP_FIND_LINKS",
        "PIP_EXTRA_INDEX_URL",
        "PIP_INDEX_URL",
        "PIP_DEFAULT_TIMEOUT",
        "PIP_NO_INDEX",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", str(path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "none"))
    monkeypatch.setenv("XDG_CONFIG_DIRS", str(tmp_path / "none"))
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return path


def test_pip_s_settings_are_those_of_files_and_variables_in_its_order(
    pip_conf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pip_conf.write_text(
        "[global]\nindex-url = https://it's.example/a=b\nproxy = http://global\nretries = 1\n"
        "[install]\nproxy = http://install\nretries = 2\n[download]\nretries = 9\n"
    )
    monkeypatch.setenv("PIP_RETRIES", "3")
    settings = pip_settings(sys.executable)
    assert settings["index-url"] == "https://it's.example/a=b"
    assert (settings["proxy"], settings["retries"]) == ("http://install", "3")


def test_an_interpreter_without_pip_has_no_settings() -> None:
    assert pip_settings("/bin/false") == {}


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    """An index of one package, apple, which needs another, pear."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    build_wheel(wheels, "apple", requires=["pear"])
    build_wheel(wheels, "pear")
    served = Index(wheels)
    yield served
    served.close()


def requirements(folder: Path, *lines: str) -> Path:
    path = folder / "requirements.txt"
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def hashed(name: str, folder: Path) -> str:
    digest = sha256((folder / f"{name}-1.0-py3-none-any.whl").read_bytes()).hexdigest()
    return f"{name}==1.0 --hash=sha256:{digest}"


def installed(environment: Path) -> set[str]:
    return {path.name.partition("-")[0] for path in environment.glob("lib/python*/site-packages/*.dist-info")}


@pytest.mark.nightly
def test_the_index_of_pip_s_configuration_is_asked_and_the_folder_of_the_call_is_not_obeyed(
    tmp_path: Path, pip_conf: Path, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With pip, which comes from Python itself: seconds that the set-ups of the other tests spare."""
    pip_conf.write_text(f"[global]\nindex-url = {index.url}\n")
    (called_in := tmp_path / "elsewhere").mkdir()
    (called_in / "uv.toml").write_text("no-such-setting = 1\n")
    for module in ("pip", "venv"):
        (called_in / f"{module}.py").write_text("raise SystemExit('a stray module was run')\n")
    requirements(called_in, "apple")
    monkeypatch.chdir(called_in)
    environment = create_environment(tmp_path, print, requirements=Path("requirements.txt"))
    assert installed(environment) >= {"apple", "pear", "pip"}
    assert "/simple/apple/" in index.asked
    assert list(environment.glob("lib/python*/site-packages/apple/__pycache__/*.pyc"))


def test_packages_are_compiled_except_their_tests_and_what_is_no_python(
    tmp_path: Path, pip_conf: Path, index: Index
) -> None:
    modules = {"apple/tests/test_apple.py": b"x = 1", "apple/template.py": b"{{ no python }}"}
    build_wheel(index.folder, "apple", members={"apple/core.py": b"x = 1", **modules})
    pip_conf.write_text(f"[global]\nindex-url = {index.url}\n")
    path = requirements(tmp_path, hashed("apple", index.folder))
    environment = create_environment(tmp_path, print, requirements=path)
    packages = (
        environment / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    )
    assert {module for module in modules if (packages / module).is_file()} == set(modules)
    compiled = {str(each.relative_to(packages)).partition(".")[0] for each in packages.rglob("*.pyc")}
    assert compiled == {"apple/__pycache__/__init__", "apple/__pycache__/core"}


def test_links_alone_are_enough(tmp_path: Path, pip_conf: Path, index: Index) -> None:
    pip_conf.write_text(f"[install]\nno-index = true\nfind-links = {index.folder}\n")
    path = requirements(tmp_path, hashed("apple", index.folder), hashed("pear", index.folder))
    environment = create_environment(tmp_path, print, requirements=path)
    assert installed(environment) == {"apple", "pear"}
    assert index.asked == []


def test_a_list_with_hashes_is_all_that_is_installed(tmp_path: Path, pip_conf: Path, index: Index) -> None:
    pip_conf.write_text(f"[global]\nindex-url = {index.url}\n")
    path = requirements(tmp_path, hashed("apple", index.folder), hashed("pear", index.folder))
    assert is_hashed(path)
    environment = create_environment(tmp_path, print, requirements=path)
    assert installed(environment) == {"apple", "pear"}


def test_a_list_that_uv_compiles_as_the_documentation_says_is_enforced(
    tmp_path: Path, pip_conf: Path, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (PROJECT / "docs" / "how-to" / "operate-a-gateway.md").read_text()
    (words,) = re.findall(r"`uv (pip compile --generate-hashes)`", page)
    pip_conf.write_text(f"[global]\nindex-url = {index.url}\n")
    listed, path = requirements(tmp_path, "apple"), tmp_path / "compiled.txt"
    command, environment = uv_command(
        [*words.split(), "--quiet", "-o", str(path), str(listed)], os.environ, {"index-url": index.url}
    )
    subprocess.run(command, env=environment, check=True, timeout=60)
    assert is_hashed(path)
    assert installed(create_environment(tmp_path / "first", print, requirements=path)) == {"apple", "pear"}
    build_wheel(index.folder, "pear", members={"pear/backdoor.py": b""})
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "empty"))  # the other has the right one
    with pytest.raises(BackendUnavailable, match=r"Hash mismatch for `pear==1\.0`"):
        create_environment(tmp_path / "second", print, requirements=path)


@pytest.mark.nightly
def test_make_lock_locks_every_list(tmp_path: Path, pip_conf: Path, index: Index) -> None:
    """As the Makefile does it, in a project of ours with lists of its own; it needs no other file of it."""
    for name in ("uv", "setuptools"):
        build_wheel(index.folder, name)
    pip_conf.write_text(f"[global]\nindex-url = {index.url}\n")
    project = tmp_path / "project"
    lists = project / "kernels" / "cellgate_kernels" / "inside"
    for folder in (lists, project / ".ci", project / "deploy", project / ".venv" / "bin"):
        folder.mkdir(parents=True)
    for name in ("server", "test", "check"):
        build_wheel(index.folder, name)
    (project / "pyproject.toml").write_text(
        '[project]\nname = "ours"\nversion = "1"\ndependencies = ["apple"]\n[project.optional-dependencies]\n'
        'server = ["server"]\ntest = ["test"]\ncheck = ["check"]\n'
    )
    (project / ".ci" / "requirements.in").write_text("setuptools\nuv\n")
    (project / "deploy" / "requirements.in").write_text("uv\n")
    (lists / "standard.txt").write_text("-r minimal.txt\napple\n")
    (lists / "minimal.txt").write_text("pear\n")
    (lists / "uv.txt").touch()
    (project / ".venv" / "bin" / "uv").touch()
    subprocess.run(
        ["make", "-f", PROJECT / "Makefile", "lock", f"UV={sys.executable} {uv_command_module.__file__}"],
        cwd=project,
        check=True,
        timeout=100,
    )
    wanted = {
        lists / "standard.lock": {"apple", "pear"},
        lists / "minimal.lock": {"pear"},
        lists / "uv.txt": {"uv"},
        project / ".ci" / "requirements.lock": {
            "apple",
            "pear",
            "server",
            "test",
            "check",
            "setuptools",
            "uv",
        },
        project / "deploy" / "requirements.lock": {"apple", "pear", "server", "uv"},
    }
    for path, names in wanted.items():
        text = path.read_text()
        assert set(re.findall(r"^([a-z]+)==1\.0", text, re.MULTILINE)) == names, path
        assert text.count("--hash=sha256:") == len(names)
        assert "make lock" in text
        assert "127.0.0.1" not in text


def test_another_wheel_than_the_list_s_hash_is_refused(tmp_path: Path, pip_conf: Path, index: Index) -> None:
    pip_conf.write_text(f"[global]\nindex-url = {index.url}\n")
    path = requirements(tmp_path, hashed("apple", index.folder), hashed("pear", index.folder))
    build_wheel(index.folder, "pear", members={"pear/backdoor.py": b""})
    with pytest.raises(BackendUnavailable, match=r"Hash mismatch for `pear==1\.0`"):
        create_environment(tmp_path, print, requirements=path)


def test_what_the_list_has_no_hash_of_is_refused(tmp_path: Path, pip_conf: Path, index: Index) -> None:
    pip_conf.write_text(f"[global]\nindex-url = {index.url}\n")
    path = requirements(tmp_path, hashed("apple", index.folder))
    with pytest.raises(BackendUnavailable, match="pear"):
        create_environment(tmp_path, print, requirements=path)


def test_settings_of_pip_that_cannot_be_read_are_not_taken_for_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names of a private index would be asked of the public one."""
    (tmp_path / "pip.conf").write_text("[global\nindex-url = https://private.example/\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    with pytest.raises(UnreadableSettings, match="pip's settings can't be read"):
        pip_settings(sys.executable)
