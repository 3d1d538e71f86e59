"""``cellgate run``: runs a file's cells through the gateway, shows their outputs, writes the notebook.

It is a client only: the cells run in a session like any other, recorded by the gateway. ``notebook_files``
reads the file and makes the notebook, ``cell_run`` runs the cells, ``live_screen`` shows them.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import nbformat
from traitlets import Bool, List, Unicode

from cellgate.cli.base import UsageError, expanded, switches
from cellgate.cli.run.cell_options import SessionOptions
from cellgate.cli.run.cell_run import Run, RunOptions
from cellgate.cli.run.cells import CellFile
from cellgate.cli.run.notebook_files import SUFFIXES, read_cells, weave
from cellgate.cli.run.notebook_kernel import Choice, choose_kernel, is_python
from cellgate.cli.run.pages import converted
from cellgate.cli.run.run_files import (
    Brought,
    FilesTarget,
    Sent,
    bring_back,
    changed,
    files_to_send,
    forgotten,
    listed,
    send,
    sent_from,
)
from cellgate.cli.run.run_report import CellReport, RunReport
from cellgate.cli.run.script import asks, preparing, wants_a_person
from cellgate.cli.terminal.escaping import printed_line
from cellgate.cli.terminal.live_screen import make_screen
from cellgate.cli.terminal.screen import Screen, Silent, note_wait
from cellgate.cli.terminal.tables import as_json
from cellgate.client import ErrorInfo, FileModel, Files, Gateway
from cellgate.wire.words import language_name
from cellgate_kernels.base.errors import InvalidInput, in_brief
from cellgate_kernels.specs.languages import parse_language

MOST_NAMED = 20
"""Files that are named one by one at the end."""
MOST_SHOWN = 60
"""Characters of code that are repeated."""
_CODE = re.compile(r"[\s()=]")
"""What is in pieces of code, and hardly in names of files."""


def session_name(path: Path) -> str:
    """Return a new session's name, ``run-<stem>-<8 hex digits>``, of characters allowed in a session key."""
    stem = re.sub(r"[^A-Za-z0-9._~-]+", "-", path.stem)[:80].strip("-")
    return "-".join(filter(None, ("run", stem, secrets.token_hex(4))))


def _is_code(name: str) -> bool:
    """Return whether a word that should be a file is code: it names no file, and none of a kind that runs."""
    if not _CODE.search(name) or Path(name).suffix.lower() in SUFFIXES:
        return False
    # Path's own exists raises for what is too long to be a name.
    return not os.path.exists(name)  # noqa: PTH110


