"""/v1/sessions/{s}/packages: list and change the packages of a session, beside its kernel's environment."""

from __future__ import annotations

from cellgate import errors
from cellgate.execution.checks import check_session_key
from cellgate.http.base import BaseHandler
from cellgate.http.operation import JSON, READS, STARTS, Answer, operation
from cellgate.identity.principal import Permission
from cellgate.packages.requirements import parse_change
from cellgate.packages.settings import not_allowed
from cellgate.wire.answers import PackageChanges, Packages
from cellgate.wire.models import PackagesBody
from cellgate_kernels.base.errors import InvalidInput

PACKAGES = (
    errors.PackagesNotAllowed,
    errors.PackageError,
    errors.PackageNotFound,
    errors.PackageConflict,
    errors.PackageIndexUnavailable,
    errors.QuotaExceeded,
    errors.QueueFull,
)
"""Errors of changing packages."""


class PackagesHandler(BaseHandler):
    """The packages of one session."""

    @operation(
        "list_packages",
        "List a session's packages",
        Answer(
            200,
            "What is installed besides the kernel's environment; nothing once the session has ended.",
            {JSON: Packages},
        ),
        errors=READS,
        needs=Permission.PACKAGES,
    )
    async def get(self, key: str) -> None:
        session = self.services.sessions.manager.get(self.owner, check_session_key(key))
        if session is None:
            await self.services.sessions.archive.row(self.owner, key)
        installed = [] if session is None else session.slot.packages.models()
        self.answer(Packages(packages=installed))

    @operation(
        "change_packages",
        "Install and remove packages",
        Answer(200, "What changed, and what is installed now.", {JSON: PackageChanges}),
        description="A missing session is created. A request that is refused or fails changes nothing.",
        body={JSON: PackagesBody},
        errors=(*STARTS, *PACKAGES),
        needs=Permission.PACKAGES,
    )
    async def post(self, key: str) -> None:
        body = await self.body(PackagesBody)
        change = await self.services.sessions.files.lane.run(
            parse_change, body.install, body.uninstall, upgrade=body.upgrade, constraints=body.constraints
        )
        if not change.install and not change.uninstall:
            raise InvalidInput("Give requirements to install, or names to uninstall")
        if self.services.kernels.installer is None:
            raise not_allowed()
        self.services.kernels.installer.settings.check(change.names)
        session = await self.services.sessions.files.session(self.owner, key)
        changed = await session.slot.packages.change(
            session.slot, change, lambda kind, fields: session.log.append(kind, None, fields)
        )
        session.record.begin_idleness()
        await session.log.commit()
        self.answer(
            PackageChanges(
                installed=[package.to_wire() for package in changed.installed],
                removed=[package.to_wire() for package in changed.removed],
                packages=session.slot.packages.models(),
            )
        )
