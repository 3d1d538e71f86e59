"""The zygote of a container that holds the kernels of one principal: it loads modules and forks kernels.

``bootstrap.py`` calls `serve` where the variable CELLGATE_ZYGOTE is the path of a socket: the gateway listens
there. What they say to each other is as in ``zygote.py``, whose loop this uses: requests for forks in, news
of children out, and a connection to each child, which the zygote does not read.

There are no walls to build here: nothing in a container has the right to. What the kernels of one container
do not share is a cgroup, folders, variables, a process group, a keeper and, where the gateway can have them
made, mounts in which ``/workspace`` is their own folder. They have one user, so each may do
anything to the others, and end the zygote; they all are the same principal's. The zygote itself is not
dumpable, so no kernel may trace it or open its files in /proc: it has a connection to the gateway.
"""

import gc
import json
import os
import select
import shutil
import socket
import sys
from contextlib import suppress

WAIT = 60.0
"""Seconds that the gateway may take to send its orders."""


def serve(zygote, address, load, prepare, enter_names):
    """Fork kernels for the gateway that listens at this address, and exit when it goes.

    `zygote`: the module of that name. `load` imports what every kernel needs, and `prepare` makes what is the
    same in all of them. `enter_names` takes names of a workspace. Returns in each kernel, with its
    description.
    """
    control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    control.settimeout(WAIT)
    control.connect(address)
    orders = json.loads(control.recv(zygote.MOST_BYTES))
    control.settimeout(None)
    asked, failed = zygote.load_modules(load, orders["modules"], prepare)
    zygote.forget_folders()
    if zygote.shares_memory():
        sys.exit("A module that was loaded beforehand has memory that kernels would share.")
    gc.collect()
    # The collector would write to all that the kernels share.
    gc.freeze()
    told = {"asked": asked[: zygote.MOST_NAMES], "failed": failed, "threads": zygote.threads(), "reserved": 0}
    # Before there is any kernel.
    zygote.checked(zygote.libc.prctl(zygote.PR_SET_DUMPABLE, 0, 0, 0, 0))
    zygote.tell(control, "ready", **told)
    door = zygote_in_container(zygote)(control).until_forked()
    return enter(zygote, door, enter_names)


def zygote_in_container(zygote):
    """Return the class of the zygote's loop, for a container."""

    class ContainerZygote(zygote.Zygote):
        """Makes no namespaces, and removes what its children leave in /tmp."""

        def __init__(self, control):
            self.control = control
            self.children = {}
            self.scratch = {}
            self.asked = ""
            self.poll = select.poll()
            self.poll.register(control, select.POLLIN)

        def requested(self, request):
            self.asked = request["scratch"]

        def fork(self):
            return os.fork()

        def forked(self, process):
            self.scratch[process] = self.asked

        def bury(self, process):
            if process not in self.scratch:
                # One that removed a folder.
                os.waitid(os.P_PIDFD, process, os.WEXITED)
                self.poll.unregister(process)
                os.close(process)
                return
            folder = self.scratch.pop(process)
            super().bury(process)
            self.remove(folder)

        def remove(self, folder):
            """Remove a folder in a process of its own: it may be large, and others want to be forked."""
            try:
                remover = os.fork()
            except OSError:
                return  # it stays until the container ends
            if remover == 0:
                shutil.rmtree(folder, ignore_errors=True)
                os._exit(0)
            self.poll.register(os.pidfd_open(remover), select.POLLIN)

    return ContainerZygote


def enter(zygote, door, enter_names):
    """Become the kernel that is ordered; returns its description. A failure is told and ends this."""
    step = "its start"
    try:
        request, (log, *further) = zygote.received(door)
        names, cgroup = further[: request["names"]], further[request["names"] :]
        step = "its cgroup"
        for descriptor in cgroup:
            os.write(descriptor, b"0")
        step = "its folders"
        os.setsid()
        os.makedirs(request["scratch"], 0o700)  # noqa: PTH103 - as all of this
        with open(request["connection_file"], "x", opener=private) as file:
            json.dump(request["connection"], file)
        folder, said = request["folder"], b"ok"
        if names:
            with suppress(OSError):
                enter_names(names)
                folder, said = request["named_folder"], b"ok, with names"
        os.chdir(folder)
        os.dup2(log, 2)
        zygote.close_all_but(door.fileno())
        # As any kernel: its own processes look into its /proc. It has nothing of the zygote's any more.
        zygote.checked(zygote.libc.prctl(zygote.PR_SET_DUMPABLE, 1, 0, 0, 0))
    except BaseException as error:  # noqa: BLE001 - half a kernel must not run
        with suppress(OSError):
            door.sendall(f"{step}: {type(error).__name__}: {error}"[:500].encode())
        os._exit(1)
    door.sendall(said)
    door.close()
    os.environ.clear()
    os.environ.update(request["env"])
    return request


def private(path, flags):
    """Open a file that only its owner may use."""
    return os.open(path, flags, 0o600)


def as_if_started(request):
    """Undo what modules of the zygote know of its own folders: this kernel has others."""
    sys.argv[1:] = ["-f", request["connection_file"]]
    sys.path[:] = [request["packages"] if path == request["no_packages"] else path for path in sys.path]
    if "tempfile" in sys.modules:
        sys.modules["tempfile"].tempdir = None
