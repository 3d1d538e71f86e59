"""Notebooks and bundles from anywhere: verify, replay and run take each or refuse it, and never break.

The examples begin with what a gateway wrote and change it where it hurts: wrong types, deep nesting, names
that lead out of a folder, sizes that lie. A refusal is an error of the tree that a client would see as a 4xx.
"""

from __future__ import annotations

import functools
import io
import json
import struct
import tempfile
import tracemalloc
import warnings
import zipfile
import zlib
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import nbformat
import pytest
from hypothesis import strategies as st

from cellgate.cli.run.notebook_files import MOST_CELLS, read_cells, weave
from cellgate.errors import status_of
from cellgate.record.chain import GENESIS, link
from cellgate.record.export.bundle import Contents, bundle_parts
from cellgate.record.export.notebook import Export, Notebook
from cellgate.record.export.survey import ListedRows, Survey
from cellgate.record.rows import EventRow, SessionRow
from cellgate.record.verify.imported import (
    MOST_LIST,
    MOST_VALUES,
    check_size,
    decode_notebook,
    entry_parts,
    open_archive,
    read_entry,
)
from cellgate.record.verify.notebooks import check_bundle, check_notebook
from cellgate.replay.cells import recorded_cells
from cellgate.replay.environment import recorded_lock, recorded_seed
from cellgate.replay.files import InputFile, input_files
from cellgate.replay.packages import installed_packages
from cellgate.replay.page import page
from cellgate.replay.report import NewRun, build_report, write
from cellgate.replay.source import open_source, recorded_bytes
from cellgate.wire.answers import EnvironmentReport, Pair, ReplayFacts, ReplayReport
from cellgate_kernels.base.errors import CellgateError, InvalidInput
from tests.fuzz.budget import Fuzz

AT = "2026-03-01T09:30:00.000000Z"
LATER = "2026-03-01T09:31:00.000000Z"
FACTS = ReplayFacts(
    session="s",
    head="",
    kernel="python3",
    isolation=None,
    replayed_at=AT,
    gateway_version="0",
    environment=EnvironmentReport(agreement="unknown", changes=[]),
    hash_seed=Pair(recorded=None, now="0"),
    files=[],
)
UNREADABLE = "Its outputs in the notebook can't be compared: "
PICTURE = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


@functools.cache
def rows() -> tuple[EventRow, ...]:
    """A session's record: three cells with outputs of each kind."""
    display = {"data": {"image/png": PICTURE, "text/plain": "<A>"}, "metadata": {}}
    outputs = [
        ("stream", {"name": "stdout", "text": "one\n2\n"}),
        ("display_data", display),
        ("error", {"ename": "E", "evalue": "v", "traceback": ["a", "b"]}),
    ]
    events: list[dict[str, Any]] = [
        {
            "execution": None,
            "type": "session",
            "state": "idle",
            "cause": "created",
            "kernel": "python3",
            "principal": "ada",
            "created_at": AT,
            "metadata": {},
            "limits": {"cell_timeout": 60},
            "isolation": "none",
            "last_activity": AT,
            "gateway_version": "0",
            "environment": {"python": "3.11.2", "packages": {"a": "1"}, "hash_seed": "0"},
        },
        {
            "execution": None,
            "type": "file",
            "path": "a.csv",
            "size": 4,
            "sha256": "0" * 64,
            "action": "created",
        },
    ]
    for number, (kind, fields) in enumerate(outputs, 1):
        name = f"{number:032x}"
        events += [
            {"execution": name, "type": "queued", "position": 0, "code": "f()", "msg_id": name},
            {"execution": name, "type": "started", "execution_count": number, "code": "f()"},
            {"execution": name, "type": kind, **fields},
            {
                "execution": name,
                "type": "finished",
                "status": "ok",
                "cause": None,
                "error": None,
                "execution_count": number,
                "duration_ms": 5.5,
                "truncated": False,
                "finished_at": LATER,
                "kernel": {"state": "idle", "replaced": False},
            },
        ]
    made, head = [], GENESIS
    for seq, event in enumerate(events, 1):
        body = json.dumps({"seq": seq, "session": "s", "at": AT, **event}).encode()
        head = link(head, body)
        made.append(EventRow(0, seq, event["type"], event["execution"], body, head))
    return tuple(made)


