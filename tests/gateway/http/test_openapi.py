"""`/openapi.json` and `/docs` of a gateway."""

from __future__ import annotations

import re
from typing import Any

from cellgate.http.openapi import build_document
from cellgate.http.routes import TABLE
from tests.support.server import GatewayProcess


def test_the_document_needs_no_token(gateway: GatewayProcess) -> None:
    answer = gateway.get("/openapi.json", token=None)
    assert (answer.status, answer.headers["Content-Type"]) == (200, "application/json; charset=utf-8")
    told: dict[str, Any] = answer.json()
    assert told["info"]["version"] == gateway.get("/v1/info").json()["version"]
    assert told["paths"].keys() == build_document(TABLE, "1")["paths"].keys()


def test_the_page_has_every_operation_and_loads_nothing(gateway: GatewayProcess) -> None:
    answer = gateway.get("/docs", token=None)
    assert answer.status == 200
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "script-src" not in policy
    page = answer.body.decode()
    assert "<script" not in page
    assert not re.search(r"(src|href)=\"(?!#|openapi\.json)", page)
    for path, item in build_document(TABLE, "1")["paths"].items():
        for each in item.values():
            assert f'<article id="{each["operationId"]}">' in page
            assert path in page
    # Every link inside of the page leads somewhere.
    assert set(re.findall(r'href="#([^"]+)"', page)) <= set(re.findall(r'id="([^"]+)"', page))


def test_the_pages_policy_lets_its_own_style_in_and_nothing_else(gateway: GatewayProcess) -> None:
    policy = gateway.get("/docs", token=None).headers["Content-Security-Policy"]
    assert policy.startswith("sandbox; default-src 'none'; style-src 'unsafe-inline';")
