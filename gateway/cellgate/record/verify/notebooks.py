"""Checks exported files offline: a notebook by its seal, a bundle by its rows as well.

A notebook shows whether it is unchanged and, by its signature, which gateway wrote it. A bundle also holds
the rows, so that the notebook can be made from them again and compared. This needs no gateway and no
database; ``stores`` checks a whole data folder. docs/explanation/record.md says what this proves, and what it
does not.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
from msgspec import structs

from cellgate.record.export.bundle import ROWS, BundleManifest, rows_of_ancestor
from cellgate.record.export.notebook import Export, Notebook, NotebookPart
from cellgate.record.export.sealed_archive import COMMENT, MANIFEST, SIGNATURE, Signature
from cellgate.record.export.survey import ListedRows, Survey
from cellgate.record.export.usage_file import UsageManifest
from cellgate.record.findings import BrokenRecord, Finding, NoSeal, chained, counted, differing
from cellgate.record.keys import signature_holds
from cellgate.record.rows import EventRow, SessionRow
from cellgate.record.seal import Seal, cell_digest, manifest_statement, notebook_digest, signed
from cellgate.record.text import OPENING, cell_text, split, tail_text
from cellgate.record.verify.archive_layout import check_layout
from cellgate.record.verify.imported import (
    MOST_MANIFEST,
    UNREADABLE,
    check_size,
    entry_parts,
    open_archive,
    read_entry,
)
from cellgate.record.verify.usage_files import check_table
from cellgate.wire.events import BranchedFrom
from cellgate_kernels.base.errors import InvalidInput, in_words
from cellgate_kernels.base.resources import MIB
from cellgate_kernels.codec.decoding import json_decoder

_MALFORMED = (LookupError, TypeError, ValueError, AttributeError, RecursionError, msgspec.MsgspecError)
_decode = json_decoder(dict[str, Any]).decode
_LINE = len(b'{"hash":"","row":}\n') + 64
_CHUNK = 1 << 20
FIRST_FORMAT = 4
"""The first of Jupyter's formats that gateways write."""


def check_notebook(data: bytes, name: str) -> Finding:
    """Check that a notebook is byte for byte as a gateway wrote it."""
    try:
        notebook, seal = _read(data)
        _check_seal(data, notebook, seal)
    except BrokenRecord as broken:
        return Finding(name, "notebook", str(broken))
    except NoSeal as without:
        return Finding(name, "notebook", str(without), sealed=False)
    checked = f"notebook, {counted(len(notebook['cells']), 'cell')}"
    if "order" in notebook["metadata"]["cellgate"]:
        ran = sum("execution" in cell["metadata"]["cellgate"] for cell in notebook["cells"])
        checked += f" as its author arranged them, of which {ran} ran"
    return Finding(name, checked, None, seal.key)


def _read(data: bytes) -> tuple[dict[str, Any], Seal]:
    """Return the notebook and its seal. Raises Broken, and NoSeal for a notebook that has none."""
    try:
        check_size(data, "the file")
        notebook = json.loads(data, parse_constant=_no_number)
        _check_sealed(notebook)
        seal = msgspec.convert(notebook["metadata"]["cellgate"]["seal"], Seal)
        for cell in notebook["cells"]:
            _name(cell) + ""  # raises TypeError unless it is a string
        return notebook, seal
    except InvalidInput as error:
        raise BrokenRecord(error.message) from None
    except _MALFORMED as error:
        raise _no_notebook(error) from None


def _name(cell: dict[str, Any]) -> Any:
    """Return the execution that a cell is of; of a cell that an author wrote and nobody ran, its id."""
    known = cell["metadata"]["cellgate"]
    return cell["id"] if known.get("from_file") is True else known["execution"]


def _check_sealed(notebook: dict[str, Any]) -> None:
    """Raise NoSeal for a notebook that Cellgate did not write, or that has no seal."""
    version = notebook["nbformat"]
    if not isinstance(version, int):
        raise TypeError("it has no format")
    metadata = notebook.get("metadata", {})
    known = metadata.get("cellgate") if isinstance(metadata, dict) else None
    # Cells of formats before 4 are elsewhere; no gateway ever wrote one.
    if not isinstance(notebook.get("cells"), list) and (version >= FIRST_FORMAT or known is not None):
        raise TypeError("it has no cells")
    if not isinstance(known, dict):
        raise NoSeal("Cellgate did not write it, so changes to it can't be found")
    if "seal" not in known:
        raise NoSeal("changes to it can't be found; cellgate export writes a session with a seal")


