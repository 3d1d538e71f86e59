"""GET /v1/sessions/{s}/notebook: the record of a session as a notebook, or what nbconvert makes of that."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.handlers.base import BaseHandler
from gateway.record.convert import PAGE_POLICY, check_form, extension_of


class _Metadata(msgspec.Struct):
    """Of a notebook's metadata what a file's name needs."""

    language_info: dict[str, Any] = {}


class _Languages(msgspec.Struct):
    """Of a notebook the same."""

    metadata: _Metadata


class NotebookHandler(BaseHandler):
    """The notebook, as a download."""

    async def get(self, key: str) -> None:
        """nbformat 4.5; the ETag is the head of the session's hash chain."""
        self.check()
        form = self.get_query_argument("format", "ipynb")
        if form not in {"ipynb", "notebook"}:
            await self._converted(key, form)
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

    async def _converted(self, key: str, form: str) -> None:
        """HTML, Markdown or a script, as a download; what cells wrote into a page can't run in it."""
        converted = check_form(form)
        outputs = self.flag("outputs", default=True)
        body, head = await self.services.archive.notebook(self.principal.name, key, outputs=outputs)
        self.set_header("Etag", f'"{head}-{form}"' if outputs else f'"{head}-{form}-code"')
        if self.check_etag_header():
            self.set_status(304)
            return
        made = await self.services.jobs.run("gateway.record.convert", form, given=body)
        language = msgspec.json.decode(body, type=_Languages).metadata.language_info
        self.set_header("Content-Type", f"{converted.media_type}; charset=utf-8")
        self.set_header("Content-Security-Policy", f"sandbox; {PAGE_POLICY}")
        self.set_header("Content-Disposition", f'attachment; filename="{key}{extension_of(form, language)}"')
        self.finish(made)

    def set_etag_header_value(self, head: str, *, outputs: bool) -> None:
        """The ETag of this representation."""
        self.set_header("Etag", f'"{head}"' if outputs else f'"{head}-code"')

    def compute_etag(self) -> str | None:
        """Tornado would hash the whole body; the chain's head says more."""
        return None
