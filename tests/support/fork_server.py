"""Imported by the fork server of ``commands`` alone: what ends a run of tests does not end it.

It has to outlive the tests' own process, which asks it how its processes have ended, or takes all of them for
ended. It ends by itself when nobody is left to ask. A SIGTERM for a process that it has just forked waits
until that can take it: `commands` lets it through.
"""

from __future__ import annotations

import signal

signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
