"""The code that sets environment variables for one cell, and restores the former values after it.

The code runs in the user's namespace, before and after the cell, and leaves no names there. It is not a cell:
silent, not in the history, not recorded. ``run`` decides when it runs.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable

from cellgate_kernels.base.tasks import until
from cellgate_kernels.kernel.kernel import Kernel
from cellgate_kernels.protocol.messages import Channel

RESTORING = (
    "(lambda o: ([o.environ.pop(k, None) if v is None else o.environ.__setitem__(k, v)"
    " for k, v in o.__dict__.pop('_cellgate_env', {}).items()], None)[1])(__import__('os'))"
)
"""Python code that restores the values from before `setting`."""


def setting(variables: Iterable[tuple[str, str]]) -> str:
    """Return Python code that sets the variables and saves their former values."""
    return (
        "(lambda o, e: (setattr(o, '_cellgate_env', {k: o.environ.get(k) for k in e}),"
        " o.environ.update(e), None)[2])"
        f"(__import__('os'), __import__('json').loads({json.dumps(dict(variables))!r}))"
    )


async def run_silently(
    kernel: Kernel,
    code: str,
    *,
    progress: asyncio.Event,
    wake: Callable[[object], None],
    given_up: Callable[[], bool],
) -> None:
    """Run code that is not a cell; return early if the kernel dies or `given_up` returns True.

    `progress` is set by `wake`, and whenever the value of `given_up` may have changed. Raises KernelDied.
    """
    content = {"code": code, "silent": True, "store_history": False, "allow_stdin": False}
    reply = kernel.connection.ask(Channel.SHELL, "execute_request", content)
    for ended in (reply, kernel.exited):
        ended.add_done_callback(wake)
    try:
        await until(lambda: reply.done() or kernel.exited.done() or given_up(), progress)
    finally:
        kernel.exited.remove_done_callback(wake)
        reply.cancel()
