"""``cellgate replay``: runs the cells of a notebook again through the gateway, and says what differs.

The cells run in a session of their own, whose record stays; the comparison is ``gateway.replay``'s and is
made here, so that a notebook from anywhere never reaches the gateway as a file.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from functools import partial
from pathlib import Path
from typing import Any

from traitlets import Bool, Unicode

from gateway.client import Gateway, GatewayError
from gateway.commands.base import CommandApp, UsageError
from gateway.errors import EnvironmentDiffers
from gateway.models import now
from gateway.replay.cells import RecordedCell, recorded_cells
from gateway.replay.environment import EnvironmentCheck, compare_locks, recorded_lock
from gateway.replay.files import InputFile, Restored, files_report, input_files
from gateway.replay.packages import RecordedPackage, installed_packages, pins
from gateway.replay.report import (
    Comparison,
    NewRun,
    build_report,
    environment_report,
    write,
)
from gateway.replay.run import refuse_other_environment, run_cells
from gateway.replay.source import Source, open_source, recorded_bytes
from kernels.errors import InvalidInput

_MARKS = {"equal": "=", "normalised": "~", "different": "!", "skipped": "-"}


class ReplayApp(CommandApp):
    """``cellgate replay``."""

    name = "cellgate-replay"
    usage = "FILE.ipynb|BUNDLE.zip [options]"
    description = """
        Runs all code cells of a notebook in a fresh kernel of the same kernelspec and compares what they
        give with what the notebook holds, cell by cell. Memory addresses, times and random names are left
        out of account, pictures are compared by their pixels. Files that the recorded session was given
        are taken from the bundle, or from beside the notebook, where they are as they were.

        Leaves with 0 when all cells give the same, and with 1 when one does not. Refuses, with 2, when the
        notebook tells of other package versions than the kernel has.
    """
    examples = """
        cellgate replay analysis.ipynb
        cellgate replay analysis.ipynb -o report.html
        cellgate replay analysis.zip
        cellgate replay analysis.ipynb --anyway -o report.json
    """

    output = Unicode(help="Where to write the report: a page (.html) or JSON (.json).").tag(
        config=True, metavar="FILE"
    )
    kernel = Unicode(help="The kernelspec; default: the notebook's own.").tag(config=True, metavar="NAME")
    anyway = Bool(False, help="Replay although the environment is another one.").tag(config=True)

    aliases: Any = {  # noqa: RUF012
        ("o", "output"): "ReplayApp.output",
        "kernel": "ReplayApp.kernel",
        **CommandApp.aliases,
    }
    flags = {  # noqa: RUF012
        "anyway": ({"ReplayApp": {"anyway": True}}, "Replay although the environment is another one."),
    }

    async def run_command(self) -> int:
        """Replays the notebook; returns 1 when it gives something else."""
        path, output = self._paths()
        notebook, source = await asyncio.to_thread(open_source, path)
        report = await self._replay(path, notebook, source)
        if output is not None:
            await asyncio.to_thread(_write, output, write(report, output.suffix.removeprefix(".")))
        self._print_report(report, output)
        return 1 if report["different"] else 0

    def _paths(self) -> tuple[Path, Path | None]:
        (name,) = self.arguments("FILE")
        if not self.output:
            return Path(name), None
        output = Path(self.output).expanduser()
        if output.suffix not in {".html", ".json"}:
            raise UsageError(f"--output {self.output}: a report's name ends in .html or .json")
        if not output.parent.is_dir():
            raise UsageError(f"--output {self.output}: there is no folder {output.parent}")
        return Path(name), output

    async def _replay(self, path: Path, notebook: dict[str, Any], source: Source) -> dict[str, Any]:
        cells, inputs = recorded_cells(notebook), input_files(notebook)
        gateway, session, begun = self.gateway(), f"replay-{uuid.uuid4().hex[:12]}", now()
        model = await gateway.create_session(session, kernel=self.kernel or _kernel(notebook))
        try:
            why = await _install(gateway, session, installed_packages(notebook))
            check = await self._check(gateway, session, notebook, why)
            restored = [await _restore(gateway, session, source, file) for file in inputs]
            runs: list[NewRun | None] = []
            await run_cells(cells, partial(_run, gateway, session), partial(_keep, runs))
        finally:
            await gateway.delete_session(session)
        facts = {
            "file": path.name,
            "session": notebook.get("metadata", {}).get("cellgate", {}).get("session"),
            "replay_session": session,
            "kernel": model.kernel,
            "isolation": model.isolation,
            "replayed_at": begun,
            "environment": environment_report(check),
            "files": files_report(restored),
        }
        return await asyncio.to_thread(build_report, Comparison(notebook, runs, facts))

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

    def _print_report(self, report: dict[str, Any], output: Path | None) -> None:
        for file in report["files"]:
            self.print(f"file {file['path']}: {file.get('reason', 'restored')}")
        for cell in report["cells"]:
            said = cell.get("difference") or cell.get("reason") or ", ".join(cell.get("normalised", ()))
            self.print(f"{_MARKS[cell['verdict']]} cell {cell['cell']}" + (f": {said}" if said else ""))
            for difference in cell.get("differences", ()):
                if "diff" in difference:
                    self.print("    " + difference["diff"].replace("\n", "\n    "))
        agreement = report["environment"]["agreement"]
        self.print(
            f"{report['same']} the same, {report['different']} different, {report['skipped']} not compared;"
            f" environment {agreement}"
        )
        if output is not None:
            self.print(f"report: {output}")


def _write(path: Path, content: bytes) -> None:
    try:
        path.write_bytes(content)
    except OSError as error:
        raise InvalidInput(f"{path} can't be written: {error.strerror or error}") from error


def _kernel(notebook: dict[str, Any]) -> str | None:
    with contextlib.suppress(KeyError, TypeError):
        return str(notebook["metadata"]["kernelspec"]["name"])
    return None


async def _restore(gateway: Gateway, session: str, source: Source, file: InputFile) -> Restored:
    found = await asyncio.to_thread(recorded_bytes, source, file)
    if isinstance(found, str):
        return Restored(file.path, found)
    try:
        await gateway.session(session).files.put(file.path, found)
    except GatewayError as error:
        if not 400 <= error.status < 500:
            raise
        return Restored(file.path, error.detail)
    return Restored(file.path)


async def _install(gateway: Gateway, session: str, packages: list[RecordedPackage]) -> str | None:
    """Install what the recorded session had; why that could not be done, if so."""
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


async def _run(gateway: Gateway, session: str, cell: RecordedCell) -> NewRun:
    at = now()
    result = await gateway.execute(session, cell.source, timeout=cell.timeout, stdin=[])
    return NewRun(result.status, result.outputs, at)


async def _keep(runs: list[NewRun | None], _cell: RecordedCell, run: NewRun | None) -> None:
    runs.append(run)
