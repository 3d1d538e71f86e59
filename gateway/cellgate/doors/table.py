"""Which doors there are, and their routes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from cellgate.doors import agentrun, azure, dify, librechat, piston, replit, terrarium
from cellgate.doors.e2b import routes as e2b
from cellgate.doors.opensandbox import routes as opensandbox
from cellgate.doors.sandbox.contexts import recover_contexts
from cellgate.doors.sandbox.pausing import recover_pauses
from cellgate.http.base import BaseHandler
from cellgate.http.routes import Route, pattern
from cellgate.http.services import Services
from cellgate_kernels.base.errors import InvalidInput

ALL = "all"
DOORS: Mapping[str, tuple[tuple[str, type[BaseHandler]], ...]] = MappingProxyType(
    {
        "agentrun": agentrun.ROUTES,
        "azure": azure.ROUTES,
        "dify": dify.ROUTES,
        "e2b": e2b.ROUTES,
        "librechat": librechat.ROUTES,
        "opensandbox": opensandbox.ROUTES,
        "piston": piston.ROUTES,
        "replit": replit.ROUTES,
        "terrarium": terrarium.ROUTES,
    }
)
_VARIES = re.compile(r"\((?:[^()]|\([^()]*\))*\)\??")
"""A group in a path."""


def check_doors(names: Iterable[str]) -> tuple[str, ...]:
    """Return the doors to open, in order and without repetitions. Raises InvalidInput for unknown names."""
    wanted = {name.strip() for given in names for name in given.split(",")} - {""}
    if ALL in wanted:
        return tuple(DOORS)
    if unknown := sorted(wanted - DOORS.keys()):
        raise InvalidInput(f"There is no door {unknown[0][:80]!r}; there are {', '.join(DOORS)}, or {ALL}")
    return tuple(name for name in DOORS if name in wanted)


def door_routes(services: Services) -> list[Route]:
    """Return the routes of the doors that are open, with the arguments of their handlers."""
    prefix, doors = re.escape(services.front.base_url), services.front.doors
    given = {"services": services}
    return [(prefix + pattern(path), handler, given) for name in doors for path, handler in DOORS[name]]


def recover_doors(services: Services) -> None:
    """Know again what belongs together of the sessions that a former gateway's doors have left.

    Also while those doors are closed: what was to end with something else does.
    """
    sessions = services.sessions
    recover_pauses(sessions.manager, sessions.sandboxes, services.storage.lanes.sleep)
    recover_contexts(sessions.manager, sessions.sandboxes)


def door_paths() -> dict[type[BaseHandler], str]:
    """Return the path of each handler of a door, with stars for its variable parts, for the audit trail."""
    return {
        handler: _VARIES.sub("*", path).rstrip("?") for routes in DOORS.values() for path, handler in routes
    }
