"""Folders that E2B's SDKs watch, by a stream (Python's async client, JavaScript) and by calls (Python)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import NO_ENGINE, serving
from tests.gateway.doors.e2b_requests import ENVD, Sandbox, call, make, messages, streamed
from tests.support.server import GatewayProcess

WATCH = "filesystem.Filesystem/WatchDir"


@pytest.fixture(scope="module")
def gateway(sandbox: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    folder = tmp_path_factory.mktemp("e2b-watching") / "data"
    with serving(folder, "sandbox", doors="e2b", docker_url=NO_ENGINE) as process:
        yield process


@pytest.fixture
def own(gateway: GatewayProcess) -> Iterator[Sandbox]:
    made = make(gateway)
    yield made
    made.control("DELETE")


def watcher(sandbox: Sandbox, path: str, **asked: object) -> str:
    answer = call(sandbox, "CreateWatcher", path=path, **asked)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["watcherId"])


def events(sandbox: Sandbox, watch: str) -> list[dict[str, Any]]:
    """As `get_new_events` asks."""
    found: list[dict[str, Any]] = call(sandbox, "GetWatcherEvents", watcherId=watch).json()["events"]
    return found


def told(found: list[dict[str, Any]]) -> list[str]:
    return [f"{each['type'].removeprefix('EVENT_TYPE_')} {each['name']}" for each in found]


def write(sandbox: Sandbox, path: str, content: bytes) -> None:
    sent = {"params": {"path": path}, "files": [("file", (path, content))]}
    assert sandbox.server("POST", "files", ENVD, **sent).status_code == 200


def test_a_client_asks_what_has_changed(own: Sandbox) -> None:
    write(own, "in/old", b"1")
    watch, deep = watcher(own, "/home/user/in"), watcher(own, "~/in", recursive=True, includeEntry=True)
    assert events(own, watch) == []
    write(own, "in/new", b"12")
    own.run("import os; os.makedirs('in/x'); open('in/x/y', 'w').write('1'); os.chmod('in/old', 0o600)")
    assert told(events(own, watch)) == ["CREATE new", "WRITE new", "CHMOD old", "CREATE x"]
    assert events(own, watch) == []
    found = events(own, deep)
    assert told(found) == ["CREATE new", "WRITE new", "CHMOD old", "CREATE x", "CREATE x/y", "WRITE x/y"]
    assert (found[0]["entry"]["path"], found[0]["entry"]["size"]) == ("/home/user/in/new", "2")
    call(own, "Move", source="in/new", destination="in/newer")
    call(own, "Remove", path="in/x")
    assert told(events(own, deep)) == ["REMOVE x/y", "REMOVE x", "RENAME new", "CREATE newer"]
    # A replaced kernel has the same files, in another folder.
    own.server("POST", "contexts/default/restart")
    assert events(own, deep) == []
    write(own, "in/old", b"123")
    assert "WRITE old" in told(events(own, deep))
    call(own, "Remove", path="in")
    assert told(events(own, deep)) == ["REMOVE old", "REMOVE newer"]
    write(own, "in/again", b"")
    assert told(events(own, deep)) == ["CREATE again"]
    assert call(own, "RemoveWatcher", watcherId=watch).json() == {}
    for name in ("GetWatcherEvents", "RemoveWatcher"):
        missing = call(own, name, watcherId=watch)
        assert (missing.status_code, missing.json()["code"]) == (404, "not_found")


def test_a_stream_tells_what_changes(own: Sandbox) -> None:
    with streamed(own, WATCH, {"path": "~", "recursive": True}, None) as answer:
        stream = messages(answer)
        assert next(stream) == (0, {"start": {}})

        def following(count: int) -> list[str]:
            return told([next(stream)[1]["filesystem"] for _ in range(count)])

        write(own, "a/b", b"1")
        assert following(3) == ["CREATE a", "CREATE a/b", "WRITE a/b"]
        # What is uploaded to a place elsewhere goes through the workspace by a hidden name.
        write(own, "/tmp/elsewhere", b"1")
        own.run("import os; os.rename('a', 'c')")
        assert following(2) == ["RENAME a", "CREATE c"]
        own.control("DELETE")
        ((flags, last),) = stream
    assert (flags, last["error"]["code"]) == (2, "unavailable")
    assert last["error"]["message"] == "The sandbox was not found"


def test_a_watch_ends_at_its_time(own: Sandbox) -> None:
    with streamed(own, WATCH, {"path": "/home/user"}, 300) as answer:
        (_, start), (flags, last) = messages(answer)
    assert (start, flags, last["error"]["code"]) == ({"start": {}}, 2, "deadline_exceeded")


def test_watches_that_can_not_be_are_refused(own: Sandbox) -> None:
    write(own, "file", b"1")
    for path, status, code in (
        ("nothing", 404, "not_found"),
        ("/tmp", 404, "not_found"),
        ("file", 400, "invalid_argument"),
        ("x" * 5000, 400, "invalid_argument"),
    ):
        refused = call(own, "CreateWatcher", path=path)
        assert (refused.status_code, refused.json()["code"]) == (status, code)
        with streamed(own, WATCH, {"path": path}, None) as answer:
            ((flags, last),) = messages(answer)
        assert (flags, last["error"]["code"]) == (2, code)
    assert call(own, "GetWatcherEvents", watcherId="x").status_code == 404
    # None of these counts.
    made = [watcher(own, "~") for _ in range(16)]
    full = call(own, "CreateWatcher", path="~")
    assert (full.status_code, full.json()["code"]) == (429, "resource_exhausted")
    call(own, "RemoveWatcher", watcherId=made[0])
    assert call(own, "CreateWatcher", path="~").status_code == 200


def test_folders_with_very_many_files_are_not_watched(own: Sandbox) -> None:
    own.run(
        "import os\nfor d in 'ab':\n    os.mkdir(d)\n    for n in range(6000): open(f'{d}/{n}', 'w').close()"
    )
    first = watcher(own, "a")
    # Each alone could be.
    refused = call(own, "CreateWatcher", path="b")
    assert (refused.status_code, refused.json()["code"]) == (413, "resource_exhausted")
    assert call(own, "CreateWatcher", path="~", recursive=True).status_code == 409
    call(own, "RemoveWatcher", watcherId=first)
    second = watcher(own, "b")
    own.run("for n in range(6000): os.remove(f'b/{n}')")
    assert len(events(own, second)) == 6000
