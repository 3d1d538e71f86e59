"""Builds the wire's model of a session from its row and from a live session's state. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from msgspec import UNSET, UnsetType, structs, to_builtins

from cellgate.identity.principal import Reach
from cellgate.record.facts import KERNELSPEC, WITHOUT_VARIABLES
from cellgate.record.rows import SessionRow
from cellgate.wire.answers import SessionModel
from cellgate.wire.environments import SessionEnvironment
from cellgate.wire.events import Missing
from cellgate_kernels.kernel.kernel import Kernel
from cellgate_kernels.specs.named_environment import NamedEnvironment, read_named

TITLE = "title"
"""The metadata key of a session's subject, such as the path of its notebook."""
ENVIRONMENT = "environment"
"""The key of a kernel's environment that has the name and digest of one that an operator has added."""
CHECKPOINT = "checkpoint"
"""The key of a kernel's environment that says when checkpoints are made; `AUTO`: after each cell."""
AUTO: Final = "auto"


def has_network(row: SessionRow) -> bool:
    """Return whether the session's newest kernel could reach the hosts of its principal's policy."""
    return row.environment.get("network") == "allow"


def makes_checkpoints(row: SessionRow) -> bool:
    """Return whether a checkpoint was made after each of the session's last cells."""
    return row.environment.get(CHECKPOINT) == AUTO


def named_in(row: SessionRow) -> NamedEnvironment | None:
    """Return the environment of the session's newest kernel, if it is one that an operator has added."""
    return read_named(row.environment.get(ENVIRONMENT))


def session_model(
    row: SessionRow,
    *,
    kernel_id: str | None = None,
    queue_length: int = 0,
    problem: str | None = None,
    missing: Missing | UnsetType = UNSET,
    neighbours: Sequence[str] = (),
    sharers: Sequence[str] = (),
    inherits_paths: bool = False,
) -> SessionModel:
    """Return the wire's model of a session, live or ended.

    `problem`: why the session is no longer recorded, if so. `missing`: what the session lost at its last end
    and has not got back. `neighbours`: the sessions whose kernels share its kernel's sandbox. `sharers`: the
    sessions whose kernels share its files. `inherits_paths`: absolute names of the workspace are another
    session's.
    """
    title = (row.metadata or {}).get(TITLE)
    named = named_in(row)
    return SessionModel(
        session=row.key,
        title=title if isinstance(title, str) else None,
        principal=row.principal,
        kernel=row.kernel,
        kernel_id=kernel_id,
        environment=UNSET if named is None else SessionEnvironment(name=named.name, digest=named.digest),
        state=row.state,
        cause=row.cause,
        isolation=row.isolation,
        created_at=row.created_at,
        last_activity=row.last_activity,
        execution_count=row.execution_count,
        queue_length=queue_length,
        limits=row.limits,
        network="allow" if has_network(row) else "none",
        metadata=row.metadata,
        seq=row.head_seq,
        head=row.head.hex(),
        problem=UNSET if problem is None else problem,
        missing=missing,
        branched_from=UNSET if row.branched_from is None else row.branched_from,
        shares_sandbox_with=list(neighbours) or UNSET,
        shares_workspace_with=list(sharers) or UNSET,
        absolute_paths="inherited" if inherits_paths else UNSET,
        checkpoint=AUTO if makes_checkpoints(row) else UNSET,
    )


def within(reach: Reach, model: SessionModel) -> SessionModel:
    """Return the model as a token may see it: without sharing sessions that are out of its reach.

    `branched_from` stays. The branch's own record, which the token may read, has it in its first event.
    """
    return structs.replace(
        model,
        shares_sandbox_with=_reached(reach, model.shares_sandbox_with),
        shares_workspace_with=_reached(reach, model.shares_workspace_with),
    )


def _reached(reach: Reach, keys: list[str] | UnsetType) -> list[str] | UnsetType:
    return UNSET if isinstance(keys, UnsetType) else [key for key in keys if reach.covers(key)] or UNSET


def environment_of(kernel: Kernel) -> dict[str, Any]:
    """Return the record's description of where cells run: kernel, image, Python and packages.

    The source is the kernel's own kernel_info_reply, and a report of an unused kernel of the same kernelspec.
    A session's environment variables can make its own kernel find other packages; which ones can't be known,
    so `packages_of` names the kernel that reported.
    """
    known: dict[str, Any] = {
        "display_name": kernel.facts.display_name,
        "kernel_id": kernel.id,
        "kernel_info": kernel.facts.info,
        **kernel.image,
    }
    if (named := kernel.facts.named) is not None:
        known[ENVIRONMENT] = to_builtins(named)
    if (environment := kernel.environment) is not None:
        known |= {"python": environment.python, "packages": environment.versions()}
        known["packages_of"] = WITHOUT_VARIABLES if kernel.profile.variables else KERNELSPEC
        if environment.left_out:
            known["packages_left_out"] = environment.left_out
        if kernel.facts.hash_seed is not None:
            known["hash_seed"] = kernel.facts.hash_seed
    names = [name for name, _ in kernel.profile.env if name != "PYTHONHASHSEED"]
    if kernel.workspace.name != kernel.id:
        # The kernel uses the folder of another session's kernel, or of its own session's before a rollback.
        known["workspace_of"] = kernel.workspace.name
    if kernel.profile.egress:
        known["network"] = "allow"
    if names:
        # Names only: values may be secrets, and the record is kept.
        known["env"] = names
    if kernel.profile.secrets:
        known["secrets"] = [name for name, _ in kernel.profile.secrets]
    return known
