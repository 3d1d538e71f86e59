"""Starts ipykernel as a Cellgate kernel; run by the kernel environment's own interpreter: ``bootstrap.py -f
FILE``.

It knows nothing of the gateway's code and needs nothing but ipykernel. To user code it is not there:
``sys.argv``, ``sys.path``, ``__main__`` and matplotlib's inline backend are as ``python -m
ipykernel_launcher`` leaves them. What differs: output in the middle of a cell is sent at once, no history is
written, and the kernel itself keeps what its readers have not yet fetched.
"""

import os
import select
import shutil
import sys
from importlib import import_module
from pathlib import Path

FLUSH_INTERVAL = 0.01  # seconds; ipykernel's own is 0.2
PRELOAD = "CELLGATE_PRELOAD"
LIFETIME = "CELLGATE_LIFETIME"


def main():
    """Run the kernel until it is shut down."""
    leave_if_orphaned()
    here = Path(__file__).resolve().parent
    if sys.path and sys.path[0] == str(Path(__file__).parent):
        del sys.path[0]
    # An interrupt goes to the kernel's process group if it leads one: then it reaches a cell's children too.
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)
    prepare_home(Path.home(), here)
    preload = [name.strip() for name in os.environ.pop(PRELOAD, "").split(",") if name.strip()]
    log = os.dup(2)

    app = application()
    # Not before: matplotlib must find the inline backend and the shell in place.
    for name in preload:
        try:
            import_module(name)
        except BaseException as error:  # noqa: BLE001 - nothing survives it: the process ends here
            # stderr belongs to the cells by now, and there is none that would show this.
            os.write(log, f"{PRELOAD}: importing {name} failed: {type(error).__name__}: {error}\n".encode())
            os._exit(1)
    os.close(log)
    app.start()


def leave_if_orphaned():
    """Exit when whoever started this kernel died before the system could be told to end it with them.

    CELLGATE_LIFETIME names the reading end of a pipe that the starter holds open for as long as it lives.
    """
    lifetime = os.environ.pop(LIFETIME, None)
    if lifetime is None:
        return
    poll = select.poll()
    poll.register(int(lifetime), 0)
    if poll.poll(0):
        sys.exit("The gateway is gone.")
    # It, and what else the sandbox's own start needed.
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))


def application():
    """The initialised ipykernel application; its sockets are bound, but it answers nothing yet."""
    # Not at the top: they must find sys.path as main() leaves it.
    from ipykernel import kernelapp  # noqa: PLC0415
    from traitlets.config import Config  # noqa: PLC0415

    class CellgateKernelApp(kernelapp.IPKernelApp):
        def init_iopub(self, context):
            # 0 is no high-water mark: a slow reader makes this process hold its output, under this process's
            # memory limit, where the default of 1000 messages drops what comes next.
            context.sndhwm = 0
            super().init_iopub(context)

        def write_connection_file(self, **kwargs):
            """Nothing: it is the gateway's, complete, and often read-only."""

    launcher = Path(kernelapp.__file__).parent.with_name("ipykernel_launcher.py")
    sys.argv[0] = str(launcher)
    config = Config()
    config.HistoryManager.enabled = False
    app = CellgateKernelApp.instance(config=config)
    app.initialize()
    for stream in (sys.stdout, sys.stderr):
        stream.flush_interval = FLUSH_INTERVAL
    return app


def prepare_home(home, here):
    """Make the home folder and give matplotlib its list of fonts, which takes seconds to build."""
    cache = home / ".cache" / "matplotlib"
    cache.mkdir(parents=True, exist_ok=True)
    for fonts in (here / "matplotlib").glob("fontlist-*.json"):
        shutil.copyfile(fonts, cache / fonts.name)


if __name__ == "__main__":
    main()