class RunApp(SessionOptions):
    """``cellgate run``."""

    name = "cellgate-run"
    usage = "FILE [options] [-- ARGUMENT...]"
    description = """
        Runs the cells of a notebook (.ipynb), of a Python script (.py, divided by "# %%" lines) or of a
        Markdown file (.md, its blocks in the session's language) one after another, and shows their outputs
        as they come. It stops at the first cell that fails. It respects the tags raises-exception and
        skip-execution of a notebook's cells, and the word no-run after the language of a block. A notebook
        runs in a kernel of its own language, which its metadata names, unless --kernel or --language is
        given. In a script, IPython's magics may be comments, as Jupytext and VS Code write them.

        A Python script gets what stands behind -- as its sys.argv, and leaves by sys.exit() as under python:
        with 0 all is well, with another number that is the exit code of this command.

        --with and --files send data first: what lies beside FILE or below has the same place in the session,
        anything else its own name. Then files that the cells make or change are brought back beside FILE, or
        to --results DIR. Beside FILE only files are replaced that were sent, or that an earlier run made, in
        DIR any; none that changed here since. What can't be brought back is named, and its session stays.
        Hidden files stay where they are, unless --with names them.

        Exit code: 0 all cells ended well, 1 one failed or a file was not brought back, 2 wrong usage or no
        gateway, 130 after Ctrl-C; that of a script which gives one to sys.exit().
    """
    examples = """
        cellgate run analysis.ipynb -o analysis-done.ipynb
        cellgate run analysis.ipynb -o report.html
                                                  a page with its texts and outputs
        cellgate run analysis.py --with data.csv  sends its data, and brings back what it makes
        cellgate run analysis.py --files data --results results
        cellgate run report.py -- --year 2026     its sys.argv is ["report.py", "--year", "2026"]
        cellgate run script.py --session work     keeps the session: variables stay for the next run
        cellgate run README.md --timeout 30       check that the examples of a README work
        cellgate run guide.md --all-languages     its blocks of bash and JavaScript too
        cellgate run analysis.py --json           the results of all cells, for programs
    """

    language = Unicode(help="The language of a new session, and of a Markdown file's blocks.").tag(
        config=True, metavar="NAME"
    )
    output = Unicode(
        help="Where to write the notebook with the outputs, even if a cell failed: a name in .ipynb, or in "
        ".html for a page, which runs no scripts."
    ).tag(config=True, metavar="FILE")
    singles = List(Unicode(), help="A file that the cells need.").tag(config=True, metavar="FILE")
    folders = List(Unicode(), help="A folder with files that the cells need.").tag(config=True, metavar="DIR")
    results = Unicode(
        help="Where to bring the files that the cells make or change; default: beside FILE if --with or "
        "--files is given, otherwise nowhere."
    ).tag(config=True, metavar="DIR")
    json = Bool(False, help="Print the results as JSON at the run's end, and nothing else.").tag(config=True)
    all_languages = Bool(
        False, help="Run a Markdown file's blocks in other languages too, as cells of the same kernel."
    ).tag(config=True)
    keep_going = Bool(False, help="Run the remaining cells after one has failed.").tag(config=True)

    carried = MappingProxyType(
        dict.fromkeys(("f", "file"), "FILE stands alone: cellgate run FILE")
        | dict.fromkeys(("c", "code"), "code is for another command: cellgate exec CODE")
        | dict.fromkeys(
            ("to", "format"), "--output says what is written: a notebook (.ipynb) or a page (.html)"
        )
    )

    aliases: Any = {  # noqa: RUF012
        ("o", "output"): "RunApp.output",
        "with": "RunApp.singles",
        "files": "RunApp.folders",
        "results": "RunApp.results",
        "language": "RunApp.language",
        **SessionOptions.aliases,
    }
    flags = {  # noqa: RUF012
        **switches("RunApp", all_languages=all_languages, keep_going=keep_going, json=json),
        **SessionOptions.flags,
    }

    script_arguments: tuple[str, ...] = ()

    def initialize(self, argv: list[str] | None = None) -> None:
        """Read the words before ``--`` as every command does; the rest is the script's."""
        words = list(argv or ())
        if "--" in words:
            place = words.index("--")
            self.script_arguments = tuple(words[place + 1 :])
            words = words[:place]
        super().initialize(words)

    def hint_for_unknown_option(self, argv: Sequence[str]) -> str:
        scripts = [word for word in argv if word.endswith(".py") and not word.startswith("-")]
        return f"; put -- before what is for {scripts[0]} itself" if scripts else ""

    def told_of_others_option(self, option: str, argv: Sequence[str]) -> str:
        """Return a hint for an option behind the script: it is probably the script's."""
        before = argv[: argv.index(option)] if option in argv else argv
        if any(word.endswith(".py") for word in before):
            return ""
        return super().told_of_others_option(option, argv)

    async def run_command(self) -> int:
        path, output = self._paths()
        language = parse_language(self.language or "python")
        source = await asyncio.to_thread(read_cells, path, language, mixed=self.all_languages)
        total = sum(cell.runs for cell in source.cells)
        if not total:
            raise UsageError("; ".join((f"{path} has no code in {language} to run", *source.notices)))
        data = self._data(path)
        is_script = path.suffix.lower() == ".py" and language.kernel_language == "python"
        if self.script_arguments and not is_script:
            raise UsageError(f"{path} is no Python script: it can't be given arguments")
        gateway = self.gateway()
        session = self.session or session_name(path)
        choice = await self._choose_kernel(gateway, path, source)
        if choice.notice:
            source = replace(source, notices=(*source.notices, choice.notice))
        await self._make(gateway, session, choice)
        run = Run(gateway, session, source, RunOptions(self.timeout, self.keep_going, is_script=is_script))
        brought = Brought()
        cells: list[CellReport] = []
        with Silent() if self.json else self._screen(path, source) as screen:
            for notice in source.notices:
                screen.note(notice)
            try:
                if data is not None:
                    await data.send(gateway.session(session).files)
                if is_script and (self.script_arguments or any(asks(cell.source) for cell in source.cells)):
                    code = preparing(str(path), self.script_arguments, fresh=not self.session)
                    await run.prepare(code, screen)
                failed = await run.cells(screen)
                if failed and run.not_run and run.exit_code is None:
                    rest = "1 cell was" if run.not_run == 1 else f"{run.not_run} cells were"
                    screen.note(f"{rest} not run after the one that failed; --keep-going runs all")
                _advise(screen, run.error, path, () if data is None else data.sent)
                if self.json:
                    cells = await run.reports()
            finally:
                # After Ctrl-C too; a second Ctrl-C exits at once.
                brought = await self._conclude(run, screen, output, data)
        if self.json:
            notebook = None if output is None else printed_line(str(output))
            self.print(
                as_json(
                    RunReport(
                        file=printed_line(str(path)),
                        session=session,
                        status=next((cell.result.status for cell in cells if failed and cell.failed), "ok"),
                        cells=cells,
                        not_run=total - len(cells),
                        notebook=notebook,
                        brought_back=[printed_line(str(path)) for path in brought.written],
                        not_brought_back=brought.refused,
                        notices=list(source.notices),
                    )
                )
            )
        return run.exit_code or (1 if failed or brought.refused else 0)

    async def _make(self, gateway: Gateway, session: str, choice: Choice) -> None:
        """Create the session if it is missing."""
        await gateway.create_session(
            session,
            on_wait=None if self.json else note_wait,
            kernel=choice.kernel,
            language=choice.language,
            environment=self.kernel_environment or None,
            checkpoint=self.checkpoint,
        )

    def _screen(self, path: Path, source: CellFile) -> Screen:
        """Return where the run is shown. Cells of a notebook have their number in it, as in a replay."""
        places = [place for place, cell in enumerate(source.cells, 1) if cell.runs]
        named = places if path.suffix.lower() == ".ipynb" else ()
        return make_screen(len(places), self.pictures(path.stem), named)

    async def _choose_kernel(self, gateway: Gateway, path: Path, source: CellFile) -> Choice:
        """Return what to ask for: the user's choice, else what the notebook was written with."""
        if self.kernel or self.language or self.kernel_environment or is_python(source.written):
            return Choice(self.kernel or None, language_name(self.language))
        offered = (await gateway.info()).kernelspecs
        try:
            return choose_kernel(source.written, {name: spec.language for name, spec in offered.items()})
        except InvalidInput as error:
            raise UsageError(f"{path}: {error.message}") from error

    def _data(self, path: Path) -> Data | None:
        """Return the files to send and the folder for results; None without either. Raises UsageError."""
        if not (self.singles or self.folders or self.results):
            return None
        sent = files_to_send(path.parent, self.singles, self.folders)
        return Data(sent, expanded(self.results) if self.results else path.parent, bool(self.results))

    def _paths(self) -> tuple[Path, Path | None]:
        (name,) = self.arguments("FILE")
        if _is_code(name):
            whole = len(name) <= MOST_SHOWN
            told = name if whole else f"{name[:MOST_SHOWN]}..."
            code = self.pasted("exec", name) if whole else "cellgate exec CODE"
            raise UsageError(f"{told} is no file here; code is for another command: {code}")
        if not self.output:
            return Path(name), None
        output = expanded(self.output)
        if output.suffix.lower() not in {".ipynb", ".html"}:
            raise UsageError(f"--output {self.output}: a notebook's name ends in .ipynb, a page's in .html")
        if output.suffix.lower() == ".html":
            from cellgate.jobs.convert import missing  # noqa: PLC0415 - keeps other runs quick

            if absent := missing():
                raise UsageError(
                    f"--output {self.output}: pages need {', '.join(absent)}: pip install 'cellgate[html]'"
                )
        if not output.parent.is_dir():
            raise UsageError(f"--output {self.output}: there is no folder {output.parent}")
        return Path(name), output

    async def _conclude(self, run: Run, screen: Screen, output: Path | None, data: Data | None) -> Brought:
        """Write the results to keep, and end the session unless files have to stay in it."""
        brought = Brought()
        try:
            if output is not None:
                await _write(run, output)
                screen.note(f"written: {output}")
            if data is not None:
                brought = await data.bring_back(screen)
        finally:
            if brought.refused:
                screen.note(f"the session stays: {self.pasted('files', 'ls', run.session)}")
            elif not self.session:
                await run.gateway.delete_session(run.session)
            screen.note(f"the record stays: {self.pasted('export', run.session)}")
        return brought


