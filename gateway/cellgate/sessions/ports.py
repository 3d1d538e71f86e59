"""What a session is for the ports that programs listen on inside it; ``ports`` connects to them."""

from __future__ import annotations

from collections.abc import Callable

from cellgate.record.events import EventLog
from cellgate_kernels.kernel.kernel import Kernel


class SessionPortsHost:
    """A `PortsHost`. `kernel` gives the current one, `used` is called when a connection has ended."""

    def __init__(self, log: EventLog, kernel: Callable[[], Kernel], used: Callable[[], None]) -> None:
        self.log = log
        self.kernel = kernel
        self.used = used
