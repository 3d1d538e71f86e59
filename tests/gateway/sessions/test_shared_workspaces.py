"""Sessions with one workspace, over HTTP and with real kernels: what they share, and what is refused."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import StartGateway
from tests.support.server import GatewayProcess
from tests.support.users import add_user, create_token


@pytest.fixture
def other(gateway: GatewayProcess) -> Iterator[str]:
    """The key of a session to be made."""
    key = f"test-{uuid.uuid4().hex[:12]}"
    yield key
    gateway.delete(f"/v1/sessions/{key}")


def printed(gateway: GatewayProcess, session: str, code: str) -> str:
    result = gateway.execute(session, code)
    assert result["status"] == "ok", result
    return "".join(output["text"] for output in result["outputs"] if output["output_type"] == "stream")


def test_kernels_of_two_languages_work_on_the_same_files(
    gateway: GatewayProcess, session: str, other: str
) -> None:
    gateway.execute(session, "open('a.txt', 'w').write('a')")
    body = {"session": other, "workspace_of": session, "language": "bash"}
    made = gateway.post("/v1/sessions", body)
    assert made.status == 201, made.json()
    assert made.json()["shares_workspace_with"] == [session]
    assert gateway.model(session)["shares_workspace_with"] == [other]
    assert "shares_sandbox_with" not in gateway.model(session)
    assert gateway.post("/v1/sessions", body).status == 200
    assert printed(gateway, other, "cat a.txt; echo more >> a.txt") == "a"
    assert printed(gateway, session, "print(open('a.txt').read())") == "amore\n\n"
    restarted = gateway.post(f"/v1/sessions/{session}/restart")
    assert restarted.status == 200
    assert (
        printed(gateway, session, "open('b.txt', 'w').write('b'); print(open('a.txt').read())") == "amore\n\n"
    )
    assert gateway.delete(f"/v1/sessions/{session}").status == 204
    assert printed(gateway, other, "cat a.txt b.txt") == "amore\nb"
    assert gateway.get(f"/v1/sessions/{session}/files/b.txt").body == b"b"
    assert gateway.delete(f"/v1/sessions/{other}").status == 204
    assert gateway.get(f"/v1/sessions/{other}/files").json()["files"] == []


def test_what_is_refused(gateway: GatewayProcess, session: str, other: str) -> None:
    def asked(**fields: object) -> tuple[int, str]:
        answer = gateway.post("/v1/sessions", {"session": other, **fields})
        return answer.status, answer.reason

    assert asked(workspace_of="nobody") == (404, "not_found")
    assert asked(workspace_of=other) == (400, "bad_request")
    gateway.execute(session, "1")
    assert asked(workspace_of=session, checkpoint="auto") == (400, "bad_request")
    assert asked(workspace_of=session, limits={"disk": "2m"}) == (400, "bad_request")
    gateway.execute(other, "1")
    assert asked(workspace_of=session) == (409, "conflict")


def test_both_have_the_files_after_the_gateway_was_killed(
    start_gateway: StartGateway, tmp_path: Path
) -> None:
    """As plain processes."""
    first = start_gateway(tmp_path / "data")
    first.execute("a", "open('a.txt', 'w').write('a')")
    assert first.post("/v1/sessions", {"session": "b", "workspace_of": "a"}).status == 201
    first.execute("b", "open('b.txt', 'w').write('b')")
    first.kill()
    second = start_gateway(tmp_path / "data")
    assert printed(second, "b", "print(open('a.txt').read())") == "a\n"
    assert printed(second, "a", "print(open('b.txt').read())") == "b\n"
    assert second.model("a")["shares_workspace_with"] == ["b"]


def test_a_token_for_some_sessions_does_not_reach_others_files(start_gateway: StartGateway) -> None:
    gateway = start_gateway()
    add_user(gateway, "ada")
    _, everything = create_token(gateway, "ada")
    _, limited = create_token(gateway, "ada", "--sessions", "agent-")
    gateway.post("/v1/sessions", {"session": "mine"}, token=everything)
    body = {"session": "agent-1", "workspace_of": "mine"}
    refused = gateway.post("/v1/sessions", body, token=limited)
    assert (refused.status, refused.reason) == (404, "not_found")
