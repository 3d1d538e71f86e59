"""What cells reach with ``network: allow``, where hosts have addresses that look public; see ``inside``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.gateway.egress import outside
from tests.gateway.egress.inside import ALLOWED
from tests.support.requirements import require

NAMESPACES = ["unshare", *(["--user", "--map-root-user"] if os.geteuid() else []), "--net", "--mount", "--"]
PATIENCE = 250.0
HELLO = f"hello from {outside.HOST}"
REFUSED = "403 cellgate: {}"
NOTHING = [*["nothing"] * 5, "no address", ""]


@pytest.fixture(scope="module")
def seen(sandbox: None) -> dict[str, Any]:
    """What was seen there."""
    return look("sandbox")


def look(*backend: str) -> dict[str, Any]:
    """What is seen by a gateway with a backend, and for containers the engine's runtime."""
    try:
        tried = subprocess.run(
            [*NAMESPACES, "ip", "link", "add", "veth8", "type", "veth", "peer", "name", "veth9"],
            check=False,
            capture_output=True,
            text=True,
        )
    except FileNotFoundError as error:
        require("netns", str(error))
    if tried.returncode:
        require("netns", tried.stderr)
    with TemporaryDirectory(prefix="cellgate-egress-") as folder:
        done = subprocess.run(
            [*NAMESPACES, sys.executable, "-m", "tests.gateway.egress.inside", folder, *backend],
            cwd=Path(__file__).parents[3],
            check=False,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    ("what", "result"),
    [
        ("info", ALLOWED),
        ("model", "allow"),
        ("allowed", HELLO),
        ("posted", "True"),
        ("tunnel", HELLO),
        ("wild", HELLO),
        ("mixed", HELLO),
        ("restarted", HELLO),
        ("bash", HELLO),
        ("typescript", HELLO),
        ("pip", "1.0"),
        ("notebook", "allow"),
        ("valid", True),
        ("stopped", 0),
    ],
)
def test_named_hosts_are_reached_through_the_proxy(seen: dict[str, Any], what: str, result: object) -> None:
    assert seen[what] == result


@pytest.mark.parametrize(
    ("what", "result"),
    [
        ("other", REFUSED.format("host_not_allowed")),
        ("other port", REFUSED.format("host_not_allowed")),
        ("literal", REFUSED.format("host_not_allowed")),
        ("redirect", REFUSED.format("host_not_allowed")),
        ("other tunnel", "Tunnel connection failed: 403 Forbidden (host_not_allowed)"),
        ("NUL", "HTTP/1.1 400 Bad Request (bad_request)"),
        ("NUL at the end", "HTTP/1.1 400 Bad Request (bad_request)"),
        ("private", REFUSED.format("address_not_allowed")),
        ("metadata", REFUSED.format("address_not_allowed")),
        ("own", REFUSED.format("address_not_allowed")),
        ("rebound", REFUSED.format("address_not_allowed")),
        ("withdrawn", REFUSED.format("host_not_allowed")),
        ("conflict", "conflict"),
        ("without the proxy", "refused"),
        ("direct", NOTHING),
        ("plain direct", NOTHING),
        ("plain", "False []"),
        ("socket", "refused"),
    ],
)
def test_nothing_else_is_reached(seen: dict[str, Any], what: str, result: object) -> None:
    assert seen[what] == result


def test_a_name_that_changes_its_address_is_refused_from_then_on(seen: dict[str, Any]) -> None:
    assert (seen["rebinding"], seen["outside"]["asked"]["rebinding.example.com"]) == (HELLO, 2)


def test_no_refused_host_has_heard_anything(seen: dict[str, Any]) -> None:
    assert list(seen["outside"]["hits"]) == [outside.HOST]
    assert "elsewhere.example.org" not in seen["outside"]["asked"]


def test_a_kernel_that_ends_its_forwarder_harms_itself_only(seen: dict[str, Any]) -> None:
    assert HELLO not in seen["forwarder ended"]
    assert seen["others"] == HELLO


def test_each_connection_is_in_the_record(seen: dict[str, Any]) -> None:
    rows = [event["row"] for event in seen["events"]]
    found = [(row["host"], row["port"], row["verdict"], row["cause"]) for row in rows]
    assert found[:2] == [("host.example.com", 80, "allowed", None)] * 2
    assert ("elsewhere.example.org", 80, "refused", "host_not_allowed") in found
    assert (outside.METADATA, 80, "refused", "host_not_allowed") in found
    assert ("metadata.example.com", 80, "refused", "address_not_allowed") in found
    first, second = rows[:2]
    assert (first["address"], first["execution"]) == (outside.HOST, None)
    assert first["received"] > len(HELLO)
    assert second["sent"] > 100_000
    assert first["during"] != second["during"]


def test_nothing_went_wrong_in_the_gateway(seen: dict[str, Any]) -> None:
    assert "Traceback" not in seen["log"]
    assert "failed" not in seen["log"]
