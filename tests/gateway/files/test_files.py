"""Files of a workspace over HTTP: in, out, listed, removed, and never anything outside of it."""

from __future__ import annotations

import hashlib
import json
import os
import socket
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil
import pytest

from tests.support.server import GatewayProcess, Response, together, until

MEGABYTE = 1_000_000
BOUNDARY = "a-boundary"


def put(gateway: GatewayProcess, session: str, path: str, data: bytes) -> Response:
    return gateway.request(
        "PUT",
        f"/v1/sessions/{session}/files/{path}",
        data,
        headers={"Content-Type": "application/octet-stream"},
    )


def form(*files: tuple[str, bytes]) -> bytes:
    parts = b"".join(
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="f"; filename="{name}"\r\n\r\n'.encode()
        + data
        + b"\r\n"
        for name, data in files
    )
    return parts + f"--{BOUNDARY}--\r\n".encode()


def post(gateway: GatewayProcess, session: str, body: bytes) -> Response:
    kind = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
    return gateway.request("POST", f"/v1/sessions/{session}/files", body, headers=kind)


def names(gateway: GatewayProcess, session: str) -> list[str]:
    return [file["path"] for file in gateway.get(f"/v1/sessions/{session}/files").json()["files"]]


def staged(gateway: GatewayProcess) -> list[str]:
    return os.listdir(gateway.data_dir / "uploads")  # noqa: PTH208


# ---- in and out


def test_a_file_comes_in_is_used_and_goes_out(gateway: GatewayProcess, session: str) -> None:
    """Before the first cell, in a folder that did not exist; what the cell writes comes out."""
    data = b"name,value\na,1\nb,2\n"
    answer = put(gateway, session, "data/in%20put.csv", data)
    assert answer.status == 201
    assert answer.json() == {
        "path": "data/in put.csv",
        "size": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
        "action": "created",
    }
    code = "text = open('data/in put.csv').read(); open('out.txt', 'w').write(text.upper()); print(text)"
    assert gateway.execute(session, code)["stdout"] == data.decode() + "\n"
    out = gateway.get(f"/v1/sessions/{session}/files/out.txt")
    assert out.body == data.upper()
    assert out.headers["Content-Disposition"] == "attachment; filename*=UTF-8''out.txt"
    assert out.headers["X-Content-Type-Options"] == "nosniff"
    assert out.headers["Content-Security-Policy"] == "sandbox"
    listed = gateway.get(f"/v1/sessions/{session}/files").json()
    assert [(file["path"], file["size"]) for file in listed["files"]] == [
        ("data/in put.csv", len(data)),
        ("out.txt", len(data)),
    ]
    assert listed["files"][1]["sha256"] == hashlib.sha256(data.upper()).hexdigest()
    assert listed["next"] is None


def test_the_kernel_may_change_what_came_in(gateway: GatewayProcess, session: str) -> None:
    put(gateway, session, "a/b.txt", b"old")
    code = "open('a/b.txt', 'w').write('new'); import os; os.rename('a/b.txt', 'a/c.txt')"
    assert gateway.execute(session, code)["status"] == "ok"
    assert gateway.get(f"/v1/sessions/{session}/files/a/c.txt").body == b"new"


def test_changes_are_in_the_record(gateway: GatewayProcess, session: str) -> None:
    put(gateway, session, "x", b"1")
    assert put(gateway, session, "x", b"22").status == 200
    assert gateway.delete(f"/v1/sessions/{session}/files/x").status == 204
    events = [event for event in gateway.recorded(session) if event["type"] == "file"]
    assert [(event["path"], event["size"], event["action"]) for event in events] == [
        ("x", 1, "created"),
        ("x", 2, "changed"),
        ("x", None, "deleted"),
    ]
    assert events[1]["sha256"] == hashlib.sha256(b"22").hexdigest()


