"""The wire of Dify's sandbox (dify-sandbox 0.2): the code and template nodes of a self-hosted Dify.

Each request is a script in a fresh kernel; Dify's own code prints its result as JSON, which comes back whole.
Dify fails a node for any `error` and for any status but 200, and asks no more after a minute.
"""

from __future__ import annotations

from typing import ClassVar

from cellgate.doors.base import Asked, DoorHandler, DoorHealthHandler, Script, printed
from cellgate.errors import status_of
from cellgate.http.message import encode
from cellgate.http.operation import requires
from cellgate.identity.principal import Permission
from cellgate.wire.answers import Result
from cellgate_kernels.base.errors import CellgateError, InvalidInput
from cellgate_kernels.codec.encoding import encode_in_steps

LANGUAGES = {"python3": None, "nodejs": "javascript"}
"""Dify's names of languages, and ours; None for the default kernel's."""
TIMEOUT = 50.0
"""Seconds: less than the 60 after which Dify no longer reads."""


class DifyBody(Asked, frozen=True):
    """A script to run. `preload`: code that runs before it."""

    language: str
    code: str
    preload: str = ""


class DifyHandler(DoorHandler):
    """A handler of the door, whose refusals have Dify's form."""

    door = "dify"

    def problem_body(self, error: CellgateError) -> tuple[str, bytes]:
        told = {"code": -status_of(error), "message": error.message, "data": None}
        return "application/json; charset=utf-8", encode(told)


class DifyRunHandler(DifyHandler):
    """Run a script."""

    @requires(Permission.RUN)
    async def post(self) -> None:
        """Run a script and answer its output and its error."""
        body = await self.body(DifyBody)
        if body.language not in LANGUAGES:
            raise InvalidInput(
                f"There is no language {body.language[:80]!r}; there are {', '.join(LANGUAGES)}"
            )
        code = f"{body.preload}\n{body.code}" if body.preload else body.code
        script = Script(code, language=LANGUAGES[body.language], timeout=TIMEOUT)
        result = (await self.run_once(script)).result
        if self.disconnected:
            return
        await self.answer_made(len(result.text), _answer, result)


class DifyDependenciesHandler(DifyHandler):
    """The packages that scripts may import."""

    @requires(Permission.READ)
    async def get(self) -> None:
        """Answer with the packages of the default kernel's environment."""
        services = self.services
        manifest = services.kernels.catalog.manifests().get(services.sessions.manager.settings.default_kernel)
        packages = {} if manifest is None else manifest.packages
        found = [{"name": name, "version": version} for name, version in sorted(packages.items())]
        self.answer(_success({"dependencies": found}))


class DifyHealthHandler(DoorHealthHandler):
    """Dify's health."""

    answered: ClassVar[object] = "ok"


def _answer(result: Result) -> list[bytes]:
    """Encode a script's result in parts."""
    failed = result.status != "ok"
    told = {
        "stdout": result.stdout,
        "stderr": result.stderr,
        "error": printed(result, streams=()) if failed else "",
        "exit_code": int(failed),
    }
    return encode_in_steps(_success(told))


def _success(data: object) -> dict[str, object]:
    """Return the form of an answer without an error."""
    return {"code": 0, "message": "success", "data": data}


ROUTES = (
    ("/dify/v1/sandbox/run/?", DifyRunHandler),
    ("/dify/v1/sandbox/dependencies/?", DifyDependenciesHandler),
    ("/dify/health/?", DifyHealthHandler),
)
