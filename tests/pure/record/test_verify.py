"""What is exported and what is stored can't be changed without `verify` naming it."""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
import sqlite3
import stat
import struct
import zipfile
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, closing
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from cellgate.errors import StorageError
from cellgate.record.export.sealed_archive import COMMENT, MANIFEST
from cellgate.record.export.session_export import Exports, Parts
from cellgate.record.findings import Finding
from cellgate.record.keys import (
    FORMER_FILE,
    KEY_FILE,
    SigningKey,
    former_keys,
    load_key,
    make_key,
    replace_key,
)
from cellgate.record.seal import cell_digest, make_seal
from cellgate.record.spill import Spills
from cellgate.record.spill_ledger import SpillLedger
from cellgate.record.store.sqlite.check import check_record
from cellgate.record.store.sqlite.journal import Journal
from cellgate.record.text import OPENING, cell_text, tail_text
from cellgate.record.verify.notebooks import check_bundle, check_notebook
from cellgate_kernels.base.threads import Lane
from tests.pure.record.conftest import journal_at
from tests.pure.record.recorded import Recorded, image, text
from tests.support.examples import share


async def collected(parts: Parts) -> bytes:
    async with aclosing(parts):
        return b"".join([part async for part in parts])


async def two_sessions(journal: Journal) -> tuple[Recorded, Recorded]:
    first, second = Recorded(journal, "first"), Recorded(journal, "second")
    first.cell("1", text("eins\n"))
    second.cell("show()", image())
    first.cell("2", text("zwei\n"), image())
    first.cell("3")
    first.end()
    await journal.commit()
    return first, second


@pytest.fixture
async def stored(path: Path) -> Path:
    """A finished record of two sessions."""
    async with journal_at(path) as journal:
        await two_sessions(journal)
    return path


def problems(path: Path) -> list[str]:
    return [found.problem for found in check_record(path) if found.problem is not None]


def changed(path: Path, *statements: str) -> list[str]:
    """What is found after these statements, in a copy."""
    copy = path.with_name("copy.sqlite")
    shutil.copyfile(path, copy)
    with closing(sqlite3.connect(copy)) as db, db:
        for statement in statements:
            db.execute(statement)
    return problems(copy)


# ---- the data folder --------------------------------------------------------------------------------------


def test_an_untouched_record_is_valid(stored: Path) -> None:
    found = list(check_record(stored))
    assert [(f.subject, f.valid) for f in found] == [
        ("session first of ada", True),
        ("session second of ada", True),
        ("audit trail", True),
    ]


def columns(path: Path) -> Iterator[tuple[str, str, str]]:
    """Every column of every row, as (table, column, the row's condition)."""
    keys = {
        "sessions": ("id",),
        "executions": ("session_id", "number"),
        "events": ("session_id", "seq"),
        "trail": ("seq",),
        "blobs": ("id",),
    }
    with closing(sqlite3.connect(path)) as db:
        for table, names in keys.items():
            for (column,) in db.execute(f"SELECT name FROM pragma_table_info('{table}')").fetchall():
                for row in db.execute(f"SELECT {', '.join(names)} FROM {table}").fetchall():
                    yield (
                        table,
                        column,
                        " AND ".join(f"{name} = {value}" for name, value in zip(names, row, strict=True)),
                    )


OTHER_VALUE = """UPDATE {table} SET {column} = CASE typeof({column})
    WHEN 'integer' THEN {column} + 1000 WHEN 'text' THEN {column} || ' ' WHEN 'real' THEN {column} + 1
    WHEN 'blob' THEN CAST({column} || x'20' AS BLOB)
    ELSE {value} END WHERE {where}"""


def test_another_value_in_any_column_of_any_row_is_found(stored: Path) -> None:
    checked = 0
    every = list(columns(stored))
    for table, column, where in share(every):
        for value in ("1000", "x'20'", "'x'"):
            statement = OTHER_VALUE.format(table=table, column=column, value=value, where=where)
            try:
                found = changed(stored, statement)
            except sqlite3.IntegrityError:
                continue  # a strict table refuses this kind of value in place of NULL
            json_space = column in {"limits", "metadata", "environment"}
            assert found or json_space, (table, column, where)
            checked += 1
    assert len(every) > 150
    assert checked


