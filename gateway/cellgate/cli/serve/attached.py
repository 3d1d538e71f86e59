"""Serves for the program that started this one, as ``cellgate serve`` does, until standard input ends.

``client.local_gateway`` starts it by ``python -m``, with a temporary folder and options of the command. The
input is a pipe to which nobody writes: it ends with the program, however that ends, and then the folder goes
too. Kernels run in sandboxes where bubblewrap works, unless an option names another backend.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import threading

from cellgate.cli.extras import SERVER, missing
from cellgate.cli.main import main
from cellgate_kernels.base.errors import BackendUnavailable


def _stop_at_the_end_of_input(ended: threading.Event) -> None:
    while os.read(0, 4096):
        pass
    ended.set()
    os.kill(os.getpid(), signal.SIGTERM)


def _prefer_sandboxes() -> None:
    """Make sandboxes the default where they work: they start sooner than containers."""
    if missing(SERVER):
        return
    from cellgate_kernels.backends.sandbox import SandboxProvisioner  # noqa: PLC0415 - part of the server

    try:
        asyncio.run(SandboxProvisioner.check())
    except BackendUnavailable:
        return
    os.environ["CELLGATE_BACKEND"] = "sandbox"


def _serve(folder: str, options: list[str]) -> int:
    ended = threading.Event()
    threading.Thread(
        target=_stop_at_the_end_of_input, args=(ended,), name="end of input", daemon=True
    ).start()
    try:
        _prefer_sandboxes()
        return main(["serve", *options])
    finally:
        if ended.is_set():
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    raise SystemExit(_serve(sys.argv[1], sys.argv[2:]))
