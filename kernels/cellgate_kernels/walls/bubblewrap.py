"""Starts programs in bubblewrap, as children of this process that are watched until their end.

It knows nothing of the programs. bwrap reads its arguments from a file descriptor, so that neither the host's
nor the sandbox's process list shows them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack

from cellgate_kernels.launch.backend import KernelExit
from cellgate_kernels.launch.child import Child, find_program

# Named and explained in inside/bootstrap.py.
LIFETIME = "CELLGATE_LIFETIME"


class SandboxFiles:
    """Files in memory whose descriptors bwrap inherits. A context: it closes them."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self.descriptors: list[int] = []

    def __enter__(self) -> SandboxFiles:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def add(self, content: bytes) -> int:
        """Return the descriptor of a file with this content."""
        descriptor = os.memfd_create("cellgate")
        self._stack.callback(os.close, descriptor)
        os.write(descriptor, content)
        os.lseek(descriptor, 0, os.SEEK_SET)
        self.descriptors.append(descriptor)
        return descriptor

    def own(self, descriptor: int) -> int:
        """Return a descriptor to close with the others; bwrap does not inherit it."""
        self._stack.callback(os.close, descriptor)
        return descriptor


def start(
    words: Iterable[str],
    command: Sequence[str],
    env: Mapping[str, str],
    files: SandboxFiles,
    *,
    pass_fds: Sequence[int] = (),
    kind: type[Child] = Child,
    prepare: Callable[[int], None] | None = None,
) -> Child:
    """Start a command in a sandbox with these arguments of bwrap, and nothing else in its environment.

    `files` are the files that the arguments refer to. `prepare`, if given, sets the ids of the user
    namespace; see `Child`. Raises BackendUnavailable without bwrap, OSError when it can't be started.
    """
    bwrap = find_program("bwrap", "bubblewrap")
    status_reader, status_writer = os.pipe()
    files.own(status_writer)
    # bwrap --die-with-parent takes effect late, in its outer and in its inner process: a process that lost
    # its parent before that would run forever. So the command checks the lifetime pipe. bwrap also gets the
    # reading end of the status pipe: otherwise a broken pipe could end its outer process and leave the inner
    # one waiting.
    lifetime_reader, lifetime_writer = os.pipe()
    files.own(lifetime_reader)
    release_reader, release_writer = os.pipe()
    files.own(release_reader)
    arguments = [
        *("--info-fd", str(status_writer)),
        *("--block-fd", str(release_reader)),
        *(() if prepare is None else ("--userns-block-fd", str(release_reader))),
        *words,
        *(word for name, value in env.items() for word in ("--setenv", name, value)),
        *("--setenv", LIFETIME, str(lifetime_reader)),
    ]
    encoded = [os.fsencode(word) for word in arguments]
    assert not any(b"\0" in word for word in encoded), "an argument would become two"
    options = files.add(b"".join(word + b"\0" for word in encoded))
    child = kind(
        [bwrap, "--args", str(options), "--", *command],
        # bwrap is process 1 of the sandbox, where anyone can read its environment.
        env={},
        pass_fds=(
            *files.descriptors,
            status_writer,
            status_reader,
            release_reader,
            lifetime_reader,
            *pass_fds,
        ),
        status_fd=status_reader,
        release_fd=release_writer,
        lifetime_fd=lifetime_writer,
        explain=KernelExit.of_shell_code,
    )
    child.prepare = prepare
    return child
