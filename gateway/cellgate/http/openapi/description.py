"""GET /openapi.json and /docs: the description of the interface, for programs and as a page for people.

Both are built on first request, in a thread, and need no token: they are the same for every gateway of this
version and base URL. ``document`` provides the content, ``page`` the page.
"""

from __future__ import annotations

import re
from functools import cached_property
from typing import Any

from cellgate.http.base import BaseHandler
from cellgate.http.message import encode
from cellgate.http.openapi.document import Table, build_document
from cellgate.http.openapi.page import ORIGIN, reference_page
from cellgate.http.operation import HTML, JSON, Answer, Foreign, operation
from cellgate.http.services import Services
from cellgate.pages.html_frame import PAGE_POLICY
from cellgate.wire.base import Query

_HOST = re.compile(r"(?:[A-Za-z0-9._-]{1,255}|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?")
"""A host that can't be anything else in a shell's line."""
_USUAL = "127.0.0.1:8888"

DOCUMENT = Foreign("OpenApiDocument", "An OpenAPI 3.1 document.")


class Document:
    """The OpenAPI document of one gateway, in both forms."""

    def __init__(self, table: Table, version: str, base_url: str) -> None:
        self._table = table
        self._version = version
        self._base_url = base_url

    @cached_property
    def value(self) -> dict[str, Any]:
        """The OpenAPI document as a value."""
        return build_document(self._table, self._version, self._base_url)

    @cached_property
    def json(self) -> bytes:
        """The OpenAPI document as JSON."""
        return encode(self.value) + b"\n"

    @cached_property
    def _page(self) -> list[bytes]:
        """The page in parts, between which the gateway's address belongs."""
        return reference_page(self.value).encode().split(ORIGIN.encode())

    def page(self, protocol: str, host: str) -> bytes:
        """Return the page, whose commands use the address that its reader has used."""
        at = f"{protocol}://{host if _HOST.fullmatch(host) else _USUAL}"
        return at.encode().join(self._page)


class DocumentedHandler(BaseHandler):
    """A handler that serves the document."""

    public = True

    def initialize(self, services: Services, document: Document) -> None:  # type: ignore[override]
        super().initialize(services)
        self.document = document


class DocumentHandler(DocumentedHandler):
    """The document itself."""

    @operation(
        "get_document",
        "This document",
        Answer(200, "An OpenAPI 3.1 document.", {JSON: DOCUMENT}),
        public=True,
        query=Query,
    )
    async def get(self) -> None:
        await self.answer_parts([await self.services.storage.lanes.texts.run(lambda: self.document.json)])


class PageHandler(DocumentedHandler):
    """The document as a page."""

    @operation(
        "get_document_page",
        "This document as a page",
        Answer(200, "An HTML page that needs no scripts and loads nothing from other hosts.", {HTML: None}),
        public=True,
        query=Query,
    )
    async def get(self) -> None:
        self.set_header("Content-Type", "text/html; charset=utf-8")
        self.set_header("Content-Security-Policy", f"sandbox; {PAGE_POLICY}")
        at = self.request.protocol, self.request.host
        await self.finish_parts([await self.services.storage.lanes.texts.run(self.document.page, *at)])
