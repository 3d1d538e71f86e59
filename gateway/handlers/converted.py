"""What nbconvert makes of a session's notebook, as a download in which nothing runs.

``handlers.notebook`` hands over to it for every format but Jupyter's own; the conversion is a job.
"""

from __future__ import annotations

from gateway.handlers.base import BaseHandler
from gateway.record.convert import PAGE_POLICY, check_form, extension_of


async def answer_converted(handler: BaseHandler, key: str, form: str) -> None:
    """HTML, Markdown or a script. Raises NotAcceptable, JobFailed, StorageError, NotFound."""
    converted = check_form(form)
    outputs = handler.flag("outputs", default=True)
    archive, jobs = handler.services.archive, handler.services.jobs
    moment = await archive.moment(handler.principal.name, key)
    head = moment.head.hex()
    handler.set_header("Etag", f'"{head}-{form}"' if outputs else f'"{head}-{form}-code"')
    if handler.check_etag_header():
        handler.set_status(304)
        return
    with jobs.input() as given:
        await given.take(archive.exports.notebook(moment, outputs=outputs))
        made = await jobs.run("gateway.record.convert", form, given=given)
    told = (await archive.outline(moment))["metadata"].get("language_info", {})
    name = key + extension_of(form, told)
    handler.set_header("Content-Type", f"{converted.media_type}; charset=utf-8")
    handler.set_header("Content-Security-Policy", f"sandbox; {PAGE_POLICY}")
    handler.set_header("Content-Disposition", f'attachment; filename="{name}"')
    handler.finish(made)
