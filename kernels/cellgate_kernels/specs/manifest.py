"""The contents of a kernel environment, written when the environment or its image was made.

``inside/manifest.py`` writes the file, so no kernel has to be started to read it. Bounded and checked here,
since models read its contents. An environment without a manifest, such as an operator's own, has none.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Annotated

import msgspec
from jupyter_client.kernelspec import KernelSpec
from msgspec import Meta

from cellgate_kernels.base.regular import read_regular

MANIFEST = "manifest.json"
MOST_BYTES = 128 * 1024

_Word = Annotated[str, Meta(max_length=100, pattern=r"\A[A-Za-z0-9][A-Za-z0-9._+!-]*\Z")]


class Manifest(msgspec.Struct, frozen=True):
    """An environment: its name, if it is one of Cellgate's, its Python, packages by name, and programs."""

    python: _Word
    environment: Annotated[str, Meta(max_length=40, pattern=r"\A[a-z]*\Z")] = ""
    packages: Annotated[dict[_Word, _Word], Meta(max_length=2000)] = msgspec.field(default_factory=dict)
    programs: Annotated[list[_Word], Meta(max_length=100)] = msgspec.field(default_factory=list)


def decode_manifest(data: bytes) -> Manifest:
    """Decode a manifest. Raises ValueError if the data is too large or is not a manifest."""
    if len(data) > MOST_BYTES:
        raise ValueError("it is too large")
    try:
        return msgspec.json.decode(data, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"it is no manifest: {error}") from error


def read_manifest(path: Path) -> Manifest | None:
    """Return the manifest in this file; None without a file. Raises OSError and ValueError."""
    try:
        return decode_manifest(read_regular(path, MOST_BYTES + 1))
    except (FileNotFoundError, NotADirectoryError):
        return None


def manifest_path(spec: KernelSpec) -> PurePosixPath | None:
    """Return the path, here or in the image, of the manifest of a kernelspec's interpreter, if it has one.

    None unless the kernelspec starts a kernel of Python by the interpreter of an environment.
    """
    program = PurePosixPath(spec.argv[0]) if spec.argv else PurePosixPath()
    if spec.language != "python" or not program.is_absolute() or program.parent.name != "bin":
        return None
    return program.parents[1] / "share" / "cellgate" / MANIFEST
