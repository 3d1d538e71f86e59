"""What a principal's live sessions use together here, compared with its quotas before one is opened.

A part of ``usage``. In a cluster these sums are over all gateways: a reservation counts for the others
once it is confirmed.
"""

from __future__ import annotations

from collections.abc import Callable

from cellgate.errors import PrincipalQuotaExceeded, PrincipalQuotaExceededForNow
from cellgate.fairness.reservation import Reservation
from cellgate.quotas.cluster_uses import CPU_DIGITS, NOTHING, Sums, is_above
from cellgate.quotas.quotas import Quotas
from cellgate_kernels.base.resources import ResourceLimits

Told = Callable[[str], None]


class SessionSums:
    """One principal's. `refused` is called with a quota's name, `changed` with the principal's."""

    def __init__(self, name: str, quotas: Quotas, refused: Told, changed: Told) -> None:
        self.name = name
        self.quotas = quotas
        self.record: int | None = None
        """Bytes of its record, if they are measured; `Usage` keeps them when the account is forgotten."""
        self.sums = NOTHING
        """The use of its sessions at this gateway."""
        self.of_others = NOTHING
        """Its use at other gateways of a cluster, as last looked up."""
        self._refused = refused
        self._changed = changed
        self._confirmed = NOTHING
        self._unconfirmed: dict[Reservation, Sums] = {}

    def reserve_session(self, limits: ResourceLimits, *, without_disk: bool = False) -> Reservation:
        """Reserve room for a session with these limits. Raises PrincipalQuotaExceeded, reserving nothing.

        `without_disk`: its disk is another session's, and already reserved.
        """
        use = sums_of(limits, without_disk=without_disk)
        self.check_sums(use)
        self.check_record()
        return self._reserved(use)

    def has_room(self, limits: ResourceLimits, freed: Sums = NOTHING, *, without_disk: bool = False) -> bool:
        """Return whether a session with these limits would fit, once other sessions have `freed` theirs."""
        used = self.sums.plus(self.of_others).plus(freed, -1)
        return not used.plus(sums_of(limits, without_disk=without_disk)).exceeds(self.quotas)

    def check_sums(self, more: Sums) -> None:
        """Check that there is room for one more session's use. Raises PrincipalQuotaExceeded."""
        advice = "end a session, or ask for less"
        used = self.sums.plus(self.of_others)
        self._check_sum("sessions", used.sessions, more.sessions, self.quotas.sessions, "end a session first")
        self._check_sum("memory", used.memory, more.memory, self.quotas.memory, advice)
        self._check_sum("cpus", used.cpus, more.cpus, self.quotas.cpus, advice)
        self._check_sum("disk", used.disk, more.disk, self.quotas.disk, advice)

    def confirmed(self, also: Reservation | None = None) -> Sums:
        """Return `sums` without the reservations that are not confirmed yet, but for one, if it is given."""
        return self._confirmed if also is None else self._confirmed.plus(self._unconfirmed[also])

    def confirm(self, reserved: Reservation) -> None:
        """Note that other gateways, if there are any, may be told of a session's reservation."""
        self._confirmed = self._confirmed.plus(self._unconfirmed.pop(reserved, NOTHING))

    def reserve_disk(self, count: int) -> Reservation:
        """Reserve bytes of disk beside those of sessions. Raises PrincipalQuotaExceeded."""
        advice = "end a session, which frees its own and what its checkpoints have reserved"
        used = self.sums.plus(self.of_others)
        self._check_sum("disk", used.disk, count, self.quotas.disk, advice, "its checkpoints need")
        return self.adopt_disk(count)

    def adopt_disk(self, count: int) -> Reservation:
        """Count bytes of disk that are already in use, whatever the quotas are."""
        use = Sums(disk=count)
        self._count(use)
        return Reservation(lambda: self._count(use, -1))

    def adopt_session(self, limits: ResourceLimits, *, without_disk: bool = False) -> Reservation:
        """Count an existing session, whatever the quotas are."""
        use = sums_of(limits, without_disk=without_disk)
        self._count(use)
        return Reservation(lambda: self._count(use, -1))

    def _reserved(self, use: Sums) -> Reservation:
        def give_back() -> None:
            self.confirm(reserved)
            self._count(use, -1)

        reserved = Reservation(give_back)
        self._unconfirmed[reserved] = use
        self.sums = self.sums.plus(use)
        return reserved

    def _count(self, use: Sums, sign: int = 1) -> None:
        self.sums = self.sums.plus(use, sign)
        self._confirmed = self._confirmed.plus(use, sign)
        self._changed(self.name)

    def _check_sum(
        self,
        quota: str,
        used: float,
        more: float,
        limit: float | None,
        advice: str,
        needs: str = "this session asks for",
    ) -> None:
        if limit is not None and is_above(used + more, limit):
            asked = "" if quota == "sessions" else f", and {needs} {_plain(more)}"
            raise self.refusal(quota, limit, used, f"are used by live sessions{asked}: {advice}")

    def check_record(self) -> None:
        """Raise PrincipalQuotaExceeded when the record is full."""
        raise NotImplementedError

    # Refusals

    def refusal(
        self, quota: str, limit: float, used: float, said: str, wait: float | None = None
    ) -> PrincipalQuotaExceeded:
        """Return what to raise. `wait`: the seconds after which it may succeed; None: waiting won't help."""
        self._refused(quota)
        message = f"The principal's quota {quota} is {_plain(limit)}, and {_plain(used)} {said}"
        if wait is None:
            return PrincipalQuotaExceeded(message, quota=quota, limit=limit, used=used)
        retry = max(1.0, wait)
        return PrincipalQuotaExceededForNow(message, quota=quota, limit=limit, used=used, retry_after=retry)


def sums_of(limits: ResourceLimits, *, without_disk: bool) -> Sums:
    """Return what a session with these limits uses."""
    return Sums(1, limits.memory, round(limits.cpus, CPU_DIGITS), 0 if without_disk else limits.disk)


def _plain(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else f"{value:.6g}"
