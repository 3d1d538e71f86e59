"""What all uploads may have together: of their session's disk, of the gateway's, and side by side."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path

import pytest

from cellgate.errors import QueueFull, QuotaExceeded, StorageFull
from cellgate.files.ledger import STEP, UploadLedger
from cellgate_kernels.base.resources import MIB
from cellgate_kernels.limits.disk import ENTRY_BYTES
from tests.conftest import StartGateway
from tests.gateway.files.test_files import BOUNDARY, form, names, post, put, staged
from tests.gateway.record.test_storage import disk
from tests.support.server import GatewayProcess, Response, together, until

__all__ = ["disk"]

LIMIT = 64 * MIB


@pytest.fixture
def small(gateway: GatewayProcess, session: str) -> str:
    """A session whose workspace may have 64 MiB."""
    made = gateway.post("/v1/sessions", {"session": session, "limits": {"disk": "64m"}})
    assert made.status == 201, made.body
    return session


@contextmanager
def begun(gateway: GatewayProcess, path: str, size: int, sent: int) -> Iterator[HTTPConnection]:
    """An upload of `size` bytes of which so many have come; its client leaves at the end."""
    with closing(gateway.connect()) as connection:
        connection.putrequest("PUT", path)
        connection.putheader("Authorization", f"Bearer {gateway.token}")
        connection.putheader("Content-Length", str(size))
        connection.endheaders()
        connection.send(bytes(sent))
        until(lambda: staged(gateway), "the upload has not begun")
        yield connection


def put_chunked(gateway: GatewayProcess, session: str, path: str, size: int) -> Response:
    """As `put`, without telling the length beforehand."""
    connection = gateway.connect()
    try:
        pieces = (bytes(min(MIB, size - done)) for done in range(0, size, MIB))
        kind = {"Content-Type": "application/octet-stream", "Authorization": f"Bearer {gateway.token}"}
        connection.request("PUT", f"/v1/sessions/{session}/files/{path}", pieces, kind, encode_chunked=True)
        with connection.getresponse() as answer:
            return Response(answer.status, answer.headers, answer.read())
    finally:
        connection.close()


def workspace_bytes(gateway: GatewayProcess, session: str) -> int:
    return sum(path.stat().st_size for path in gateway.workspace(session).rglob("*") if path.is_file())


def test_parallel_uploads_share_the_room(gateway: GatewayProcess, small: str) -> None:
    """Six of 30 MiB into 64 MiB: two come in, four are told; and so again beside what came in."""
    data = bytes(30 * MIB)
    answers = together(6, lambda n: put(gateway, small, f"f{n}", data))
    assert sorted(answer.status for answer in answers) == [201, 201, 413, 413, 413, 413]
    assert {answer.reason for answer in answers if answer.status == 413} == {"quota_exceeded"}
    assert workspace_bytes(gateway, small) == 2 * len(data)
    until(lambda: not staged(gateway), "an upload is left")
    # The file system may need a block more for each of them, to know where its data is.
    assert put(gateway, small, "rest", bytes(3 * MIB)).status == 201, "what was refused holds nothing"
    assert put(gateway, small, "more", bytes(MIB + 1)).reason == "quota_exceeded"


def test_parallel_uploads_of_unknown_length_share_the_room(gateway: GatewayProcess, small: str) -> None:
    answers = together(6, lambda n: put_chunked(gateway, small, f"f{n}", 30 * MIB))
    assert {answer.status for answer in answers} <= {201, 413}
    assert {answer.reason for answer in answers if answer.status == 413} == {"quota_exceeded"}
    placed = sum(answer.status == 201 for answer in answers)
    assert workspace_bytes(gateway, small) == placed * 30 * MIB <= LIMIT
    until(lambda: not staged(gateway), "an upload is left")
    for number in range(placed):
        assert gateway.delete(f"/v1/sessions/{small}/files/{names(gateway, small)[0]}").status == 204, number
    assert put_chunked(gateway, small, "whole", LIMIT).status == 201, "the last step may be a small one"
    assert put_chunked(gateway, small, "more", 1).reason == "quota_exceeded"


def test_parts_of_a_form_share_the_room_with_everything_else(gateway: GatewayProcess, small: str) -> None:
    parts = form(("a", bytes(10 * MIB)), ("b", bytes(10 * MIB)), ("c", bytes(10 * MIB)))
    answers = together(
        6, lambda n: post(gateway, small, parts.replace(b'"a"', b'"a%d"' % n)) if n % 2 else
        put(gateway, small, f"f{n}", bytes(30 * MIB))
    )  # fmt: skip
    assert sorted(answer.status for answer in answers) == [201, 201, 413, 413, 413, 413]
    assert workspace_bytes(gateway, small) <= LIMIT


def test_a_file_that_is_replaced_counts_once(gateway: GatewayProcess, small: str) -> None:
    assert put(gateway, small, "f", bytes(60 * MIB)).status == 201
    assert put(gateway, small, "g", bytes(60 * MIB)).reason == "quota_exceeded"
    assert put(gateway, small, "f", b"1" * (62 * MIB)).status == 200
    assert put_chunked(gateway, small, "f", LIMIT).status == 200
    # What is there may take more on disk than its bytes, and as much may take its place.
    assert put(gateway, small, "f", bytes(LIMIT + 8 * MIB)).reason == "quota_exceeded"
    assert put(gateway, small, "f", b"small").status == 200
    assert workspace_bytes(gateway, small) == 5


def test_names_count_without_a_kernel_as_they_do_beside_one(gateway: GatewayProcess, session: str) -> None:
    """A million of empty files and folders takes gigabytes of a disk."""
    made = gateway.post("/v1/sessions", {"session": session, "limits": {"disk": "1m"}})
    assert made.status == 201, made.body
    assert gateway.execute(session, "import os; os._exit(1)")["status"] == "died"
    most = MIB // ENTRY_BYTES
    for number in range(most):
        answer = put(gateway, session, f"f{number}", b"")
        assert answer.status == 201, answer.body
    path = f"/v1/sessions/{session}/files"
    for data in (b"", b"x"):
        assert put(gateway, session, "more", data).reason == "quota_exceeded"
    assert put_chunked(gateway, session, "more", 0).reason == "quota_exceeded"
    assert post(gateway, session, form(("more", b""))).reason == "quota_exceeded"
    assert gateway.post(f"{path}/folder?mkdir", None).reason == "quota_exceeded"
    assert gateway.post(f"{path}/f1?move_to=in/folders/f1", None).reason == "quota_exceeded"
    assert put(gateway, session, "f0", b"x").status == 200, "what is replaced makes room"
    assert len(list(gateway.workspace(session).iterdir())) == most
    for number in range(2):
        assert gateway.delete(f"{path}/f{number}").status == 204
    assert put(gateway, session, "in/folders/f1", b"").reason == "quota_exceeded", "so do folders on the way"
    assert gateway.post(f"{path}/in?mkdir", None).status == 201
    assert gateway.post(f"{path}/in?mkdir", None).status == 200
    assert put(gateway, session, "in/f1", b"x").status == 201
    assert put(gateway, session, "in/f2", b"x").reason == "quota_exceeded"


def test_what_a_cell_wrote_in_between_counts_when_the_file_is_placed(
    gateway: GatewayProcess, small: str
) -> None:
    with begun(gateway, f"/v1/sessions/{small}/files/late", 40 * MIB, 39 * MIB) as connection:
        assert gateway.execute(small, "open('own', 'wb').write(bytes(40 << 20)); 1")["status"] == "ok"
        connection.send(bytes(MIB))
        answer = connection.getresponse()
        refused = Response(answer.status, answer.headers, answer.read())
    assert (refused.status, refused.reason) == (413, "quota_exceeded")
    assert names(gateway, small) == ["own"]
    until(lambda: not staged(gateway), "an upload is left")


def test_a_client_that_vanishes_gives_its_room_back(gateway: GatewayProcess, small: str) -> None:
    with begun(gateway, f"/v1/sessions/{small}/files/f", 60 * MIB, 30 * MIB):
        assert put(gateway, small, "g", bytes(10 * MIB)).reason == "quota_exceeded"
    until(lambda: put(gateway, small, "g", bytes(10 * MIB)).status == 201, "its room is not given back")
    assert names(gateway, small) == ["g"]


def test_an_upload_that_outlives_its_session_disturbs_no_later_one(
    gateway: GatewayProcess, session: str
) -> None:
    gateway.execute(session, "1")
    connection = gateway.connect()
    try:
        connection.putrequest("PUT", f"/v1/sessions/{session}/files/late")
        connection.putheader("Authorization", f"Bearer {gateway.token}")
        connection.putheader("Content-Length", "2")
        connection.endheaders()
        connection.send(b"a")
        until(lambda: staged(gateway), "the upload has not begun")
        assert gateway.delete(f"/v1/sessions/{session}").status == 204
        gateway.execute(session, "x = 2")
        connection.send(b"b")
        answer = connection.getresponse()
        assert (answer.status, json.loads(answer.read())["reason"]) == (503, "shutting_down")
    finally:
        connection.close()
    assert names(gateway, session) == []
    assert gateway.execute(session, "x")["text"].strip() == "2"
    assert gateway.get(f"/v1/sessions/{session}/audit/verify").json()["valid"]
    assert "problem" not in gateway.get(f"/v1/sessions/{session}").json()


def test_a_saved_block_is_an_upload_too(gateway: GatewayProcess, small: str) -> None:
    """It finds no room beside an upload that is under way and has only reserved it."""
    blocks = {"blocks": [{"language": "python", "code": "# filename: words.py\nWORD = 'saved'\n"}]}
    path = f"/v1/sessions/{small}/execute-blocks"
    with begun(gateway, f"/v1/sessions/{small}/files/f", LIMIT - 10, 5 * MIB):
        assert gateway.post(path, blocks).reason == "quota_exceeded"
    until(lambda: gateway.post(path, blocks).status == 200, "its room is not given back")
    assert names(gateway, small) == ["words.py"]


def test_all_uploads_together_have_a_limit(start_gateway: StartGateway) -> None:
    # One user has three quarters of it.
    gateway = start_gateway(upload_space="28m")
    for session in ("a", "b"):
        gateway.execute(session, "1")
    refused = put(gateway, "a", "f", bytes(22 * MIB))
    assert (refused.status, refused.reason) == (507, "storage_full")
    with begun(gateway, "/v1/sessions/a/files/f", 15 * MIB, 5 * MIB):
        refused = put(gateway, "b", "f", bytes(7 * MIB))
        assert (refused.status, refused.reason) == (429, "queue_full")
        assert refused.headers["Retry-After"]
        assert put(gateway, "b", "f", bytes(5 * MIB)).status == 201
    until(lambda: put(gateway, "b", "f", bytes(6 * MIB)).status == 200, "its room is not given back")


def test_uploads_leave_the_reserve_of_the_disk(disk: Path) -> None:
    """Refused before a byte is read where the length is known, and while it is written where it is not."""
    gateway = GatewayProcess(disk / "data", "process", storage_reserve="4m", upload_space="1g", max_disk="1g")
    try:
        gateway.execute("a", "1")
        told = os.statvfs(disk)
        room = told.f_bavail * told.f_frsize - 4 * MIB
        refused = put(gateway, "a", "f", bytes(room + 2 * MIB))
        assert (refused.status, refused.reason) == (507, "storage_full")
        refused = put_chunked(gateway, "a", "f", room + 2 * MIB)
        assert (refused.status, refused.reason) == (507, "storage_full")
        until(lambda: not staged(gateway), "an upload is left")
        assert names(gateway, "a") == []
        assert gateway.execute("a", "1")["status"] == "ok"
        assert put(gateway, "a", "f", bytes(room - 3 * MIB)).status == 201
        assert gateway.stop() == 0
    finally:
        gateway.kill()
    assert "Traceback" not in gateway.log.read_text()


# ---- other methods


def test_a_form_that_is_sent_by_put_makes_no_session(gateway: GatewayProcess, session: str) -> None:
    """It is no method of a folder, so nobody's permission for it is asked."""
    kind = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
    answer = gateway.request("PUT", f"/v1/sessions/{session}/files", form(("a", b"1")), headers=kind)
    assert (answer.status, answer.reason) == (405, "method_not_allowed")
    assert gateway.get(f"/v1/sessions/{session}").status == 404
    assert staged(gateway) == []


