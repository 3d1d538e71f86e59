"""`Session`: one session of a gateway as an object to work with.

It remembers the session's name and the wishes for its making; the calls themselves are ``api.Gateway``'s.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import msgspec

from gateway.client.blocking import Asynchronous
from gateway.client.calls import Calls
from gateway.client.errors import NotFound
from gateway.client.files import Files
from gateway.client.values import BlocksResult, Event, Package, PackageChanges, Result, SessionModel
from kernels.errors import InvalidInput

if TYPE_CHECKING:
    from gateway.client.api import Gateway


class Session(Asynchronous):
    """A session of a gateway; made by `Gateway.session`. Methods raise GatewayError."""

    def __init__(
        self, gateway: Gateway, calls: Calls, name: str | None, wishes: Mapping[str, Any], *, keep: bool
    ) -> None:
        self._gateway = gateway
        self._calls = calls
        self._name = name
        self._wishes = wishes
        self._keep = keep
        self._made = False
        self._opening = asyncio.Lock()

    def __repr__(self) -> str:
        return f"Session({self._name!r})"

    @property
    def name(self) -> str:
        """Its key. Raises InvalidInput for one without a name that was not used yet."""
        if self._name is None:
            raise InvalidInput("The session has no name yet; use it with `async with`, or `open` it")
        return self._name

    @property
    def files(self) -> Files:
        """Its files."""
        return Files(self._calls, self.name)

    async def open(self) -> SessionModel:
        """Makes the session if it is not there; its model."""
        model = await self._gateway.create_session(self._name, **self._wishes)
        self._name, self._made = model.session, True
        return model

    async def opened(self) -> str:
        """Its name; makes the session if this object has not done so."""
        async with self._opening:
            if not self._made:
                await self.open()
        return self.name

    async def __aenter__(self) -> Self:
        await self.opened()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends it, unless it is to be kept."""
        if not self._keep:
            await self.end()

    async def run(
        self,
        code: str,
        *,
        timeout: float | None = None,
        stdin: list[str] | None = None,
        tables: int | None = None,
        on_event: Callable[[Event], object] | None = None,
        language: str | None = None,
        packages: str | None = None,
    ) -> Result:
        """Runs a cell and waits for its end; see `Gateway.execute`. The result shows itself in a notebook."""
        return await self._gateway.execute(
            await self.opened(),
            code,
            timeout=timeout,
            stdin=stdin,
            tables=tables,
            on_event=on_event,
            language=language,
            packages=packages,
        )

    async def stream(
        self,
        code: str,
        *,
        timeout: float | None = None,
        stdin: list[str] | None = None,
        tables: int | None = None,
        language: str | None = None,
    ) -> AsyncGenerator[Event]:
        """Runs a cell; its events as they happen. A reader that leaves early interrupts the cell."""
        events = self._gateway.stream_execute(
            await self.opened(),
            code,
            timeout=timeout,
            stdin=stdin,
            tables=tables,
            on_disconnect="interrupt",
            language=language,
        )
        async with aclosing(events):
            async for event in events:
                yield event

    async def run_blocks(
        self, blocks: str | Sequence[tuple[str, str]], *, timeout: float | None = None
    ) -> BlocksResult:
        """Runs Markdown's fences, or pairs of language and code, in order until one fails."""
        return await self._gateway.execute_blocks(await self.opened(), blocks, timeout=timeout)

    async def install(self, *requirements: str, upgrade: bool = False) -> PackageChanges:
        """Installs packages such as ``"requests>=2"``, where the gateway's operator allows them."""
        return await self._gateway.packages(await self.opened(), install=requirements, upgrade=upgrade)

    async def uninstall(self, *names: str) -> PackageChanges:
        """Removes packages that were installed into this session."""
        return await self._gateway.packages(await self.opened(), uninstall=names)

    async def packages(self) -> list[Package]:
        """What it has installed beside its kernel's environment."""
        return await self._gateway.installed(self.name)

    async def result(self, execution: str) -> Result:
        """An execution's result so far."""
        return await self._gateway.result(self.name, execution)

    async def model(self) -> SessionModel:
        """What the gateway says of it."""
        return await self._gateway.get_session(self.name)

    async def interrupt(self) -> None:
        """Interrupts the running cell, as Ctrl-C would."""
        await self._gateway.interrupt(self.name)

    async def restart(self) -> SessionModel:
        """Gives it a fresh kernel: its variables are lost, its files stay."""
        return await self._gateway.restart(self.name)

    async def replay(self, *, anyway: bool = False, rtol: float = 0.0) -> dict[str, Any]:
        """Runs its notebook again in a fresh kernel; the report of what differs. See `Gateway.replay`."""
        return await self._gateway.replay(self.name, anyway=anyway, rtol=rtol)

    async def notebook(self) -> dict[str, Any]:
        """Its record as a notebook. `save_notebook` writes one of any size to a file."""
        with tempfile.TemporaryDirectory(prefix="cellgate-") as folder:
            path = Path(folder) / "session.ipynb"
            await self._gateway.notebook(self.name, path)
            return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])

    async def save_notebook(self, path: Path | str, *, form: str | None = None) -> None:
        """Writes its record to a file; see `Gateway.notebook`."""
        await self._gateway.notebook(self.name, Path(path), form=form)

    async def end(self) -> None:
        """Ends its kernel and removes its files; its record stays. One that has gone already is no error."""
        if self._name is None:
            return
        try:
            await self._gateway.delete_session(self._name)
        except NotFound:
            # Purged meanwhile: there is nothing left to end.
            return
        finally:
            self._made = False
