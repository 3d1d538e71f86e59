"""Pages of notebooks that a command has itself, made by the job that the gateway has for its own."""

from __future__ import annotations

import subprocess
import sys

from cellgate_kernels.base.errors import CellgateError

PATIENCE = 300.0


def converted(notebook: bytes, form: str) -> bytes:
    """Return the notebook in this form. Raises CellgateError.

    In a process of its own, as in the gateway: what outputs hold may make the conversion fail, or take long.
    """
    # Without the folder that the command is called in, whose files may have the names of modules.
    command = [sys.executable, "-P", "-m", "cellgate.jobs.convert", form]
    try:
        done = subprocess.run(command, input=notebook, capture_output=True, timeout=PATIENCE, check=False)
    except subprocess.TimeoutExpired as error:
        raise CellgateError(f"The conversion took more than {PATIENCE:g} s and was given up") from error
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise CellgateError(f"What the notebook shows can't be converted: {''.join(last)}")
    return done.stdout
