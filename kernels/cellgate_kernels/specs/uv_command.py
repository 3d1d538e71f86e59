"""Runs uv with pip's configuration on this machine: the same index, links, certificates, proxy and timeouts.

uv reads neither ``pip.conf`` nor pip's variables. So this module reads pip's settings and passes them to uv
as variables; settings for uv itself take precedence. ``install`` uses it for the kernel environment. ``make``
and ``Dockerfile.kernel`` run it as a script before Cellgate is installed, so it needs nothing but the
standard library, pip and uv: ``uv_command.py pip install --editable .``, as any command of uv's, or
``uv_command.py install FOLDER REQUIREMENTS`` for a kernel environment.
"""

from __future__ import annotations

import ast
import math
import os
import ssl
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

import uv

# pip's names of its settings, and uv's variables of the same form.
_SAME = {"index-url": "UV_DEFAULT_INDEX", "client-cert": "SSL_CLIENT_CERT", "proxy": "ALL_PROXY"}
_FALSE = ("", "0", "false", "no", "off", "n", "f")
# The settings for the sources of packages: pip's and uv's.
_PLACES = ("index-url", "extra-index-url", "find-links", "no-index")
_PLACES_OF_UV = frozenset({"index", "index-url", "extra-index-url", "find-links", "no-index"})


class UnreadableSettings(Exception):
    """pip is installed but does not print its settings, so the configured index isn't known."""


def uv_command(
    words: Sequence[str], environ: Mapping[str, str], pip: Mapping[str, str]
) -> tuple[list[str], dict[str, str]]:
    """Return uv's whole command line for `words`, and its environment: `environ` over pip's settings.

    If one of uv's files on this machine sets the sources of packages, pip's settings for these are ignored.
    Raises FileNotFoundError when uv is not installed beside this interpreter.
    """
    if _has_places_of_its_own(environ):
        pip = {name: value for name, value in pip.items() if name not in _PLACES}
    if "proxy" in pip:
        # pip then ignores all proxy variables, including the one for hosts without a proxy.
        environ = {name: value for name, value in environ.items() if not name.lower().endswith("_proxy")}
    variables = {_SAME[name]: value for name, value in pip.items() if name in _SAME}
    if extra := pip.get("extra-index-url", "").split():
        # pip takes the best version of all its indexes; uv by default stops at the first with the package.
        variables |= {"UV_INDEX": " ".join(extra), "UV_INDEX_STRATEGY": "unsafe-best-match"}
    if links := pip.get("find-links", "").split():
        variables["UV_FIND_LINKS"] = ",".join(links)
    if hosts := pip.get("trusted-host", "").split():
        variables["UV_INSECURE_HOST"] = " ".join(hosts)
    if timeout := _seconds(pip.get("timeout") or pip.get("default-timeout") or ""):
        variables["UV_HTTP_TIMEOUT"] = str(timeout)
    if retries := pip.get("retries"):
        variables["UV_HTTP_RETRIES"] = retries
    # pip's HTTP library reads the latter two.
    certificates = pip.get("cert") or environ.get("REQUESTS_CA_BUNDLE") or environ.get("CURL_CA_BUNDLE")
    if certificates:
        variables["SSL_CERT_FILE"] = certificates
    elif _system_has_certificates():
        variables["UV_SYSTEM_CERTS"] = "1"  # as pip does; by default uv uses only its own list
    # uv has no variable for this single setting.
    options = [] if pip.get("no-index", "").lower() in _FALSE else ["--no-index"]
    return [uv.find_uv_bin(), *words, *options], variables | dict(environ)


