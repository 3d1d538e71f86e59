"""A session's notebook converted by nbconvert, as a download in which no script runs.

``v1.notebook`` calls it for every format but Jupyter's own; the conversion is a job.
"""

from __future__ import annotations

from cellgate.http.v1.download import DownloadHandler, notebook_tag
from cellgate.jobs.convert import check_form, extension_of
from cellgate.pages.html_frame import PAGE_POLICY
from cellgate.wire.queries import NotebookQuery


async def answer_converted(handler: DownloadHandler, key: str, query: NotebookQuery) -> None:
    """HTML, Markdown or a script. Raises NotAcceptable, JobFailed, StorageError, NotFound."""
    form = query.format
    converted = check_form(form)
    archive, jobs = handler.services.sessions.archive, handler.services.sessions.jobs
    moment = await archive.moment(handler.owner, key, handler.login.reach)
    if handler.known(f"{notebook_tag(moment, query)}-{form}"):
        return
    with jobs.file(handler.owner) as made:
        with jobs.file(handler.owner) as given:
            parts = archive.exports.notebook(
                moment, outputs=query.outputs, inherited=query.inherited, undone=query.undone
            )
            await given.take(parts)
            await jobs.run(handler.owner, "cellgate.jobs.convert", form, given=given, made=made)
        # Only a script's extension depends on the language, for which the whole record has to be read.
        metadata = (await archive.outline(moment))["metadata"] if form == "script" else {}
        extension = extension_of(form, metadata.get("language_info", {}))
        handler.set_header("Content-Security-Policy", f"sandbox; {PAGE_POLICY}")
        handler.set_header("Content-Length", made.size)
        kind = f"{converted.media_type}; charset=utf-8"
        await handler.send(made.parts(), kind=kind, name=f"{key}{extension}")
