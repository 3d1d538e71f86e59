"""What makes an exported notebook tell by itself that it was changed.

The seal, in ``metadata.cellgate.seal``, holds the SHA-256 of every cell's text, in order, and one digest over
all of these and all the rest of the file; with a key of the installation, a signature of that digest too.
Reading a whole file and judging it is ``verify``.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import msgspec

from cellgate.record.keys import SigningKey, signature_holds
from cellgate.record.text import tail_text

_NOTEBOOK = b"cellgate notebook 1\n"
_HEAD = b"cellgate head 1\n"
_MANIFEST = b"cellgate bundle 1\n"


class Seal(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """`cells`: a digest a cell; `digest`: over them and the rest. `key` and `signature`, or neither."""

    cells: list[str]
    digest: str
    key: str | None = None
    signature: str | None = None


def cell_digest(text: str) -> str:
    """Of a cell's text as it stands in the file."""
    return sha256(text.encode()).hexdigest()


def notebook_digest(cells: list[str], metadata: dict[str, Any]) -> str:
    """Of a whole notebook: its cells' digests, and its metadata without the seal."""
    known = {key: value for key, value in metadata["cellgate"].items() if key != "seal"}
    tail = tail_text({**metadata, "cellgate": known}, empty=not cells)
    return sha256(_NOTEBOOK + "".join(cells).encode() + tail.encode()).hexdigest()


def make_seal(cells: list[str], metadata: dict[str, Any], key: SigningKey | None) -> Seal:
    """The seal of a notebook; signed, given a key."""
    digest = notebook_digest(cells, metadata)
    if key is None:
        return Seal(cells, digest)
    return Seal(cells, digest, key.public, key.sign(_NOTEBOOK + digest.encode()))


def signed(seal: Seal) -> bool | None:
    """Whether the seal's signature holds; None without one."""
    if seal.key is None and seal.signature is None:
        return None
    if seal.key is None or seal.signature is None:
        return False
    return signature_holds(seal.key, seal.signature, _NOTEBOOK + seal.digest.encode())


def head_statement(principal: str, session: str, rows: int, head: str) -> bytes:
    """What is signed when the head of a chain is: whose chain, how long, and its last hash."""
    return _HEAD + msgspec.json.encode([principal, session, rows, head])


def manifest_statement(manifest: bytes) -> bytes:
    """What is signed of a bundle: the list of its files with their hashes."""
    return _MANIFEST + manifest