def pip_settings(
    python: str = sys.executable, environment: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return settings of this interpreter's pip, from files and the variables of `environment`, or of this
    process; empty if it has no pip. Raises UnreadableSettings.
    """
    done = subprocess.run(
        [python, "-P", "-m", "pip", "config", "list"],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    if done.returncode:
        if _has_pip(python):
            raise UnreadableSettings(f"pip's settings can't be read: {done.stderr.strip()[-2000:]}")
        return {}
    values: dict[str, dict[str, str]] = {"global": {}, "install": {}, ":env:": {}}
    for line in done.stdout.splitlines():
        key, _, value = line.partition("=")
        section, _, name = key.partition(".")
        if section in values:
            values[section][name] = str(ast.literal_eval(value))
    # pip's own precedence: variables first, then settings for `pip install` alone.
    return values["global"] | values["install"] | values[":env:"]


def _has_pip(python: str) -> bool:
    code = "import importlib.util, sys; sys.exit(importlib.util.find_spec('pip') is None)"
    return subprocess.run([python, "-P", "-c", code], check=False).returncode == 0


def _seconds(text: str) -> int | None:
    """Return a timeout in whole seconds, as uv takes no fractions; None for an invalid one."""
    try:
        seconds = float(text)
    except ValueError:
        return None
    return math.ceil(seconds) if 0 < seconds < math.inf else None


def _has_places_of_its_own(environ: Mapping[str, str]) -> bool:
    """Return whether one of uv's files of this user or machine names an index or links.

    uv's variables, which pip's settings become, would come before them.
    """
    if environ.get("UV_NO_CONFIG"):
        return False
    if chosen := environ.get("UV_CONFIG_FILE"):
        files = [Path(chosen)]
    else:
        home = environ.get("XDG_CONFIG_HOME") or str(Path(environ.get("HOME", "/"), ".config"))
        folders = [home, *(environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":"), "/etc"]
        files = [Path(folder, "uv", "uv.toml") for folder in folders]
    return any(_names_places(file) for file in files)


def _names_places(file: Path) -> bool:
    try:
        settings = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False  # uv itself reports the error in the file
    names = set(settings)
    section = settings.get("pip")
    if isinstance(section, dict):
        names.update(section)
    return not _PLACES_OF_UV.isdisjoint(names)


def is_hashed(requirements: Path) -> bool:
    """Return whether the list has hashes: then it is complete, and each entry needs a hash."""
    return b"--hash=" in requirements.read_bytes()


def venv_command(environment: Path, requirements: Path, python: str = sys.executable) -> list[str]:
    """Return the command line that makes an environment for `requirements`, on the base of `python`.

    Cells use pip (``%pip``): the version in the list if that has hashes, otherwise the one of Python.
    """
    options = ["--without-pip"] if is_hashed(requirements) else []
    return [python, "-P", "-m", "venv", *options, str(environment)]


def install_words(environment: Path, requirements: Path) -> list[str]:
    """Return uv's words to install `requirements` in an environment.

    With hashes nothing is built from source: a build would download packages without a known hash.
    """
    python = str(environment / "bin" / "python")
    words = ["pip", "install", "--python", python, "--no-compile-bytecode"]
    words += ["--requirements", str(requirements)]
    return [*words, "--require-hashes", "--no-build"] if is_hashed(requirements) else words


def finish_command(environment: Path) -> list[str]:
    """Return the command line that finishes an environment whose packages are installed."""
    script = Path(__file__).with_name("finish_environment.py")
    return [str(environment / "bin" / "python"), "-I", str(script)]


def _system_has_certificates() -> bool:
    file, folder = ssl.get_default_verify_paths()[:2]
    return bool(file or (folder and any(Path(folder).iterdir())))


def main(words: Sequence[str]) -> None:
    """Make an environment, or become uv."""
    try:
        settings = pip_settings(sys.executable)
    except UnreadableSettings as error:
        raise SystemExit(str(error)) from error
    if words[:1] == ["install"]:
        environment, requirements = map(Path, words[1:])
        subprocess.run(venv_command(environment, requirements), check=True)
        command, variables = uv_command(install_words(environment, requirements), os.environ, settings)
        if code := subprocess.run(command, env=variables, check=False).returncode:
            raise SystemExit(code)
        subprocess.run(finish_command(environment), check=True)
        return
    command, variables = uv_command(words, os.environ, settings)
    os.execve(command[0], command, variables)  # noqa: S606 - no shell is wanted


if __name__ == "__main__":
    main(sys.argv[1:])
