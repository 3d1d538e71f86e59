"""The installation's Ed25519 key: it signs exports, so that others can tell which gateway wrote them.

A key is a private file in the data folder, made on demand; without it nothing is signed. When it is replaced,
its public half stays in a list beside it, because what it has signed is still valid. ``seal`` defines the
signed statements. `cryptography` is imported only when a key is used.
"""

from __future__ import annotations

import os
import re
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from cellgate.errors import StorageError
from cellgate_kernels.base.errors import in_brief
from cellgate_kernels.base.regular import open_regular, read_regular

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

KEY_FILE = "signing.key"
FORMER_FILE = "signing.former"
"""The public halves of keys that were replaced, one a line, each with the time of that."""
MOST_BYTES = 64 * 1024
_FORMER = re.compile(r"([0-9a-f]{64}) (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ)")


@dataclass(frozen=True, slots=True)
class FormerKey:
    """A key that was replaced. `public`: its public half; `until`: when, as RFC 3339."""

    public: str
    until: str


class SigningKey:
    """A private key. `public`: its public half, 64 hex digits (RFC 8032's encoding)."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.public = key.public_key().public_bytes_raw().hex()

    def sign(self, message: bytes) -> str:
        """Return the signature in 128 hex digits."""
        return self._key.sign(message).hex()


def load_key(data_dir: Path) -> SigningKey | None:
    """Return the installation's key, if any. Raises StorageError if its file is invalid or not private."""
    path = data_dir / KEY_FILE
    try:
        descriptor = open_regular(path, follow=False)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(f"The signing key {path} can't be read: {in_brief(error)}") from error
    with os.fdopen(descriptor, "rb") as file:
        if os.fstat(descriptor).st_mode & 0o077:
            advice = "chmod 600 it, or make a new one"
            raise StorageError(f"The signing key {path} can be read by other users; {advice}")
        text = file.read(128)
    # Imported late: it takes 7 MB of memory, and most gateways have no key.
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: PLC0415

    try:
        return SigningKey(Ed25519PrivateKey.from_private_bytes(bytes.fromhex(text.decode().strip())))
    except ValueError as error:
        raise StorageError(f"The signing key {path} is no Ed25519 key of 64 hex digits") from error


def make_key(data_dir: Path) -> SigningKey:
    """Return a new key, in a file for its owner alone. Raises StorageError if there is one."""
    path = data_dir / KEY_FILE
    try:
        data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        return _write_new(path)
    except FileExistsError as error:
        raise StorageError(f"{path} exists; --rotate replaces it, and keeps its public half") from error
    except OSError as error:
        raise StorageError(f"The signing key {path} can't be written: {in_brief(error)}") from error


def replace_key(data_dir: Path, former: SigningKey) -> SigningKey:
    """Return a new key in the place of the `former` one, whose public half is noted first.

    If that is interrupted, the former key is still there. Raises StorageError.
    """
    path = data_dir / KEY_FILE
    draft = path.with_name(f".{KEY_FILE}.{secrets.token_hex(8)}")
    now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(data_dir / FORMER_FILE, flags, 0o600), "w") as file:
            file.write(f"{former.public} {now}\n")
            file.flush()
            os.fsync(file.fileno())
        try:
            key = _write_new(draft)
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        raise StorageError(f"The signing key {path} can't be replaced: {in_brief(error)}") from error
    return key


def former_keys(data_dir: Path, current: SigningKey) -> list[FormerKey]:
    """Return the keys that were replaced, the latest first. Raises StorageError if their list is damaged."""
    path = data_dir / FORMER_FILE
    try:
        content = read_regular(path, MOST_BYTES + 1, follow=False)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StorageError(f"The former signing keys {path} can't be read: {in_brief(error)}") from error
    lines = content.decode("ascii", "replace").splitlines()
    found = [_FORMER.fullmatch(line) for line in lines]
    if len(content) > MOST_BYTES or None in found:
        raise StorageError(f"{path} is not the list of former signing keys; put it back from a backup")
    # One whose replacement was interrupted is in the list, and still there or replaced later.
    until = {each[1]: each[2] for each in found if each is not None and each[1] != current.public}
    return [FormerKey(public, when) for public, when in reversed(until.items())]


def _write_new(path: Path) -> SigningKey:
    """Return a new key, written to a new file. Raises OSError."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: PLC0415

    key = Ed25519PrivateKey.generate()
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, 0o600), "w") as file:
        file.write(key.private_bytes_raw().hex() + "\n")
        file.flush()
        os.fsync(file.fileno())
    return SigningKey(key)


def signature_holds(public: str, signature: str, message: bytes) -> bool:
    """Return whether the key with this public half made the signature; False if either is malformed."""
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey  # noqa: PLC0415

    try:
        Ed25519PublicKey.from_public_bytes(_bytes(public)).verify(_bytes(signature), message)
    except (ValueError, InvalidSignature):
        return False
    return True


def _bytes(digits: str) -> bytes:
    """Return the bytes of lower-case hex digits only, so that a value has one spelling. Raises ValueError."""
    value = bytes.fromhex(digits)
    if value.hex() != digits:
        raise ValueError("not plain hex")
    return value
