"""How logs and traces name a request: no token stands in them, wherever in the path it was sent."""

from __future__ import annotations

import pytest
from tornado.httputil import HTTPHeaders, HTTPServerRequest, RequestStartLine

from cellgate.http.described import LONGEST_PATH, path_of
from cellgate.identity.tokens import new_token

OWN = "the operator's word"
TOKEN = "cg_0123456789ab_AbCdEfGhIjKlMnOpQrStUvWxYz0123456789-_AbCdE"


def told(path: str) -> str:
    start = RequestStartLine("GET", path, "HTTP/1.1")
    request = HTTPServerRequest(start_line=start, headers=HTTPHeaders({"Host": "here"}))
    return path_of(request, lambda word: word == OWN)


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("/librechat/key/T/exec", "/librechat/key/.../exec"),
        ("/librechat/keys/T/exec", "/librechat/.../exec"),
        ("/librechat/T/exec", "/librechat/.../exec"),
        ("/librechat/T/exec/programmatic", "/librechat/.../exec/programmatic"),
        ("/librechat/exec/T", "/librechat/..."),
        ("/librechat/key/a/exec/b/upload/batch", "/librechat/key/.../upload/batch"),
        ("/librechat/key/T", "/librechat/key/..."),
        ("/librechat//T/exec/", "/librechat/.../exec/"),
        ("//LibreChat/KEY/T/sessions/S/objects/O", "//LibreChat/KEY/.../sessions/S/objects/O"),
        ("/below/librechat/T/download/S/F", "/below/librechat/.../download/S/F"),
        ("/%6cibrechat/T/exec", "/%6cibrechat/.../exec"),
        ("/librechat/exec", "/librechat/exec"),
        ("/librechat/download/S/F", "/librechat/download/S/F"),
        ("/v1/sessions/key/executions", "/v1/sessions/key/executions"),
        ("/v1/sessions/cg_data_1/files/eyJ.txt", "/v1/sessions/cg_data_1/files/eyJ.txt"),
        (f"/v1/sessions/{TOKEN}", "/v1/sessions/..."),
        (f"/v1/Bearer%20{TOKEN}/x", "/v1/.../x"),
        (f"/v1/{TOKEN.replace('_', '%5f')}/x", "/v1/.../x"),
        (f"/v1/{TOKEN.replace('_', '%255F')}/x", "/v1/.../x"),
        ("/api/eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJhIn0.c2ln", "/api/..."),
        ("/console/cgticket-abcdef", "/console/..."),
        (f"/p/{'a' * 32}.{'b' * 64}", "/p/..."),
        ("/v1/the%20operator's%20word/x", "/v1/.../x"),
        ("http://user:word@host/", "(no path)"),
    ],
)
def test_a_path_is_told_without_tokens(path: str, shown: str) -> None:
    assert told(path) == shown


def test_a_long_path_is_cut_and_no_half_of_a_token_is_told() -> None:
    for length in range(4000, 4110):
        shown = told(f"/{'cg_abcdef012345_x/' * 200}{'y' * (length - 3600)}/{TOKEN}")
        assert len(shown) <= LONGEST_PATH
        assert TOKEN[:20] not in shown


def test_new_tokens_are_masked() -> None:
    for _ in range(100):
        assert told(f"/v1/sessions/{new_token()[1]}/files") == "/v1/sessions/.../files"
