"""``cellgate replay``: runs the cells of a notebook again through the gateway, and reports what differs.

The cells run in a new session, whose record stays. The comparison (``replay``) runs in this process, so that
a notebook from an unknown source never reaches the gateway as a file.
"""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import sys
import uuid
import zipfile
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from traitlets import Bool, Float, Unicode

from cellgate.cli.base import CommandApp, UsageError, expanded, switches
from cellgate.cli.terminal.escaping import printed, printed_line
from cellgate.client import Event, Gateway, GatewayError
from cellgate.errors import EnvironmentDiffers
from cellgate.record.events import now
from cellgate.replay.cells import RecordedCell, recorded_cells, seeding
from cellgate.replay.displays import Displays
from cellgate.replay.environment import (
    EnvironmentCheck,
    compare_locks,
    recorded_lock,
    recorded_seed,
    seeds_report,
    variables_for,
)
from cellgate.replay.files import GONE, InputFile, input_files, restored_file
from cellgate.replay.numbers import check_rtol
from cellgate.replay.packages import RecordedPackage, installed_packages, pins
from cellgate.replay.report import NewRun, build_report, write
from cellgate.replay.run import refuse_other_environment, run_cells
from cellgate.replay.source import Source, open_source, recorded_bytes
from cellgate.replay.tally import compared, why_none
from cellgate.wire.answers import NotebookFacts, NotebookReport, RestoredFile
from cellgate_kernels.base.errors import InvalidInput, in_brief
from cellgate_kernels.base.resources import HASH_SEED
from cellgate_kernels.protocol.outputs import OutputArea

_MARKS = {"equal": "=", "normalised": "~", "unjudged": "?", "different": "!", "skipped": "-"}
SAME, DIFFERS, UNJUDGED = 0, 1, 3
"""Exit codes; 3 also if nothing was compared; 2 is a usage error, or a refusal, as in all commands."""


