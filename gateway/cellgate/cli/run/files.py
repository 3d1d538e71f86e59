"""``cellgate files``: a session's files from the shell: put, get, ls, rm.

Transfers are streamed; large ones show their progress on a terminal. The gateway validates the paths in a
session.
"""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType
from typing import Any

from traitlets import Unicode

from cellgate.cli.actions import check_options, choose_action, forms_of
from cellgate.cli.base import UsageError, expanded
from cellgate.cli.run.owner import OwnerOption
from cellgate.cli.run.transfer import target_of, transfer
from cellgate.cli.terminal.escaping import printed_line
from cellgate.client import Files
from cellgate_kernels.base.errors import InvalidInput, in_brief, near_file

_ACTIONS = {"put": "SESSION FILE [PATH]", "get": "SESSION PATH [FILE]", "ls": "SESSION", "rm": "SESSION PATH"}


class FilesApp(OwnerOption):
    """``cellgate files``."""

    name = "cellgate-files"
    usage = "put|get|ls|rm SESSION ... [options]"
    forms = forms_of(_ACTIONS)
    description = """
        Copies files into a session and out of it, lists and removes them. A PATH is relative to the session's
        folder; without a name to write to, the file keeps its own.

        put replaces an existing file. get writes a whole file or none, and replaces one only if you name it.
        For FILE get takes a folder, too, and PATH of put may end with a slash: the file keeps its name there.
    """
    examples = """
        cellgate files put my-session data.csv
        cellgate files put my-session data.csv raw/2026.csv
        cellgate files ls my-session
        cellgate files get my-session figure.png
        cellgate files get my-session figure.png -o plot.png
        cellgate files rm my-session raw/2026.csv
    """

    carried = MappingProxyType(
        dict.fromkeys(
            ("to", "as", "path", "dest"), "PATH is the last word: cellgate files put SESSION FILE [PATH]"
        )
    )
    options_of_some = MappingProxyType({"output": "get"})

    output = Unicode(help="With get: the FILE to write, or to replace.").tag(config=True, metavar="FILE")

    aliases: Any = {("o", "output"): "FilesApp.output", **OwnerOption.aliases}  # noqa: RUF012

    async def run_command(self) -> int:
        action, words = choose_action("cellgate files", self.usage, _ACTIONS, self.extra_args)
        check_options(self, action)
        if "output" in self.cli_config.get("FilesApp", {}) and len(words) > 2:
            raise UsageError("--output is the FILE of get, which is given once")
        if action == "get" and len(words) == 2 and self.output:
            words.append(self.output)
        files = self.gateway().session(words[0]).files
        match action:
            case "put":
                await self._put(files, *words[1:])
            case "get":
                await self._get(files, *words[1:])
            case "rm":
                await files.remove(words[1])
            case _:
                async for model in files.list():
                    self.print(
                        f"{model.size:>12}  {(model.modified or '')[:19]:19}  {printed_line(model.path)}"
                    )
        return 0

    async def _put(self, files: Files, name: str, path: str | None = None) -> None:
        source = expanded(name)
        try:
            with transfer(source.name) as tell:
                model = await files.put(_named(path or "", source.name), source, tell)
        except OSError as error:
            raise InvalidInput(f"{source} can't be read: {in_brief(error)}{near_file(source)}") from error
        self.print(f"{model.path}  {model.size} bytes  sha256 {model.sha256}")

    async def _get(self, files: Files, path: str, name: str | None = None) -> None:
        own = path.rpartition("/")[2]
        if name is None:
            target = _unused(Path(own))
        else:
            target = target_of(name)
            if target.is_dir():
                target = _unused(target / own)
        try:
            with transfer(target.name) as tell:
                await files.save(path, target, tell)
        except OSError as error:
            raise InvalidInput(f"{target} can't be written: {in_brief(error)}") from error
        self.print(str(target))


def _named(path: str, own: str) -> str:
    """Return a path in a session; one that is empty or ends with a slash gets the file's own name."""
    return path if path.rpartition("/")[2] else f"{path}{own}"


def _unused(path: Path) -> Path:
    if path.exists():
        raise UsageError(f"{path} exists; name a file to replace it")
    return path