def test_a_form_brings_several_files(gateway: GatewayProcess, session: str) -> None:
    big = os.urandom(3 * MEGABYTE)
    answer = post(gateway, session, form(("a.bin", big), ("empty", b""), ("d/ü.txt", b"x")))
    assert answer.status == 201
    assert [file["path"] for file in answer.json()["files"]] == ["a.bin", "empty", "d/ü.txt"]
    assert gateway.get(f"/v1/sessions/{session}/files/a.bin").body == big
    assert names(gateway, session) == ["a.bin", "d/ü.txt", "empty"]


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (form(("ok", b"1"), ("../bad", b"2")), "relative"),
        (form(("same", b"1"), ("same", b"2")), "same name"),
        (form(("cut", b"1"))[:-10], "too early"),
        (form(), "no file"),
        (b"nonsense", "can't be read"),
    ],
)
def test_a_bad_form_leaves_nothing(gateway: GatewayProcess, session: str, body: bytes, why: str) -> None:
    answer = post(gateway, session, body)
    assert (answer.status, answer.reason) == (400, "bad_request")
    assert why in answer.json()["detail"]
    assert names(gateway, session) == []
    until(lambda: not staged(gateway), "an upload is left")


def test_a_boundary_that_is_too_long_is_refused(gateway: GatewayProcess, session: str) -> None:
    kind = {"Content-Type": f"multipart/form-data; boundary={'b' * 300}"}
    answer = gateway.request("POST", f"/v1/sessions/{session}/files", form(("a", b"1")), headers=kind)
    assert (answer.status, answer.reason) == (400, "bad_request")
    assert "boundary" in answer.json()["detail"]


def test_pages_and_deletion(gateway: GatewayProcess, session: str) -> None:
    gateway.execute(session, "import os; os.mkdir('d')\nfor n in range(25): open(f'd/{n:02d}', 'w').close()")
    seen, after = [], ""
    while True:
        page = gateway.get(f"/v1/sessions/{session}/files?limit=10&after={quote(after)}").json()
        seen += [file["path"] for file in page["files"]]
        if page["next"] is None:
            break
        after = page["next"]
    assert seen == [f"d/{n:02d}" for n in range(25)]
    refused = gateway.delete(f"/v1/sessions/{session}/files/d")
    assert (refused.status, refused.reason) == (409, "conflict")
    gateway.execute(session, "for n in range(25): os.remove(f'd/{n:02d}')")
    assert gateway.delete(f"/v1/sessions/{session}/files/d").status == 204
    assert gateway.get(f"/v1/sessions/{session}/files/d").status == 404


@pytest.mark.parametrize(
    ("wanted", "status", "content"),
    [
        ("bytes=2-4", 206, b"234"),
        ("bytes=7-", 206, b"789"),
        ("bytes=-2", 206, b"89"),
        ("bytes=5-100", 206, b"56789"),
        ("bytes=10-", 416, b""),
        ("lines=1-2", 200, b"0123456789"),
    ],
)
def test_ranges(gateway: GatewayProcess, session: str, wanted: str, status: int, content: bytes) -> None:
    put(gateway, session, "f", b"0123456789")
    answer = gateway.request("GET", f"/v1/sessions/{session}/files/f", headers={"Range": wanted})
    assert (answer.status, answer.body) == (status, content)


def test_when_a_file_was_modified_is_said_as_http_says_times(gateway: GatewayProcess, session: str) -> None:
    put(gateway, session, "f", b"1")
    gateway.execute(session, "import os; os.utime('f', (1_000_000_000, 1_000_000_000))")
    said = gateway.get(f"/v1/sessions/{session}/files/f").headers["Last-Modified"]
    assert said == "Sun, 09 Sep 2001 01:46:40 GMT"


def test_a_folder_is_refused_as_one(gateway: GatewayProcess, session: str) -> None:
    path = f"/v1/sessions/{session}/files/folder"
    assert gateway.post(f"{path}?mkdir").status == 201
    read, written = gateway.get(path), gateway.request("PUT", path, b"1")
    assert (read.status, written.status) == (400, 409)
    assert read.json()["detail"] == "'folder' is a folder; the list of files has what is in it"
    assert written.json()["detail"] == "'folder' is a folder"


