"""The wire of Replit's code execution (the package replit-code-exec 0.0.1): a script in, a text out.

Its client reads the text and passes over the status. Each request has a fresh kernel, and the files that it
brings.
"""

from __future__ import annotations

from collections.abc import Mapping

from cellgate.doors.base import Asked, DoorHandler, Script, printed
from cellgate.http.operation import requires
from cellgate.identity.principal import Permission
from cellgate.wire.answers import Result
from cellgate_kernels.codec.encoding import STEP


class ReplitBody(Asked, frozen=True):
    """A script to run. `interpreter_mode`: whether the values of expressions are told, too."""

    code: str
    files: dict[str, str] = {}  # noqa: RUF012 - of a struct, made anew for each
    interpreter_mode: bool = False


class ReplitHandler(DoorHandler):
    """Run a script."""

    door = "replit"

    @requires(Permission.RUN)
    async def post(self) -> None:
        """Run a script and answer its output as text."""
        body = await self.body(ReplitBody)
        files = await self.aside(len(self.raw_body()), _given, body.files)
        result = (await self.run_once(Script(body.code, files=files))).result
        if not self.disconnected:
            # Without a charset its client would read it as Latin-1.
            self.set_header("Content-Type", "text/plain; charset=utf-8")
            parts = await self.aside(len(result.text), _answer, result, values=body.interpreter_mode)
            await self.finish_parts(parts)


def _given(files: Mapping[str, str]) -> dict[str, bytes]:
    """Return the workspace's first files, by path."""
    return {name: text.encode() for name, text in files.items()}


def _answer(result: Result, *, values: bool) -> list[bytes]:
    """Return the text, in parts. `values`: with those of expressions."""
    text = result.text if values else printed(result)
    return [text[at : at + STEP].encode() for at in range(0, len(text), STEP)]


ROUTES = (("/replit/?", ReplitHandler),)