@functools.cache
def sealed() -> bytes:
    """Its notebook, as a gateway exports it."""
    survey = Survey()
    for row in rows():
        survey.add(row)
    session = SessionRow(
        id=0,
        principal="ada",
        key="s",
        kernel="python3",
        isolation="none",
        state="idle",
        cause=None,
        created_at=AT,
        last_activity=AT,
        execution_count=0,
        limits={},
        metadata={},
        environment={},
    )
    made = Notebook(session, survey, ListedRows(list(rows())), Export("0", LATER))
    return "".join(made.write()).encode()


@functools.cache
def bundled() -> bytes:
    """Its bundle, with a file of its workspace."""
    lines = [b'{"hash":"%s","row":%s}\n' % (row.hash.hex().encode(), row.body) for row in rows()]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "a.csv").write_bytes(b"a,b\n")
        contents = Contents("s", LATER, {}, [sealed()], lines, Path(folder), 1 << 20, lambda: None)
        return b"".join(bundle_parts(contents, None))


def test_what_the_targets_begin_with_is_valid(tmp_path: Path) -> None:
    """Else they would only find that broken files are broken."""
    assert check_notebook(sealed(), "n").valid
    file = tmp_path / "b.zip"
    file.write_bytes(bundled())
    found = check_bundle(file)
    assert found.valid, found
    notebook, source = open_source(file)
    assert len(recorded_cells(notebook)) == 3
    named = InputFile("a.csv", 4, sha256(b"a,b\n").hexdigest())
    assert recorded_bytes(source, named) == b"a,b\n"


# ---- notebooks --------------------------------------------------------------------------------------------


def nested(depth: int) -> Any:
    """A list in a list in a list."""
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


