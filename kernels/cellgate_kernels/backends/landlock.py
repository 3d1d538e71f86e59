"""The `landlock` backend: a kernel behind Landlock and a filter of system calls, where no sandbox can be.

Any system of Linux 6.2 or newer has it, also in a container that may neither make namespaces nor has options
of its own. A kernel reads and writes its own folders, and reads the system's and its environment; it has no
network, connects to no socket, and sees no process. ``not_held`` says what is less than in a sandbox. It
can't be forked, branched or undone, and all paths are the machine's own.

Under a gateway that is root, each kernel has a uid of its own, to which its folders are given. It keeps one
capability, to pass and read whatever the system's own permissions say, since the folders above its own are
root's; Landlock says what it reads.
"""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import secrets
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from cellgate_kernels.backends.process import ProcessProvisioner
from cellgate_kernels.backends.watched import WatchedProvisioner
from cellgate_kernels.base.errors import BackendUnavailable, InvalidInput, KernelStartFailed, in_words
from cellgate_kernels.base.resources import ResourceLimits
from cellgate_kernels.launch.backend import Launch
from cellgate_kernels.launch.base import OFFLINE, kernel_environment, last_words
from cellgate_kernels.launch.child import Child, Supervised, find_program, rlimit_arguments
from cellgate_kernels.launch.folders import LaunchFolders, give_to, remove_tree
from cellgate_kernels.limits.disk import CountedFolder
from cellgate_kernels.specs.environments import INSIDE
from cellgate_kernels.walls.bubblewrap import SandboxFiles
from cellgate_kernels.walls.landlock import SIGNALS, landlock_version, landlock_walls
from cellgate_kernels.walls.seccomp import sandbox_filter

logger = logging.getLogger(__name__)

OLDEST: Final = 3
"""The version of Landlock that is needed at least; it came with Linux 6.2."""
CHECK_TIMEOUT: Final = 10.0
UNABLE: Final = frozenset({"bash_cells.py", "deno_cells.py"})
"""The start-up files of Bash's kernels, which need a terminal, and JavaScript's, which need a network."""
TEMPORARY: Final = "tmp"
"""The name of a kernel's folder for temporary files, in its home."""

NOT_HELD: Final = (
    "memory is limited for each process, not for a session, and processors are not",
    "programs can outlive the session that has started them, if they mean to",
    "who guesses the name of another session's shared memory can use it, and it stays when a session ends",
    "there is no network, not even to the session's own programs, no /tmp, and no terminals",
    "what looks at processes fails, such as psutil, and joblib's workers, which use it",
    "kernels are Python's alone",
    "sessions can't be branched, undone or let sleep",
)
"""What this level does not hold, or does not have, of what a sandbox does."""
USER_NOT_HELD: Final = (
    "code can change modes and times of files of the gateway's own user, if it knows their paths",
    "numbers of processes are not limited",
)
SIGNALS_NOT_HELD: Final = (
    "code can end other sessions' kernels, and the gateway: Linux 6.12 would prevent that"
)
"""What a uid of the kernel's own holds, under a gateway that is root."""


FIRST_UID: Final = 0x70000000
UIDS: Final = 0x0F000000
"""The uids of kernels of gateways that are root, of which each takes one by chance."""
ROOTS_OWN: Final = "-all,+dac_read_search"
"""The capabilities of a kernel of such a gateway, as setpriv(1) takes them."""


def not_held() -> tuple[str, ...]:
    """Return what this level does not hold or have on this system."""
    if os.geteuid() == 0:
        return NOT_HELD
    signals = () if landlock_version() >= SIGNALS else (SIGNALS_NOT_HELD,)
    return (*signals, *USER_NOT_HELD, *NOT_HELD)


