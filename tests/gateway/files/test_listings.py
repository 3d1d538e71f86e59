"""Listings of huge folders hold up nobody else."""

from __future__ import annotations

import hashlib
import time

import psutil

from cellgate_kernels.base.resources import MIB
from tests.conftest import StartGateway
from tests.gateway.files.test_files import put
from tests.support.server import GatewayProcess, send, together, until

HUGE = """
for n in range(400):
    with open(f'{n:03d}', 'wb') as file:
        file.truncate(1 << 29)
"""


def test_huge_listings_hold_up_nobody(start_gateway: StartGateway) -> None:
    """200 GiB in sparse files, and eight listings of it whose clients leave: uploads and cells go on."""
    gateway = start_gateway()
    gateway.execute("huge", HUGE)
    gateway.execute("other", "1")

    def begin(_: int) -> None:
        connection = gateway.connect()
        send(connection, "GET", "/v1/sessions/huge/files?limit=10000")
        time.sleep(0.2)
        connection.close()

    together(8, begin)
    assert put(gateway, "other", "two", b"ab").status == 201
    assert gateway.execute("other", "1 + 1")["text"] == "2"
    # A kernel starts meanwhile too: that needs threads.
    assert gateway.execute("third", "open('x', 'w').close()")["status"] == "ok"
    assert gateway.get("/v1/sessions/other/files").json()["files"][0]["path"] == "two"
    process = psutil.Process(gateway.process.pid)

    def at_rest() -> bool:
        before = sum(process.cpu_times()[:2])
        time.sleep(0.5)
        return sum(process.cpu_times()[:2]) - before < 0.25

    until(at_rest, "something is still hashed for nobody")


def test_a_listing_that_is_read_ends_although_it_is_huge(start_gateway: StartGateway) -> None:
    gateway = start_gateway()
    assert put(gateway, "huge", "own", b"1").status == 201
    gateway.execute("huge", HUGE)
    answers = together(4, lambda _: gateway.get("/v1/sessions/huge/files"))
    for answer in answers:
        files = answer.json()["files"]
        assert len(files) == 401
        assert files[0]["sha256"] is None
        assert files[-1]["sha256"] == hashlib.sha256(b"1").hexdigest()


def test_a_hash_of_an_upload_is_known(start_gateway: StartGateway) -> None:
    """However large it is: it was hashed on its way in."""
    gateway: GatewayProcess = start_gateway()
    data = bytes(257 * MIB)
    uploaded = put(gateway, "a", "f", data).json()["sha256"]
    assert gateway.get("/v1/sessions/a/files").json()["files"][0]["sha256"] == uploaded