class ReplayApp(CommandApp):
    """``cellgate replay``."""

    name = "cellgate-replay"
    usage = "FILE.ipynb|BUNDLE.zip [options]"
    description = """
        Runs all code cells of a notebook in a fresh kernel of the same kernelspec and compares the new
        outputs with those in the notebook, cell by cell. What is known to vary does not count, such as
        addresses in objects' reprs and the clock of the run; pictures are compared as they look. Input files
        of the recorded session are taken from the bundle, or from the notebook's folder, if they are
        unchanged.

        Exits with 0 if all cells give the same, with 1 if one does not, and with 3 if none certainly differs
        but some cannot be judged: they show a duration or a UUID, or needed input; also if no cell was
        compared. Refuses, with 2, if the notebook names other package versions than the kernel has.
    """
    examples = """
        cellgate replay analysis.ipynb
        cellgate replay analysis.ipynb -o report.html
        cellgate replay analysis.zip
        cellgate replay analysis.ipynb --rtol 1e-6
        cellgate replay analysis.ipynb --anyway -o report.json
    """

    output = Unicode(help="The report to write: a page (.html) or JSON (.json).").tag(
        config=True, metavar="FILE"
    )
    kernel = Unicode(help="The kernelspec; default: the notebook's own.").tag(config=True, metavar="NAME")
    anyway = Bool(False, help="Replay even if the environment differs.").tag(config=True)

    rtol = Float(
        0.0,
        help="How far apart two floating-point numbers may be, relative to the larger; default: not at all.",
    ).tag(config=True, metavar="NUMBER")

    aliases: Any = {  # noqa: RUF012
        ("o", "output"): "ReplayApp.output",
        "rtol": "ReplayApp.rtol",
        "kernel": "ReplayApp.kernel",
        **CommandApp.aliases,
    }
    flags = switches("ReplayApp", anyway=anyway)

    async def run_command(self) -> int:
        path, output = self._paths()
        check_rtol(self.rtol)
        notebook, source = await asyncio.to_thread(open_source, path)
        report = await self._replay(path, notebook, source)
        if output is not None:
            await asyncio.to_thread(_write, output, write(report, output.suffix.lower().removeprefix(".")))
        self._print_report(report, output)
        self._tell_missing(path, report)
        if not compared(report):
            sys.stderr.write(f"{printed_line(why_none(report))}\n")
        return exit_code(report)

    def _paths(self) -> tuple[Path, Path | None]:
        (name,) = self.arguments("FILE")
        if not self.output:
            return Path(name), None
        output = expanded(self.output)
        if output.suffix.lower() not in {".html", ".json"}:
            raise UsageError(f"--output {self.output}: a report's name ends in .html or .json")
        if not output.parent.is_dir():
            raise UsageError(f"--output {self.output}: there is no folder {output.parent}")
        return Path(name), output

    async def _replay(self, path: Path, notebook: dict[str, Any], source: Source) -> NotebookReport:
        cells = recorded_cells(notebook)
        inputs = input_files(notebook)
        gateway = self.gateway()
        session = f"replay-{uuid.uuid4().hex[:12]}"
        begun = now()
        seed = recorded_seed(notebook)
        model = await gateway.create_session(
            session,
            kernel=self.kernel or await _same_environment(gateway, notebook) or _kernel(notebook),
            env=variables_for(seed, HASH_SEED),
        )
        try:
            why = await _install(gateway, session, installed_packages(notebook))
            check = await self._check(gateway, session, notebook, why)
            restored = [await _restore(gateway, session, source, file) for file in inputs]
            runs: list[NewRun | None] = []
            longest = (await gateway.info()).ceilings.cell_timeout
            await run_cells(cells, partial(_run, gateway, session, longest, Displays()), partial(_keep, runs))
        finally:
            await gateway.delete_session(session)
        recorded = notebook.get("metadata", {}).get("cellgate", {}).get("session")
        facts = NotebookFacts(
            file=path.name,
            session=recorded if isinstance(recorded, str) else None,
            replay_session=session,
            kernel=model.kernel,
            isolation=model.isolation,
            replayed_at=begun,
            environment=check.report(),
            hash_seed=seeds_report(seed, HASH_SEED),
            files=restored,
        )
        return await asyncio.to_thread(build_report, NotebookReport, facts, notebook, runs, self.rtol)

    async def _check(
        self, gateway: Gateway, session: str, notebook: dict[str, Any], why: str | None
    ) -> EnvironmentCheck:
        now_there = recorded_lock(await gateway.provenance(session))
        check = compare_locks(recorded_lock(notebook), now_there)
        try:
            refuse_other_environment(check, anyway=self.anyway, why=why)
        except EnvironmentDiffers as error:
            raise UsageError(error.message) from error
        return check

    def _tell_missing(self, path: Path, report: NotebookReport) -> None:
        """Say how the files that cells may read get into a replay of a notebook that is not in a bundle."""
        missing = [shlex.quote(file.path) for file in report.files if file.reason == GONE]
        if not missing or zipfile.is_zipfile(path):
            return
        folder = shlex.quote(str(path.absolute().parent))
        told = f"missing beside {path.name}: {', '.join(missing)}. Copy what is missing to {folder}"
        if report.session:
            bundle = str(path.with_suffix(".zip"))
            make = self.pasted("export", report.session, "-o", bundle)
            told += f", or replay a bundle, which has the files of a running session: {make}"
            told += f" && {self.pasted('replay', bundle)}"
        sys.stderr.write(f"{printed_line(told)}\n")

    def _print_report(self, report: NotebookReport, output: Path | None) -> None:
        for file in report.files:
            self.print(printed(f"file {file.path}: {'restored' if file.restored else file.reason}"))
        for cell in report.cells:
            reasons = [told for told in (cell.reason, cell.difference) if told]
            remark = " ".join(reasons) or ", ".join(cell.normalised or ())
            origin = f" (of {cell.inherited})" if cell.inherited else ""
            line = f"{_MARKS[cell.verdict]} cell {cell.cell}{origin}" + (f": {remark}" if remark else "")
            self.print(printed(line))
            for difference in cell.differences or ():
                if difference.diff:
                    self.print(printed("    " + difference.diff.replace("\n", "\n    ")))
        self.print(summary(report))
        if output is not None:
            self.print(f"report: {output}")


