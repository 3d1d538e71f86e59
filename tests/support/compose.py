"""Compose with the files of `deploy`, as projects of the tests' own.

No registry is needed: images are built on the engine's base image, and those of PostgreSQL and HAProxy have
stand-ins of Debian's packages, which take the same variables and signals as the official ones. `NAMES` is a
server of names, which takes dnsmasq's options.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from docker.api.client import APIClient

from tests.support.requirements import require

DEPLOY = Path(__file__).parents[2] / "deploy"
LOCAL_BASE = "cellgate/base:local"
POSTGRES, HAPROXY, NAMES = "cellgate/test-postgres", "cellgate/test-haproxy", "cellgate/test-names"

Compose = Callable[..., str]

_INSTALL = rf"""FROM {LOCAL_BASE}
RUN apt-get update -q && export DEBIAN_FRONTEND=noninteractive \
 && apt-get install -q -y --no-install-recommends {{package}} \
 && rm -rf /var/lib/apt/lists/*
"""
_POSTGRES_ENTRY = r"""#!/bin/bash
set -e
PATH=$(echo /usr/lib/postgresql/*/bin):$PATH
if [ "$(id -u)" = 0 ]; then
  export POSTGRES_PASSWORD=$(cat "$POSTGRES_PASSWORD_FILE")
  mkdir -p "$PGDATA" && chown -R postgres "$PGDATA" /var/run/postgresql && chmod 700 "$PGDATA"
  exec setpriv --reuid=postgres --regid=postgres --init-groups "$0" "$@"
fi
if [ ! -s "$PGDATA/PG_VERSION" ]; then
  initdb --username="$POSTGRES_USER" --pwfile=<(echo "$POSTGRES_PASSWORD") \
    --auth-local=trust --auth-host=scram-sha-256 $POSTGRES_INITDB_ARGS
  echo "host all all all scram-sha-256" >> "$PGDATA/pg_hba.conf"
  echo "CREATE DATABASE $POSTGRES_DB" | postgres --single postgres
fi
exec "$@" -c listen_addresses=*
"""
_STAND_INS = {
    POSTGRES: {
        "Dockerfile": _INSTALL.format(package="postgresql")
        + "COPY entry /usr/local/bin/docker-entrypoint.sh\n"
        + "RUN ln -s /usr/lib/postgresql/*/bin/pg_isready /usr/local/bin\n"
        + "ENV PGDATA=/var/lib/postgresql/data\n"
        + 'STOPSIGNAL SIGINT\nENTRYPOINT ["docker-entrypoint.sh"]\nCMD ["postgres"]\n',
        "entry": _POSTGRES_ENTRY,
    },
    HAPROXY: {
        "Dockerfile": _INSTALL.format(package="haproxy")
        + 'STOPSIGNAL SIGUSR1\nUSER haproxy\nENTRYPOINT ["haproxy", "-W", "-db"]\n'
        + 'CMD ["-f", "/usr/local/etc/haproxy/haproxy.cfg"]\n'
    },
    NAMES: {
        "Dockerfile": _INSTALL.format(package="dnsmasq-base")
        + 'ENTRYPOINT ["dnsmasq", "--keep-in-foreground", "--no-hosts", "--no-resolv"]\n'
    },
}
"""The files of the stand-ins' images."""


def compose_command() -> list[str]:
    """The engine's plugin, or the program of before."""
    for words in (["docker", "compose"], ["docker-compose"]):
        tried = shutil.which(words[0]) and subprocess.run(
            [*words, "version"], check=False, capture_output=True
        )
        if tried and tried.returncode == 0:
            return words
    return require("compose", "neither `docker compose` nor `docker-compose` works")


def make_stand_ins(client: APIClient, *tags: str) -> Mapping[str, str]:
    """Build images: those of PostgreSQL and HAProxy, and others; return the variables that name the two."""
    for tag in (POSTGRES, HAPROXY, *tags):
        files = _STAND_INS[tag]
        context = io.BytesIO()
        with tarfile.open(fileobj=context, mode="w") as archive:
            for name, text in files.items():
                member = tarfile.TarInfo(name)
                member.size, member.mode = len(text.encode()), 0o755
                archive.addfile(member, io.BytesIO(text.encode()))
        context.seek(0)
        said = [
            step
            for step in client.build(fileobj=context, custom_context=True, tag=tag, rm=True, decode=True)
            if "error" in step
        ]
        assert not said, said
    return {"CELLGATE_POSTGRES_IMAGE": POSTGRES, "CELLGATE_HAPROXY_IMAGE": HAPROXY}


@contextmanager
def composed(client: APIClient, project: str, file: Path, settings: Mapping[str, str]) -> Iterator[Compose]:
    """Runs compose on a file, with these variables; what was made is taken down. Its `settings` add more."""
    words = [*compose_command(), "--project-name", project, "--file", str(file)]
    variables = {**os.environ, "DOCKER_BUILDKIT": "0", "COMPOSE_DOCKER_CLI_BUILD": "0", **settings}
    if client.images(LOCAL_BASE):
        variables["CELLGATE_BASE_IMAGE"] = LOCAL_BASE

    def run(*arguments: str, settings: Mapping[str, str] | None = None) -> str:
        done = subprocess.run(
            [*words, *arguments],
            check=False,
            env={**variables, **(settings or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    try:
        yield run
    finally:
        run("down")
