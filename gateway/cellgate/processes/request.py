"""Checks requests about programs: commands and inputs. Pure."""

from __future__ import annotations

import base64
import binascii
import signal
from dataclasses import dataclass

from cellgate.execution.checks import check_env, check_text
from cellgate.execution.limits import check_seconds
from cellgate.files.tree import parse_folder
from cellgate.wire.models import ProcessBody, ProcessInputBody
from cellgate_kernels.base.errors import InvalidInput
from cellgate_kernels.keeper.programs import ProgramSpec

MOST_ARGUMENTS = 1024
MOST_ARGUMENT_BYTES = 64 * 1024
MOST_INPUT = 512 * 1024
"""Most bytes of one request's input."""

SIGNALS = frozenset(
    (
        signal.SIGHUP,
        signal.SIGINT,
        signal.SIGQUIT,
        signal.SIGKILL,
        signal.SIGUSR1,
        signal.SIGUSR2,
        signal.SIGTERM,
        signal.SIGCONT,
        signal.SIGSTOP,
        signal.SIGTSTP,
        signal.SIGALRM,
        signal.SIGWINCH,
    )
)


@dataclass(frozen=True, slots=True)
class ProcessRequest:
    """A checked request. `timeout` in seconds, None if it names none.

    `cwd`: below the workspace, or an absolute path in the sandbox. `waits`: the sender waits for the end.
    Then the session's `cell_timeout` limits it, else only the session.
    """

    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = ()
    cwd: str = ""
    stdin: bool = False
    timeout: float | None = None
    waits: bool = False

    def spec(self) -> ProgramSpec:
        """Return the program's description for the kernel's keeper."""
        return ProgramSpec(self.argv, dict(self.env), self.cwd, self.stdin)


def check_process(body: ProcessBody, *, waits: bool) -> ProcessRequest:
    """Return the body's values, checked. Raises InvalidInput."""
    if not body.argv or not body.argv[0]:
        raise InvalidInput("argv must begin with the name of a program")
    if len(body.argv) > MOST_ARGUMENTS:
        raise InvalidInput(f"argv has {len(body.argv)} parts; at most {MOST_ARGUMENTS} are taken")
    for argument in body.argv:
        check_text(argument, "argv", MOST_ARGUMENT_BYTES)
    # Outside of a sandbox, too, a program starts in the workspace.
    folder = "/".join(parse_folder(body.cwd or ""))
    return ProcessRequest(
        argv=tuple(body.argv),
        env=check_env(body.env),
        cwd=folder,
        stdin=body.stdin,
        timeout=None if body.timeout is None else check_seconds(body.timeout, "timeout"),
        waits=waits,
    )


def check_input(body: ProcessInputBody) -> bytes:
    """Return the bytes to send. Raises InvalidInput."""
    if body.data is not None and body.data_b64 is not None:
        raise InvalidInput("Give either data or data_b64")
    if body.data_b64 is not None:
        try:
            data = base64.b64decode(body.data_b64, validate=True)
        except (binascii.Error, ValueError):
            raise InvalidInput("data_b64 is not base64") from None
    else:
        try:
            data = (body.data or "").encode()
        except UnicodeEncodeError:
            raise InvalidInput("data must not contain lone surrogates") from None
    if len(data) > MOST_INPUT:
        raise InvalidInput(f"The input is {len(data)} bytes long; at most {MOST_INPUT} are taken at once")
    return data


def check_signal(name: str) -> signal.Signals:
    """Return the signal of this name. Raises InvalidInput."""
    try:
        found = signal.Signals[name]
    except KeyError:
        found = None
    if found not in SIGNALS:
        known = ", ".join(sorted(each.name for each in SIGNALS))
        raise InvalidInput(f"signal must be one of {known}")
    return found
