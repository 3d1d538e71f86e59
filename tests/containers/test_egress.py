"""What cells in containers reach with ``network: allow``, also after a gateway was killed; see ``inside``."""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.gateway.egress.test_egress import (
    HELLO,
    NOTHING,
    REFUSED,
    look,
    test_a_kernel_that_ends_its_forwarder_harms_itself_only,
    test_a_name_that_changes_its_address_is_refused_from_then_on,
    test_each_connection_is_in_the_record,
    test_named_hosts_are_reached_through_the_proxy,
    test_no_refused_host_has_heard_anything,
    test_nothing_else_is_reached,
    test_nothing_went_wrong_in_the_gateway,
)
from tests.support.kernels import CONTAINERS, EACH_CONTAINER
from tests.support.requirements import require


@pytest.fixture(scope="module", params=EACH_CONTAINER)
def seen(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What was seen there, with each runtime."""
    request.getfixturevalue(request.param)
    if os.geteuid() != 0:
        require("netns", "the root of a user namespace of its own has no right to the engine's socket")
    runtime = CONTAINERS[request.param]
    return look("docker", *([runtime] if runtime else []))


@pytest.mark.parametrize(
    ("what", "result"),
    [
        ("adopted cell", [f"with {HELLO}", "without 502 ", f"with the next {HELLO}", ""]),
        ("adopted", HELLO),
        ("adopted, other", REFUSED.format("host_not_allowed")),
        ("adopted direct", NOTHING),
        ("adopted, restarted", HELLO),
    ],
)
def test_an_adopted_kernel_has_its_way_to_hosts_again(
    seen: dict[str, Any], what: str, result: object
) -> None:
    assert seen[what] == result


def test_connections_of_an_adopted_kernel_are_recorded(seen: dict[str, Any]) -> None:
    allowed = ["host.example.com", "allowed", True]
    assert seen["adopted connections"][0] == allowed
    assert seen["adopted connections"][-2:] == [allowed, ["elsewhere.example.org", "refused", False]]
