"""GET /v1/sessions/{s}/notebook and /bundle: a session as a Jupyter notebook, alone or with its files."""

from __future__ import annotations

from cellgate.errors import Conflict, FileHeld, TooLarge
from cellgate.files.tree import parse_path
from cellgate.http.operation import HTML, TEXT, Answer, Foreign, operation
from cellgate.http.v1.download import (
    CONVERSIONS,
    EXPORTS,
    IF_NONE_MATCH,
    NOT_MODIFIED,
    SAVED,
    SHOWN,
    DownloadHandler,
    notebook_tag,
)
from cellgate.identity.principal import Permission
from cellgate.jobs.convert import check_form, extension_of
from cellgate.pages.html_frame import PAGE_POLICY
from cellgate.record.export.page_order import PageOrder
from cellgate.record.export.session_export import Moment, Parts
from cellgate.wire.queries import NotebookQuery
from cellgate_kernels.base.errors import InvalidInput

NOTEBOOK = Foreign("Notebook", "A notebook, as nbformat 4.5 describes it.")


class NotebookHandler(DownloadHandler):
    """The notebook, as a download."""

    @operation(
        "get_notebook",
        "Download a session as a notebook",
        Answer(
            200,
            "The notebook in nbformat 4.5, or converted by nbconvert, as an attachment.",
            {"application/x-ipynb+json": NOTEBOOK, HTML: None, "text/markdown": None, TEXT: None},
            {"ETag": "Changes with the record.", "Content-Disposition": "The file name."},
        ),
        NOT_MODIFIED,
        query=NotebookQuery,
        headers=IF_NONE_MATCH,
        errors=(*CONVERSIONS, TooLarge, Conflict, FileHeld),
        needs=Permission.READ,
    )
    async def get(self, key: str) -> None:
        query = self.query(NotebookQuery)
        if query.inline and query.format != "html":
            raise InvalidInput("inline is for format=html: a browser shows no other format")
        if query.format not in {"ipynb", "notebook"}:
            await self.while_there(self._converted(key, query))
            return
        await self.while_there(self._notebook(key, query))

    async def _order(self, key: str, query: NotebookQuery) -> PageOrder | None:
        """Return the order that the request names; None for that of the record. Raises InvalidInput."""
        if query.order == "record":
            if query.file is not None:
                raise InvalidInput("file is the notebook whose order the cells get; add order=page")
            return None
        if query.file is None:
            raise InvalidInput("order=page is the order of a notebook in the workspace: name it by file=PATH")
        self.login.check(frozenset({Permission.FILES}))
        return await self.services.sessions.files.order(self.owner, key, parse_path(query.file))

    def _parts(self, moment: Moment, query: NotebookQuery, order: PageOrder | None) -> Parts:
        return self.services.sessions.archive.exports.notebook(
            moment, outputs=query.outputs, inherited=query.inherited, undone=query.undone, order=order
        )

    async def _notebook(self, key: str, query: NotebookQuery) -> None:
        # The file first, so that the record has what the file names.
        order = await self._order(key, query)
        moment = await self.services.sessions.archive.moment(self.owner, key, self.login.reach)
        if not self.known(notebook_tag(moment, query, order)):
            parts = self._parts(moment, query, order)
            await self.send(parts, kind="application/x-ipynb+json", name=f"{key}.ipynb")

    async def _converted(self, key: str, query: NotebookQuery) -> None:
        """Answer with HTML, Markdown or a script in which no script runs; the conversion is a job."""
        form = query.format
        converted = check_form(form)
        archive, jobs = self.services.sessions.archive, self.services.sessions.jobs
        order = await self._order(key, query)
        moment = await archive.moment(self.owner, key, self.login.reach)
        if self.known(f"{notebook_tag(moment, query, order)}-{form}"):
            return
        kind = f"{converted.media_type}; charset=utf-8"
        way = SHOWN if query.inline else SAVED
        self.set_header("Content-Security-Policy", f"sandbox; {PAGE_POLICY}")
        if self.is_head:
            extension = "" if form == "script" else extension_of(form, {})
            await self.send_head(kind=kind, name=extension and f"{key}{extension}", way=way)
            return
        with jobs.file(self.owner) as made:
            with jobs.file(self.owner) as given:
                await given.take(self._parts(moment, query, order))
                await jobs.run(self.owner, "cellgate.jobs.convert", form, given=given, made=made)
            # Only a script's extension depends on the language, for which the whole record has to be read.
            metadata = (await archive.outline(moment))["metadata"] if form == "script" else {}
            extension = extension_of(form, metadata.get("language_info", {}))
            self.set_header("Content-Length", made.size)
            await self.send(made.parts(), kind=kind, name=f"{key}{extension}", way=way)


class BundleHandler(DownloadHandler):
    """The bundle: notebook, files, lock, rows, README."""

    @operation(
        "get_bundle",
        "Download a session as a bundle",
        Answer(
            200,
            "A zip file with the full notebook, the package versions, the record, a README and, with the"
            " permission `files`, the session's files.",
            {"application/zip": None},
            {"Content-Disposition": "The file name."},
        ),
        errors=EXPORTS,
        needs=Permission.READ,
    )
    async def get(self, key: str) -> None:
        await self.while_there(self._bundle(key))

    async def _bundle(self, key: str) -> None:
        services = self.services
        moment = await services.sessions.archive.moment(self.owner, key, self.login.reach)
        # A reader without permission for the session's files gets the bundle without them.
        readable = Permission.FILES in self.login.permissions
        workspace = await services.sessions.manager.workspace(moment.session) if readable else None
        parts = services.sessions.archive.exports.bundle(moment, workspace)
        await self.send(parts, kind="application/zip", name=f"{key}.zip")