WORDS = ("", "ok", "died", "error", "stream", "display_data", "code", AT, "\ud800", "\0", "../../x", "{'a'}")
NUMBERS = (2**63, 2**64, -1, 10**400, 1e308, float("nan"), float("inf"), 4, 3, 2, 1, 0)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from(WORDS),
    st.sampled_from(NUMBERS),
)
VALUES = st.one_of(
    SCALARS,
    st.lists(SCALARS, max_size=3),
    st.dictionaries(
        st.text(max_size=5) | st.sampled_from(["text/plain", "seal", "note"]), SCALARS, max_size=3
    ),
    st.integers(1, 400).map(nested),
)
EDITS = st.lists(
    st.tuples(st.integers(0, 10**6), st.sampled_from(["set", "remove", "repeat"]), VALUES), max_size=4
)
PIECES = st.binary(max_size=6) | st.sampled_from(
    [
        b"[" * 5000,
        b'{"a":' * 5000,
        b"NaN",
        b'"\\ud800"',
        b"1e999",
        b"9" * 5000,
        b'"cells":[],',
        b"\xff",
        b"\xef\xbb\xbf",
    ]
)
CUTS = st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 50), PIECES), max_size=2)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Each container below `value` with each of its keys."""
    found, waiting = [], [value]
    while waiting:
        each = waiting.pop()
        keys = list(each) if isinstance(each, dict) else range(len(each)) if isinstance(each, list) else ()
        found += [(each, key) for key in keys]
        waiting += [each[key] for key in keys]
    return found


def edited(value: Any, edits: list[tuple[int, str, Any]]) -> Any:
    """`value`, a copy, after these edits at places that their numbers choose."""
    value = json.loads(json.dumps(value))
    for number, action, new in edits:
        known = places(value)
        if not known:
            break
        container, key = known[number % len(known)]
        if action == "set":
            container[key] = new
        elif action == "remove":
            del container[key]
        elif isinstance(container, list):
            container.append(container[key])
        else:
            container[str(new)[:50]] = container[key]
    return value


def cut(data: bytes, cuts: list[tuple[int, int, bytes]]) -> bytes:
    """`data` with some bytes replaced by others, and not of the same length."""
    for number, length, piece in cuts:
        at = number % (len(data) + 1)
        data = data[:at] + piece + data[at + length :]
    return data


def refused(error: CellgateError) -> None:
    """What may be raised is for the one who handed the file in."""
    assert 400 <= status_of(error) < 500, error
    assert error.message
    error.message.encode()


def check_as_notebook(edits: list[tuple[int, str, Any]], cuts: list[tuple[int, int, bytes]]) -> None:
    data = cut(json.dumps(edited(json.loads(sealed()), edits), indent=1, sort_keys=True).encode(), cuts)
    found = check_notebook(data, "n")
    assert not found.valid, "the layout is not the gateway's"
    try:
        notebook = decode_notebook(data, "n")
        cells = recorded_cells(notebook)
        input_files(notebook)
        installed_packages(notebook)
        recorded_lock(notebook)
        recorded_seed(notebook)
    except CellgateError as error:
        refused(error)
        return
    runs = [
        None if cell.skip else NewRun(cell.run.status, [*map(dict, cell.run.outputs)], AT, LATER)
        for cell in cells
    ]
    report = build_report(ReplayReport, FACTS, notebook, runs, 1e-6)
    assert report.different == 0, "each cell gave again what is recorded"
    for told in report.cells:
        reason = str(told.reason) if told.verdict == "unjudged" else UNREADABLE
        assert reason.startswith(UNREADABLE), reason
    page(report).encode()
    write(report, "json")


def check_bytes(edits: list[tuple[int, str, Any]], cuts: list[tuple[int, int, bytes]]) -> None:
    data = cut(sealed(), cuts)
    assert check_notebook(data, "n").valid == (data == sealed())


FOR_RUN: dict[str, Any] = {
    "nbformat": 4,
    "nbformat_minor": 5,
    "metadata": {"kernelspec": {"name": "python3", "display_name": "P"}, "cellgate": {"seal": {}}},
    "cells": [
        {
            "cell_type": "markdown",
            "id": "m",
            "metadata": {},
            "source": ["# a"],
            "attachments": {"a.png": {"image/png": PICTURE}},
        },
        {"cell_type": "raw", "id": "r", "metadata": {}, "source": "raw"},
        {
            "cell_type": "code",
            "id": "c",
            "metadata": {"tags": ["a"]},
            "source": "1",
            "execution_count": 1,
            "outputs": [{"output_type": "stream", "name": "stdout", "text": "1"}],
        },
    ],
}
FOR_RUN_OLD: dict[str, Any] = {
    "nbformat": 3,
    "nbformat_minor": 0,
    "metadata": {"name": "a"},
    "worksheets": [
        {
            "metadata": {},
            "cells": [
                {"cell_type": "heading", "level": 1, "source": "a", "metadata": {}},
                {
                    "cell_type": "code",
                    "language": "python",
                    "input": "1",
                    "prompt_number": 1,
                    "collapsed": False,
                    "metadata": {},
                    "outputs": [{"output_type": "pyout", "text": "1", "prompt_number": 1, "metadata": {}}],
                },
            ],
        }
    ],
}


def check_for_run(old: bool, edits: list[tuple[int, str, Any]], cuts: list[tuple[int, int, bytes]]) -> None:
    data = cut(json.dumps(edited(FOR_RUN_OLD if old else FOR_RUN, edits)).encode(), cuts)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.ipynb"
        path.write_bytes(data)
        try:
            recorded_cells(open_source(path)[0])
        except CellgateError as error:
            refused(error)
        try:
            source = read_cells(path)
        except CellgateError as error:
            refused(error)
            return
        exported = nbformat.reads(sealed().decode(), as_version=4)
        names = [cell.metadata.cellgate.execution for cell in exported.cells]
        executions = [names[0] if cell.runs else None for cell in source.cells]
        made = weave(source, exported, executions)
        assert "seal" not in made.metadata["cellgate"]
        nbformat.write(made, path)
        assert check_notebook(path.read_bytes(), "n").sealed is False


def test_any_notebook_is_checked_and_replayed_or_refused(fuzz: Fuzz) -> None:
    fuzz.run(check_as_notebook, EDITS, CUTS, examples=150)


def test_any_changed_bytes_of_a_sealed_notebook_are_found(fuzz: Fuzz) -> None:
    fuzz.run(check_bytes, EDITS, CUTS, examples=100)


def test_any_notebook_is_run_or_refused(fuzz: Fuzz) -> None:
    fuzz.run(check_for_run, st.booleans(), EDITS, CUTS, examples=100)


# ---- bundles ----------------------------------------------------------------------------------------------

NAMES = st.sampled_from(
    [
        "work/a.csv",
        "../a",
        "/etc/passwd",
        "work/../../x",
        "work/s.ipynb",
        "audit.ndjson",
        "manifest.json",
        "",
        "\0",
        "a" * 3000,
    ]
)
ENTRIES = st.lists(
    st.tuples(
        NAMES,
        st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]),
        st.integers(0, 0xFFFF),
        st.binary(max_size=30) | st.just(bytes(100_000)),
    ),
    max_size=3,
)
FLIPS = st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=4)
LIES = st.lists(
    st.tuples(
        st.integers(0, 20), st.sampled_from([6, 8, 10, 16, 20, 24, 28, 32, 42]), st.integers(0, 2**32 - 1)
    ),
    max_size=3,
)


def rebuilt(
    edits: list[tuple[int, str, Any]],
    entries: list[tuple[str, int, int, bytes]],
    flips: list[tuple[int, int]],
    lies: list[tuple[int, int, int]],
) -> bytes:
    """A bundle with another manifest, entries besides, fields of its list that lie, and other bytes."""
    sink = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(bundled())) as old, zipfile.ZipFile(sink, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            if name == "manifest.json":
                content = json.dumps(edited(json.loads(content), edits)).encode("utf-8", "replace")
            new.writestr(name, content)
        for name, method, mode, content in entries:
            info = zipfile.ZipInfo(name)
            info.compress_type, info.external_attr = method, mode << 16
            with suppress(ValueError, struct.error):
                _write_quietly(new, info, content)
    data = bytearray(sink.getvalue())
    listed = [at for at in range(len(data)) if data.startswith(b"PK\1\2", at)]
    for number, offset, value in lies:
        at = listed[number % len(listed)] + offset
        size = 2 if offset in {6, 8, 10, 28, 32} else 4
        data[at : at + size] = value.to_bytes(4, "little")[:size]
    for number, value in flips:
        data[number % len(data)] = value
    return bytes(data)


def _write_quietly(archive: zipfile.ZipFile, info: zipfile.ZipInfo, content: bytes) -> None:
    # zipfile warns of a name that is there already; that there are two is what is wanted.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        archive.writestr(info, content)


def check_archive(data: bytes) -> None:
    """What every archive must stand."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "b.zip"
        path.write_bytes(data)
        found = check_bundle(path)
        assert found.valid == (data == bundled()), found
        try:
            notebook, source = open_source(path)
            recorded_cells(notebook)
        except CellgateError as error:
            refused(error)
        else:
            for name in ("a.csv", "../a", "/etc/passwd", "\0", "a" * 3000, ""):
                for size in (-1, 0, 4, 2**40):
                    named = InputFile(name, size, sha256(b"a,b\n").hexdigest())
                    assert recorded_bytes(source, named) in {b"a,b\n"} or isinstance(
                        recorded_bytes(source, named), str
                    )
        assert [each.name for each in Path(folder).iterdir()] == ["b.zip"]


