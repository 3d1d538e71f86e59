"""Requests that schemathesis makes of `/openapi.json`, valid ones and others, and what comes back.

No answer is a fault of the gateway's, and none has a status, a media type or a body that the document does
not know. Valid requests go to a session that is there, with its execution and its file; others to any.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import Case, GenerationMode
from schemathesis.checks import (
    content_type_conformance,
    not_a_server_error,
    response_schema_conformance,
    status_code_conformance,
)

from cellgate.http.openapi.document import build_document
from cellgate.http.routes import TABLE
from tests.conftest import NO_ENGINE, serving
from tests.support.examples import SHARE
from tests.support.nightly import mostly_nightly
from tests.support.server import TOKEN, GatewayProcess

CHECKS = [status_code_conformance, content_type_conformance, response_schema_conformance]
NO_FAULTS = [not_a_server_error]
UNAVAILABLE = 503
"""Is an answer to what needs a kernel where all are in use; the document says so."""
KEY = "described"
SLOW = frozenset(
    {
        "POST /v1/sessions",
        "POST /v1/execute",
        "POST /v1/sessions/{session}/execute",
        "POST /v1/sessions/{session}/restart",
        "POST /v1/sessions/{session}/replay",
        "GET /v1/sessions/{session}/notebook",
    }
)
"""Each request of these has a kernel or a job started."""

OPERATIONS = {
    found.ok().label: found.ok()
    for found in schemathesis.openapi.from_dict(build_document(TABLE, "test")).get_all_operations()
}
TAKING = [label for label, each in OPERATIONS.items() if each.query or each.body or each.path_parameters]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway of few kernels, none of which is waited for."""
    folder = tmp_path_factory.mktemp("described") / "data"
    options = {"docker_url": NO_ENGINE, "max_kernels": 6, "claim_timeout": 0.5, "ports_port": 0}
    with serving(folder, "auto", **options) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def there(served: GatewayProcess) -> dict[str, object]:
    """What a path may name that is there: a session that has run a cell, an output, a file."""
    result = served.execute(KEY, "print(open('a file', 'w').write('1'))")
    assert result["status"] == "ok"
    return {"session": KEY, "execution": result["execution"], "index": 0, "port": 80, "path": "a file"}


@pytest.fixture(autouse=True)
def only_one_session(served: GatewayProcess) -> Iterator[None]:
    """End the sessions that a test has made, so that the next has kernels."""
    yield
    for model in served.get("/v1/sessions?limit=1000").json()["sessions"]:
        if model["session"] != KEY and model["state"] not in {"ended", "purging"}:
            served.delete(f"/v1/sessions/{model['session']}")


def ask(gateway: GatewayProcess, case: Case, there: dict[str, object]) -> None:
    """Send the request, its path to what is `there`, and hold the answer against the document."""
    if case.method != "DELETE":
        case.path_parameters |= {name: there[name] for name in case.path_parameters if name in there}
    answer = case.call(
        base_url=gateway.url, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=60, allow_redirects=False
    )
    faults = [] if answer.status_code == UNAVAILABLE else NO_FAULTS
    case.validate_response(answer, checks=[*CHECKS, *faults])


def asked(gateway: GatewayProcess, label: str, mode: GenerationMode, there: dict[str, object]) -> None:
    """Ask for this operation again and again; half as often where few examples are asked for."""
    examples = (3 if label in SLOW else 8) if SHARE >= 1 else (2 if label in SLOW else 4)

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=OPERATIONS[label].as_strategy(generation_mode=mode))
    def run(case: Case) -> None:
        ask(gateway, case, there)

    run()


@pytest.mark.parametrize("label", OPERATIONS)
def test_a_valid_request_is_answered_as_the_document_says(
    served: GatewayProcess, there: dict[str, object], label: str
) -> None:
    asked(served, label, GenerationMode.POSITIVE, there)


@pytest.mark.parametrize("label", mostly_nightly(TAKING, TAKING[::3]))
def test_a_wrong_request_is_refused_as_the_document_says(served: GatewayProcess, label: str) -> None:
    asked(served, label, GenerationMode.NEGATIVE, {})
