"""What ``cellgate serve`` prints once it serves: where, for whom, how isolated, and what to try next."""

from __future__ import annotations

import shlex
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cellgate.cli.base import users_folder
from cellgate.record.store.opening import record_address
from cellgate.wire.found_gateway import RUNNING_FILE

if TYPE_CHECKING:
    from cellgate.cli.serve.backends import Backend
    from cellgate.server.assembly import RunningGateway


@dataclass(frozen=True, slots=True)
class StartMessage:
    """The message of one start. `token`: None if none is asked for; `own_token`: the operator gave it.

    `record`: the URL of the database that the record is in; "" for the data folder's own. `advertised`: where
    the other gateways of the cluster reach this one; "" without a cluster.
    """

    version: str
    data: Path
    token: str | None
    own_token: bool
    e2b_debug: bool
    record: str = ""
    advertised: str = ""

    def text(self, gateway: RunningGateway, backend: Backend) -> str:
        """Return the lines to be printed."""
        from cellgate.doors.e2b.debug import DEBUG_PORTS  # noqa: PLC0415

        lines = [
            "",
            f"  Cellgate {self.version} serves at {gateway.url}",
            "",
            *self._console_lines(gateway),
            f"    token      {self._shown_token()}",
            f"    backend    {backend.name}",
            f"    isolation  {backend.isolation}",
            f"    kernels    at most {gateway.services.kernels.pool.settings.max_kernels} at once",
            f"    data       {self.data}",
            *([f"    record     {record_address(self.record)}"] if self.record else []),
            *([f"    cluster    as {self.advertised}"] if self.advertised else []),
            "",
            f"  Try:  {self._command('exec', 'print(6 * 7)')}     Stop:  Ctrl-C",
            "",
        ]
        if (ports := _ports_line(gateway)) is not None:
            lines.insert(3, f"    ports      {ports}")
        if self.e2b_debug:
            asked = ", ".join(map(str, DEBUG_PORTS))
            lines.insert(3, f"    E2B_DEBUG  localhost:{asked}; programs of this machine need no token there")
        if backend.note:
            lines[-3:-3] = ["", f"  {backend.note}"]
        if self.data != users_folder():
            found = f"export CELLGATE_DATA_DIR={shlex.quote(str(self.data))}"
            lines[-3:-3] = ["", f"  Other commands find it after:  {found}"]
        if backend.warning:
            lines[2:2] = ["", f"    WARNING: {backend.warning}"]
        elif backend.gaps:
            lines[2:2] = ["", "    Kernels are not in sandboxes. What that means:", *_listed(backend.gaps)]
        return "\n".join(lines)

    def _shown_token(self) -> str:
        if self.token is None:
            return "none is asked for"
        if self.own_token:
            return "the one you gave"
        # Standard output may be a log, which others read and which is kept.
        return self.token if sys.stdout.isatty() else f"a new one, in {self.data / RUNNING_FILE}"

    def _console_lines(self, gateway: RunningGateway) -> list[str]:
        """Name the console. A link that signs in goes to a terminal only: logs are read by others."""
        if self.token is None:
            return [f"    console    {gateway.url}/"]
        if not sys.stdout.isatty():
            return [f"    console    {gateway.url}/ ({self._command('open')} signs you in)"]
        return [
            f"    console    {gateway.console_url()}",
            f"               works once, within a minute; then: {self._command('open')}",
        ]

    def _command(self, *words: str) -> str:
        """Return a command that works as printed, in another terminal of the same user in the same folder."""
        called = Path(sys.argv[0])
        found = shutil.which("cellgate")
        if called.name != "cellgate" or (found is not None and Path(found).resolve() == called.resolve()):
            program = "cellgate"
        else:
            here = Path.cwd()
            program = str(called.relative_to(here) if called.is_relative_to(here) else called)
        where = [] if self.data == users_folder() else ["--data-dir", str(self.data)]
        return shlex.join([program, *words, *where])


def _listed(sentences: Iterable[str]) -> Iterator[str]:
    for each in sentences:
        yield textwrap.fill(each, 100, initial_indent="    - ", subsequent_indent="      ")


def _ports_line(gateway: RunningGateway) -> str | None:
    """Name where browsers find programs' ports; with an operator's URL also where we listen for them."""
    ports = gateway.services.front.ports
    if ports is None:
        return None
    behind_proxy = ports.listens_on != ports.origin.port
    return f"{gateway.ports_url}" + (f" (listening on port {ports.listens_on})" if behind_proxy else "")