def test_what_did_not_change_is_not_sent_again(gateway: GatewayProcess, session: str) -> None:
    put(gateway, session, "f", b"1")
    path = f"/v1/sessions/{session}/files/f"
    tag = gateway.get(path).headers["Etag"]
    assert gateway.request("GET", path, headers={"If-None-Match": tag}).status == 304
    put(gateway, session, "f", b"2")
    assert gateway.request("GET", path, headers={"If-None-Match": tag}).body == b"2"
    head = gateway.request("HEAD", path)
    assert (head.status, head.headers["Content-Length"], head.body) == (200, "1", b"")


def conditional(gateway: GatewayProcess, session: str, content: bytes, **fields: str) -> Response:
    """As `put`, on a condition."""
    headers = {name.replace("_", "-"): value for name, value in fields.items()}
    return gateway.request("PUT", f"/v1/sessions/{session}/files/f", content, headers=headers)


def recorded(gateway: GatewayProcess, session: str) -> str | None:
    """The head of the session's record."""
    return gateway.get(f"/v1/sessions/{session}/audit").headers["ETag"]


def test_a_file_that_was_seen_is_replaced_unless_it_has_changed(
    gateway: GatewayProcess, session: str
) -> None:
    path = f"/v1/sessions/{session}/files/f"
    made = conditional(gateway, session, b"1", If_None_Match="*")
    assert (made.status, made.headers["ETag"]) == (201, gateway.get(path).headers["ETag"])
    mine = conditional(gateway, session, b"2", If_Match=f'"x", {made.headers["ETag"]}')
    assert (mine.status, mine.headers["ETag"]) == (200, gateway.request("HEAD", path).headers["ETag"])
    before = recorded(gateway, session)
    for condition in ({"If_Match": made.headers["ETag"]}, {"If_None_Match": "*"}):
        late = conditional(gateway, session, b"3", **condition)
        assert (late.status, late.reason) == (412, "file_changed")
        assert "ETag" not in late.headers
    assert gateway.get(path).body == b"2"
    assert recorded(gateway, session) == before
    gateway.execute(session, "open('f', 'w').write('c')")
    assert conditional(gateway, session, b"3", If_Match=mine.headers["ETag"]).reason == "file_changed"
    assert conditional(gateway, session, b"4", If_Match="*").status == 200
    assert gateway.get(path).body == b"4"


def test_of_two_that_saw_the_same_file_one_replaces_it(gateway: GatewayProcess, session: str) -> None:
    tag = put(gateway, session, "f", b"0").headers["ETag"]
    for _ in range(5):
        answers = together(4, lambda n, seen=tag: conditional(gateway, session, b"%d" % n, If_Match=seen))
        assert sorted(answer.status for answer in answers) == [200, 412, 412, 412]
        ((kept, tag),) = [(n, a.headers["ETag"]) for n, a in enumerate(answers) if a.status == 200]
        assert gateway.get(f"/v1/sessions/{session}/files/f").body == b"%d" % kept


def test_a_condition_that_cannot_hold_makes_no_session(gateway: GatewayProcess, session: str) -> None:
    assert conditional(gateway, session, b"1", If_Match='"x"').reason == "file_changed"
    malformed = conditional(gateway, session, b"1", If_Match="x")
    assert (malformed.status, malformed.reason) == (400, "bad_request")
    assert "If-Match" in malformed.json()["detail"]
    assert gateway.get(f"/v1/sessions/{session}").status == 404


def test_files_stay_when_the_kernel_does_not(gateway: GatewayProcess, session: str) -> None:
    put(gateway, session, "kept", b"1")
    gateway.post(f"/v1/sessions/{session}/restart")
    assert gateway.execute(session, "print(open('kept').read())")["stdout"] == "1\n"
    gateway.execute(session, "import os; os._exit(1)")
    assert gateway.get(f"/v1/sessions/{session}/files/kept").body == b"1"
    put(gateway, session, "while-dead", b"2")
    assert gateway.execute(session, "print(open('while-dead').read())")["stdout"] == "2\n"


