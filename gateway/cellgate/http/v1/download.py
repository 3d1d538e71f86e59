"""Large answers to be saved: streamed part by part, named, and tagged with what they were made from.

What the parts are is ``record.exports``' affair. A failure in the middle resets the connection
(``BaseHandler``), so that nobody takes half a file for a whole one. Once the client has left, nothing is made
for it any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import aclosing

from tornado.iostream import StreamClosedError

from cellgate.http.base import BaseHandler
from cellgate.http.context import Services
from cellgate.http.operation import READS, Answer
from cellgate.record.exports import Parts
from cellgate.wire.errors import JobFailed, NotAcceptable, QueueFull, ShuttingDown, StorageFull
from cellgate_kernels.tasks import Supervisor

EXPORTS = (*READS, QueueFull, StorageFull, ShuttingDown)
"""What comes of making a file of a record."""
CONVERSIONS = (*EXPORTS, NotAcceptable, JobFailed)
IF_NONE_MATCH = {"If-None-Match": "An ETag; what still has it is not sent again."}
NOT_MODIFIED = Answer(304, "It is what the client has.", headers={"ETag": "As the client has it."})


class DownloadHandler(BaseHandler):
    """A handler whose answer is a file."""

    def initialize(self, services: Services) -> None:
        """Tornado's hook; see BaseHandler."""
        super().initialize(services)
        self._work = Supervisor(lambda: {"path": self.request.path})

    def on_connection_close(self) -> None:
        """The client has gone: give up what is under way for it."""
        super().on_connection_close()
        for task in self._work:
            task.cancel()

    async def while_there(self, work: Coroutine[None, None, None]) -> None:
        """Do the work of the answer for as long as its client is there."""
        task = self._work.share(work, "download")
        if self.disconnected:
            task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.result()

    def known(self, tag: str) -> bool:
        """Set the ETag; whether the client has this very file already, and was told so."""
        self.set_header("Etag", f'"{tag}"')
        if self.check_etag_header():
            self.set_status(304)
            return True
        return False

    async def send(self, parts: Parts, *, kind: str, name: str) -> None:
        """Write all parts as a file of this media type and name, each when the client took the one before."""
        self.set_header("Content-Type", kind)
        self.set_header("Content-Disposition", f'attachment; filename="{name}"')
        async with aclosing(parts):
            try:
                async for part in parts:
                    await self.write_parts([part])
            except StreamClosedError:
                self.on_connection_close()

    def compute_etag(self) -> str | None:
        """Tornado would hash the whole body; what it was made from says more."""
        return None
