"""The loss of a kernel in words, for people and models. Pure.

It says what the gateway's answer says and nothing else: an older gateway names no cause and no files.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import UnsetType

from cellgate.wire.events import KernelInfo, Missing

_FILES = {"kept": ", files are kept", "none": ", and there are no files"}


def describe_loss(kernel: KernelInfo) -> str:
    """Describe the loss of the previous kernel in a sentence or two; empty if nothing was lost."""
    if not kernel.replaced:
        return ""
    why = f" ({kernel.cause})" if kernel.cause else ""
    files = "" if isinstance(kernel.files, UnsetType) else _FILES.get(kernel.files, "")
    text = f"The kernel was replaced{why}: variables are gone{files}."
    if not isinstance(kernel.missing, UnsetType):
        text += f" No longer there: {'; '.join(_missing(kernel.missing))}."
    return text


def _missing(missing: Missing) -> Iterator[str]:
    if missing.env:
        yield f"environment variables {', '.join(missing.env)}"
    if missing.packages:
        yield f"packages {', '.join(missing.packages)}"
    if missing.network:
        yield "its network"
    if missing.limits:
        yield "limits " + ", ".join(f"{name} of {value:.15g}" for name, value in missing.limits.items())
