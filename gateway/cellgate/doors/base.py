"""What all doors share: where foreign clients put their token, and how a cell runs in a session of its own.

Bodies are read whatever type a client says they have, and unknown fields are passed over, as the systems do
whose clients these are. Refusals keep their statuses; a door may give them its own form.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec

from cellgate.errors import Forbidden
from cellgate.execution.request import check_execute
from cellgate.execution.results import ResultBuilder
from cellgate.files.tree import parse_path
from cellgate.http.base import BaseHandler
from cellgate.http.v1.executions import ExecutionAnswers, permitted
from cellgate.principals.principal import Ask, Login
from cellgate.wire.answers import Result
from cellgate.wire.models import ExecuteBody, SessionBody


class Asked(msgspec.Struct, frozen=True):
    """The body of a foreign request. Fields that no door uses are passed over."""


class DoorHandler(ExecutionAnswers):
    """A handler of a door; `door` is its name."""

    door: ClassVar[str]

    def _authenticate(self) -> Login | Ask:
        """The login of the request's token; a browser's sign-in counts for our own page alone."""
        headers = self.request.headers
        given = headers.get("Authorization", "").strip()
        if given and " " not in given:
            given = f"Bearer {given}"
        elif not given and (key := headers.get("X-API-Key", "").strip()):
            given = f"Bearer {key}"
        return self.services.access.authenticate(given, self.get_query_argument("token", None))

    def _check_body(self) -> None:
        """Check the size; the type that foreign clients name is often none that fits."""
        length = self.request.headers.get("Content-Length", "0")
        if length.isdecimal() and int(length) > self.max_body:
            raise self._too_large()

    async def run_once(
        self,
        code: str,
        *,
        files: Mapping[str, bytes] | None = None,
        installs: bool = False,
    ) -> Result:
        """Run a cell in a session of its own, which is recorded, and return its result without ANSI codes.

        `files`: what the workspace has at first, by path. `installs`: get what the cell imports, if that is
        allowed here. The cell is interrupted when its client leaves. The errors are those of `/v1/execute`.
        """
        services, manager = self.services, self.services.manager
        gets = installs and services.installer is not None
        body = ExecuteBody(code=code, packages="temporary" if gets else None, on_disconnect="interrupt")
        request = check_execute(body, manager.ceilings(self.owner), interactive=False)
        request = permitted(services, self.login, request)
        if self.login.reach.exact:
            raise Forbidden("This token is for one session, and each request here is a session of its own")
        key = self.login.reach.new_key() if self.login.reach.prefix else None
        placed = [(parse_path(path), content) for path, content in (files or {}).items()]
        wanted = SessionBody(session=key, metadata={"door": self.door})
        session = await manager.open_one_shot(self.owner, wanted, record=True)
        try:
            for path, content in placed:
                await services.files.write(session, path, content)
            run = session.submit(request)
            self.interrupt_when_gone(session, run, body)
            await run.wait()
            row = session.row
            return await services.archive.result(row.principal, row.key, run.id, _result)
        finally:
            manager.end_later(session, "one_shot")


def _result(builder: ResultBuilder) -> Result:
    return builder.result(plain=True)


def printed(result: Result) -> str:
    """What a script of the cell's code would have left on a terminal: its output, and the traceback if any.

    Not the value of its last expression, nor what it displayed.
    """
    parts = [_text(output) for output in result.outputs if output["output_type"] in ("stream", "error")]
    if result.error is not None and not any(each["output_type"] == "error" for each in result.outputs):
        parts.append(f"{result.error.ename}: {result.error.evalue}\n")
    return "".join(parts)


def _text(output: Mapping[str, Any]) -> str:
    if output["output_type"] == "stream":
        return str(output["text"])
    return "\n".join(output["traceback"]) + "\n"


class HealthHandler(BaseHandler):
    """Whether the gateway is there, in a system's own words; for probes that have no token."""

    public = True
    answered: ClassVar[object]

    async def get(self) -> None:
        """Say so."""
        self.check()
        self.answer(self.answered)