@pytest.mark.parametrize("column", ["limits", "metadata", "environment"])
def test_another_content_of_a_json_column_is_found(stored: Path, column: str) -> None:
    (found,) = changed(stored, f"""UPDATE sessions SET {column} = '{{"a":1}}' WHERE id = 1""")
    assert f"{column} is {{'a': 1}}" in found


def test_a_removed_row_is_named(stored: Path) -> None:
    assert changed(stored, "DELETE FROM events WHERE session_id = 1 AND seq = 4") == [
        "row 4 was removed: row 5 follows row 3"
    ]
    last = "(SELECT max(seq) FROM events WHERE session_id = 1)"
    (found,) = changed(stored, f"DELETE FROM events WHERE session_id = 1 AND seq = {last}")
    assert found.endswith("was removed: there were 14")


def test_moved_and_added_rows_are_named(stored: Path) -> None:
    swap = "UPDATE events SET seq = {} WHERE session_id = 1 AND seq = {}"
    assert changed(stored, swap.format(900, 4), swap.format(4, 5), swap.format(5, 900)) == [
        "row 4 was changed, or moved: it says it is row 5: its hash is not that of its bytes"
    ]
    add = "INSERT INTO events SELECT 2, seq, type, execution, body, hash, blobs FROM events"
    (found,) = changed(stored, f"{add} WHERE session_id = 1 AND seq = 6")
    assert found.startswith("row 6 was changed")
    added = add.replace("SELECT 2, seq", "SELECT 1, 15")
    (found,) = changed(stored, f"{added} WHERE session_id = 1 AND seq = 14")
    assert found.startswith("row 15 was changed, or moved: it says it is row 14")


def test_a_record_can_not_vanish_or_appear(stored: Path) -> None:
    gone = [f"DELETE FROM {table} WHERE session_id = 2" for table in ("events", "executions")]
    assert changed(stored, *gone, "DELETE FROM sessions WHERE id = 2") == [
        "the record of session second of ada was removed without a tombstone"
    ]
    (found,) = changed(stored, "DELETE FROM trail WHERE seq = 2")
    assert "second of ada is not in the trail" in found
    assert changed(stored, "UPDATE events SET session_id = 9 WHERE session_id = 2 AND seq = 5")[-1] == (
        "events were added, or moved, to session 9, which there is not"
    )


async def test_a_record_in_use_can_be_checked(journal: Journal, path: Path) -> None:
    first, _ = await two_sessions(journal)
    assert problems(path) == []
    first.cell("4")
    await journal.commit()
    assert problems(path) == []


async def test_what_is_purged_leaves_a_tombstone_and_nothing_else(journal: Journal, path: Path) -> None:
    first, second = await two_sessions(journal)
    second.cell("secret-of-second", image("uniqueofsecond" * 400))
    purged = await journal.purge(second.row.id, by="root", reason="requested")
    assert purged is not None
    assert await journal.reads.session("ada", "second") is None
    assert problems(path) == []
    await purged.erased
    assert await journal.purge(second.row.id, by="root", reason="requested") is None
    assert await journal.reads.session("ada", "second") is None
    assert problems(path) == []
    with closing(sqlite3.connect(path)) as db:
        (body,) = db.execute("SELECT body FROM trail ORDER BY seq DESC LIMIT 1").fetchone()
        (blobs,) = db.execute("SELECT count(*) FROM blobs").fetchone()
    tombstone = json.loads(body)
    assert (tombstone["type"], tombstone["session"], tombstone["by"]) == ("record_purged", "second", "root")
    assert (tombstone["rows"], tombstone["head"]) == (second.log.last_seq, second.log.head.hex())
    assert blobs == 1  # the one that both had
    assert (await journal.events(first.row.id))[-1].seq == first.log.last_seq
    for file in path.parent.iterdir():
        content = file.read_bytes()
        assert b"secret-of-second" not in content
        assert b"uniqueofseconduniqueofsecond" not in content


