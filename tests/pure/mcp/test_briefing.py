"""The paragraph on the environment that models are told: complete, short, and nothing that is not known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from cellgate.mcp.briefing import SessionWish, briefing, served_languages
from cellgate.wire.answers import Ceilings, EnvironmentModel, GatewayInfo

LIMITS = {"memory": 1 << 30, "disk": 1 << 29, "cpus": 1.0, "pids": 256, "cell_timeout": 60.0, "lifetime": 9.0}
PACKAGES = {"Numpy": "2.4.6", "pandas": "3.1.1", "six": "1.17.0", "acme-tools": "1.0"}
NAMED = "Python 3.13.1 with numpy 2.4.6, pandas 3.1.1 and 2 more packages (importlib.metadata lists them)."
SIZES = (
    "Limits by default: 1 GiB of memory, 1 processor, 256 processes, 512 MiB of files, 60 s for a call unless"
    " it says otherwise."
)
NO_NETWORK = "Code reaches no network: downloads and calls of APIs fail."
NO_PACKAGES = "Packages can't be added: use what is there, and don't try pip."


def info(
    name: str = "standard", programs: Sequence[str] = ("bash", "git", "deno"), **fields: Any
) -> GatewayInfo:
    environment = EnvironmentModel(name=name, python="3.13.1", packages=PACKAGES, programs=list(programs))
    known: dict[str, Any] = {"environment": {"python3": environment}, "limits": LIMITS}
    known["default_kernel"] = "python3"
    ceilings = Ceilings(**dict.fromkeys(Ceilings.__struct_fields__))  # type: ignore[arg-type]
    return GatewayInfo(version="1", backend="x", isolation="x", ceilings=ceilings, **{**known, **fields})


def test_it_says_all_that_is_known() -> None:
    assert briefing(info(), SessionWish()) == (
        f"{NAMED} Programs: bash, git, deno. {SIZES} {NO_NETWORK} {NO_PACKAGES}"
    )


def test_an_environment_without_deno_has_no_javascript() -> None:
    """The tools' descriptions name the language all the same."""
    told = briefing(info(programs=["bash"]), SessionWish())
    assert told.startswith(f"{NAMED} Programs: bash. Neither JavaScript nor TypeScript can be run. {SIZES}")


def test_of_an_own_list_the_own_packages_are_named() -> None:
    told = briefing(info("own"), SessionWish("python3"))
    assert told.startswith(
        "Python 3.13.1 with numpy 2.4.6, pandas 3.1.1, acme-tools 1.0, six 1.17.0. Programs"
    )
    many = {f"p{number:03}": "1" for number in range(1000)}
    told = briefing(info(environment={"python3": EnvironmentModel(python="3", packages=many)}), SessionWish())
    assert "p039 1 and 960 more packages" in told
    assert len(told) < 1000


@pytest.mark.parametrize("wanted", [("bash",), (None, "javascript"), ("theirs",), ("python3", "bash")])
def test_of_other_kernels_no_packages_are_named(wanted: tuple[str | None, ...]) -> None:
    assert briefing(info(), SessionWish(*wanted)) == f"{SIZES} {NO_NETWORK} {NO_PACKAGES}"


@pytest.mark.parametrize(
    ("fields", "wanted", "said"),
    [
        ({"network": ["a:443"]}, None, NO_NETWORK),
        ({"network": None}, "allow", NO_NETWORK),
        ({"network": ["a:443", "*.b:80"]}, "allow", "code reaches only a:443, *.b:80: HTTP_PROXY and"),
        ({"network": [f"h{n}:1" for n in range(22)]}, "allow", "h19:1 and 2 more: HTTP_PROXY"),
        ({"open_network": True}, None, "Code has a network, as the operator has set it up."),
    ],
)
def test_the_network_is_the_session_s(fields: dict[str, Any], wanted: str | None, said: str) -> None:
    assert said in briefing(info(**fields), SessionWish(network=wanted))


@pytest.mark.parametrize(
    ("allowed", "said"),
    [
        ([], NO_PACKAGES),
        (["*"], "install_packages, or %pip install in a cell, adds any package; other ways to install fail."),
        (
            ["a", "b"],
            "install_packages, or %pip install in a cell, adds only a, b; other ways to install fail.",
        ),
    ],
)
def test_whether_packages_can_be_added_is_said(allowed: list[str], said: str) -> None:
    assert briefing(info(packages_allowed=allowed), SessionWish()).endswith(said)


@pytest.mark.parametrize(
    ("wanted", "programs", "served"),
    [
        ((), ("bash", "deno"), ("python", "bash", "javascript", "typescript")),
        ((), ("bash",), ("python", "bash")),
        ((), ("git",), ("python",)),
        ((), (), ("python", "bash", "javascript", "typescript")),
        ((None, "js"), ("bash",), ("javascript", "typescript")),
        ((None, "bash"), (), ("python", "bash", "javascript", "typescript")),
    ],
)
def test_the_languages_that_are_served(
    wanted: tuple[Any, ...], programs: Sequence[str], served: Sequence[str]
) -> None:
    assert served_languages(info(programs=programs), SessionWish(*wanted)) == served
