"""``cellgate export``: writes the record of a session as a notebook.

The gateway makes the notebook; this requests it over HTTP and saves it, whole or not at all.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from traitlets import Bool, Enum, Unicode

from cellgate.cli.base import UsageError, switches
from cellgate.cli.run.owner import OwnerOption
from cellgate.cli.run.transfer import target_of, transfer
from cellgate.client.calls import FORM_BY_EXTENSION
from cellgate_kernels.base.errors import InvalidInput, in_brief

if TYPE_CHECKING:
    from cellgate.wire.words import CellOrder

_EXTENSIONS = {"ipynb": ".ipynb", "html": ".html", "markdown": ".md", "script": ""}
"""A script's depends on the session's language, which the gateway knows."""
_BUNDLE = ".zip"
_FORMATS = {".ipynb": "ipynb", **FORM_BY_EXTENSION}
"""What a file with such a name holds."""


class ExportApp(OwnerOption):
    """``cellgate export``."""

    name = "cellgate-export"
    usage = "SESSION [options]"
    description = """
        Writes a session's record as a notebook (.ipynb): all cells that ran in it, whichever client sent
        them, with their outputs. The session may be running, or have ended long ago.

        What is written is what the name of FILE says: a notebook (.ipynb), a page (.html), Markdown (.md), a
        script (.py, .sh or .ts, as the session's language has it), or a bundle (.zip).
    """
    examples = """
        cellgate export my-session -o my-session.ipynb
        cellgate export my-session --no-outputs -o code.ipynb
        cellgate export my-session -o report.html
        cellgate export my-session --order page --file report.ipynb
        cellgate export my-session --bundle
    """

    carried = MappingProxyType(dict.fromkeys(("f", "format"), "did you mean --to?"))

    output = Unicode(
        help="The file to write, replaced if it exists; default: SESSION with an extension, never replaced."
    ).tag(config=True, metavar="FILE")
    to = Enum(
        tuple(_EXTENSIONS),
        None,
        allow_none=True,
        help="What to write: ipynb, html, markdown or script; a page runs no scripts. Default: what the name "
        "of FILE says, ipynb for one without an extension.",
    ).tag(config=True, metavar="FORMAT")
    bundle = Bool(
        False, help="Write a zip file with the notebook, its files, its packages' versions and the record."
    ).tag(config=True)
    no_outputs = Bool(False, help="Leave the outputs out.").tag(config=True)
    no_inherited = Bool(False, help="Of a branch, leave out the cells before it began.").tag(config=True)
    no_undone = Bool(False, help="Leave out the cells that a rollback undid.").tag(config=True)

    order = Enum(
        ("record", "page"),
        "record",
        help="The order of the cells: that in which they ran, or that of the page that --file names, whose"
        " texts the export has, too. Outputs are the record's in any case.",
    ).tag(config=True, metavar="ORDER")
    file = Unicode(help="A notebook in the session's workspace, for --order page.").tag(
        config=True, metavar="PATH", not_empty=True
    )

    aliases: Any = {  # noqa: RUF012
        ("o", "output"): "ExportApp.output",
        "order": "ExportApp.order",
        "file": "ExportApp.file",
        "to": "ExportApp.to",
        **OwnerOption.aliases,
    }
    flags = switches(
        "ExportApp", bundle=bundle, no_outputs=no_outputs, no_inherited=no_inherited, no_undone=no_undone
    )

    async def run_command(self) -> int:
        (session,) = self.arguments("SESSION")
        self._check_bundle()
        if (self.order == "page") != bool(self.file):
            raise UsageError("--order page and --file go together: the notebook in the workspace is the page")
        path = self._path(session)
        try:
            path = await self._download(session, path)
        except OSError as error:
            raise InvalidInput(f"{path} can't be written: {in_brief(error)}") from error
        self.print(str(path))
        return 0

    def _check_bundle(self) -> None:
        """Refuse options that a bundle can't have. Raises UsageError."""
        if not self._is_bundle:
            return
        if self.no_outputs:
            raise UsageError("a bundle always has the outputs; leave out --no-outputs")
        if self.no_inherited:
            raise UsageError("a bundle always has what its session inherited; leave out --no-inherited")
        if self.no_undone:
            raise UsageError("a bundle always has the cells that were undone; leave out --no-undone")
        if self.order != "record" or self.file:
            raise UsageError(
                "a bundle has its cells in the order in which they ran; leave out --order, --file"
            )
        if self.to:
            raise UsageError("a bundle has the notebook as .ipynb; leave out --bundle or --to")
        if self._extension in _FORMATS:
            raise UsageError(
                f"--output {self.output}: a bundle's name ends in {_BUNDLE}; or leave out --bundle"
            )

    async def _download(self, session: str, path: Path) -> Path:
        bundle = self._is_bundle
        form = None if bundle or self._format == "ipynb" else self._format
        making = None
        if bundle:
            making = "making the bundle"
        elif form is not None:
            making = f"converting to {form}"
        with transfer(path.name, making) as progress:
            if bundle:
                await self.gateway().bundle(session, path, progress=progress)
                return path
            return await self.gateway().notebook(
                session,
                path if self.output or form != "script" else partial(_new_script, path),
                outputs=not self.no_outputs,
                inherited=not self.no_inherited,
                undone=not self.no_undone,
                order=cast("CellOrder", self.order),
                file=self.file or None,
                form=form,
                progress=progress,
            )

    @property
    def _extension(self) -> str:
        return Path(self.output).suffix.lower()

    @property
    def _is_bundle(self) -> bool:
        return self.bundle or (not self.to and self._extension == _BUNDLE)

    @property
    def _format(self) -> str:
        """The format of the file, by `--to` or the file's name. Raises UsageError for an unknown name."""
        if self.to:
            return str(self.to)
        if self._extension and self._extension not in _FORMATS:
            raise UsageError(
                f"--output {self.output}: a notebook's name ends in .ipynb, a page's in .html, Markdown's"
                f" in .md, a script's in .py, a bundle's in {_BUNDLE}; else --to says what to write"
            )
        return _FORMATS.get(self._extension, "ipynb")

    def _path(self, session: str) -> Path:
        extension = _BUNDLE if self._is_bundle else _EXTENSIONS[self._format]
        if self.output:
            return target_of(self.output)
        path = Path(f"{session.replace('/', '-')}{extension}")
        return _new(path) if extension else path


def _new(path: Path) -> Path:
    if path.exists():
        raise UsageError(f"{path} exists; name a file with -o to replace it")
    return path


def _new_script(path: Path, told: str) -> Path:
    """Return the file of a script without a name from the user; `told` is the gateway's name for it."""
    return _new(path.with_name(path.name + (Path(told).suffix or ".txt")))