async def test_equal_values_are_stored_once(journal: Journal, path: Path) -> None:
    for index in range(20):
        Recorded(journal, f"s{index}").cell("show()", image())
    await journal.commit()
    await journal.applied()
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT count(*), count(DISTINCT session_id) FROM blob_uses").fetchone() == (20, 20)
        assert db.execute("SELECT count(*) FROM blobs").fetchone() == (1,)
    assert problems(path) == []


# ---- exported files ---------------------------------------------------------------------------------------


@pytest.fixture
async def exports(path: Path, lane: Lane) -> AsyncGenerator[Callable[..., Any], None]:
    """Exports the first of two sessions: `await exports("notebook", key)`."""
    journal, spills = await Journal.open(path), Spills(path.parent, SpillLedger(path.parent, 0), lane)

    async def make(kind: str, key: SigningKey | None = None, workspace: Path | None = None) -> bytes:
        exporter = Exports(journal, "0.1.0", key, spills)
        moment = await exporter.moment(first.row)
        if kind == "bundle":
            return await collected(exporter.bundle(moment, workspace))
        return await collected(exporter.notebook(moment))

    try:
        first, _ = await two_sessions(journal)
        yield make
        await spills.ends.finished()
        assert spills._ledger.used == 0
    finally:
        await journal.close()


@pytest.fixture
def key(tmp_path: Path) -> SigningKey:
    return make_key(tmp_path)


async def test_every_changed_byte_of_a_notebook_is_found(exports: Any, key: SigningKey) -> None:
    whole = await exports("notebook", key)
    assert check_notebook(whole, "n").key == key.public
    for position in share(range(len(whole))):
        # Another bit, or the other case.
        damaged = bytearray(whole)
        damaged[position] ^= (1, 32)[position % 2]
        assert not check_notebook(bytes(damaged), "n").valid, position
    for damaged in (whole[:-1], whole + b"\n", b"", b"[]", b"{}", b"null", b'{"cells":[1]}'):
        assert not check_notebook(bytes(damaged), "n").valid


async def test_every_changed_byte_of_a_bundle_is_found(exports: Any, key: SigningKey, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "a.txt").write_text("content")
    whole = await exports("bundle", key, work)
    target = tmp_path / "b.zip"
    target.write_bytes(whole)
    assert check_bundle(target) == Finding("b.zip", "bundle, 5 files, 14 rows", None, key.public)
    with target.open("r+b", buffering=0) as file:
        for position in share(range(len(whole))):
            byte = whole[position]
            os.pwrite(file.fileno(), bytes([byte ^ 1]), position)
            assert not check_bundle(target).valid, position
            os.pwrite(file.fileno(), bytes([byte]), position)
    assert check_bundle(target).valid


HIDDEN = b"hidden words"


def with_digest(archive: bytes) -> bytes:
    """As somebody writes a changed archive who knows how its digest is made."""
    before = archive[: -len(COMMENT) - 64]
    return before + COMMENT + sha256(before).hexdigest().encode()


def moved(archive: bytes, at: int) -> bytes:
    """With hidden words at a place among the files, and all that tells of places made to fit."""
    with zipfile.ZipFile(io.BytesIO(archive)) as opened:
        start, entries = opened.start_dir, opened.infolist()
    made = bytearray(archive[:at] + HIDDEN + archive[at:])
    place = start + len(HIDDEN)
    for info in entries:
        if info.header_offset >= at:
            struct.pack_into("<L", made, place + 42, info.header_offset + len(HIDDEN))
        name, extra, remark = struct.unpack_from("<3H", made, place + 28)
        place += 46 + name + extra + remark
    struct.pack_into("<L", made, place + 16, start + len(HIDDEN))
    return bytes(made)


def behind_compressed_data(archive: bytes) -> bytes:
    """With hidden words behind the end of the data of the first file, as if they were a part of it."""
    with zipfile.ZipFile(io.BytesIO(archive)) as opened:
        start, info = opened.start_dir, opened.infolist()[0]
    name, extra = struct.unpack_from("<2H", archive, info.header_offset + 26)
    end = info.header_offset + 30 + name + extra + info.compress_size
    made = bytearray(moved(archive, end))
    size = info.compress_size + len(HIDDEN)
    struct.pack_into("<Q", made, end + len(HIDDEN) + 8, size)
    struct.pack_into("<L", made, start + len(HIDDEN) + 20, size)
    return bytes(made)