class LandlockProvisioner(WatchedProvisioner, ProcessProvisioner):
    """Kernels behind Landlock. Limits: memory per process, largest file, and the size of all its files."""

    isolation = "landlock"

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._uid = FIRST_UID + secrets.randbelow(UIDS) if os.geteuid() == 0 else None

    @classmethod
    async def check(cls) -> None:
        """Run ``true`` behind the walls. Raises BackendUnavailable when that fails."""
        await super().check()
        version = landlock_version()
        if version < OLDEST:
            there = f"only version {version} of it" if version else "none"
            raise BackendUnavailable(
                f"Landlock does not work here: it needs Linux 6.2, and to be switched on; there is {there}."
            )
        if sandbox_filter(platform.machine()) is None:
            raise BackendUnavailable(f"There is no filter of system calls for {platform.machine()} here.")
        scratch = Path(tempfile.mkdtemp(prefix="cellgate-check-"))
        try:
            folders = LaunchFolders.make(scratch / "run", scratch)
            folders.connection_file.touch(mode=0o600)
            limits = ResourceLimits()
            true = find_program("true", "coreutils")
            env = kernel_environment(true, str(folders.home), limits)
            child = _spawn(Launch((true,), env, limits, folders), (), sys.executable, None)
            try:
                await asyncio.wait({child.exited}, timeout=CHECK_TIMEOUT)
            finally:
                child.kill()
                ended = await asyncio.shield(child.exited)
        finally:
            try:
                await remove_tree(scratch)
            except OSError as error:
                logger.warning("The folder %s of a check can't be removed: %s", scratch, in_words(error))
        if ended.code != 0:
            raise BackendUnavailable(
                f"Landlock does not work here. {ended.message}{last_words(child.log_tail())}"
            )

    def _plan(self, cmd: Sequence[str], folders: LaunchFolders, options: Mapping[str, Any]) -> Launch:
        if folders.egress is not None:
            raise InvalidInput("Kernels behind Landlock have no network; use --backend sandbox")
        launch = super()._plan(cmd, folders, options)
        if UNABLE.intersection(Path(word).name for word in launch.argv):
            raise KernelStartFailed(
                "Only Python's kernels run behind Landlock, where there are no terminals and no network; the"
                " operator can serve others by --backend sandbox."
            )
        temporary = folders.home / TEMPORARY
        with suppress(FileExistsError):  # also where the kernel before has put something else
            temporary.mkdir(mode=0o700)
        env = {**OFFLINE, "TMPDIR": str(temporary), **launch.env}
        return Launch(launch.argv, env, launch.limits, folders)

    async def _begin(self, launch: Launch) -> Supervised:
        if self._uid is not None:
            user, folders = (self._uid, self._uid), launch.folders
            await asyncio.to_thread(give_to, user, folders)
            for folder in (folders.home, folders.home / TEMPORARY):
                os.chown(folder, *user, follow_symlinks=False)
        return await super()._begin(launch)

    def _spawn(self, launch: Launch) -> Child:
        return _spawn(launch, self.readable, launch.argv[0], self._uid, self.reserved)

    async def files_given(self) -> None:
        await self.branch_files_given()
        await super().files_given()

    async def branch_files_given(self) -> None:
        if self._uid is not None and self._folders is not None:
            await asyncio.to_thread(give_to, (self._uid, self._uid), self._folders)

    @property
    def watched_process(self) -> int | None:
        """See `WatchedProvisioner`: the keeper, to which orphans come."""
        return self.process

    def counted(self, folders: LaunchFolders) -> Sequence[CountedFolder]:
        """See `WatchedProvisioner`: a kernel may fill its home too."""
        return (*super().counted(folders), CountedFolder(folders.home))


def _spawn(launch: Launch, readable: Sequence[str], python: str, uid: int | None, reserved: int = 0) -> Child:
    """Start the launch's command behind the walls, which the interpreter `python` puts up.

    `uid`: the kernel's own; None: the gateway's.
    """
    program = sandbox_filter(platform.machine(), shared=True)
    if program is None:
        raise BackendUnavailable(f"There is no filter of system calls for {platform.machine()} here.")
    # As `ProcessProvisioner` does.
    env = dict(launch.env) | {"JPY_PARENT_PID": str(os.getpid())}
    user = [] if uid is None else [f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]
    own = uid is not None
    if own:
        user += [f"--{kind}={ROOTS_OWN}" for kind in ("bounding-set", "inh-caps", "ambient-caps")]
        # For access(2), which would otherwise answer as if there were no capability.
        user.append("--securebits=+no_setuid_fixup")
    with SandboxFiles() as files:
        walls = landlock_walls(landlock_version(), launch.folders, readable, env)
        descriptor = files.add(walls + program)
        return Child(
            [
                *rlimit_arguments(launch.limits, processes=own, reserved=reserved, own_user=own),
                *[find_program("setpriv", "util-linux"), *user, "--pdeathsig", "KILL", "--"],
                *[python, "-IS", str(INSIDE / "landlock.py"), str(descriptor)],
                *launch.argv,
            ],
            env={},
            cwd=launch.folders.workspace,
            pass_fds=files.descriptors,
        )