def exit_code(report: NotebookReport) -> int:
    """Return the exit code; it goes by the counts, as an older verdict of no cell is ``equal``."""
    if report.different:
        return DIFFERS
    return UNJUDGED if report.unjudged or not compared(report) else SAME


def summary(report: NotebookReport) -> str:
    """Return the counts of a report in a line, without the cells that a branch inherited."""
    inherited = sum(1 for cell in report.cells if cell.inherited)
    apart = f" ({inherited} inherited, not counted)" if inherited else ""
    return (
        f"{report.same} the same{apart}, {report.different} different,"
        f" {report.unjudged} not to be judged, {report.skipped} not compared;"
        f" environment {report.environment.agreement}"
    )


def _write(path: Path, content: bytes) -> None:
    try:
        path.write_bytes(content)
    except OSError as error:
        raise InvalidInput(f"{path} can't be written: {in_brief(error)}") from error


def _kernel(notebook: dict[str, Any]) -> str | None:
    with contextlib.suppress(KeyError, TypeError):
        return str(notebook["metadata"]["kernelspec"]["name"])
    return None


async def _same_environment(gateway: Gateway, notebook: dict[str, Any]) -> str | None:
    """Return the name of the environment that has the recorded digest; None if there is none of it."""
    recorded = recorded_lock(notebook)
    if recorded is None or recorded.named is None:
        return None
    named, found = recorded.named, await gateway.environments()
    same = [each.name for each in found if each.digest == named.digest]
    return named.name if named.name in same else next(iter(same), None)


async def _restore(gateway: Gateway, session: str, source: Source, file: InputFile) -> RestoredFile:
    found = await asyncio.to_thread(recorded_bytes, source, file)
    if isinstance(found, str):
        return restored_file(file.path, found)
    try:
        await gateway.session(session).files.put(file.path, found)
    except GatewayError as error:
        if not 400 <= error.status < 500:
            raise
        return restored_file(file.path, error.detail)
    return restored_file(file.path)


async def _install(gateway: Gateway, session: str, packages: list[RecordedPackage]) -> str | None:
    """Install the recorded session's packages; returns why that failed, if it did."""
    if not packages:
        return None
    install, constraints = pins(packages)
    try:
        await gateway.packages(session, install=install, constraints=constraints)
    except GatewayError as error:
        if error.status == 0:
            raise
        return error.detail
    return None


async def _run(
    gateway: Gateway, session: str, longest: float, displays: Displays, cell: RecordedCell
) -> NewRun:
    if cell.seeds:
        await gateway.execute(session, seeding(cell.seeds), silent=True)
    begun = now()
    asked = False
    area = OutputArea()
    # The notebook may be from a gateway that lets cells run longer than this one does.
    timeout = min(cell.timeout, longest)

    def show(event: Event) -> None:
        nonlocal asked
        if event.type == "input_request":
            asked = True
        area.apply(event.type, msgspec.to_builtins(event))

    result = await gateway.execute(session, cell.source, timeout=timeout, stdin=[], on_event=show)
    # By the gateway's clock if possible, which is closer to the kernel's than ours.
    started = result.started_at or begun
    ended = result.finished_at or now()
    places, changes = displays.end_cell(area)
    return NewRun(result.status, result.outputs, started, ended, asked, places, changes)


async def _keep(runs: list[NewRun | None], _cell: RecordedCell, run: NewRun | None) -> None:
    runs.append(run)