def commented(archive: bytes) -> bytes:
    """With hidden words as the remark of the last file."""
    end = len(archive) - len(COMMENT) - 64 - 22
    made = bytearray(archive[:end] + HIDDEN + archive[end:])
    with zipfile.ZipFile(io.BytesIO(archive)) as opened:
        place = opened.start_dir
        for _ in opened.infolist()[:-1]:
            place += 46 + sum(struct.unpack_from("<3H", made, place + 28))
    struct.pack_into("<H", made, place + 32, len(HIDDEN))
    (size,) = struct.unpack_from("<L", made, end + len(HIDDEN) + 12)
    struct.pack_into("<L", made, end + len(HIDDEN) + 12, size + len(HIDDEN))
    return bytes(made)


def as_a_link(archive: bytes) -> bytes:
    """With a file that is a link once it is unpacked."""
    made = bytearray(archive)
    with zipfile.ZipFile(io.BytesIO(archive)) as opened:
        struct.pack_into("<L", made, opened.start_dir + 38, (stat.S_IFLNK | 0o777) << 16)
    return bytes(made)


def second_file(archive: bytes) -> int:
    with zipfile.ZipFile(io.BytesIO(archive)) as opened:
        return opened.infolist()[1].header_offset


@pytest.mark.parametrize(
    "change",
    [
        lambda archive: HIDDEN + archive,
        lambda archive: moved(archive, 0),
        lambda archive: moved(archive, second_file(archive)),
        behind_compressed_data,
        commented,
        as_a_link,
    ],
    ids=["before it", "before the first file", "between files", "behind data", "remark", "link"],
)
async def test_bytes_that_no_file_owns_are_found_whoever_made_the_digest(
    exports: Any, key: SigningKey, tmp_path: Path, change: Callable[[bytes], bytes]
) -> None:
    whole = await exports("bundle", key)
    target = tmp_path / "b.zip"
    target.write_bytes(with_digest(whole))
    assert check_bundle(target).valid
    target.write_bytes(with_digest(change(whole)))
    with zipfile.ZipFile(target) as archive:
        assert archive.testzip() is None, "programs unpack it"
    found = check_bundle(target)
    assert found.problem == "the archive has bytes that belong to none of its files"


def resealed(notebook: dict[str, Any]) -> bytes:
    """As somebody without the key writes an edited notebook."""
    texts = [cell_text(cell) for cell in notebook["cells"]]
    seal = make_seal([cell_digest(cell) for cell in texts], notebook["metadata"], None)
    notebook["metadata"]["cellgate"]["seal"] = {"cells": seal.cells, "digest": seal.digest}
    cells = ",".join(f"\n  {cell}" for cell in texts)
    return (OPENING + cells + tail_text(notebook["metadata"], empty=not texts)).encode()


async def test_changed_removed_moved_and_added_cells_are_named(exports: Any) -> None:
    whole = await exports("notebook")

    def after(change: Callable[[list[Any]], object]) -> str:
        notebook = json.loads(whole)
        change(notebook["cells"])
        return str(check_notebook(json.dumps(notebook).encode(), "n").problem)

    assert after(lambda cells: cells[1].update(source=["x"])) == "cell 2 (first-2) was changed"
    assert after(lambda cells: cells.pop(1)) == "cell 2 was removed: what was cell 3 stands there"
    assert after(lambda cells: cells.pop()) == "cell 3 was removed: there are 2 of 3"
    assert after(lambda cells: cells.reverse()) == "cell 1 (first-3) was moved there from place 3"
    new = {"metadata": {"cellgate": {"execution": "new"}}}
    assert after(lambda cells: cells.insert(1, new)) == "cell 2 (new) was added"
    assert after(lambda cells: cells.append(new)) == "cell 4 (new) was added"
    assert after(lambda cells: None) == "the file was rewritten: what it says is as it was, its bytes are not"


