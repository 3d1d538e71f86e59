"""The header that names a gateway: in its answers, and in requests that are meant for this one alone."""

from __future__ import annotations

from typing import Final

OWNER: Final = "Cellgate-Owner"
"""Of an answer: the id of the gateway. Of a request: any other gateway refuses it (421 `not_owner`)."""
