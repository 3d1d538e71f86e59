"""The fixed words of requests and answers, for editors and type checkers; at runtime each is any text.

A client must be able to read the words of a newer gateway, and a gateway alone says which ones it accepts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, cast

if TYPE_CHECKING:
    Status = Literal[
        "", "queued", "running", "ok", "error", "timeout", "interrupted", "died", "cancelled"
    ]  # empty: not told
    Cause = Literal[
        "bad_request",
        "cancelled",
        "cell_hook_failed",
        "cell_refused",
        "cell_timeout",
        "changed",
        "chosen",
        "client_disconnected",
        "deleted",
        "disk_full",
        "engine_lost",
        "explored",
        "fenced",
        "gateway_restart",
        "gateway_shutdown",
        "idle_timeout",
        "internal_error",
        "interrupt_requested",
        "kernel_died",
        "kernel_exit",
        "kernel_replaced",
        "kernel_restarted",
        "kernel_start_failed",
        "lifetime",
        "no_kernel",
        "node_lost",
        "one_shot",
        "out_of_memory",
        "package_conflict",
        "package_index_unavailable",
        "package_install_failed",
        "package_not_found",
        "packages_not_allowed",
        "pids_limit",
        "pool_exhausted",
        "quota_exceeded",
        "record_set_back",
        "rolled_back",
        "room_needed",
        "running_quota",
        "shutdown_request",
        "storage_full",
        "user_disabled",
        "user_removed",
    ]
    LanguageName = Literal[
        "python", "python3", "py", "bash", "sh", "shell", "javascript", "js", "typescript", "ts"
    ]
    MissingPackages = Literal["auto", "temporary"]
    NetworkAccess = Literal["none", "allow"]
    CheckpointMode = Literal["none", "auto"]
    BranchWorkspace = Literal["copy", "shared"]
    KeptBranches = Literal["none", "first_ok", "all"]
    OnDisconnect = Literal["continue", "interrupt"]
    RoleName = Literal["user", "admin", "auditor"]
    CellOrder = Literal["record", "page"]
    UsageBy = Literal["principal", "session", "day"]
else:
    Status = Cause = LanguageName = MissingPackages = NetworkAccess = CheckpointMode = str
    BranchWorkspace = KeptBranches = OnDisconnect = RoleName = CellOrder = UsageBy = str


def language_name(given: str | None) -> LanguageName | None:
    """Return the name of a language that a user has given, which the gateway will check; None for none."""
    return cast("LanguageName | None", given or None)
