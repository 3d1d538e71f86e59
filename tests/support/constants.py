"""Constants of a gateway that tests change: they can't wait as long, or send as much, as users would have to.

A constant is a field of settings that is no option, with its default. What a test gives in its place is put
into the settings of the gateway that a process is about to start: `use` in a forked process, and as a program
``constants.py {"NAME": VALUE} serve ...`` in a started one.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar
from unittest import mock

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[2])

from cellgate.channels.client import ChannelSettings
from cellgate.channels.frame_log import OutboxLimits
from cellgate.execution.run import ExecutionSettings
from cellgate.http.listener.settings import ListenerSettings
from cellgate.record.store.sqlite import journal
from cellgate.server import assembly, kernels
from cellgate.server.settings import FrontSettings
from cellgate.sessions.parts import SessionSettings
from cellgate.sessions.settings import ManagerSettings, RetentionSettings
from cellgate_kernels.base.resources import parse_size
from cellgate_kernels.forking.server import ForkServer, ForkSettings
from cellgate_kernels.forking.shared_containers import SharedContainers
from cellgate_kernels.protocol.outputs import OutputCaps

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")

CONSTANTS: Mapping[str, tuple[type, str]] = {
    "body_rate": (ListenerSettings, "body_rate"),
    "channel_queue": (ChannelSettings, "max_queue"),
    "client_silence": (ChannelSettings, "silence"),
    "cull_interval": (ManagerSettings, "cull_interval"),
    "data_cap": (OutputCaps, "data"),
    "head_timeout": (ListenerSettings, "head_timeout"),
    "interrupt_grace": (ExecutionSettings, "interrupt_grace"),
    "keep_alive": (FrontSettings, "keep_alive"),
    "max_queue": (SessionSettings, "max_queue"),
    "replay_seconds": (ChannelSettings, "replay_seconds"),
    "replay_size": (ChannelSettings, "replay_bytes"),
    "retention_interval": (RetentionSettings, "interval"),
    "slow_client_disk": (OutboxLimits, "total"),
    "slow_client_memory": (OutboxLimits, "memory"),
    "zygote_modules": (ForkSettings, "modules"),
}
"""Where each is declared."""
OF_MODULES: Mapping[str, tuple[ModuleType, str]] = {"flush_seconds": (journal, "FLUSH_SECONDS")}
"""Constants of modules, with their names there."""


def changed(settings: T, values: Mapping[tuple[type, str], object]) -> T:
    """Return settings of a gateway with these constants, wherever in them they are declared."""
    new: dict[str, Any] = {name: value for (kind, name), value in values.items() if kind is type(settings)}
    for field in fields(settings):
        former = getattr(settings, field.name)
        if is_dataclass(former) and (made := changed(former, values)) is not former:
            new[field.name] = made
    return replace(settings, **new) if new else settings


def use(given: Mapping[str, object]) -> None:
    """Let the gateway that this process is about to start have these constants."""
    running = assembly.running
    for name, (module, constant) in OF_MODULES.items():
        if name in given:
            mock.patch.object(module, constant, given[name]).start()
    values = {
        CONSTANTS[name]: parse_size(v) if isinstance(v, str) else v
        for name, v in given.items()
        if name in CONSTANTS
    }
    mock.patch.object(assembly, "running", lambda settings: running(changed(settings, values))).start()
    forks = changed(ForkSettings(), values)
    mock.patch.object(kernels, "ForkServer", partial(ForkServer, settings=forks)).start()
    mock.patch.object(kernels, "SharedContainers", partial(SharedContainers, settings=forks)).start()


if __name__ == "__main__":
    from cellgate.cli.main import main
    from tests.support.commands import INSTALLED

    given, *words = sys.argv[1:]
    use(json.loads(given))
    sys.argv = [str(INSTALLED), *words]
    sys.exit(main())