def _no_number(word: str) -> Any:
    raise ValueError(f"{word} is no JSON")


def _no_notebook(error: Exception) -> BrokenRecord:
    return BrokenRecord(
        f"the file is no sealed notebook of Cellgate's: {type(error).__name__}: {in_words(error)}"
    )


def _check_seal(data: bytes, notebook: dict[str, Any], seal: Seal) -> None:
    try:
        texts = [cell_text(cell) for cell in notebook["cells"]]
        digests = [cell_digest(cell) for cell in texts]
        names = [_name(cell) for cell in notebook["cells"]]
        difference = differing("cell", names, seal.cells, digests)
        whole = notebook_digest(digests, notebook["metadata"])
        cells = ",".join(f"\n  {cell}" for cell in texts)
        written = OPENING + cells + tail_text(notebook["metadata"], empty=not texts)
        same = written.encode() == data
    except _MALFORMED as error:
        raise _no_notebook(error) from None
    if difference is not None:
        raise BrokenRecord(difference)
    if whole != seal.digest:
        raise BrokenRecord("the notebook's metadata or its seal were changed; its cells are as they were")
    if not same:
        raise BrokenRecord("the file was rewritten: what it says is as it was, its bytes are not")
    if signed(seal) is False:
        raise BrokenRecord("the seal's signature or key was changed")


# ---- bundles ----------------------------------------------------------------------------------------------


def check_bundle(path: Path) -> Finding:
    """Check that an archive is unchanged, its rows form a chain, and its notebook follows from them.

    Or that the table of one with sums of usage is what its list says.
    """
    try:
        with open_archive(path) as archive:
            manifest = _check_files(archive)
            _check_archive(path)
            key = _check_signature(archive)
            if isinstance(manifest, UsageManifest):
                checked = check_table(archive, manifest)
            else:
                count = _check_rows(archive, manifest)
                checked = f"bundle, {counted(len(manifest.files), 'file')}, {counted(count, 'row')}"
            check_layout(path, archive, len(COMMENT) + 64)
    except (BrokenRecord, NoSeal) as broken:
        # Every bundle has a manifest and a sealed notebook: here a missing seal is a problem too.
        return Finding(path.name, "bundle", str(broken))
    except InvalidInput as error:
        return Finding(path.name, "bundle", error.message)
    except (*UNREADABLE, *_MALFORMED) as error:
        why = f"the file is no whole bundle: {type(error).__name__}: {in_words(error)}"
        return Finding(path.name, "bundle", why)
    return Finding(path.name, checked, None, key)


def _check_archive(path: Path) -> None:
    """Check that the archive's comment holds the digest of all bytes before it."""
    left = path.stat().st_size - len(COMMENT) - 64
    digest = sha256()
    with path.open("rb") as file:
        while left > 0 and (part := file.read(min(left, _CHUNK))):
            digest.update(part)
            left -= len(part)
        if file.read() != COMMENT + digest.hexdigest().encode():
            raise BrokenRecord("the archive was changed between its files")


def _check_files(archive: zipfile.ZipFile) -> BundleManifest | UsageManifest:
    names = archive.namelist()
    if MANIFEST not in names:
        raise BrokenRecord(f"the bundle has no {MANIFEST}")
    listed = read_entry(archive, MANIFEST, MOST_MANIFEST)
    manifest: BundleManifest | UsageManifest
    if "usage" in _decode(listed):
        manifest = msgspec.json.decode(listed, type=UsageManifest)
    else:
        manifest = msgspec.json.decode(listed, type=BundleManifest)
    there = [name for name in names if name not in {MANIFEST, SIGNATURE}]
    difference = differing("file", there, list(manifest.files), there)
    for name, digest in manifest.files.items():
        if name not in names or _digest(archive, name) != digest:
            raise BrokenRecord(f"the file {name} was {'changed' if name in names else 'removed'}")
    if difference is not None:
        raise BrokenRecord(difference)
    return manifest


def _digest(archive: zipfile.ZipFile, name: str) -> str:
    digest = sha256()
    try:
        for part in entry_parts(archive, name):
            digest.update(part)
    except UNREADABLE:
        return ""
    return digest.hexdigest()


def _check_signature(archive: zipfile.ZipFile) -> str | None:
    if SIGNATURE not in archive.namelist():
        return None
    given = msgspec.json.decode(read_entry(archive, SIGNATURE, MIB), type=Signature)
    statement = manifest_statement(read_entry(archive, MANIFEST, MOST_MANIFEST))
    if not signature_holds(given.key, given.signature, statement):
        raise BrokenRecord("the bundle's signature does not hold")
    return given.key


