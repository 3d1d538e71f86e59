"""Downloads: streamed part by part, with a filename and an ETag of their source.

``record.exports`` makes the parts. A failure in the middle resets the connection (``BaseHandler``), so that
half a file never looks complete. When the client leaves, its export is cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import aclosing

from tornado.iostream import StreamClosedError

from cellgate.errors import JobFailed, NotAcceptable, QueueFull, ShuttingDown, StorageFull
from cellgate.http.base import UntaggedHandler
from cellgate.http.operation import READS, Answer
from cellgate.http.services import Services
from cellgate.record.export.page_order import PageOrder
from cellgate.record.export.session_export import Moment, Parts
from cellgate.wire.queries import NotebookQuery
from cellgate_kernels.base.tasks import Supervisor

EXPORTS = (*READS, QueueFull, StorageFull, ShuttingDown)
"""Errors of exporting a record to a file."""
CONVERSIONS = (*EXPORTS, NotAcceptable, JobFailed)
SAVED = "attachment"
"""A browser saves the file."""
SHOWN = "inline"
"""A browser shows the file: only a page under a policy by which nothing runs."""
IF_NONE_MATCH = {"If-None-Match": "An ETag; what still has it is not sent again."}
NOT_MODIFIED = Answer(304, "It is what the client has.", headers={"ETag": "As the client has it."})


def notebook_tag(moment: Moment, query: NotebookQuery, order: PageOrder | None) -> str:
    """Return the ETag of a session's notebook, in Jupyter's own format."""
    left_out = {"-own": query.inherited, "-done": query.undone, "-code": query.outputs}
    arranged = "" if order is None else f"-{order.digest}"
    return moment.tag + arranged + "".join(mark for mark, shown in left_out.items() if not shown)


class DownloadHandler(UntaggedHandler):
    """A handler whose answer is a file."""

    def initialize(self, services: Services) -> None:
        super().initialize(services)
        self._work = Supervisor(lambda: {"path": self.described()})

    def on_connection_close(self) -> None:
        super().on_connection_close()
        for task in self._work:
            task.cancel()

    async def while_there(self, work: Coroutine[None, None, None]) -> None:
        """Run the work of the answer until it is done or the client has gone."""
        task = self._work.share(work, "download")
        if self.disconnected:
            task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.result()

    def known(self, tag: str) -> bool:
        """Set the ETag; True, with status 304, if the client already has this file."""
        self.set_header("Etag", f'"{tag}"')
        if self.check_etag_header():
            self.set_status(304)
            return True
        return False

    @property
    def is_head(self) -> bool:
        """Whether the header fields alone are asked for: what they don't tell need not be made."""
        return self.request.method == "HEAD"

    async def send_head(self, *, kind: str, name: str = "", way: str = SAVED) -> None:
        """Answer with the header fields of a file alone, without its length, which only its making tells.

        `name`: empty if that is not known either.
        """
        self._describe(kind, name, way)
        await self.send_head_alone()

    def _describe(self, kind: str, name: str, way: str) -> None:
        self.set_header("Content-Type", kind)
        if name:
            self.set_header("Content-Disposition", f'{way}; filename="{name}"')

    async def send(self, parts: Parts, *, kind: str, name: str, way: str = SAVED) -> None:
        """Write all parts as a file of this type and name, each once the client has taken the last one.

        `way`: what a browser does with it, `SAVED` or `SHOWN`. Of HEAD, nothing is made: parts are made as
        they are read.
        """
        async with aclosing(parts):
            if self.is_head:
                await self.send_head(kind=kind, name=name, way=way)
                return
            self._describe(kind, name, way)
            try:
                async for part in parts:
                    await self.write_parts([part])
            except StreamClosedError:
                self.on_connection_close()
