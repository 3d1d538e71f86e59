"""Programs that are ended with all that they have started: a script that starts a browser is one, and so is
the browser itself where the distribution has a shell start it.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

NOWHERE = Path(os.devnull)
END_SECONDS = 30.0


@contextmanager
def running(
    command: Sequence[str | Path],
    output: Path = NOWHERE,
    log: Path = NOWHERE,
    env: Mapping[str, str] | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """A program until the context ends; what it prints goes into `output`, its complaints into `log`."""
    with output.open("wb") as out, log.open("wb") as err:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=env, start_new_session=True
        )
    try:
        yield process
    finally:
        end(process)


def end(leader: subprocess.Popen[bytes]) -> None:
    """End the leader of a session and its group, and all below it, whatever sessions these have made.

    Of a leader that has ended by itself only what is in its group can be found.
    """
    family = []
    if leader.poll() is None:
        family = psutil.Process(leader.pid).children(recursive=True)
    with suppress(ProcessLookupError):
        os.killpg(leader.pid, signal.SIGKILL)
    for process in family:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    leader.wait()
    _, alive = psutil.wait_procs(family, timeout=END_SECONDS)
    assert not alive, f"does not end: {alive}"
