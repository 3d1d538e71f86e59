"""``cellgate doctor``: what of this machine works for a gateway, and what to do about the rest.

``server.doctor`` tries it all; this shows it.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import msgspec
from rich.console import Console
from traitlets import Bool, Integer, Unicode

from cellgate.cli.base import BaseApp, UsageError
from cellgate.cli.terminal.escaping import printed
from cellgate_kernels.base.settings import IMAGE, SOCKET

if TYPE_CHECKING:
    from cellgate.server.doctor import Finding, Place


class DoctorApp(BaseApp):
    """``cellgate doctor``."""

    name = "cellgate-doctor"
    usage = "[options]"
    description = """
        Tries what a gateway needs of this machine: the kernel environment, bubblewrap, the container engine
        and its image, gVisor, memory, swap, disk, port and clock. Says of each what was found, and what to
        do if it is not enough. It changes nothing, and needs no running gateway.

        Exits with 0 if cellgate serve would run here with isolated kernels, and with 1 if not.
    """
    examples = """
        cellgate doctor
        cellgate doctor --json
        cellgate doctor --data-dir /var/lib/cellgate --port 9000
    """

    ip = Unicode("127.0.0.1", help="The address that the gateway would listen on.").tag(
        config=True, metavar="ADDRESS"
    )
    port = Integer(8888, min=0, max=65535, help="The port that it would listen on.").tag(
        config=True, metavar="PORT"
    )
    image = Unicode(IMAGE, help="The image of kernels in containers.").tag(config=True, metavar="NAME")
    runtime = Unicode(help="The container engine's runtime, such as runsc; default: the engine's own.").tag(
        config=True, metavar="NAME"
    )
    docker_url = Unicode(SOCKET, help="The container engine's address.").tag(config=True, metavar="URL")
    json = Bool(False, help="Print a JSON list.").tag(config=True)

    aliases = {  # noqa: RUF012
        "ip": "DoctorApp.ip",
        "port": "DoctorApp.port",
        "image": "DoctorApp.image",
        "runtime": "DoctorApp.runtime",
        "docker-url": "DoctorApp.docker_url",
        **BaseApp.aliases,
    }
    flags = {"json": ({"DoctorApp": {"json": True}}, "Print a JSON list.")}  # noqa: RUF012

    def start(self) -> NoReturn:
        """Try everything and report; exits with the outcome."""
        from cellgate.server.doctor import Outcome, Place  # noqa: PLC0415 - keeps --help quick
        from cellgate_kernels.base.settings import ContainerSettings  # noqa: PLC0415

        if self.extra_args:
            raise UsageError(f"unexpected argument {self.extra_args[0]!r}")
        container = ContainerSettings(self.image, self.runtime)
        place = Place(Path(self.data_path), self.ip, self.port, self.docker_url, container)
        findings = asyncio.run(self._examine(place))
        if self.json:
            sys.stdout.write(f"{msgspec.json.format(msgspec.json.encode(findings)).decode()}\n")
        raise SystemExit(any(finding.outcome is Outcome.PROBLEM for finding in findings))

    async def _examine(self, place: Place) -> list[Finding]:
        from cellgate.server.doctor import examine  # noqa: PLC0415

        findings = []
        console = Console(highlight=False, soft_wrap=True, markup=False, stderr=self.json)
        with console.status("trying what a gateway needs"):
            async for found in examine(place):
                # A path need not be text; what is shown is.
                finding = replace(found, found=printed(found.found), advice=printed(found.advice))
                findings.append(finding)
                if not self.json:
                    console.print(f"{finding.outcome.value:<8} {finding.subject:<19} {finding.found}")
                    if finding.advice:
                        console.print(f"{'':28} {finding.advice}")
        return findings
