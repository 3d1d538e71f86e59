"""/v1/sessions/{s}/executions/{id}/output/{index}: one whole output of an execution, as a file.

User code made it and it may hold anything, so it is an attachment that no browser renders.
"""

from __future__ import annotations

import mimetypes
import re

from cellgate.errors import NotFound
from cellgate.execution.pictures import output_bytes
from cellgate.execution.results import ResultBuilder
from cellgate.http.base import BaseHandler
from cellgate.http.operation import ANY_TYPE, READS, Answer, operation
from cellgate.identity.principal import Permission
from cellgate.wire.queries import OutputQuery
from cellgate_kernels.base.errors import InvalidInput

_MEDIA_TYPE = re.compile(r"[a-z]+/[A-Za-z0-9][A-Za-z0-9.+-]{0,126}")


class OutputHandler(BaseHandler):
    """One output."""

    @operation(
        "get_output",
        "Download one output",
        Answer(
            200,
            "The output's image if it has one, otherwise its full text, as an attachment.",
            {ANY_TYPE: None},
            {"Content-Disposition": "The file name."},
        ),
        query=OutputQuery,
        errors=READS,
        needs=Permission.READ,
    )
    async def get(self, key: str, execution: str, index: str) -> None:
        query = self.query(OutputQuery)
        if not (index.isascii() and index.isdecimal() and len(index) < 8):
            raise InvalidInput("The index of an output is a whole number, from 0")
        archive = self.services.sessions.archive
        mime, body = await archive.result(
            self.owner, key, execution, _output, int(index), query.type, plain=query.plain
        )
        # A name that user code made up must not get into a header.
        known = mime if _MEDIA_TYPE.fullmatch(mime) else "application/octet-stream"
        extension = mimetypes.guess_extension(known) or ".bin"
        self.set_header("Content-Type", f"{known}; charset=utf-8" if known.startswith("text/") else known)
        self.set_header("Content-Security-Policy", "sandbox")
        name = f"output-{execution[:8]}-{int(index)}{extension}"
        self.set_header("Content-Disposition", f'attachment; filename="{name}"')
        await self.finish_parts([body])


def _output(builder: ResultBuilder, index: int, wanted: str | None, *, plain: bool) -> tuple[str, bytes]:
    """Return the media type and the bytes of one output. Raises NotFound."""
    outputs = builder.result(plain=plain).outputs
    if index >= len(outputs):
        count = "1 output" if len(outputs) == 1 else f"{len(outputs)} outputs"
        raise NotFound(f"This execution has {count}; the first is 0")
    return output_bytes(outputs[index], wanted)