# ---- what a cell did


def changed(result: dict[str, Any]) -> list[tuple[str, int, str]]:
    return [(file["path"], file["size"], file["action"]) for file in result["files"]]


def test_a_result_names_the_files_that_the_cell_wrote(gateway: GatewayProcess, session: str) -> None:
    put(gateway, session, "given", b"1")
    code = "import os; os.mkdir('d'); open('d/new', 'w').write('12'); open('given').read()"
    result = gateway.execute(session, code)
    assert changed(result) == [("d/new", 2, "created")]
    assert result["files"][0]["sha256"] == hashlib.sha256(b"12").hexdigest()
    assert changed(gateway.execute(session, "1")) == []
    assert changed(gateway.execute(session, "open('given', 'a').write('2')")) == [("given", 2, "changed")]
    gateway.post(f"/v1/sessions/{session}/restart")
    result = gateway.execute(session, "import os; os.remove('given'); open('e', 'w').write('3'); 1/0")
    assert (result["status"], changed(result)) == ("error", [("e", 1, "created")])
    assert gateway.result(session, result["execution"])["files"] == result["files"]
    events = [event for event in gateway.recorded(session) if event["type"] == "file"]
    assert [(event["path"], event["action"], bool(event["execution"])) for event in events] == [
        ("given", "created", False),
        ("d/new", "created", True),
        ("given", "changed", True),
        ("e", "created", True),
        ("given", "deleted", True),
    ]


def test_many_files_are_named_up_to_a_bound(gateway: GatewayProcess, session: str) -> None:
    few = gateway.execute(session, "for n in range(100): open(f'{n:04d}', 'w').close()")
    assert [file["path"] for file in few["files"]] == [f"{n:04d}" for n in range(100)]
    many = gateway.execute(session, "for n in range(3000): open(f'x{n:04d}', 'w').close()")
    assert len(many["files"]) == 1000
    assert changed(gateway.execute(session, "1")) == []


def test_a_cell_that_fills_a_workspace_with_traps_is_told_like_any_other(
    gateway: GatewayProcess, session: str
) -> None:
    code = "TARGET = '/etc/passwd'\n" + TRAPS + "open('real', 'w').write('1')"
    assert changed(gateway.execute(session, code)) == [("real", 1, "created")]


# ---- paths


@pytest.mark.parametrize("path", ["./a/b", "././a/b", "/workspace/a/b", "/mnt/data/a/b", "/home/user/./a/b"])
def test_a_file_has_the_names_that_cells_have_for_it(
    gateway: GatewayProcess, session: str, path: str
) -> None:
    put = gateway.request("PUT", f"/v1/sessions/{session}/files/{path}", b"x")
    assert (put.status, put.json()["path"]) == (201, "a/b")
    assert gateway.get(f"/v1/sessions/{session}/files/a/b").body == b"x"
    assert gateway.get(f"/v1/sessions/{session}/files/{path}").body == b"x"
    program = {"argv": ["cat", "b"], "cwd": path.removesuffix("/b")}
    assert gateway.post(f"/v1/sessions/{session}/processes", program).json()["stdout"] == "x"


@pytest.mark.parametrize(
    "path",
    [
        "..",
        "../x",
        "a/../../x",
        "%2e%2e/x",
        "/etc/passwd",
        "%2Fetc%2Fpasswd",
        "a//b",
        "a/./x",
        "./",
        "/workspace",
        "/workspace/../x",
        "/home/user//x",
        "a/",
        "",
        "x%00y",
        "n" * 5000,
        "n" * 256,
        "/".join("d" * 65),
    ],
)
def test_a_path_that_is_none_of_the_workspace_is_refused(
    gateway: GatewayProcess, session: str, path: str
) -> None:
    gateway.execute(session, "1")
    before = gateway.recorded(session)
    for method, body in (("GET", None), ("PUT", b"x"), ("DELETE", None)):
        answer = gateway.request(method, f"/v1/sessions/{session}/files/{path}", body)
        assert (answer.status, answer.reason) == (400, "bad_request")
    assert gateway.recorded(session) == before
    assert names(gateway, session) == []


