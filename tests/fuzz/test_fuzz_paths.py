"""Any path at all, in a workspace full of traps: nothing leads out, and nothing but our own errors comes."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import strategies as st

from cellgate.files import tree
from cellgate.files.listing import file_model
from cellgate_kernels.base.errors import CellgateError
from cellgate_kernels.limits.disk import ENTRY_BYTES
from tests.fuzz.budget import Fuzz
from tests.support.server import GatewayProcess

SECRET = b"hunter2"
KNOWN = ["file", "folder", "deep", "out", "secret", "loop", "fifo", "zero", "closed", "new"]
ODD = [
    "..",
    ".",
    "",
    "\0",
    "n" * 255,
    "n" * 256,
    "ü" * 128,
    "a\nb",
    "\udcff",
    "\ud800",
    "%2e%2e",
    "~",
    "-rf",
    " ",
]
NAMES = st.sampled_from(KNOWN) | st.sampled_from(ODD) | st.text(max_size=8)
PATHS = st.lists(NAMES, max_size=6).map("/".join) | st.lists(NAMES, min_size=60, max_size=70).map("/".join)


def lay_traps(root: Path, outside: Path) -> None:
    (root / "folder" / "deep").mkdir(parents=True)
    (root / "file").write_bytes(b"own")
    (root / "folder" / "file").write_bytes(b"own")
    for folder in (root, root / "folder", root / "folder" / "deep"):
        (folder / "out").symlink_to(outside)
        (folder / "secret").symlink_to(outside / "secret")
        (folder / "loop").symlink_to("loop")
        (folder / "zero").symlink_to("/dev/zero")
        os.mkfifo(folder / "fifo")
    (root / "closed").mkdir(mode=0)


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "secret").write_bytes(SECRET)
    return folder


def read(root: Path, text: str) -> None:
    descriptor, file = tree.open_file(root, tree.parse_path(text))
    with os.fdopen(descriptor, "rb") as opened:
        assert opened.read() in {b"own", b"staged"}
    file_model(file, None)


def write(root: Path, text: str) -> None:
    staged = root.parent / "staged"
    staged.write_bytes(b"staged")
    tree.place(staged, root, tree.parse_path(text))
    read(root, text)


def remove(root: Path, text: str) -> None:
    tree.remove(root, tree.parse_path(text))


def measure(root: Path, text: str) -> None:
    assert tree.freed_by(root, tree.parse_path(text)) in {0, ENTRY_BYTES}


def test_no_path_leads_out_of_a_workspace(fuzz: Fuzz, outside: Path) -> None:
    def check(steps: list[tuple[Callable[[Path, str], None], str]]) -> None:
        base = Path(tempfile.mkdtemp(dir=outside.parent))
        root = base / "workspace"
        root.mkdir()
        lay_traps(root, outside)
        try:
            for step, text in steps:
                with suppress(CellgateError):
                    step(root, text)
            found, complete = tree.scan(root)
            assert complete
            assert all(not Path(path).is_absolute() for path in found)
            assert {entry.name for entry in base.iterdir()} <= {"workspace", "staged"}
        finally:
            shutil.rmtree(base)
        assert [entry.name for entry in outside.iterdir()] == ["secret"]
        assert (outside / "secret").read_bytes() == SECRET

    step = st.tuples(st.sampled_from([read, write, remove, measure]), PATHS)
    fuzz.run(check, st.lists(step, min_size=1, max_size=8), examples=100)


def test_no_path_of_a_request_leads_out_of_a_workspace(
    fuzz: Fuzz, gateway: GatewayProcess, session: str, outside: Path
) -> None:
    code = f"import os\nos.symlink({str(outside)!r}, 'out')\nos.makedirs('folder/deep')\nos.mkfifo('fifo')"
    assert gateway.execute(session, code)["status"] == "ok"

    def check(method: str, path: str, encoded: bool) -> None:
        wanted = quote(path, safe="/" if encoded else "", errors="surrogatepass")
        answer = gateway.request(
            method, f"/v1/sessions/{session}/files/{wanted}", b"staged" if method == "PUT" else None
        )
        assert answer.status in {200, 201, 204, 400, 404, 409}, (answer.status, answer.body)
        assert SECRET not in answer.body
        assert [entry.name for entry in outside.iterdir()] == ["secret"]
        assert (outside / "secret").read_bytes() == SECRET

    methods = st.sampled_from(["GET", "PUT", "DELETE", "HEAD"])
    fuzz.run(check, methods, PATHS, st.booleans())
    assert "Traceback" not in gateway.log.read_text()
