"""The seal of an exported notebook, which shows without other files whether the notebook was changed.

The seal, in ``metadata.cellgate.seal``, holds the SHA-256 of every cell's text, in order, and one digest over
all of these and the rest of the file. If the installation has a key, it also holds a signature of that
digest. ``verify`` reads and checks whole files.
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
    """`cells`: one digest per cell. `digest`: over them and the rest. `key`, `signature`: both or none."""

    cells: list[str]
    digest: str
    key: str | None = None
    signature: str | None = None


def cell_digest(text: str) -> str:
    """Return the digest of a cell's text as it is in the file."""
    return sha256(text.encode()).hexdigest()


def notebook_digest(cells: list[str], metadata: dict[str, Any]) -> str:
    """Return the digest of a whole notebook: over its cells' digests and its metadata without the seal."""
    known = {key: value for key, value in metadata["cellgate"].items() if key != "seal"}
    tail = tail_text({**metadata, "cellgate": known}, empty=not cells)
    return sha256(_NOTEBOOK + "".join(cells).encode() + tail.encode()).hexdigest()


def make_seal(cells: list[str], metadata: dict[str, Any], key: SigningKey | None) -> Seal:
    """Return the seal of a notebook, signed if there is a key."""
    digest = notebook_digest(cells, metadata)
    if key is None:
        return Seal(cells, digest)
    return Seal(cells, digest, key.public, key.sign(_NOTEBOOK + digest.encode()))


def signed(seal: Seal) -> bool | None:
    """Return whether the seal's signature is valid; None without one."""
    if seal.key is None and seal.signature is None:
        return None
    if seal.key is None or seal.signature is None:
        return False
    return signature_holds(seal.key, seal.signature, _NOTEBOOK + seal.digest.encode())


def head_statement(principal: str, session: str, rows: int, head: str) -> bytes:
    """Return the statement signed for the head of a chain: whose it is, how long, and its last hash."""
    return _HEAD + msgspec.json.encode([principal, session, rows, head])


def manifest_statement(manifest: bytes) -> bytes:
    """Return the statement signed for a bundle: the list of its files with their hashes."""
    return _MANIFEST + manifest
