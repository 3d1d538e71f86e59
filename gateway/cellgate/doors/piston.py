"""Piston's wire (version 2): programs in, their output and how they ended out. https://github.com/engineer-man/piston

A program is no cell: it has arguments and input, and an exit code. It runs beside the kernel of a session of
its own. Piston's limits for one request are passed over, but for the time to run. A version of Python that
another environment of the operator's has chooses that environment; all other versions are passed over.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType

from cellgate.doors.base import Asked, DoorHandler
from cellgate.errors import Conflict
from cellgate.http.message import encode
from cellgate.http.operation import requires
from cellgate.identity.principal import Permission
from cellgate.processes.request import check_input, check_process
from cellgate.wire.answers import ProcessModel
from cellgate.wire.models import ProcessBody, ProcessInputBody
from cellgate_kernels.base.errors import CellgateError, InvalidInput
from cellgate_kernels.base.tasks import guarded
from cellgate_kernels.codec.encoding import encode_in_steps
from cellgate_kernels.specs.manifest import Manifest


@dataclass(frozen=True, slots=True)
class PistonLanguage:
    """How programs of a language are run. `package`: in whose version the language's is told, if in any's."""

    aliases: tuple[str, ...]
    argv: tuple[str, ...]
    main: str
    package: str = ""

    def version(self, manifest: Manifest | None) -> str:
        """Return the language's version in the kernels' environment; ``*`` if it is not known."""
        if manifest is None:
            return "*"
        found = manifest.packages.get(self.package) if self.package else manifest.python
        return found or "*"


PYTHON = "python"
LANGUAGES = MappingProxyType(
    {
        PYTHON: PistonLanguage(("py", "py3", "python3"), ("python",), "main.py"),
        "bash": PistonLanguage(("sh",), ("bash",), "main.sh", package="bash"),
        "javascript": PistonLanguage(
            ("js", "deno-js"), ("deno", "run", "--allow-all"), "main.js", package="deno"
        ),
        "typescript": PistonLanguage(
            ("ts", "deno", "deno-ts"), ("deno", "run", "--allow-all"), "main.ts", "deno"
        ),
    }
)
DECODERS: MappingProxyType[str, Callable[[str], bytes]] = MappingProxyType(
    {"utf8": str.encode, "base64": lambda text: base64.b64decode(text, validate=True), "hex": bytes.fromhex}
)
UNLIMITED = -1


class PistonFile(Asked, frozen=True):
    """A file of a program."""

    content: str
    name: str = ""
    encoding: str = "utf8"


class PistonBody(Asked, frozen=True):
    """A program: its first file is what runs. `run_timeout` in milliseconds, or `UNLIMITED`."""

    language: str
    files: list[PistonFile]
    version: str = "*"
    stdin: str = ""
    args: list[str] = []  # noqa: RUF012 - of a struct, made anew for each
    run_timeout: float | None = None


class PistonHandler(DoorHandler):
    """A handler of the door, whose refusals have Piston's form."""

    door = "piston"

    def problem_body(self, error: CellgateError) -> tuple[str, bytes]:
        return "application/json; charset=utf-8", encode({"message": error.message})

    def manifest(self, environment: str | None = None) -> Manifest | None:
        """Return the manifest of an environment, by default of the default kernel's, if it has one."""
        services = self.services
        usual = services.sessions.manager.settings.default_kernel
        return services.kernels.catalog.manifests().get(environment or usual)

    def others(self) -> dict[str, str]:
        """Return the environments whose Python is not the usual one, by its version; one for each."""
        catalog = self.services.kernels.catalog
        catalog.refresh()
        usual = self.manifest()
        found: dict[str, str] = {}
        for name in catalog.environments():
            manifest = self.manifest(name)
            if manifest is not None and (usual is None or manifest.python != usual.python):
                found.setdefault(manifest.python, name)
        return found


class RuntimesHandler(PistonHandler):
    """The languages."""

    @requires(Permission.READ)
    async def get(self) -> None:
        """Answer with all languages and their versions."""
        manifest = self.manifest()
        runtimes = [(name, language.version(manifest)) for name, language in LANGUAGES.items()]
        runtimes += [(PYTHON, version) for version in self.others()]
        self.answer(
            [
                {"language": name, "version": version, "aliases": LANGUAGES[name].aliases}
                for name, version in runtimes
            ]
        )


class PistonRunHandler(PistonHandler):
    """Run a program."""

    @requires(Permission.RUN)
    async def post(self) -> None:
        """Run a program and answer its output and exit; one that fails is a 200 too."""
        body = await self.body(PistonBody)
        name, language = _language(body.language)
        if not body.files:
            raise InvalidInput("files must have at least one file")
        names = [file.name or f"file{number}" for number, file in enumerate(body.files)]
        names[0] = body.files[0].name or language.main
        files = await self.aside(len(self.raw_body()), _given, names, body.files)
        usual = self.services.sessions.terms.default_limits(self.owner).cell_timeout
        asked = None if body.run_timeout == UNLIMITED else body.run_timeout
        timeout = usual if asked is None else min(usual, asked / 1000)
        argv = [*language.argv, f"./{names[0]}", *body.args]
        request = check_process(ProcessBody(argv=argv, stdin=bool(body.stdin), timeout=timeout), waits=True)
        stdin = check_input(ProcessInputBody(data=body.stdin))
        environment = self.others().get(body.version) if name == PYTHON else None
        async with self.own_session(files, environment=environment) as session:
            run = await session.start_process(request)
            self._gone.add_done_callback(
                guarded(lambda _: run.terminate("client_disconnected"), "end of a program")
            )
            if body.stdin:
                with suppress(Conflict):  # it has ended without reading any
                    run.give_input(stdin, close=True)
            await run.wait()
            await run.recorded()
            model = run.model(self.services.front.base_url)
        if not self.disconnected:
            told = {"language": name, "version": language.version(self.manifest(environment))}
            await self.answer_made(len(model.stdout) + len(model.stderr), _answer, told, model)


def _language(wanted: str) -> tuple[str, PistonLanguage]:
    for name, language in LANGUAGES.items():
        if wanted.lower() in (name, *language.aliases):
            return name, language
    raise InvalidInput(f"{wanted[:80]}-* runtime is unknown; there are {', '.join(LANGUAGES)}")


def _given(names: Sequence[str], files: Sequence[PistonFile]) -> dict[str, bytes]:
    """Return the workspace's first files, by path. Raises InvalidInput."""
    return dict(zip(names, map(_bytes, files), strict=True))


def _answer(told: Mapping[str, object], model: ProcessModel) -> list[bytes]:
    """Encode a program's result in parts."""
    return encode_in_steps({**told, "run": _run(model)})


def _bytes(file: PistonFile) -> bytes:
    try:
        return DECODERS[file.encoding](file.content)
    except KeyError:
        known = ", ".join(DECODERS)
        raise InvalidInput(f"encoding must be one of {known}, not {file.encoding[:80]!r}") from None
    except (binascii.Error, ValueError) as error:
        raise InvalidInput(f"The content of a file is no {file.encoding}: {error}") from error


def _run(model: ProcessModel) -> dict[str, object]:
    timed_out = model.cause == "timeout"
    return {
        "stdout": model.stdout,
        "stderr": model.stderr,
        "output": model.stdout + model.stderr,
        "code": None if timed_out else model.exit_code,
        # However it took the end of its time, this is what Piston calls it.
        "signal": "SIGKILL" if timed_out else model.signal,
    }


ROUTES = (("/piston/api/v2/runtimes/?", RuntimesHandler), ("/piston/api/v2/execute/?", PistonRunHandler))
