"""The part of /proc that kernels see: their own processes, and about the machine only what programs need.

All other files of /proc are covered, because the system keeps adding new ones and many reveal details of the
host, of other kernels or of addresses in memory (``kpageflags``, ``slabinfo``, ``kallsyms``, ``iomem``). This
module makes lists of names; ``sandbox`` and ``container`` cover them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

# Read by psutil, the C library, language runtimes and system tools. `net` and `mounts` are links into a
# process's own namespaces; `sys` is read-only at every isolation level, and `sysvipc` shows the namespace's.
_SHOWN = """
    cgroups cpuinfo devices diskstats filesystems loadavg meminfo mounts net self stat swaps sys sysvipc
    thread-self uptime version vmstat
"""

# The names on common systems, for kernels that run on another machine.
_KNOWN = """
    acpi allocinfo asound bootconfig buddyinfo bus cmdline config.gz consoles crypto dma driver
    dynamic_debug execdomains fb fs interrupts iomem ioports irq kallsyms kcore key-users keys kmsg
    kpagecgroup kpagecount kpageflags latency_stats locks mdstat misc modules mpt mtrr pagetypeinfo
    partitions pressure sched_debug schedstat scsi slabinfo softirqs spl sysrq-trigger timer_list
    timer_stats tty version_signature vmallocinfo xen zoneinfo
"""


def hidden_names(listed: Iterable[str]) -> list[str]:
    """Return the names in /proc to cover, of those that may exist where kernels run.

    `listed` is a listing of that machine's /proc, processes included; empty if there is none.
    """
    there = {*_KNOWN.split(), *(name for name in listed if not name.isdecimal())}
    return sorted(there - {*_SHOWN.split()})


def hidden_here() -> list[str]:
    """Return the names in this machine's /proc that kernels on it must not see."""
    listed = os.listdir("/proc")  # noqa: PTH208 - only names are needed
    there = set(listed)
    return [name for name in hidden_names(listed) if name in there]
