"""Makes the kernel image with the container engine's own builder, from files of this package.

Used by ``cellgate image build``. Blocking: not for the event loop. The recipe is Dockerfile.kernel; the only
files of this machine that get into the image are those in MATERIAL.
"""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import requests
from docker.errors import DockerException

from cellgate_kernels.errors import BackendUnavailable
from cellgate_kernels.provisioners.engine import explained
from cellgate_kernels.provisioners.engine_client import connect

RECIPE = "Dockerfile.kernel"
REQUIREMENTS = "image/requirements.lock"
MATERIAL = (
    REQUIREMENTS,
    "image/uv.txt",
    "image/bootstrap.py",
    "image/keeper.py",
    "image/programs.py",
    "image/bash_cells.py",
    "image/deno_cells.py",
    "image/forwarder.py",
    "specs/uv_command.py",
)
"""The files that the recipe copies, below the package's folder."""

_SILENCE_TIMEOUT = 1800.0
_TELLING = re.compile(
    r"Step |Downloading |Prepared |Installed |Bytecode |Successfully |Status: |Pulling from "
)


def build_image(
    url: str,
    tag: str,
    progress: Callable[[str], None],
    *,
    base_image: str = "",
    requirements: Path | None = None,
) -> str:
    """Build the kernel image and name it `tag`; returns its id.

    `base_image` and `requirements` replace the recipe's own. `progress` gets a line now and then. Raises
    BackendUnavailable with the end of the builder's output.
    """
    try:
        client = connect(url, _SILENCE_TIMEOUT)
    except (DockerException, requests.RequestException, OSError) as error:
        raise explained(error, url) from error
    try:
        replies = client.build(
            fileobj=build_context(requirements),
            custom_context=True,
            dockerfile=RECIPE,
            tag=tag,
            buildargs={"BASE_IMAGE": base_image} if base_image else {},
            rm=True,
            forcerm=True,
            decode=True,
        )
        last: list[str] = []
        for line in _lines(replies):
            last = [*last[-9:], line]
            if _TELLING.match(line):
                progress(line[:200])
        return str(client.inspect_image(tag)["Id"])
    except _BuildFailed as error:
        said = "\n".join([*last, str(error)])[-1500:]
        raise BackendUnavailable(f"The kernel image can't be made. {said}") from None
    except (DockerException, requests.RequestException, OSError) as error:
        raise explained(error, url) from error
    finally:
        client.close()


def build_context(requirements: Path | None = None) -> io.BytesIO:
    """The recipe and its material as the tar file that the builder takes."""
    package = Path(__file__).parents[1]
    files = {f"kernels/{package.name}/{name}": package / name for name in MATERIAL}
    packaged = package / "image" / RECIPE
    files[RECIPE] = packaged if packaged.is_file() else package.parents[1] / RECIPE
    if requirements is not None:
        files[f"kernels/{package.name}/{REQUIREMENTS}"] = requirements
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, path in files.items():
            content = path.read_bytes()
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            entry.mode = 0o644
            archive.addfile(entry, io.BytesIO(content))
    buffer.seek(0)
    return buffer


class _BuildFailed(Exception):
    """The builder reported an error."""


def _lines(replies: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    for reply in replies:
        if "error" in reply:
            raise _BuildFailed(reply["error"])
        text = reply.get("stream") or " ".join(str(reply.get(name, "")) for name in ("status", "id"))
        yield from (line for line in map(str.strip, text.splitlines()) if line)