async def test_who_has_no_key_can_not_make_a_seal_of_it(exports: Any, key: SigningKey) -> None:
    """Without a signature an edit with a new seal is not found: that is what the key is for."""
    notebook = json.loads(await exports("notebook", key))
    notebook["cells"][0]["source"] = ["forged"]
    forged = check_notebook(resealed(notebook), "n")
    assert (forged.valid, forged.key) == (True, None)


UNSEALED = {"nbformat": 4, "nbformat_minor": 5, "cells": [], "metadata": {}}


async def test_a_notebook_without_a_seal_is_neither_valid_nor_changed(exports: Any) -> None:
    notebook = json.loads(await exports("notebook"))
    del notebook["metadata"]["cellgate"]["seal"]
    for told in (
        notebook,
        UNSEALED,
        {**UNSEALED, "nbformat": 3},
        {"nbformat": 2, "nbformat_minor": 0, "metadata": {}, "worksheets": [{"cells": []}]},
        {"nbformat": 3, "nbformat_minor": 0, "metadata": {"name": "a"}, "worksheets": []},
        {"nbformat": 1, "cells": [{"cell_type": "code", "code": "1"}]},
        {**UNSEALED, "metadata": {"cellgate": "x"}},
    ):
        found = check_notebook(json.dumps(told).encode(), "n")
        assert (found.valid, found.sealed) == (False, False), found
        assert "changes to it can't be found" in str(found.problem)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{",
        b'{"cells": []}',
        b'{"nbformat": 4, "cells": 1, "metadata": {}}',
        b'{"nbformat": 3, "worksheets": [], "metadata": {"cellgate": {"seal": {}}}}',
        b'{"nbformat": "3", "worksheets": [], "metadata": {}}',
        b'{"nbformat": 4, "cells": [], "metadata": {"cellgate": {"seal": null}}}',
        b'{"nbformat": 4, "cells": [], "metadata": {"cellgate": {"seal": {}}}}',
        b'{"nbformat": 4, "cells": [NaN], "metadata": {}}',
        b'{"nbformat": 4, "cells": ' + b"[" * 100_000 + b"]" * 100_000 + b', "metadata": {}}',
    ],
)
def test_a_file_that_is_no_notebook_or_has_a_broken_seal_is_not_valid(content: bytes) -> None:
    found = check_notebook(content, "n")
    assert (found.valid, found.sealed) == (False, True)


async def test_a_bundle_needs_its_seal(exports: Any, tmp_path: Path) -> None:
    """Who takes the seal out of a bundle's notebook has changed the bundle."""
    source, target = io.BytesIO(await exports("bundle")), tmp_path / "b.zip"
    with zipfile.ZipFile(source) as archive, zipfile.ZipFile(target, "w") as made:
        for name in archive.namelist():
            content = archive.read(name)
            if name.endswith(".ipynb"):
                notebook = json.loads(content)
                del notebook["metadata"]["cellgate"]["seal"]
                content = json.dumps(notebook).encode()
            made.writestr(name, content)
    found = check_bundle(target)
    assert (found.valid, found.sealed) == (False, True)