def check_rebuilt(
    edits: list[tuple[int, str, Any]],
    entries: list[tuple[str, int, int, bytes]],
    flips: list[tuple[int, int]],
    lies: list[tuple[int, int, int]],
) -> None:
    check_archive(rebuilt(edits, entries, flips, lies))


def check_cut(cuts: list[tuple[int, int, bytes]], flips: list[tuple[int, int]]) -> None:
    data = bytearray(cut(bundled(), cuts))
    for number, value in flips:
        if data:
            data[number % len(data)] = value
    check_archive(bytes(data))


def test_any_bundle_is_checked_and_replayed_or_refused(fuzz: Fuzz) -> None:
    fuzz.run(check_rebuilt, EDITS, ENTRIES, FLIPS, LIES, examples=150)


def test_any_changed_bytes_of_a_bundle_are_found(fuzz: Fuzz) -> None:
    fuzz.run(check_cut, CUTS, FLIPS, examples=100)


# ---- bombs ------------------------------------------------------------------------------------------------

MIB = 1 << 20


def archive(**files: tuple[bytes, int]) -> io.BytesIO:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as made:
        for name, (content, method) in files.items():
            made.writestr(zipfile.ZipInfo(name), content, method)
    return sink


def test_what_is_unpacked_is_bounded_whatever_the_archive_tells(tmp_path: Path) -> None:
    path = tmp_path / "b.zip"
    path.write_bytes(archive(bomb=(bytes(64 * MIB), zipfile.ZIP_DEFLATED)).getvalue())
    tracemalloc.start()
    try:
        with open_archive(path) as opened, pytest.raises(InvalidInput, match="too large"):
            read_entry(opened, "bomb", 2 * MIB)
        assert tracemalloc.get_traced_memory()[1] < 24 * MIB
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_ways_of_packing_that_can_t_be_unpacked_in_parts_are_refused(tmp_path: Path, method: int) -> None:
    path = tmp_path / "b.zip"
    path.write_bytes(archive(bomb=(bytes(8 * MIB), method)).getvalue())
    with open_archive(path) as opened, pytest.raises(zipfile.BadZipFile, match="another way"):
        next(entry_parts(opened, "bomb"))


