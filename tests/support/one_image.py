"""The image with a gateway and its kernels, made as ``make image`` does of the kernels' image there is."""

from __future__ import annotations

import os
import subprocess

from docker.api.client import APIClient

from tests.support.compose import DEPLOY, LOCAL_BASE

IMAGE = "cellgate/cellgate"


def docker_command(*words: str) -> subprocess.CompletedProcess[str]:
    """Run docker's own command, for ten minutes at most."""
    return subprocess.run(
        ["docker", *words],
        env={**os.environ, "DOCKER_BUILDKIT": "0"},
        stdin=subprocess.DEVNULL,
        check=False,
        capture_output=True,
        text=True,
        timeout=600,
    )


def made_image() -> str:
    """Make the image, from the engine's cache where it can be, and return its name."""
    client = APIClient()
    base = [f"--build-arg=BASE_IMAGE={LOCAL_BASE}"] if client.images(LOCAL_BASE) else []
    client.close()
    for tag, words in (("cellgate/gateway", [*base, str(DEPLOY.parent)]), (IMAGE, [str(DEPLOY)])):
        built = docker_command("build", f"--tag={tag}", *words)
        assert built.returncode == 0, built.stdout + built.stderr
    return IMAGE