def _check_rows(archive: zipfile.ZipFile, manifest: BundleManifest) -> int:
    """Check that the rows form a chain up to the notebook's head, and that the notebook follows from them."""
    data = read_entry(archive, manifest.notebook)
    notebook, seal = _read(data)
    _check_seal(data, notebook, seal)
    metadata = notebook["metadata"]
    known = metadata["cellgate"]
    ancestors = tuple(msgspec.convert(known.get("ancestors", []), list[BranchedFrom]))
    inherited = _check_ancestors(archive, ancestors)
    survey = Survey(inherited[-1].survey if inherited else None)
    rows = list(chained(_rows(read_entry(archive, ROWS)), known["session"]))
    for row in rows:
        survey.add(row)
    _check_origin(survey, ancestors[-1] if ancestors else None, known.get("ancestor_left_out"))
    if (survey.seq, survey.head.hex()) != (known["rows"], known["head"]):
        first = min(survey.seq, known["rows"]) + 1
        raise BrokenRecord(f"row {first} was removed or added: the head is another")
    export = Export(
        known["gateway_version"],
        known["exported_at"],
        known["outputs"],
        known["output_cap"],
        undone_as_code=known.get("undone") is True,
        repeats=known.get("repeats") is True,
        ancestors=ancestors,
        absence=known.get("ancestor_left_out"),
    )
    made = Notebook(_session(metadata), survey, ListedRows(rows), export, inherited)
    digests = [cell_digest(cell_text(split(cell))) for cell in made.cells()]
    names = [_name(cell) for cell in notebook["cells"]]
    if (difference := differing("cell", names, digests, seal.cells)) is not None:
        raise BrokenRecord(f"the notebook does not follow from the rows: {difference}")
    if notebook_digest(digests, made.metadata()) != seal.digest:
        raise BrokenRecord("the notebook's metadata are not what the rows tell")
    return len(rows) + sum(part.survey.seq for part in inherited)


def _check_ancestors(archive: zipfile.ZipFile, ancestors: Sequence[BranchedFrom]) -> list[NotebookPart]:
    """Check that each ancestor's rows form a chain up to the row that the next one names."""
    parts: list[NotebookPart] = []
    for number, ancestor in enumerate(ancestors, 1):
        survey = Survey(parts[-1].survey if parts else None, inherited=True)
        rows = list(chained(_rows(read_entry(archive, rows_of_ancestor(number))), ancestor.session))
        for row in rows:
            survey.add(row)
        if (survey.seq, survey.head.hex()) != (ancestor.seq, ancestor.head):
            raise BrokenRecord(f"the rows of {ancestor.session} end elsewhere than where it was branched")
        if parts:
            _check_origin(survey, ancestors[number - 2], None)
        parts.append(NotebookPart(ancestor.session, survey, ListedRows(rows)))
    return parts


def _check_origin(survey: Survey, parent: BranchedFrom | None, left_out: str | None) -> None:
    """Check that the session continues the one before its rows, unless its parent was left out."""
    origin = survey.facts.fields.get("branched_from")
    if origin != parent and not (parent is None and left_out):
        named = "nothing" if origin is None else f"row {origin.seq} of {origin.session}"
        raise BrokenRecord(f"row 1 says that it continues {named}, whose rows are not those before its own")


def _rows(data: bytes) -> list[EventRow]:
    check_size(data, ROWS)
    rows = []
    for number, line in enumerate(data.splitlines(keepends=True), 1):
        digest = line[9:73]
        body = line[81:-2]
        if line != b'{"hash":"%s","row":%s}\n' % (digest, body) or len(line) < _LINE:
            raise BrokenRecord(f"row {number} was changed: it is no line of a trail")
        event = _decode(body)
        stored = bytes.fromhex(digest.decode())
        rows.append(EventRow(0, event["seq"], event["type"], event["execution"], body, stored))
    return rows


def _session(metadata: dict[str, Any]) -> SessionRow:
    """Return the session's row according to the notebook; facts from the rows replace its fields."""
    known = metadata["cellgate"]
    row = SessionRow.new(
        0,
        principal=known["principal"],
        key=known["session"],
        kernel=metadata["kernelspec"]["name"],
        at=known["created_at"],
        limits=known["limits"],
        metadata=known["metadata"],
    )
    return structs.replace(row, isolation=known["isolation"], state=known["state"])
