"""A zip file that is streamed, with a list of its files' hashes at its end, signed if there is a key.

The archive's comment is the SHA-256 of all bytes before it, so that ``verify`` finds any change; it reads
archives only in the form that is written here. What is in one is not known here.
"""

from __future__ import annotations

import io
import stat
import zipfile
from collections.abc import Iterable, Iterator
from datetime import datetime
from hashlib import sha256
from types import TracebackType
from typing import Any, Self

import msgspec

from cellgate.record.keys import SigningKey
from cellgate.record.seal import manifest_statement

MANIFEST = "manifest.json"
SIGNATURE = "signature.json"
COMMENT = b"cellgate sha256:"


class Signature(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A signature of the manifest's bytes."""

    key: str
    signature: str


class _Sink(io.RawIOBase):
    """Collects written bytes until they are taken; not seekable, like a connection."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self.digest = sha256()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._parts.append(bytes(data))
        return len(self._parts[-1])

    def take(self, *, but: int = 0) -> bytes:
        """Return all bytes written since the last call, except the last `but`, which are dropped."""
        taken = b"".join(self._parts)
        taken = taken[: len(taken) - but]
        self._parts.clear()
        self.digest.update(taken)
        return taken


class SealedArchive:
    """An archive whose files all have one time. `digests`: the SHA-256 of each file so far, by name.

    Leave its block before `last`.
    """

    def __init__(self, moment: str) -> None:
        self.digests: dict[str, str] = {}
        self._sink = _Sink()
        self._archive = zipfile.ZipFile(self._sink, "w")
        self._moment = datetime.fromisoformat(moment).timetuple()[:6]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._archive.close()

    def add(self, name: str, parts: Iterable[bytes]) -> Iterator[bytes]:
        """Write a file; yields the archive's bytes as they become ready."""
        info = zipfile.ZipInfo(name, self._moment)
        info.compress_type = zipfile.ZIP_DEFLATED
        info.external_attr = (stat.S_IFREG | 0o644) << 16
        digest = sha256()
        with self._archive.open(info, "w", force_zip64=True) as file:
            for part in parts:
                digest.update(part)
                file.write(part)
                yield self._sink.take()
        self.digests[name] = digest.hexdigest()

    def sign(self, listed: msgspec.Struct, key: SigningKey | None) -> Iterator[bytes]:
        """Write the manifest and, if there is a key, its signature; then the archive has all its files."""
        manifest = msgspec.json.format(msgspec.json.encode(listed), indent=1)
        yield from self.add(MANIFEST, [manifest])
        if key is not None:
            signature = Signature(key.public, key.sign(manifest_statement(manifest)))
            yield from self.add(SIGNATURE, [msgspec.json.encode(signature)])
        # Room for the digest, so that the archive's directory already has the comment's final length.
        self._archive.comment = bytes(len(COMMENT) + 64)

    def last(self) -> Iterator[bytes]:
        """Yield the rest of the bytes, once the archive is closed."""
        yield self._sink.take(but=len(COMMENT) + 64)
        yield COMMENT + self._sink.digest.hexdigest().encode()
