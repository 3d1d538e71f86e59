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

import msgspec
from traitlets import Bool, Unicode

from gateway.client import Gateway
from gateway.commands.base import CommandApp, UsageError
from gateway.errors import EnvironmentDiffers
from gateway.models import now
from gateway.replay.cells import RecordedCell, recorded_cells
from gateway.replay.environment import PROBE, EnvironmentCheck, Lock, compare_locks, lock_of, probed
from gateway.replay.report import (
    FILES_NOT_RESTORED,
    Comparison,
    NewRun,
    build_report,
    environment_report,
    write,
)
from gateway.replay.run import refuse_other_environment, run_cells
from kernels.errors import InvalidInput

_MARKS = {"equal": "=", "normalised": "~", "different": "!", "skipped": "-"}


class ReplayApp(CommandApp):
    """``cellgate replay``."""

    name = "cellgate-replay"
    usage = "FILE.ipynb [options]"
    description = """
        Runs all code cells of a notebook in a fresh kernel of the same kernelspec and compares what they
        give with what the notebook holds, cell by cell. Memory addresses, times and random names are left
        out of account, pictures are compared by their pixels.

        Leaves with 0 when all cells give the same, and with 1 when one does not. Refuses, with 2, when the
        notebook tells of other package versions than the kernel has.
    """
    examples = """
        cellgate replay analysis.ipynb
        cellgate replay analysis.ipynb -o report.html
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
        notebook = await asyncio.to_thread(_read, path)
        cells = recorded_cells(notebook)
        kernel = self.kernel or _kernel(notebook)
        gateway = self.gateway()
        recorded = lock_of(notebook.get("metadata", {}).get("cellgate", {}).get("environment"))
        check = await _check(gateway, recorded, kernel)
        try:
            refuse_other_environment(check, anyway=self.anyway)
        except EnvironmentDiffers as error:
            raise UsageError(error.message) from error
        report = await self._replay(gateway, path, notebook, cells, kernel, check)
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

    async def _replay(
        self,
        gateway: Gateway,
        path: Path,
        notebook: dict[str, Any],
        cells: list[RecordedCell],
        kernel: str | None,
        check: EnvironmentCheck,
    ) -> dict[str, Any]:
        session, begun = f"replay-{uuid.uuid4().hex[:12]}", now()
        model = await gateway.create_session(session, kernel=kernel)
        try:
            runs = await run_cells(cells, partial(_run, gateway, session), _ignore)
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
            "files": FILES_NOT_RESTORED,
        }
        return await asyncio.to_thread(build_report, Comparison(notebook, runs, facts))

    def _print_report(self, report: dict[str, Any], output: Path | None) -> None:
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


def _read(path: Path) -> dict[str, Any]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except OSError as error:
        raise InvalidInput(f"{path} can't be read: {error.strerror or error}") from error
    except msgspec.MsgspecError as error:
        raise InvalidInput(f"{path} is no notebook: {error}") from error


def _write(path: Path, content: bytes) -> None:
    try:
        path.write_bytes(content)
    except OSError as error:
        raise InvalidInput(f"{path} can't be written: {error.strerror or error}") from error


def _kernel(notebook: dict[str, Any]) -> str | None:
    with contextlib.suppress(KeyError, TypeError):
        return str(notebook["metadata"]["kernelspec"]["name"])
    return None


async def _check(gateway: Gateway, recorded: Lock | None, kernel: str | None) -> EnvironmentCheck:
    if recorded is None:
        return compare_locks(None, None)
    return compare_locks(recorded, probed((await gateway.execute_once(PROBE, kernel=kernel)).stdout))


async def _run(gateway: Gateway, session: str, cell: RecordedCell) -> NewRun:
    at = now()
    result = await gateway.execute(session, cell.source, timeout=cell.timeout, stdin=[])
    return NewRun(result.status, result.outputs, at)


async def _ignore(_cell: RecordedCell, _run: NewRun | None) -> None:
    """The report says all."""
