"""Results for readers with little room: images by address or not at all, and single outputs as files."""

from __future__ import annotations

import base64

import pytest

from tests.support.server import GatewayProcess

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
SHOW = f"""
from IPython.display import display
print("before")
display({{"image/png": {base64.b64encode(PNG).decode()!r}, "text/plain": "<a picture>"}},
        raw=True, metadata={{"image/png": {{"width": 7}}}})
"""


def test_images_are_inline_unless_somebody_wishes_otherwise(gateway: GatewayProcess, session: str) -> None:
    inline = gateway.execute(session, SHOW)
    assert base64.b64decode(inline["outputs"][1]["data"]["image/png"]) == PNG
    assert gateway.result(session, inline["execution"], "?images=inline") == inline
    bare = gateway.result(session, inline["execution"], "?images=none")
    assert bare["outputs"][1]["data"] == {"text/plain": "<a picture>"}
    assert bare["outputs"][1]["metadata"] == {"image/png": {"width": 7}}
    assert bare["text"] == inline["text"]


def test_an_address_gives_the_image_as_an_attachment(gateway: GatewayProcess, session: str) -> None:
    answer = gateway.post(f"/v1/sessions/{session}/execute?images=url", {"code": SHOW}).json()
    shown = answer["outputs"][1]
    address = f"/v1/sessions/{session}/executions/{answer['execution']}/output/1"
    assert shown["data"] == {"text/plain": "<a picture>"}
    assert shown["metadata"]["image/png"] == {"width": 7, "url": address}
    image = gateway.get(address)
    assert (image.status, image.body) == (200, PNG)
    assert image.headers["Content-Type"] == "image/png"
    assert image.headers["X-Content-Type-Options"] == "nosniff"
    assert image.headers["Content-Security-Policy"] == "sandbox"
    assert image.headers["Content-Disposition"].startswith('attachment; filename="output-')
    assert gateway.get(f"{address}?type=text/plain").body == b"<a picture>"


def test_of_several_images_each_has_an_address(gateway: GatewayProcess, session: str) -> None:
    code = "display({'image/svg+xml': '<svg/>', 'image/png': 'AAAA'}, raw=True)"
    answer = gateway.post(f"/v1/sessions/{session}/execute?images=url", {"code": code}).json()
    (shown,) = answer["outputs"]
    assert set(shown["data"]) == {"text/plain"}
    bodies = {mime: gateway.get(fields["url"]).body for mime, fields in shown["metadata"].items()}
    assert bodies == {"image/svg+xml": b"<svg/>", "image/png": b"\0\0\0"}


def test_the_mark_of_a_cut_text_names_the_address_of_the_whole(gateway: GatewayProcess, session: str) -> None:
    code = "print('a' * 5000); 'b' * 5000"
    cut = gateway.post(f"/v1/sessions/{session}/execute?max_text=1000", {"code": code}).json()
    address = f"/v1/sessions/{session}/executions/{cut['execution']}"
    assert f"GET {address}/output/0 has them all" in cut["stdout"]
    assert f"GET {address}/output/1 has them all" in cut["outputs"][1]["data"]["text/plain"]
    assert f"GET {address}?max_text=0 has them all" in cut["text"]
    whole = gateway.get(f"{address}/output/0")
    assert whole.body == b"a" * 5000 + b"\n"
    assert whole.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert gateway.get(f"{address}/output/1").body == b"'" + b"b" * 5000 + b"'"


def test_the_cut_text_of_a_display_with_an_image_is_found(gateway: GatewayProcess, session: str) -> None:
    code = "display({'image/png': 'AAAA', 'text/plain': 'c' * 5000}, raw=True)"
    cut = gateway.post(f"/v1/sessions/{session}/execute?max_text=1000&images=none", {"code": code}).json()
    address = cut["text"].partition("GET ")[2].partition(" ")[0]
    assert address in cut["outputs"][0]["data"]["text/plain"]
    assert gateway.get(address).body == b"c" * 5000


def test_the_traceback_is_an_output_too(gateway: GatewayProcess, session: str) -> None:
    execution = gateway.execute(session, "1 / 0")["execution"]
    answer = gateway.get(f"/v1/sessions/{session}/executions/{execution}/output/0?plain=true")
    assert answer.body.decode().endswith("ZeroDivisionError: division by zero")
    assert b"\x1b" not in answer.body


def test_types_that_user_code_made_up_get_into_no_header(gateway: GatewayProcess, session: str) -> None:
    code = "display({'text/html\\r\\nX: y': '<script>', 'image/x\\ny': '!!'}, raw=True)"
    execution = gateway.execute(session, code)["execution"]
    answer = gateway.get(f"/v1/sessions/{session}/executions/{execution}/output/0")
    assert (answer.status, answer.headers["Content-Type"]) == (200, "application/octet-stream")


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("output/1", "not_found"),
        ("output/0?type=image/png", "not_found"),
        ("output/x", "bad_request"),
        ("output/-1", "bad_request"),
        ("output/", "bad_request"),
        ("output/0?plain=x", "bad_request"),
    ],
)
def test_what_is_not_there_is_refused(gateway: GatewayProcess, session: str, path: str, reason: str) -> None:
    execution = gateway.execute(session, "1")["execution"]
    assert gateway.get(f"/v1/sessions/{session}/executions/{execution}/{path}").reason == reason


def test_unknown_wishes_for_images_are_refused(gateway: GatewayProcess, session: str) -> None:
    answer = gateway.post(f"/v1/sessions/{session}/execute?images=small", {"code": "1"})
    assert answer.reason == "bad_request"
    assert gateway.get(f"/v1/sessions/{session}").status == 404


def test_an_ended_session_has_its_outputs_still(gateway: GatewayProcess, session: str) -> None:
    execution = gateway.execute(session, SHOW)["execution"]
    gateway.delete(f"/v1/sessions/{session}")
    assert gateway.get(f"/v1/sessions/{session}/executions/{execution}/output/1").body == PNG