async def _write(run: Run, output: Path) -> None:
    """Write the notebook, or a page of it: the file's cells with the outputs that the gateway recorded.

    The gateway's own exports have no Markdown cells: nobody has sent it those.
    """
    with tempfile.TemporaryDirectory(prefix="cellgate-") as folder:
        exported = Path(folder) / "exported.ipynb"
        await run.gateway.notebook(run.session, exported)
        await asyncio.to_thread(_weave, run, exported, output)


def _weave(run: Run, exported: Path, output: Path) -> None:
    reader: Any = nbformat  # untyped
    notebook = weave(run.source, reader.read(exported, as_version=4), run.executions)
    try:
        if output.suffix.lower() == ".html":
            output.write_bytes(converted(reader.writes(notebook).encode(), "html"))
        else:
            reader.write(notebook, output)
    except OSError as error:
        raise InvalidInput(f"{output} can't be written: {in_brief(error)}") from error


def _advise(screen: Screen, error: ErrorInfo | None, path: Path, sent: Sequence[Sent]) -> None:
    """Say what helps against this error of a cell, if anything is known to."""
    for hint in (forgotten(path.parent, error, sent), wants_a_person(error)):
        if hint is not None:
            screen.note(hint)


class Data:
    """The files that a run needs, and those that it makes.

    `folder` gets results; `replaces`: other files there than the sent ones may be replaced too.
    """

    def __init__(self, sent: list[Sent], folder: Path, replaces: bool) -> None:
        self.sent = sent
        self._folder = folder
        self._replaces = replaces
        self._hashes: dict[str, str] = {}
        self._before: dict[str, FileModel] = {}
        self._files: Files | None = None

    async def send(self, files: Files) -> None:
        """Send the files, and note those that are there before the first cell."""
        self._begun = time.time()
        self._hashes = await send(files, self.sent)
        self._before = await listed(files)
        self._files = files

    async def bring_back(self, screen: Screen) -> Brought:
        """Bring back new and changed files, and name them."""
        if self._files is None:  # sending has failed
            return Brought()
        models = changed(self._before, await listed(self._files), self._hashes)
        target = FilesTarget(
            self._folder, sent_from(self._folder, self.sent, self._hashes), self._replaces, self._begun
        )
        brought = await bring_back(self._files, models, target)
        for path in brought.written[:MOST_NAMED]:
            screen.note(f"brought back: {printed_line(str(self._folder / path))}")
        if len(brought.written) > MOST_NAMED:
            screen.note(f"brought back: {len(brought.written) - MOST_NAMED} more")
        for reason in brought.refused[:MOST_NAMED]:
            screen.note(f"not brought back: {reason}")
        if len(brought.refused) > MOST_NAMED:
            screen.note(f"not brought back: {len(brought.refused) - MOST_NAMED} more")
        return replace(brought, written=[str(self._folder / path) for path in brought.written])
