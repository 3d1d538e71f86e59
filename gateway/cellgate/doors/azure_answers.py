"""What the door of Azure's dynamic sessions answers: cells, programs and files in the words of both its APIs.

Pure: results and files in, JSON out. ``azure`` reads the requests and knows sessions. Sources: the clients
that `azure` names, and Microsoft.App.DynamicSessions in github.com/Azure/azure-rest-api-specs.
"""

from __future__ import annotations

import mimetypes
import re
from collections.abc import Iterable, Mapping
from signal import Signals
from typing import Any

from msgspec import Raw

from cellgate.doors.base import complaints
from cellgate.execution.results import ResultBuilder
from cellgate.wire.answers import FileModel, ProcessModel, Result
from cellgate_kernels.codec.encoding import encode_in_steps
from cellgate_kernels.codec.structure import LONG_NUMBER

FIRST_NEWER = "2024-10"
"""From this version on, files are flat objects and what runs is an execution."""
PICTURES = ("image/png", "image/jpeg", "image/gif", "image/webp")
TIMED_OUT = 124
"""The exit code of a program that took too long, as of timeout(1)."""
LOST = 1
"""That of a program of which nobody knows how it ended."""
BY_SIGNAL = 128
"""What shells add to a signal's number."""

_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")


def is_newer(version: str) -> bool:
    """Return whether an api-version, a date, is of the newer API; without one it is the older."""
    return version >= FIRST_NEWER


# ---- what ran


def old_cell(builder: ResultBuilder) -> list[bytes]:
    """Return a cell as `code/execute` tells it, in parts."""
    result = builder.result(plain=True)
    succeeded = result.status == "ok"
    told = {
        "status": "Success" if succeeded else "Failure",
        "stdout": result.stdout,
        "stderr": complaints(result),
        "result": value_of(result) if succeeded else "",
    }
    return encode_in_steps({"properties": told})


def new_cell(builder: ResultBuilder, identifier: str) -> list[bytes]:
    """Return a cell as `executions` tells it, in parts."""
    result = builder.result(plain=True)
    succeeded = result.status == "ok"
    told = {
        "id": result.execution,
        "identifier": identifier,
        "executionType": "Synchronous",
        "status": "Succeeded" if succeeded else "Failed",
        "result": {
            "stdout": result.stdout,
            "stderr": complaints(result),
            "executionResult": value_of(result) if succeeded else "",
            "executionTimeInMilliseconds": round(result.duration_ms or 0),
        },
    }
    return encode_in_steps(told)


def value_of(result: Result) -> object:
    """Return the last output of a cell, as a value if it can be: never null, which clients print as "None".

    A picture is an object, a number itself; anything else is the text of it, as IPython prints it, because
    clients read that.
    """
    shown = [output["data"] for output in result.outputs if "data" in output]
    if not shown:
        return ""
    return _picture(shown[-1]) or _number_or_text(shown[-1].get("text/plain"))


def _picture(data: Mapping[str, Any]) -> dict[str, str] | None:
    found = next((mime for mime in PICTURES if isinstance(data.get(mime), str)), None)
    if found is None:
        return None
    # IPython ends its base64 with a newline, which not every client expects.
    base64 = data[found].replace("\n", "")
    return {"type": "image", "format": found.removeprefix("image/"), "base64_data": base64}


def _number_or_text(text: object) -> object:
    if not isinstance(text, str):
        return ""
    if len(text) < LONG_NUMBER and _NUMBER.fullmatch(text):
        return Raw(text.encode())
    return text


def shell_answer(model: ProcessModel, identifier: str, milliseconds: int) -> dict[str, object]:
    """Return a program as `executions` tells it: its exit code, as a text, is the status."""
    stderr = model.stderr
    if model.cause is not None:
        stderr += f"The command was ended early: {model.cause}\n"
    return {
        "identifier": identifier,
        "status": str(_exit_code(model)),
        "result": {"stdout": model.stdout, "stderr": stderr, "executionTimeInMilliseconds": milliseconds},
    }


def _exit_code(model: ProcessModel) -> int:
    """Return the program's, or what a shell would make of its end."""
    if model.cause == "timeout":
        return TIMED_OUT
    if model.exit_code is not None:
        return model.exit_code
    if model.signal is not None and model.signal in Signals.__members__:
        return BY_SIGNAL + Signals[model.signal]
    return LOST


# ---- files


def file_list(files: Iterable[FileModel], folder: str, *, newer: bool) -> list[bytes]:
    """Encode the list of the files in a folder in parts; of all files if it is the workspace itself."""
    start = f"{folder}/" if folder else ""
    tell = _new_file if newer else _old_file
    found = [tell(file, file.path.removeprefix(start)) for file in files if file.path.startswith(start)]
    return encode_in_steps({"value": found})


def new_file(file: FileModel, folder: str) -> list[bytes]:
    """Return one file in the folder, as the newer API answers an upload, in parts."""
    start = f"{folder}/" if folder else ""
    return encode_in_steps(_new_file(file, file.path.removeprefix(start)))


def _old_file(file: FileModel, name: str) -> dict[str, object]:
    return {"properties": {"filename": name, "size": file.size, "lastModifiedTime": file.modified}}


def _new_file(file: FileModel, name: str) -> dict[str, object]:
    return {
        "name": name,
        "type": "file",
        "contentType": mimetypes.guess_type(name)[0] or "application/octet-stream",
        "sizeInBytes": file.size,
        "lastModifiedAt": file.modified,
    }