@pytest.mark.parametrize(("method", "path"), [("GET", ""), ("DELETE", "/a"), ("POST", "/a?mkdir=")])
def test_only_uploads_have_large_bodies(
    gateway: GatewayProcess, session: str, method: str, path: str
) -> None:
    """Others are kept in memory."""
    answer = gateway.request(method, f"/v1/sessions/{session}/files{path}", bytes(17 * MIB))
    assert (answer.status, answer.reason) == (413, "too_large")


# ---- the ledger alone


def test_a_reservation_that_is_refused_changes_nothing(tmp_path: Path) -> None:
    ledger = UploadLedger(tmp_path, reserve=0, most=10 * STEP)
    first = ledger.reserve(1, "ada", used=5, limit=100, size=90)
    with pytest.raises(QuotaExceeded, match="room for 5 more"):
        ledger.reserve(1, "ada", used=5, limit=100, size=6)
    second = ledger.reserve(1, "ada", used=5, limit=100, size=5)
    with pytest.raises(QuotaExceeded):
        second.take(6)
    second.take(5)
    first.release()
    first.release()
    second.take(50)
    assert (ledger.size, second.taken) == (55, 55)
    second.release()
    assert ledger.size == 0


def test_a_reservation_leaves_what_the_disk_must_keep(tmp_path: Path) -> None:
    with pytest.raises(StorageFull):
        UploadLedger(tmp_path, reserve=1 << 60, most=1 << 62).reserve(1, "ada", used=0, limit=1 << 61, size=1)
    ledger = UploadLedger(tmp_path, reserve=0, most=10)
    held = ledger.reserve(1, "ada", used=0, limit=100, size=6)
    with pytest.raises(QueueFull):
        ledger.reserve(2, "ada", used=0, limit=100, size=5)
    held.release()
    ledger.reserve(2, "ada", used=0, limit=100, size=5)


def test_one_user_s_uploads_leave_others_a_quarter_of_the_space(tmp_path: Path) -> None:
    ledger = UploadLedger(tmp_path, reserve=0, most=100)
    with pytest.raises(StorageFull, match="One user's uploads together may use 75 bytes"):
        ledger.reserve(1, "ada", used=0, limit=1000, size=76)
    first = ledger.reserve(1, "ada", used=0, limit=1000, size=50)
    second = ledger.reserve(2, "ada", used=0, limit=1000, size=25)
    with pytest.raises(QueueFull):
        second.take(26)
    hers = ledger.reserve(3, "bea", used=0, limit=1000, size=25)
    with pytest.raises(QueueFull):
        hers.take(26)
    first.release()
    hers.take(75)
    assert ledger.size == 100