async def test_a_bundles_notebook_is_what_its_rows_make(exports: Any, tmp_path: Path) -> None:
    """Even when the seal, the manifest and the archive's digest were made anew."""
    with zipfile.ZipFile(io.BytesIO(await exports("bundle"))) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    manifest = json.loads(files[MANIFEST])

    def forged(name: str, content: bytes) -> str:
        sink = io.BytesIO()
        told = {**manifest, "files": {**manifest["files"], name: sha256(content).hexdigest()}}
        with zipfile.ZipFile(sink, "w") as archive:
            for other, kept in files.items():
                archive.writestr(other, content if other == name else kept)
            archive.writestr(MANIFEST, json.dumps(told)) if name != MANIFEST else None
            archive.comment = bytes(len(COMMENT) + 64)
        data = sink.getvalue()[: -len(COMMENT) - 64]
        target = tmp_path / "forged.zip"
        target.write_bytes(data + COMMENT + sha256(data).hexdigest().encode())
        return str(check_bundle(target).problem)

    del files[MANIFEST]
    name = manifest["notebook"]
    notebook = json.loads(files[name])
    notebook["cells"][2]["source"] = ["forged"]
    assert forged(name, resealed(notebook)) == (
        "the notebook does not follow from the rows: cell 3 (first-3) was changed"
    )
    notebook = json.loads(files[name])
    notebook["metadata"]["cellgate"]["principal"] = "eve"
    assert forged(name, resealed(notebook)) == "the notebook's metadata are not what the rows tell"
    rows = files["audit.ndjson"].splitlines(keepends=True)
    assert forged("audit.ndjson", b"".join(rows[:4] + rows[5:])).startswith("row 5 was removed")
    assert forged("audit.ndjson", b"".join(rows[:-1])).startswith("row 14 was removed")
    assert forged("audit.ndjson", b"".join(rows).replace(b"eins", b"zwei")).startswith("row 4 was changed")


async def test_a_workspaces_links_pipes_and_odd_names_stay_out(exports: Any, tmp_path: Path) -> None:
    work = tmp_path / "work"
    (work / "sub").mkdir(parents=True)
    (work / "sub" / "data.bin").write_bytes(bytes(range(256)) * 2000)
    (work / "first.ipynb").write_text("mine")
    (work / "link").symlink_to("/etc/hostname")
    (work / "folder").symlink_to("/etc")
    (work / "back\\slash").write_text("x")
    (work / os.fsdecode(b"\xff")).write_text("x")
    os.mkfifo(work / "pipe")
    data = await exports("bundle", None, work)
    target = tmp_path / "b.zip"
    target.write_bytes(data)
    assert check_bundle(target).valid
    with zipfile.ZipFile(target) as archive:
        assert archive.testzip() is None
        names = set(archive.namelist())
        left_out = json.loads(archive.read("manifest.json"))["left_out"]
        assert archive.read("work/sub/data.bin") == bytes(range(256)) * 2000
        assert archive.read("work/first.ipynb") == b"mine"
    assert "work/first.cellgate.ipynb" in names
    assert not any("link" in name or "etc" in name for name in names)
    assert sorted(left_out) == ["\\udcff", "back\\slash", "folder", "link", "pipe"]


# ---- keys -------------------------------------------------------------------------------------------------


def test_a_key_is_its_owners_and_made_once(tmp_path: Path) -> None:
    assert load_key(tmp_path) is None
    made = make_key(tmp_path)
    file = tmp_path / KEY_FILE
    assert file.stat().st_mode & 0o777 == 0o600
    loaded = load_key(tmp_path)
    assert loaded is not None
    assert (loaded.public, len(made.public)) == (made.public, 64)
    with pytest.raises(StorageError, match="exists; --rotate replaces it"):
        make_key(tmp_path)
    file.chmod(0o640)
    with pytest.raises(StorageError, match="can be read by other users"):
        load_key(tmp_path)
    file.chmod(0o600)
    file.write_text("no key")
    with pytest.raises(StorageError, match="no Ed25519 key"):
        load_key(tmp_path)


def test_a_replaced_key_is_listed_and_an_interrupted_replacement_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = make_key(tmp_path)
    assert former_keys(tmp_path, first) == []

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", fail)
        with pytest.raises(StorageError, match="can't be replaced: No space left"):
            replace_key(tmp_path, first)
    assert sorted(path.name for path in tmp_path.iterdir()) == [FORMER_FILE, KEY_FILE]
    assert former_keys(tmp_path, first) == []
    second = replace_key(tmp_path, first)
    third = replace_key(tmp_path, second)
    loaded = load_key(tmp_path)
    assert loaded is not None
    assert loaded.public == third.public
    assert [each.public for each in former_keys(tmp_path, third)] == [second.public, first.public]
    for content in ("no key 2026-01-01T00:00:00Z\n", f"{first.public}\n", "x" * 70_000):
        (tmp_path / FORMER_FILE).write_text(content)
        with pytest.raises(StorageError, match="is not the list of former signing keys"):
            former_keys(tmp_path, third)
