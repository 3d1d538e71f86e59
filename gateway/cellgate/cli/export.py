"""``cellgate export``: writes the record of a session as a notebook.

The gateway makes the notebook; this requests it over HTTP and saves it, whole or not at all.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from traitlets import Bool, Enum, Unicode

from cellgate.cli.base import CommandApp, UsageError, expanded
from cellgate.cli.transfer import transfer
from cellgate_kernels.errors import InvalidInput, in_words

_EXTENSIONS = {"ipynb": ".ipynb", "html": ".html", "markdown": ".md", "script": ".py"}


class ExportApp(CommandApp):
    """``cellgate export``."""

    name = "cellgate-export"
    usage = "SESSION [options]"
    description = """
        Writes a session's record as a notebook (.ipynb): all cells that ran in it, whichever client sent
        them, with their outputs. The session may be running, or have ended long ago.
    """
    examples = """
        cellgate export my-session -o my-session.ipynb
        cellgate export my-session --no-outputs -o code.ipynb
        cellgate export my-session -o report.html
        cellgate export my-session --bundle
    """

    output = Unicode(
        help="The file to write, replaced if it exists; default: SESSION with an extension, never replaced."
    ).tag(config=True, metavar="FILE")
    to = Enum(
        tuple(_EXTENSIONS),
        None,
        allow_none=True,
        help="What to write: ipynb, html, markdown or script; a page runs no scripts. Default: what the "
        "extension of FILE says, otherwise ipynb.",
    ).tag(config=True, metavar="FORMAT")
    bundle = Bool(
        False, help="Write a zip file with the notebook, its files, its packages' versions and the record."
    ).tag(config=True)
    no_outputs = Bool(False, help="Leave the outputs out.").tag(config=True)
    no_inherited = Bool(False, help="Of a branch, leave out the cells before it was branched.").tag(
        config=True
    )
    no_undone = Bool(False, help="Leave out the cells that a rollback undid.").tag(config=True)

    aliases: Any = {  # noqa: RUF012
        ("o", "output"): "ExportApp.output",
        "to": "ExportApp.to",
        **CommandApp.aliases,
    }
    flags = {  # noqa: RUF012
        "bundle": (
            {"ExportApp": {"bundle": True}},
            "Write a zip file with the notebook, its files, its packages' versions and the record.",
        ),
        "no-outputs": ({"ExportApp": {"no_outputs": True}}, "Leave the outputs out."),
        "no-inherited": (
            {"ExportApp": {"no_inherited": True}},
            "Of a branch, leave out the cells before it was branched.",
        ),
        "no-undone": ({"ExportApp": {"no_undone": True}}, "Leave out the cells that a rollback undid."),
    }

    async def run_command(self) -> int:
        """Streams the notebook or the bundle to its file."""
        (session,) = self.arguments("SESSION")
        if self.bundle and self.no_outputs:
            raise UsageError("a bundle always has the outputs; leave out --no-outputs")
        if self.bundle and self.no_inherited:
            raise UsageError("a bundle always has what its session inherited; leave out --no-inherited")
        if self.bundle and self.no_undone:
            raise UsageError("a bundle always has the cells that were undone; leave out --no-undone")
        path = self._path(session)
        try:
            await self._download(session, path)
        except OSError as error:
            raise InvalidInput(f"{path} can't be written: {in_words(error, file=False)}") from error
        self.print(str(path))
        return 0

    async def _download(self, session: str, path: Path) -> None:
        form = None if self._format == "ipynb" else self._format
        making = None
        if self.bundle:
            making = "making the bundle"
        elif form is not None:
            making = f"converting to {form}"
        with transfer(path.name, making) as progress:
            if self.bundle:
                await self.gateway().bundle(session, path, progress=progress)
            else:
                await self.gateway().notebook(
                    session,
                    path,
                    outputs=not self.no_outputs,
                    inherited=not self.no_inherited,
                    undone=not self.no_undone,
                    form=form,
                    progress=progress,
                )

    @property
    def _format(self) -> str:
        """What was asked for: a page that is no page would be of no use to anybody."""
        by_extension = {extension: name for name, extension in _EXTENSIONS.items()}
        return str(self.to or by_extension.get(Path(self.output).suffix.lower(), "ipynb"))

    def _path(self, session: str) -> Path:
        if self.output:
            return expanded(self.output)
        extension = ".zip" if self.bundle else _EXTENSIONS[self._format]
        path = Path(f"{session.replace('/', '-')}{extension}")
        if path.exists():
            raise UsageError(f"{path} exists; name a file with -o to replace it")
        return path
