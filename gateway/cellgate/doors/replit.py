"""The wire of Replit's code execution (the package replit-code-exec 0.0.1): a script in, a text out.

Its client reads the text and passes over the status. Each request has a fresh kernel, and the files that it
brings.
"""

from __future__ import annotations

from cellgate.doors.base import Asked, DoorHandler, Script, printed
from cellgate.http.operation import requires
from cellgate.principals.principal import Permission


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
        """Its output as a text."""
        self.check()
        body = await self.body(ReplitBody)
        files = {name: text.encode() for name, text in body.files.items()}
        result = (await self.run_once(Script(body.code, files=files))).result
        if not self.disconnected:
            # Without a charset its client would read it as Latin-1.
            self.set_header("Content-Type", "text/plain; charset=utf-8")
            self.finish(result.text if body.interpreter_mode else printed(result))


ROUTES = (("/replit/?", ReplitHandler),)