TRAPS = """
import os, socket
os.symlink(TARGET, 'link')
os.symlink(os.path.dirname(TARGET), 'folder')
os.symlink('/dev/zero', 'zero')
os.mkfifo('fifo')
socket.socket(socket.AF_UNIX).bind('socket')
"""


def test_links_fifos_and_sockets_lead_nowhere(gateway: GatewayProcess, session: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("hunter2")
    assert gateway.execute(session, f"TARGET = {str(secret)!r}\n{TRAPS}")["status"] == "ok"
    for path in ("link", "folder/secret", "zero", "fifo", "socket"):
        for answer in (
            gateway.get(f"/v1/sessions/{session}/files/{path}"),
            put(gateway, session, path, b"overwritten"),
        ):
            assert (answer.status, answer.reason) == (400, "bad_request"), path
    assert put(gateway, session, "folder/new", b"x").status == 400
    assert secret.read_text() == "hunter2"
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]
    assert names(gateway, session) == []
    for path in ("link", "folder", "zero", "fifo", "socket"):
        assert gateway.delete(f"/v1/sessions/{session}/files/{path}").status == 204
    assert secret.read_text() == "hunter2"


SWAP = """
import os, threading
os.makedirs('real'); open('real/secret', 'w').write('own')
os.symlink(TARGET, 'trap')
def swap():
    while not os.path.exists('stop'):
        try:
            os.rename('real', 'other'); os.rename('trap', 'real')
            os.rename('real', 'trap'); os.rename('other', 'real')
        except OSError:
            pass
threading.Thread(target=swap, daemon=True).start()
"""


