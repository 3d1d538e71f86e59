"""HEAD answers wherever GET does: the same status and header fields, and no body."""

from __future__ import annotations

from contextlib import closing

import pytest

from tests.support.server import TOKEN, GatewayProcess

CHANGING = {"Date", "Traceparent", "Etag", "Content-Length", "Transfer-Encoding"}
"""Fields that may differ: bodies name times and sizes that change, and HEAD may leave out its length."""


def test_head_is_get_without_the_body(gateway: GatewayProcess) -> None:
    """All by one connection, which a body in the wrong place would break."""
    execution = gateway.execute("head", "open('a.csv', 'w').write('a')")["execution"]
    one = "/v1/sessions/head"
    with closing(gateway.connect()) as connection:

        def ask(method: str, path: str, token: str = TOKEN) -> tuple[int, dict[str, str], bytes]:
            connection.request(method, path, headers={"Authorization": f"Bearer {token}"})
            answer = connection.getresponse()
            fields = {name: value for name, value in answer.getheaders() if name not in CHANGING}
            return answer.status, fields, answer.read()

        for path in (
            *("/healthz", "/readyz", "/metrics", "/openapi.json", "/v1/info", "/v1/me", "/v1/sessions"),
            *(
                one,
                f"{one}/executions",
                f"{one}/executions/{execution}",
                f"{one}/files",
                f"{one}/files/a.csv",
            ),
            *(
                f"{one}/notebook",
                f"{one}/notebook?format=markdown",
                f"{one}/notebook?format=nothing",
                "/v1/sessions/none/notebook",
                f"{one}/bundle",
                f"{one}/audit",
                f"{one}/audit/verify",
                f"{one}/variables",
                f"{one}/widgets",
                f"{one}/nothing",
                "/v1/sessions/none",
                "/v1/nothing",
            ),
            *("/api/kernelspecs", "/api/sessions", "/"),
        ):
            status, fields, body = ask("GET", path)
            assert ask("HEAD", path) == (status, fields, b""), path
            assert body or status in {204, 304}
        assert ask("HEAD", one, "x" * 40)[0] == 401
        # What GET makes first, HEAD does not: only the record tells a script's name.
        status, fields, body = ask("HEAD", f"{one}/notebook?format=script")
        assert (status, "Content-Disposition" in fields, body) == (200, False, b"")


@pytest.mark.parametrize("accept", ["application/x-ndjson", "text/event-stream"])
def test_a_stream_s_head_does_not_follow(gateway: GatewayProcess, accept: str) -> None:
    gateway.execute("head-stream", "1")
    with closing(gateway.connect()) as connection:
        for _ in range(2):
            headers = {"Authorization": f"Bearer {TOKEN}", "Accept": accept}
            connection.request("HEAD", "/v1/sessions/head-stream/events", headers=headers)
            answer = connection.getresponse()
            assert (answer.status, answer.read()) == (200, b"")
            assert answer.headers["Content-Type"].startswith(accept)
            assert answer.headers["Content-Length"] is None
            assert answer.headers["Transfer-Encoding"] == "chunked"


@pytest.mark.parametrize(
    "path", ["/console/oidc", "/console/oidc/callback?code=x", "/console/hub", "/oauth_callback?code=x"]
)
def test_a_preview_of_a_link_signs_nobody_in(gateway: GatewayProcess, path: str) -> None:
    answer = gateway.request("HEAD", path)
    assert (answer.status, answer.headers["Allow"]) == (405, "GET")


def test_a_web_socket_has_no_head(gateway: GatewayProcess) -> None:
    gateway.execute("head-socket", "1")
    assert gateway.request("HEAD", "/v1/sessions/head-socket/ws").status == 405
