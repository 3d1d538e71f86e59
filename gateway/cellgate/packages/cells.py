"""Packages that a cell requests: by lines that run pip or, if its request allows, by its imports.

It acts before the cell is sent and after it has ended; the cell itself is sent unchanged. A line such as
``%pip install`` then runs the kernel's own pip, which finds the packages already installed and says so. An
install stops when the cell is interrupted or its kernel is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import ClassVar

from cellgate.errors import PackageNotFound, PackagesNotAllowed
from cellgate.execution.run import ExecutionRun, refuse
from cellgate.packages.imports import distribution_of, names_at_imports, python_of
from cellgate.packages.requirements import (
    MOST_REQUIREMENTS,
    Change,
    changes_of_cell,
    may_run_pip,
    parse_requirement,
)
from cellgate.packages.session import PackagesChange, PackagesHost, result_of
from cellgate.packages.settings import OUT_OF_SCOPE
from cellgate_kernels.base.errors import CellgateError, InvalidInput
from cellgate_kernels.base.tasks import Supervisor
from cellgate_kernels.kernel.environment import missing_modules

AUTO = "auto"
TEMPORARY = "temporary"


class CellPackages:
    """A hook for a session's cells, one at a time: installs the packages that each requests, and afterwards
    removes the temporary ones. A refusal or a failure ends the cell. Cells in subshells get no packages.
    """

    beside: ClassVar[bool] = False

    def __init__(self, host: PackagesHost) -> None:
        self._host = host
        self._temporary: tuple[str, ...] = ()

    async def before(self, run: ExecutionRun) -> None:
        """Install the cell's packages."""
        self._temporary = ()
        self._temporary = await _install_for(run, self._host)

    async def after(self, run: ExecutionRun) -> None:
        """Remove the packages that were for this cell alone."""
        if self._temporary and not self._host.packages.closed:
            await self._host.packages.change(self._host, Change(uninstall=self._temporary), run.record.emit)


async def _install_for(run: ExecutionRun, host: PackagesHost) -> tuple[str, ...]:
    """Install the cell's packages; return the names to uninstall after it.

    A refusal or a failure ends the execution with an error that says why, and the cell does not run.
    """
    kernel = host.current
    installer = host.packages.installer
    if installer is None or kernel is None or kernel.environment is None:
        return ()
    try:
        code = run.request.code
        if may_run_pip(code):
            changes = await asyncio.to_thread(changes_of_cell, code)
            if changes and not run.request.installs:
                raise PackagesNotAllowed(OUT_OF_SCOPE)
            for change in changes:
                await _apply(run, host, change)
        if run.request.packages is None or run.unwanted.is_set():
            return ()
        python = await asyncio.to_thread(python_of, code)
        names = await asyncio.to_thread(names_at_imports, python)
        missing = await missing_modules(kernel.connection, kernel.exited, python, names)
        wanted = [name for module in missing if (name := distribution_of(module))]
        if (refusal := installer.settings.refusal(wanted)) is not None:
            # The cell runs all the same: it may do without them.
            run.record.emit("stream", {"name": "stderr", "text": f"{refusal}\n"})
        added = await _install_known(run, host, filter(installer.settings.allows, wanted))
    except CellgateError as error:
        if not run.machine.finished:
            refuse(run, error)
        return ()
    return added if run.request.packages == TEMPORARY else ()


async def _install_known(run: ExecutionRun, host: PackagesHost, names: Iterable[str]) -> tuple[str, ...]:
    """Install these packages, skipping any that the index does not have: the cell's error reports those."""
    wanted = tuple(map(parse_requirement, dict.fromkeys(names)))
    if len(wanted) > MOST_REQUIREMENTS:
        raise InvalidInput(
            f"The cell imports {len(wanted)} modules that are missing; at most {MOST_REQUIREMENTS} packages"
            " are installed for one cell"
        )
    try:
        changed = [await _apply(run, host, Change(wanted))] if wanted else []
    except PackageNotFound:
        if len(wanted) == 1:
            return ()
        changed = []
        for requirement in wanted:
            try:
                changed.append(await _apply(run, host, Change((requirement,))))
            except PackageNotFound:
                continue
    return tuple(package.name for each in changed for package in each.installed)


async def _apply(run: ExecutionRun, host: PackagesHost, change: Change) -> PackagesChange:
    """Make the change, unless the cell is cancelled before it is done."""
    if run.unwanted.is_set():
        return PackagesChange()
    task = host.packages.begin(host, change, run.record.emit)
    tasks = Supervisor(host.packages.ids)
    unwanted = tasks.start(run.unwanted.wait(), f"install for {run.id}", execution=run.id)
    try:
        await asyncio.wait({task, unwanted}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        task.cancel()
        await tasks.cancel()
        await asyncio.wait({task})
    return PackagesChange() if task.cancelled() else await result_of(task)
