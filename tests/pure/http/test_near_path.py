"""The path that is named to somebody who asked for one that is not there."""

from __future__ import annotations

import pytest

from cellgate.http.near_path import near_path
from cellgate.http.routes import TABLE

KNOWN = [path for path, _ in TABLE]


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ("/v1/v1/sessions/a/execute", "/v1/sessions/a/execute"),
        ("/api/v1/execute", "/v1/execute"),
        ("/v1/sessions/a/execute/", "/v1/sessions/a/execute"),
        ("/v1/session/a/checkpoint", "/v1/sessions/a/checkpoints"),
        ("/v1/sessions/a/notebook.ipynb", "/v1/sessions/a/notebook"),
        ("/health", "/healthz"),
        ("/v1/openapi.json", "/openapi.json"),
        ("/exec", "/v1/execute"),
        ("/v1/run", "/v1/execute"),
        ("/api/v1/sessions/a/run_code", "/v1/sessions/a/execute"),
        ("/v1/sessions/a/export", None),
        ("/nope", None),
        ("/", None),
        ("/v1/../v1/info", None),
        ("/v1/" + "a" * 400, None),
        ("/sessions" * 20, None),
    ],
)
def test_the_path_that_was_meant(asked: str, meant: str | None) -> None:
    assert near_path(asked, KNOWN) == meant
