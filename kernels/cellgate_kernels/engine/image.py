"""Makes the kernel image with the container engine's own builder, from files of this package.

Used by ``cellgate image build``. Blocking: not for the event loop. The recipe is Dockerfile.kernel; the only
files of this machine that get into the image are the kernels' start-up files and those in MATERIAL.
"""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import requests
from docker.api.client import APIClient
from docker.errors import APIError, DockerException, ImageNotFound

from cellgate_kernels.base.errors import BackendUnavailable
from cellgate_kernels.engine.client import connect
from cellgate_kernels.engine.engine import explained
from cellgate_kernels.specs.environments import OWN, environment_of, start_up_files

RECIPE = "Dockerfile.kernel"
MATERIAL = ("inside/uv.txt", "specs/uv_command.py", "specs/finish_environment.py")
"""The files that the recipe copies, besides the list of packages and the start-up files."""

_LABEL = "org.cellgate.environment"

_SILENCE_TIMEOUT = 1800.0
_TELLING = re.compile(
    r"Step |Downloading |Prepared |Installed |Bytecode |Successfully |Status: |Pulling from "
)


def build_image(
    url: str, tag: str, progress: Callable[[str], None], *, requirements: Path, base_image: str = ""
) -> str:
    """Build the kernel image with the packages in `requirements`, name it `tag`, and return its id.

    The image that had this name is removed, unless something still uses it. `base_image` replaces the
    recipe's own. `progress` gets lines. Raises BackendUnavailable.
    """
    client = _client(url)
    try:
        former = _id_of(client, tag)
        replies = client.build(
            fileobj=build_context(requirements),
            custom_context=True,
            dockerfile=RECIPE,
            tag=tag,
            buildargs={
                "ENVIRONMENT": _list_name(requirements),
                **({"BASE_IMAGE": base_image} if base_image else {}),
            },
            rm=True,
            forcerm=True,
            decode=True,
        )
        last: list[str] = []
        for line in _lines(replies):
            last = [*last[-9:], line]
            if _TELLING.match(line):
                progress(line[:200])
        made = str(client.inspect_image(tag)["Id"])
        if former not in {"", made}:
            _remove_replaced(client, former, progress)
        return made
    except _BuildFailed as error:
        said = "\n".join([*last, str(error)])[-1500:]
        raise BackendUnavailable(f"The kernel image can't be made. {said}") from None
    except (DockerException, requests.RequestException, OSError) as error:
        raise explained(error, url) from error
    finally:
        client.close()


def _id_of(client: APIClient, tag: str) -> str:
    """Return the id of the image with this name, or nothing."""
    try:
        return str(client.inspect_image(tag)["Id"])
    except ImageNotFound:
        return ""


def _remove_replaced(client: APIClient, former: str, progress: Callable[[str], None]) -> None:
    """Remove an image whose name another one has now, with the layers that are its own.

    The engine refuses as long as it has another name, or a container that was made of it.
    """
    try:
        client.remove_image(former)
    except ImageNotFound:
        pass  # the engine keeps none without a name
    except APIError as error:
        progress(f"The former image {former} is still in use, and stays: {error.explanation or error}")
    else:
        progress(f"Removed the former image {former}")


def built_of(url: str, tag: str) -> str | None:
    """Return the source environment of an image, `OWN`, or None. Raises BackendUnavailable."""
    client = _client(url)
    try:
        labels = client.inspect_image(tag)["Config"].get("Labels") or {}
    except ImageNotFound:
        return None
    except (DockerException, requests.RequestException, OSError) as error:
        raise explained(error, url) from error
    finally:
        client.close()
    return labels.get(_LABEL)


def _client(url: str) -> APIClient:
    try:
        return connect(url, _SILENCE_TIMEOUT)
    except (DockerException, requests.RequestException, OSError) as error:
        raise explained(error, url) from error


def _list_name(requirements: Path) -> str:
    return environment_of(requirements) or OWN


def build_context(requirements: Path) -> io.BytesIO:
    """Return the recipe and its material as a tar file for the builder."""
    package = Path(__file__).parents[1]
    copied = [*(package / name for name in MATERIAL), *start_up_files()]
    files = {f"kernels/{package.name}/{path.relative_to(package)}": path for path in copied}
    packaged = package / "inside" / RECIPE
    files[RECIPE] = packaged if packaged.is_file() else package.parents[1] / RECIPE
    files[f"kernels/{package.name}/inside/{_list_name(requirements)}.lock"] = requirements
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
