"""Installs of several principals at once: who waits for whom. What uv does is the test's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from cellgate.errors import PackageNotFound
from cellgate.packages.cache import Wheel, entry_key
from cellgate.packages.installer import Installer
from cellgate.packages.requirements import Change, parse_change
from cellgate.packages.settings import PackageSettings
from cellgate.packages.uv import UvTarget
from cellgate_kernels.base.leftovers import Leftovers
from cellgate_kernels.kernel.environment import Environment
from cellgate_kernels.specs.catalog import KernelspecCatalog

PATIENCE = 120.0
TARGET = UvTarget(Environment("3.11.2"), "python")


class Installs(Installer):
    """An installer. `gates`: names of packages that come only when their gates are open."""

    def __init__(self, root: Path, leftovers: Leftovers) -> None:
        super().__init__(PackageSettings(frozenset({"*"})), KernelspecCatalog(), root, leftovers)
        self.gates: dict[str, asyncio.Event] = {}
        self.begun: list[str] = []
        self._begins = asyncio.Condition()
        self.failing = 0

    async def _get(
        self, wanted: Change, installed: Mapping[str, str], target: UvTarget, work: Path
    ) -> list[Wheel]:
        (name,) = wanted.names
        async with self._begins:
            self.begun.append(name)
            self._begins.notify_all()
        if (gate := self.gates.get(name)) is not None:
            await gate.wait()
        if self.failing:
            self.failing -= 1
            raise PackageNotFound("no such package")
        wheel = Wheel(name, "1.0", "0" * 64, entry_key(f"{len(name):064x}", "311"), 1)
        entry = self.cache.tree(wheel).parent
        entry.mkdir(exist_ok=True)
        (entry / "meta.json").write_text(
            f'{{"name":"{name}","version":"1.0","sha256":"{wheel.sha256}","key":"{wheel.key}","size":1}}'
        )
        return [wheel]

    def ask(self, principal: str, *texts: str, upgrade: bool = False) -> asyncio.Task[list[Wheel]]:
        """Ask for packages, in a task."""
        change = parse_change(texts, upgrade=upgrade)
        return asyncio.ensure_future(self.obtain(principal, change, {}, TARGET))

    async def begin(self, *names: str) -> None:
        """Return once these have begun."""
        async with asyncio.timeout(PATIENCE):
            async with self._begins:
                await self._begins.wait_for(lambda: set(names) <= set(self.begun))


@pytest.fixture
async def installs(tmp_path: Path) -> AsyncIterator[Installs]:
    leftovers = Leftovers()
    yield Installs(tmp_path / "packages", leftovers)
    await leftovers.close()


async def test_nobody_waits_for_anothers_request_that_waits_itself(installs: Installs) -> None:
    """One user's long install, and behind it the packages that everybody wants."""
    installs.gates["huge"] = asyncio.Event()
    first = installs.ask("eve", "huge")
    await installs.begin("huge")
    behind = installs.ask("eve", "popular")
    await asyncio.sleep(0.05)
    assert "popular" not in installs.begun
    async with asyncio.timeout(PATIENCE):
        assert [wheel.name for wheel in await installs.ask("ada", "popular")] == ["popular"]
    installs.gates["huge"].set()
    await asyncio.gather(first, behind)
    assert installs.begun == ["huge", "popular"]


async def test_what_is_being_installed_is_waited_for_by_all(installs: Installs) -> None:
    """A class begins: more users than may wait in line."""
    installs.gates["popular"] = asyncio.Event()
    asked = [installs.ask(f"u{number}", "popular") for number in range(40)]
    await installs.begin("popular")
    await asyncio.sleep(0.05)
    installs.gates["popular"].set()
    async with asyncio.timeout(PATIENCE):
        found = await asyncio.gather(*asked)
    assert {wheel.name for wheels in found for wheel in wheels} == {"popular"}
    assert installs.begun == ["popular"]


async def test_if_it_fails_the_next_one_tries(installs: Installs) -> None:
    installs.failing = 1
    asked = [installs.ask(name, "popular") for name in ("ada", "bob", "bob")]
    async with asyncio.timeout(PATIENCE):
        found = await asyncio.gather(*asked, return_exceptions=True)
    assert sum(isinstance(each, PackageNotFound) for each in found) == 1
    assert installs.begun == ["popular"] * 2


async def test_an_upgrade_is_resolved_each_time(installs: Installs) -> None:
    async with asyncio.timeout(PATIENCE):
        await installs.ask("ada", "popular")
        await asyncio.gather(*(installs.ask(name, "popular", upgrade=True) for name in ("ada", "bob")))
    assert installs.begun == ["popular"] * 3
