"""Large answers to be saved: streamed part by part, named, and tagged with what they were made from.

What the parts are is ``exports``' affair. A failure in the middle closes the connection, so that nobody takes
half a file for a whole one.
"""

from __future__ import annotations

from contextlib import aclosing

from tornado.iostream import StreamClosedError

from gateway.exports import Parts
from gateway.handlers.base import BaseHandler
from gateway.record.errors import StorageError


class DownloadHandler(BaseHandler):
    """A handler whose answer is a file."""

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
                    self.write(part)
                    await self.flush()
            except StreamClosedError:
                self.on_connection_close()
            except StorageError:
                if not self._headers_written:
                    raise
                # The status line is long gone; a chunked body without its end says it is none.
                assert self.request.connection is not None
                self.request.connection.stream.close()  # type: ignore[attr-defined]

    def compute_etag(self) -> str | None:
        """Tornado would hash the whole body; what it was made from says more."""
        return None
