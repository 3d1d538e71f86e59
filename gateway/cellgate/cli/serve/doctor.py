"""``cellgate doctor``: what of this machine works for a gateway, and what to do about the rest.

``server.doctor`` tries it all; this shows it.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn
from urllib.parse import urlsplit

import msgspec
from rich.console import Console
from traitlets import Bool
from traitlets.config import Config

from cellgate.cli.base import BaseApp, UsageError, absolute, switches
from cellgate.cli.serve.given_settings import GivenSettings
from cellgate.cli.serve.options import aliases_of, is_given, trait_of
from cellgate.cli.terminal.escaping import printed
from cellgate.server.settings import FrontSettings, KernelSettings, StorageSettings
from cellgate_kernels.base.settings import ContainerSettings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from cellgate.server.doctor import Diagnosis, DoctorPlace

OF_SERVE = ("ip", "port", "image", "runtime", "docker_url", "record", "cell_hook")
"""Settings of ``serve`` that count here."""


class DoctorApp(BaseApp):
    """``cellgate doctor``."""

    name = "cellgate-doctor"
    usage = "[options]"
    description = """
        Tries what a gateway needs of this machine: the kernel environment, bubblewrap, the container engine
        and its image, gVisor, memory, swap, disk, the database of the record, the cell hook, port and clock.
        Says of each what was found, and what to do if it is not enough. It changes nothing, and needs no
        running gateway; if one serves with this data folder, it says how that one is.
        What the configuration file says of cellgate serve counts here, too.

        Exits with 0 if cellgate serve would run here with isolated kernels, and with 1 if not.
    """
    examples = """
        cellgate doctor
        cellgate doctor --json
        cellgate doctor --data-dir /var/lib/cellgate --port 9000
    """

    ip = trait_of(FrontSettings, "ip")
    port = trait_of(FrontSettings, "port")
    image = trait_of(ContainerSettings, "image")
    runtime = trait_of(ContainerSettings, "runtime")
    docker_url = trait_of(KernelSettings, "docker_url")
    record = trait_of(StorageSettings, "record")
    cell_hook = trait_of(GivenSettings, "cell_hook")
    json = Bool(False, help="Print a JSON list.").tag(config=True)

    aliases = {  # noqa: RUF012
        **aliases_of("DoctorApp", *OF_SERVE),
        **BaseApp.aliases,
    }
    flags = switches("DoctorApp", json=json)

    def start(self) -> NoReturn:
        """Try everything and report; exits with the outcome."""
        from cellgate.server.doctor import DoctorPlace, Grade  # noqa: PLC0415 - keeps --help quick

        if self.extra_args:
            raise UsageError(f"unexpected argument {self.extra_args[0]!r}")
        where = (self.ip, self.port)
        serving = self._serving()
        if serving is not None and not (is_given(self, "ip") or is_given(self, "port")):
            where = serving
        container = ContainerSettings(self.image, self.runtime)
        place = DoctorPlace(
            *(self.data_path, *where, self.docker_url, container, where == serving, self.record),
            absolute(self.cell_hook) if self.cell_hook else None,
        )
        findings = asyncio.run(self._examine(place))
        if self.json:
            sys.stdout.write(f"{msgspec.json.format(msgspec.json.encode(findings)).decode()}\n")
        raise SystemExit(any(finding.outcome is Grade.PROBLEM for finding in findings))

    def _serving(self) -> tuple[str, int] | None:
        """Return where the gateway of this data folder listens, if one is known."""
        with contextlib.suppress(UsageError, ValueError):
            if (running := self._running_gateway()) is not None:
                parts = urlsplit(running.url)
                return parts.hostname or "", parts.port or 0
        return None

    def _file_config(self) -> Config:
        """Take what the file says of ``serve`` where it says nothing of this command."""
        config = super()._file_config()
        for name in OF_SERVE:
            if name in config.ServeApp:
                config.DoctorApp.setdefault(name, config.ServeApp[name])
        return config

    async def _all(self, place: DoctorPlace) -> AsyncIterator[Diagnosis]:
        from cellgate.cli.serve.running import judge_running  # noqa: PLC0415
        from cellgate.server.doctor import examine  # noqa: PLC0415

        running = None
        with contextlib.suppress(UsageError):
            running = self._running_gateway()
        if running is not None:
            yield await judge_running(running)
        async for found in examine(place):
            yield found

    async def _examine(self, place: DoctorPlace) -> list[Diagnosis]:
        findings = []
        console = Console(highlight=False, soft_wrap=True, markup=False, stderr=self.json)
        with console.status("trying what a gateway needs"):
            async for found in self._all(place):
                # A path need not be text; what is shown is.
                finding = replace(found, found=printed(found.found), advice=printed(found.advice))
                findings.append(finding)
                if not self.json:
                    console.print(f"{finding.outcome.value:<8} {finding.subject:<19} {finding.found}")
                    if finding.advice:
                        console.print(f"{'':28} {finding.advice}")
        return findings
