"""The terms for a request: limits under its principal's ceilings, a kernel, secrets, a network.

Reads settings, quotas and kernelspecs, and opens nothing. ``registry`` asks for new sessions, ``opener`` for
resumed ones, doors and HTTP for single cells.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from cellgate.errors import Conflict, NetworkNotAllowed
from cellgate.execution.checks import check_env
from cellgate.execution.limits import LimitCeilings, SessionLimits, lowered_limits, merge_limits, named_limits
from cellgate.execution.request import ExecuteRequest, in_language
from cellgate.identity.secrets import check_secret_names
from cellgate.quotas.quotas import Quotas
from cellgate.record.rows import SessionRow
from cellgate.record.store.interface import LastLife
from cellgate.sessions.agreement import names_kernel
from cellgate.sessions.model import AUTO, named_in
from cellgate.sessions.parts import SharedParts
from cellgate.sessions.resumption import Past, Resumption, resume
from cellgate.sessions.secrets import SessionSecrets
from cellgate.sessions.settings import ManagerSettings
from cellgate.sessions.variables import Variables
from cellgate.wire.models import LimitsBody, SessionBody, SessionTimesBody
from cellgate_kernels.base.errors import CellgateError, InvalidInput, KernelspecNotFound
from cellgate_kernels.base.resources import HASH_SEED
from cellgate_kernels.kernel.kernel import KernelProfile
from cellgate_kernels.specs.catalog import KernelspecCatalog

MOST_ALLOWANCES = 1024
"""Most combinations of different quotas with the ceilings that are cached."""


@dataclass(frozen=True, slots=True)
class SessionPlan:
    """The parts and limits of a session to be opened. `sharer`: the session whose workspace it shares.

    `body`: the request. A resumed session gets its former kernel, limits and secrets where the body names
    none.
    """

    body: SessionBody
    profile: KernelProfile
    limits: SessionLimits
    secrets: SessionSecrets | None = None
    sharer: SessionRow | None = None


class SessionTerms:
    """The limits and the parts that each principal's sessions may have."""

    def __init__(self, settings: ManagerSettings, catalog: KernelspecCatalog, parts: SharedParts) -> None:
        self._settings = settings
        self._catalog = catalog
        self._usage = parts.usage
        self._egress = parts.egress
        self._secrets = parts.secrets
        self._allowances = lru_cache(maxsize=MOST_ALLOWANCES)(self._allow)

    def ceilings(self, principal: str) -> LimitCeilings:
        """Return the highest limits that the principal may request."""
        return self._allowances(self._usage.quotas(principal))[0]

    def default_limits(self, principal: str) -> SessionLimits:
        """Return the limits of the principal's sessions that ask for none; they never exceed a ceiling."""
        return self._allowances(self._usage.quotas(principal))[1]

    def _allow(self, quotas: Quotas) -> tuple[LimitCeilings, SessionLimits]:
        ceilings = self._settings.session.ceilings.lowered_by(quotas)
        return ceilings, ceilings.lower(self._settings.limits)[0]

    def limits(self, principal: str, body: SessionBody, *, lower: bool = False) -> SessionLimits:
        """Return a new session's limits; `lower`: those above a ceiling are lowered. Raises InvalidInput."""
        defaults = self.default_limits(principal)
        if body.limits is None:
            return defaults
        merge = lowered_limits if lower else merge_limits
        return merge(defaults, body.limits, self.ceilings(principal))

    def changed_limits(
        self, principal: str, present: SessionLimits, times: SessionTimesBody | None
    ) -> SessionLimits:
        """Return a live session's limits with other times. Raises InvalidInput."""
        if times is None:
            return present
        body = LimitsBody(
            cell_timeout=times.cell_timeout, idle_timeout=times.idle_timeout, on_idle=times.on_idle
        )
        changed = named_limits(present, body)
        if times.cell_timeout is not None:
            self.ceilings(principal).check(changed)
        return changed

    def profile(self, body: SessionBody, limits: SessionLimits) -> KernelProfile:
        """Return the kernel that a new session gets. Raises InvalidInput, NotFound."""
        self._catalog.refresh()
        if body.environment is not None:
            name = self._catalog.choose_environment(body.environment, body.kernel, body.language)
        else:
            name = self._catalog.choose(body.kernel, body.language, self._settings.default_kernel)
        spec = self._catalog.get_kernel_spec(name)
        if body.checkpoint == AUTO and spec.language != "python":
            raise InvalidInput(f"checkpoint: kernels of {name!r} can't be rolled back; only Python's can")
        network = body.network == "allow"
        return KernelProfile(name, limits.resources, check_env(body.env), egress=network)

    def replayed_kernel(self, row: SessionRow) -> str:
        """Return the kernelspec that a session is replayed in: its own, or one of its environment's digest.

        Raises KernelspecNotFound if its environment was removed, and no other has the digest.
        """
        named = named_in(row)
        if named is None:
            return row.kernel
        self._catalog.refresh()
        known = self._catalog.environments()
        same = [name for name, other in known.items() if other.digest == named.digest]
        if not same and named.name not in known:
            raise KernelspecNotFound(
                f"The session had the environment {named}, which is not here any more, and no other has its"
                " digest"
            )
        return named.name if named.name in same or not same else same[0]

    def check_network(self, principal: str) -> None:
        """Check that the principal's sessions may have a network. Raises NetworkNotAllowed, InvalidInput."""
        if self._egress is None:
            raise NetworkNotAllowed("This gateway gives no session a network; leave `network` out")
        self._egress.check(principal)

    def reachable(self, principal: str) -> list[str] | None:
        """Return the hosts and ports that the principal's sessions may reach; None without a network."""
        return None if self._egress is None else self._egress.reachable(principal)

    async def secrets(self, principal: str, body: SessionBody) -> SessionSecrets | None:
        """Return the secrets that the body names. Raises InvalidInput, StorageError."""
        names = check_secret_names(body.secrets)
        if not names:
            return None
        if both := [name for name in names if name in (body.env or ())]:
            raise InvalidInput(f"env.{both[0]} is the name of one of the session's secrets too")
        if self._secrets is None:
            raise InvalidInput(f"secrets: there is no secret {names[0]!r} of {principal}")
        await self._secrets.check_secrets(principal, names)
        return SessionSecrets(self._secrets, principal, names)

    def former_secrets(self, former: SessionRow, body: SessionBody) -> SessionSecrets | None:
        """Return the secrets of a session's last life that still exist; the values are the current ones."""
        names = [name for name in former.environment.get("secrets", ()) if name not in (body.env or ())]
        if not names or self._secrets is None:
            return None
        return SessionSecrets(self._secrets, former.principal, names)

    def resumed(
        self, former: SessionRow, life: LastLife, variables: Variables | None, plan: SessionPlan
    ) -> Resumption:
        """Return the parts of a recorded session's next life. `variables`: the last life's, if in memory.

        Raises Conflict when the plan's body names another kernel, KernelspecNotFound if its environment was
        removed.
        """
        profile = plan.profile
        if former.kernel != profile.kernelspec and names_kernel(plan.body):
            raise Conflict(
                f"Session {former.key!r} is recorded with kernel {former.kernel!r}; choose another key"
            )
        named = named_in(former)
        if named is not None and former.kernel not in self._catalog.environments():
            raise KernelspecNotFound(
                f"Session {former.key!r} had the environment {named.name!r}, which is not here any more;"
                " choose another key, or ask the operator to add it again"
            )
        seed = None
        if former.kernel in self._catalog.find_kernel_specs():
            profile = replace(profile, kernelspec=former.kernel)
            seed = str(self._catalog.get_kernel_spec(former.kernel).env.get("PYTHONHASHSEED", HASH_SEED))
        gone = names = former.environment.get("secrets", ())
        if self._secrets is not None:
            gone = self._secrets.missing_secrets(former.principal, names)
        past = Past(former, life, variables, seed, frozenset(gone), self._may_reach(former.principal))
        return resume(past, plan.body, profile, plan.limits, self.ceilings(former.principal))

    def _may_reach(self, principal: str) -> bool:
        try:
            self.check_network(principal)
        except CellgateError:
            return False
        return True

    def in_language(self, kernel: str, request: ExecuteRequest, language: str | None) -> ExecuteRequest:
        """Return the request as a cell of this kernelspec. Raises InvalidInput if it can't run there."""
        if language is None and not request.env:
            return request
        return in_language(request, language, self._catalog.get_kernel_spec(kernel).language)
