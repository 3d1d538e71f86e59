"""What nbconvert makes of a session's notebook, as a download in which nothing runs.

``handlers.notebook`` hands over to it for every format but Jupyter's own; the conversion is a job.
"""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.handlers.base import BaseHandler
from gateway.record.convert import PAGE_POLICY, check_form, extension_of


class _Metadata(msgspec.Struct):
    """Of a notebook's metadata what a file's name needs."""

    language_info: dict[str, Any] = {}


class _Notebook(msgspec.Struct):
    """Of a notebook the same."""

    metadata: _Metadata


async def answer_converted(handler: BaseHandler, key: str, form: str) -> None:
    """HTML, Markdown or a script. Raises NotAcceptable, JobFailed, and what `Archive.notebook` raises."""
    converted = check_form(form)
    outputs = handler.flag("outputs", default=True)
    body, head = await handler.services.archive.notebook(handler.principal.name, key, outputs=outputs)
    handler.set_header("Etag", f'"{head}-{form}"' if outputs else f'"{head}-{form}-code"')
    if handler.check_etag_header():
        handler.set_status(304)
        return
    made = await handler.services.jobs.run("gateway.record.convert", form, given=body)
    name = key + extension_of(form, msgspec.json.decode(body, type=_Notebook).metadata.language_info)
    handler.set_header("Content-Type", f"{converted.media_type}; charset=utf-8")
    handler.set_header("Content-Security-Policy", f"sandbox; {PAGE_POLICY}")
    handler.set_header("Content-Disposition", f'attachment; filename="{name}"')
    handler.finish(made)
