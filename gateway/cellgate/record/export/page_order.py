"""The order of a notebook file of a workspace, in which a session's cells can be exported.

The file is its author's and may say anything. Only its order, its texts and the code of its cells are taken
from it, and for each cell of code the execution that it names; what that showed is read from the record. So
this reads no outputs. ``notebook`` puts both together, ``sessions.files`` gets the file.

Pure: bytes in, a `PageOrder` out. Source of the file's form: nbformat 4.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from itertools import count
from typing import Any, Literal

import msgspec

from cellgate.errors import TooLarge
from cellgate_kernels.base.errors import InvalidInput
from cellgate_kernels.base.resources import MIB
from cellgate_kernels.codec.decoding import json_decoder

MOST_FILE = 32 * MIB
"""Bytes of a file that is read, most of which are outputs; the console opens no larger ones."""
MOST_TEXT = 4 * MIB
"""Bytes of all that is taken from the file, as it is written there."""
MOST_CELLS = 2000
NOT_RUN = "not_run"
"""The `status` of a cell of code that the record does not have as the file has it."""
_CELL_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_NOTHING = msgspec.Raw(b'""')


class _FileCell(msgspec.Struct, gc=False):
    """A cell as the file has it. Its parts are decoded when it is known how many and how long they are.

    Without a type there is no cell, so that a file can't have many more of them than bytes.
    """

    cell_type: str
    id: msgspec.Raw = _NOTHING
    source: msgspec.Raw = _NOTHING
    metadata: msgspec.Raw = _NOTHING
    attachments: msgspec.Raw = _NOTHING


class _File(msgspec.Struct, gc=False):
    nbformat: int
    cells: list[_FileCell]


class _Known(msgspec.Struct, gc=False):
    execution: str


class _Metadata(msgspec.Struct, gc=False):
    cellgate: _Known


_Attachments = dict[str, dict[str, str]]
_decode = json_decoder(_File).decode
_Text = str | list[str]
_text: Callable[[msgspec.Raw], _Text] = msgspec.json.Decoder(_Text).decode
_id = json_decoder(str).decode
_metadata = json_decoder(_Metadata).decode
_attachments = json_decoder(_Attachments).decode


@dataclass(frozen=True, slots=True)
class PageCell:
    """A cell of the file. `execution`: the one that its outputs are of, if it names one.

    `attachments`: the pictures of a text, as nbformat has them.
    """

    kind: Literal["code", "markdown", "raw"]
    id: str
    source: str
    execution: str | None = None
    attachments: _Attachments | None = None

    def unrun(self, changed: str | None = None) -> dict[str, Any]:
        """Return the cell with nothing but what the file says, and marked so.

        `changed`: the execution that it names, if that ran other code.
        """
        known: dict[str, Any] = {"from_file": True}
        made = {"cell_type": self.kind, "id": self.id, "source": self.source, "metadata": {"cellgate": known}}
        if self.kind == "code":
            known["status"] = NOT_RUN
            if changed is not None:
                known["changed_since"] = changed
            made["metadata"] = {"cellgate": known, "tags": ["not-run"]}
            return {**made, "execution_count": None, "outputs": []}
        if self.kind == "raw":
            # Programs that show notebooks would take one without a type for markup.
            made["metadata"] = {"format": "text/plain", "raw_mimetype": "text/plain", "cellgate": known}
        return made if self.attachments is None else {**made, "attachments": self.attachments}


@dataclass(frozen=True, slots=True)
class PageOrder:
    """The cells of a file in their order. `digest`: the SHA-256 of the file, in hexadecimal."""

    path: str
    digest: str
    cells: tuple[PageCell, ...]


def read_order(content: bytes, path: str) -> PageOrder:
    """Return the order of a notebook file. Raises InvalidInput if it is none, TooLarge if it has too much."""
    shown = repr(path[:200])
    try:
        file = _decode(content.removeprefix(b"\xef\xbb\xbf"))
        if file.nbformat != 4:
            raise InvalidInput(f"{shown} is a notebook of nbformat {file.nbformat}, not of 4")
        if len(file.cells) > MOST_CELLS:
            raise TooLarge(f"{shown} has {len(file.cells)} cells; at most {MOST_CELLS} are arranged")
        taken = sum(len(part) for cell in file.cells for part in (cell.source, cell.attachments, cell.id))
        if taken > MOST_TEXT:
            raise TooLarge(f"The cells of {shown} have more than {MOST_TEXT // MIB} MiB of code and text")
        cells = tuple(_page_cells(file.cells))
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError) as error:
        raise InvalidInput(f"{shown} is no notebook of nbformat 4: {error}") from None
    except RecursionError:
        raise InvalidInput(f"{shown} is no notebook: it is nested too deeply") from None
    return PageOrder(path, sha256(content).hexdigest(), cells)


def _page_cells(found: Iterable[_FileCell]) -> Iterator[PageCell]:
    taken: set[str] = set()
    further = (f"cell-{number}" for number in count(1))
    for cell in found:
        name = _id(cell.id)
        while not _CELL_ID.fullmatch(name) or name in taken:
            name = next(further)
        taken.add(name)
        source = _text(cell.source)
        text = plain_lines(source if isinstance(source, str) else "".join(source))
        match cell.cell_type:
            case "code":
                yield PageCell("code", name, text, _execution(cell.metadata))
            case "markdown":
                pictures = None if cell.attachments == _NOTHING else _attachments(cell.attachments)
                yield PageCell("markdown", name, text, attachments=pictures)
            case _:
                yield PageCell("raw", name, text)


def _execution(metadata: msgspec.Raw) -> str | None:
    """Return the execution that a cell names, which other programs' metadata do not."""
    try:
        return _metadata(metadata).cellgate.execution
    except (msgspec.MsgspecError, ValueError):
        return None


def plain_lines(source: str) -> str:
    """Return a source with the ends of its lines as Python has them."""
    return source.replace("\r\n", "\n").replace("\r", "\n")
