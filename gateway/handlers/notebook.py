"""GET /v1/sessions/{s}/notebook: the record of a session as a Jupyter notebook."""

from __future__ import annotations

from gateway.handlers.base import BaseHandler
from gateway.handlers.converted import answer_converted


class NotebookHandler(BaseHandler):
    """The notebook, as a download."""

    async def get(self, key: str) -> None:
        """nbformat 4.5; the ETag is the head of the session's hash chain."""
        self.check()
        form = self.get_query_argument("format", "ipynb")
        if form not in {"ipynb", "notebook"}:
            await answer_converted(self, key, form)
            return
        outputs = self.flag("outputs", default=True)
        body, head = await self.services.archive.notebook(self.principal.name, key, outputs=outputs)
        self.set_etag_header_value(head, outputs=outputs)
        if self.check_etag_header():
            self.set_status(304)
            return
        self.set_header("Content-Type", "application/x-ipynb+json")
        self.set_header("Content-Disposition", f'attachment; filename="{key}.ipynb"')
        self.finish(body)

    def set_etag_header_value(self, head: str, *, outputs: bool) -> None:
        """The ETag of this representation."""
        self.set_header("Etag", f'"{head}"' if outputs else f'"{head}-code"')

    def compute_etag(self) -> str | None:
        """Tornado would hash the whole body; the chain's head says more."""
        return None
