"""Folders of a workspace: listed, made, renamed; and what a hostile kernel does with them."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from cellgate.client import Gateway
from cellgate.errors import Conflict, NotFound
from cellgate.files import tree
from cellgate_kernels.base.errors import InvalidInput
from tests.support.server import TOKEN, GatewayProcess, Response


def path_of(session: str, path: str) -> str:
    return f"/v1/sessions/{session}/files/{path}"


def make(gateway: GatewayProcess, session: str, path: str) -> Response:
    return gateway.post(f"{path_of(session, path)}?mkdir", timeout=120)


def move(gateway: GatewayProcess, session: str, path: str, to: str) -> Response:
    return gateway.post(f"{path_of(session, path)}?move_to={quote(to)}")


def put(gateway: GatewayProcess, session: str, path: str, content: bytes) -> None:
    answer = gateway.request("PUT", path_of(session, path), content, timeout=120)
    assert answer.status in {200, 201}, answer.body


def listed(gateway: GatewayProcess, session: str, query: str = "?folders=true") -> list[str]:
    answer = gateway.get(f"/v1/sessions/{session}/files{query}")
    assert answer.status == 200, answer.body
    return [file["path"] for file in answer.json()["files"]]


def file_events(gateway: GatewayProcess, session: str) -> list[tuple[str, str]]:
    found = [event for event in gateway.recorded(session) if event["type"] == "file"]
    return [(event["action"], event["path"]) for event in found]


def test_folders_are_made_and_listed(gateway: GatewayProcess, session: str) -> None:
    made = make(gateway, session, "a/b")
    assert (made.status, made.json()) == (201, {"files": []})
    assert make(gateway, session, "a/b").status == 200
    put(gateway, session, "a/f.txt", b"x")
    assert listed(gateway, session) == ["a/", "a/b/", "a/f.txt"]
    assert listed(gateway, session, "") == ["a/f.txt"]
    assert listed(gateway, session, "?folders=true&limit=1&after=a/") == ["a/b/"]
    folder = gateway.get(f"/v1/sessions/{session}/files?folders=true").json()["files"][0]
    assert folder.pop("modified")
    assert folder == {"path": "a/", "size": 0, "sha256": None, "folder": True}
    assert gateway.execute(session, "import os; open('a/b/c', 'w').close()")["status"] == "ok"
    answer = make(gateway, session, "a/f.txt")
    assert (answer.status, answer.reason) == (409, "conflict")


def test_a_file_is_renamed_and_recorded(gateway: GatewayProcess, session: str) -> None:
    put(gateway, session, "old.txt", b"content")
    answer = move(gateway, session, "old.txt", "new folder/new.txt")
    sha256 = hashlib.sha256(b"content").hexdigest()
    model = {"path": "new folder/new.txt", "size": 7, "sha256": sha256, "action": "created"}
    assert (answer.status, answer.json()) == (200, {"files": [model]})
    assert listed(gateway, session) == ["new folder/", "new folder/new.txt"]
    assert file_events(gateway, session)[1:] == [("deleted", "old.txt"), ("created", "new folder/new.txt")]
    # The cell did nothing, so nothing is its change.
    assert gateway.execute(session, "1")["files"] == []
    assert gateway.execute(session, "print(open('new folder/new.txt').read())")["text"] == "content\n"


def test_a_folder_is_renamed_with_all_in_it(gateway: GatewayProcess, session: str) -> None:
    for name in ("a/1", "a/b/2", "ab/3"):
        put(gateway, session, name, name.encode())
    answer = move(gateway, session, "a", "z/y")
    assert [each["path"] for each in answer.json()["files"]] == ["z/y/1", "z/y/b/2"]
    assert listed(gateway, session, "") == ["ab/3", "z/y/1", "z/y/b/2"]
    assert gateway.execute(session, "1")["files"] == []
    gateway.delete(f"/v1/sessions/{session}")
    notebook = gateway.get(f"/v1/sessions/{session}/notebook").json()
    inputs = [each["path"] for each in notebook["metadata"]["cellgate"]["input_files"]]
    assert inputs == ["ab/3", "z/y/1", "z/y/b/2"]


def test_a_file_that_is_posted_to_its_path_is_put_there(gateway: GatewayProcess, session: str) -> None:
    answer = gateway.post(path_of(session, "f"))
    assert (answer.status, answer.reason) == (405, "method_not_allowed")
    assert answer.json()["detail"].startswith("PUT uploads a file")
    assert "PUT" in answer.headers["Allow"]
    assert "POST" not in answer.headers["Allow"]


@pytest.mark.parametrize(
    ("path", "query", "status"),
    [
        ("f", "move_to=there", 409),
        ("f", "move_to=folder", 409),
        ("missing", "move_to=x", 404),
        ("folder", "move_to=folder/below", 400),
        ("f", "move_to=f", 400),
        ("f", "move_to=../out", 400),
        ("f", "move_to=/tmp/out", 400),
        ("f", "move_to=there/below", 400),
        ("f", "move_to=x&mkdir", 400),
        ("f", "", 405),
        ("x", "mkdir=perhaps", 400),
        ("../x", "mkdir", 400),
        ("link/x", "mkdir", 400),
        ("link", "move_to=x", 400),
    ],
)
def test_what_can_not_be_done_changes_nothing(
    gateway: GatewayProcess, session: str, path: str, query: str, status: int
) -> None:
    put(gateway, session, "f", b"1")
    put(gateway, session, "there", b"2")
    make(gateway, session, "folder")
    gateway.execute(session, "import os; os.symlink('/tmp', 'link')")
    before = listed(gateway, session), file_events(gateway, session)
    answer = gateway.post(f"{path_of(session, quote(path, safe=''))}?{query}")
    assert answer.status == status, answer.body
    assert (listed(gateway, session), file_events(gateway, session)) == before


def test_too_many_files_are_not_moved_at_once(tmp_path: Path) -> None:
    (tmp_path / "many").mkdir()
    for number in range(tree.MOST_MOVED + 1):
        (tmp_path / "many" / str(number)).touch()
    with pytest.raises(Conflict):
        tree.move(tmp_path, ("many",), ("more",))
    assert (tmp_path / "many" / "0").exists()


def test_nothing_leads_outside(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    root = tmp_path / "root"
    root.mkdir()
    (root / "link").symlink_to(outside)
    (root / "f").touch()
    for call in (
        lambda: tree.make_folder(root, ("link", "x")),
        lambda: tree.move(root, ("f",), ("link", "f")),
        lambda: tree.move(root, ("link", "f"), ("g",)),
    ):
        with pytest.raises(InvalidInput):
            call()
    with pytest.raises(NotFound):
        tree.move(root, ("none",), ("g",))
    assert list(outside.iterdir()) == []


async def test_the_client_has_them(gateway: GatewayProcess) -> None:
    async with Gateway(gateway.url, TOKEN).session() as session:
        await session.files.make_folder("a/b")
        await session.files.put("a/f", "x")
        moved = await session.files.move("a", "c")
        assert [each.path for each in moved] == ["c/f"]
        found: list[Any] = [(each.path, each.folder) async for each in session.files.list(folders=True)]
        assert [path for path, _ in found] == ["c/", "c/b/", "c/f"]
        assert found[0][1] is True