def test_a_folder_that_is_swapped_for_a_link_leads_nowhere(
    gateway: GatewayProcess, session: str, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text("hunter2")
    gateway.execute(session, f"TARGET = {str(tmp_path)!r}\n{SWAP}")
    path = f"/v1/sessions/{session}/files/real/secret"
    seen = set()
    for number in range(300):
        answer = gateway.get(path) if number % 2 else put(gateway, session, "real/secret", b"own")
        seen.add(answer.status)
        assert answer.status < 500, answer.body
        assert b"hunter2" not in answer.body
    assert len(seen) > 1, "nothing was swapped"
    gateway.execute(session, "open('stop', 'w').close()")
    assert (tmp_path / "secret").read_text() == "hunter2"
    assert [entry.name for entry in tmp_path.iterdir()] == ["secret"]


def test_deep_folders_and_odd_names_do_not_stop_a_listing(gateway: GatewayProcess, session: str) -> None:
    code = (
        "import os\nopen('plain', 'w').close(); open(b'\\xff', 'w').close(); os.mkdir('closed')\n"
        "open('closed/in', 'w').close(); os.chmod('closed', 0)\n"
        "for _ in range(200): os.mkdir('d'); os.chdir('d')\nopen('deep', 'w').close(); os.chdir('/workspace')"
        if gateway.get("/v1/info").json()["isolation"] == "sandbox"
        else "open('plain', 'w').close()"
    )
    assert gateway.execute(session, code)["status"] == "ok"
    assert "plain" in names(gateway, session)
    assert not [name for name in names(gateway, session) if "deep" in name]


# ---- large, broken off, too much


def test_a_large_file_passes_without_memory(start_gateway: Callable[..., GatewayProcess]) -> None:
    gateway = start_gateway()
    gateway.execute("s", "1")
    process = psutil.Process(gateway.process.pid)
    before = process.memory_info().rss
    block = os.urandom(MEGABYTE)
    expected = hashlib.sha256()
    with closing(gateway.connect()) as connection:
        connection.putrequest("PUT", "/v1/sessions/s/files/large")
        connection.putheader("Authorization", f"Bearer {gateway.token}")
        connection.putheader("Content-Length", str(200 * MEGABYTE))
        connection.endheaders()
        for _ in range(200):
            connection.send(block)
            expected.update(block)
        answer = json.loads(connection.getresponse().read())
        assert answer["sha256"] == expected.hexdigest()
        connection.request(
            "GET", "/v1/sessions/s/files/large", headers={"Authorization": f"Bearer {gateway.token}"}
        )
        download, received = connection.getresponse(), hashlib.sha256()
        while chunk := download.read(MEGABYTE):
            received.update(chunk)
    assert received.hexdigest() == expected.hexdigest()
    assert process.memory_info().rss - before < 32 * MEGABYTE


def test_an_upload_that_breaks_off_leaves_nothing(gateway: GatewayProcess, session: str) -> None:
    gateway.execute(session, "1")
    put(gateway, session, "f", b"as it was")
    with socket.create_connection(gateway.host.split(":")) as client:
        head = (
            f"PUT /v1/sessions/{session}/files/f HTTP/1.1\r\nHost: {gateway.host}\r\n"
            f"Authorization: Bearer {gateway.token}\r\nContent-Length: 10000000\r\n\r\n"
        )
        client.sendall(head.encode() + b"x" * 5_000_000)
        until(lambda: staged(gateway), "the upload has not begun")
    until(lambda: not staged(gateway), "the upload is left")
    assert gateway.get(f"/v1/sessions/{session}/files/f").body == b"as it was"
    assert names(gateway, session) == ["f"]


@pytest.fixture
def small(start_gateway: Callable[..., GatewayProcess]) -> GatewayProcess:
    """A gateway whose workspaces hold a megabyte."""
    return start_gateway(disk="1m")


def test_a_workspace_has_a_quota(small: GatewayProcess) -> None:
    """Refused before the body comes where its length is known, and while it comes where not."""
    assert put(small, "s", "a", b"x" * 700_000).status == 201
    answer = put(small, "s", "b", b"x" * 700_000)
    assert (answer.status, answer.reason) == (413, "quota_exceeded")
    with closing(small.connect()) as chunked:
        chunked.request(
            "PUT",
            "/v1/sessions/s/files/c",
            body=iter([b"x" * 100_000] * 7),
            headers={"Authorization": f"Bearer {small.token}"},
            encode_chunked=True,
        )
        with chunked.getresponse() as response:
            assert (response.status, json.loads(response.read())["reason"]) == (413, "quota_exceeded")
    assert names(small, "s") == ["a"]
    until(lambda: not staged(small), "an upload is left")
    small.delete("/v1/sessions/s/files/a")
    assert put(small, "s", "b", b"x" * 700_000).status == 201


def test_what_is_not_there_or_not_ones_own_is_404(gateway: GatewayProcess, session: str) -> None:
    for method in ("GET", "DELETE"):
        assert gateway.request(method, "/v1/sessions/never/files/x").status == 404
    gateway.execute(session, "1")
    assert gateway.get(f"/v1/sessions/{session}/files/x").status == 404
    assert gateway.get("/v1/sessions/never/files").status == 404
    assert gateway.request("PUT", f"/v1/sessions/{session}/files/x", b"", token="wrong").status == 401
    assert gateway.request("PUT", f"/v1/sessions/{'n' * 200}/files/x", b"").status == 400


def test_files_of_an_ended_session_are_there_until_they_are_deleted(
    start_gateway: Callable[..., GatewayProcess],
) -> None:
    gateway = start_gateway(idle_timeout=0.3, cull_interval=0.05)
    put(gateway, "s", "f", b"1")
    until(lambda: gateway.get("/v1/sessions/s").json()["state"] == "ended", "the session has not ended")
    assert gateway.get("/v1/sessions/s/files/f").body == b"1"
    assert gateway.delete("/v1/sessions/s/files/f").status == 204
    assert gateway.get("/v1/sessions/s/files").json()["files"] == []
