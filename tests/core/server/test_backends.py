"""Which backend ``cellgate serve`` takes, by what works on the machine."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from cellgate.cli.serve.backends import Backend, choose_backend
from cellgate_kernels.backends.landlock import LandlockProvisioner
from cellgate_kernels.backends.process import ProcessProvisioner
from cellgate_kernels.backends.sandbox import SandboxProvisioner
from cellgate_kernels.base.errors import BackendUnavailable
from cellgate_kernels.base.settings import ContainerSettings

CLASSES = {"sandbox": SandboxProvisioner, "landlock": LandlockProvisioner, "process": ProcessProvisioner}


def check(name: str, works: set[str]) -> Callable[[], Awaitable[None]]:
    async def answer() -> None:
        if name not in works:
            raise BackendUnavailable(f"{name} does not work here.")

    return answer


def chosen(monkeypatch: pytest.MonkeyPatch, wanted: str, works: set[str]) -> Backend:
    """The choice on a machine without an engine, where these others work."""
    for name, kind in CLASSES.items():
        monkeypatch.setattr(kind, "check", check(name, works))
    return asyncio.run(choose_backend(wanted, ContainerSettings(), "unix:///nonexistent/docker.sock"))


@pytest.mark.parametrize(
    ("works", "name", "isolation"),
    [
        ({"sandbox", "landlock", "process"}, "sandbox", "sandbox"),
        ({"landlock", "process"}, "landlock", "landlock"),
        ({"process"}, "process", "none"),
    ],
)
def test_the_best_that_works_is_taken(
    monkeypatch: pytest.MonkeyPatch, works: set[str], name: str, isolation: str
) -> None:
    backend = chosen(monkeypatch, "auto", works)
    assert (backend.name, backend.isolation) == (name, isolation)
    assert "containers" in backend.note


def test_what_is_not_held_is_told_with_what_would_bring_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = chosen(monkeypatch, "auto", {"landlock", "process"})
    assert backend.gaps[-1] == "sandbox does not work here."
    assert any("memory is limited for each process" in gap for gap in backend.gaps)
    assert chosen(monkeypatch, "auto", set(CLASSES)).gaps == ()
    bare = chosen(monkeypatch, "auto", {"process"})
    assert bare.gaps == (bare.warning,)
    assert "sandbox does not work here. landlock does not work here." in bare.warning


@pytest.mark.parametrize("name", list(CLASSES))
def test_one_that_is_asked_for_is_taken_or_nothing(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    assert chosen(monkeypatch, name, {name}).name == name
    with pytest.raises(BackendUnavailable, match=f"{name} does not work here"):
        chosen(monkeypatch, name, set(CLASSES) - {name})