def test_an_archive_can_t_use_its_bytes_twice_nor_have_a_list_without_end(tmp_path: Path) -> None:
    path = tmp_path / "b.zip"
    data = archive(a=(zlib.compress(bytes(1000)) * 100, zipfile.ZIP_STORED)).getvalue()
    begin, end = data.index(b"PK\1\2"), data.index(b"PK\5\6")
    listed = data[begin:end] * 200
    tail = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 200, 200, len(listed), begin, 0)
    path.write_bytes(data[:begin] + listed + tail)
    with pytest.raises(zipfile.BadZipFile, match="overlap"):
        open_archive(path)
    assert "overlap" in str(check_bundle(path).problem)
    size = MOST_LIST + 2
    path.write_bytes(bytes(size) + struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 65535, 65535, size, 0, 0))
    with pytest.raises(zipfile.BadZipFile, match="too many files"):
        open_archive(path)


def test_a_notebook_of_too_many_values_is_refused_before_it_is_decoded() -> None:
    dense = b'{"cells":[' + b"[]," * (MOST_VALUES // 2 + 1) + b"[]]}"
    with pytest.raises(InvalidInput, match="too many to read at once"):
        decode_notebook(dense, "n")
    assert "too many" in str(check_notebook(dense, "n").problem)
    check_size(b'"' + b"[,:{" * MOST_VALUES + b'"', "a text")


def test_a_million_cells_are_refused_or_read(tmp_path: Path) -> None:
    cell = {
        "cell_type": "code",
        "id": "a",
        "metadata": {},
        "source": "",
        "outputs": [],
        "execution_count": None,
    }
    many = [json.dumps(cell)] * (MOST_CELLS + 1)
    path = tmp_path / "a.ipynb"
    text = '{"nbformat":4,"nbformat_minor":5,"metadata":{},"cells":[' + ",".join(many) + "]}"
    path.write_text(text)
    with pytest.raises(InvalidInput, match="at most 100,000 can be run"):
        read_cells(path)
    assert len(recorded_cells(decode_notebook(text.encode(), "n"))) == MOST_CELLS + 1
