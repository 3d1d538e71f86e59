"""Query parameters below /v1: what a method does not declare is refused, as an unknown field of a body is."""

from __future__ import annotations

import pytest

from tests.support.server import GatewayProcess

UNKNOWN = [
    ("GET", "/v1/sessions?limits=5", "principal, state, search, cells, newest, usage, limit, after"),
    ("DELETE", "/v1/sessions/nobody?puge=true", "principal, purge"),
    ("POST", "/v1/sessions/new/execute?max_txt=100", "plain, max_text, images, principal"),
    ("POST", "/v1/sessions/new/interrupt?x", "principal"),
    ("PUT", "/v1/sessions/new/files/a?overwrite=true", "principal"),
    ("GET", "/v1/sessions/new/ws?before=1", "principal, after"),
    ("GET", "/v1/usage/sums?begin=2026-11-01", "principal, from, to, by, limit, after"),
    ("GET", "/v1/usage/export?limit=5", "principal, from, to, by, format"),
    ("GET", "/v1/info?%FF=1", "none"),
]


@pytest.mark.parametrize(("method", "path", "known"), UNKNOWN, ids=[path for _, path, _ in UNKNOWN])
def test_an_unknown_query_parameter_is_refused_and_nothing_is_made(
    gateway: GatewayProcess, method: str, path: str, known: str
) -> None:
    answer = gateway.request(method, path, {"code": "1"} if method == "POST" else None)
    assert (answer.status, answer.reason) == (400, "bad_request")
    assert answer.json()["detail"].endswith(f" Known parameters: {known}")
    assert gateway.get("/v1/sessions/new").reason == "not_found"


def test_jupyters_paths_and_probes_take_what_their_clients_add(gateway: GatewayProcess) -> None:
    for path in ("/api/kernels?1732300000000", "/api?_=1", "/healthz?probe=1"):
        assert gateway.get(path).status == 200
