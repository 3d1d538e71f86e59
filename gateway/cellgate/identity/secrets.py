"""Secrets of principals: names and values as they may be, and how values are encrypted at rest.

A `SecretKey` is in a file beside the file of users and tokens, so encryption protects copies of one file
without the other: a backup, a disk image, somebody who may read the database. Whoever can read the whole data
folder can read the values, and so can the gateway, which gives them to kernels. ``store`` keeps the boxes,
``directory`` opens them.
"""

from __future__ import annotations

import hmac
import os
import secrets as randomness
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from cellgate.errors import StorageError
from cellgate.wire.models import ENV_NAME
from cellgate_kernels.base.errors import InvalidInput, in_brief
from cellgate_kernels.base.regular import open_regular
from cellgate_kernels.base.resources import KIB
from cellgate_kernels.protocol.masking import SHORTEST

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

SECRET_KEY = "secrets.key"  # noqa: S105 - the name of a file
"""Its name in the data folder."""
DERIVED = b"cellgate 1 "
"""How the words begin that keys for other things are derived with; no secret is bound to such words."""
MOST_SECRETS = 100
"""Secrets of one principal."""
MOST_OF_A_SESSION = 32
MOST_VALUE = 8 * KIB
LEAST_DIFFERENT = 4
"""Different characters of a value; others would be found in rulers and blank lines."""
_KEY_BYTES = 32
_NONCE_BYTES = 12
_NOT_SECRET = frozenset({"PYTHONHASHSEED"})
"""Variables whose values the record keeps."""


@dataclass(frozen=True, slots=True)
class Secret:
    """A secret with its value. `former`: the value before a change; `former_lost`: it can't be read."""

    name: str
    value: str = field(repr=False)
    former: str | None = field(default=None, repr=False)
    former_lost: bool = False


@dataclass(frozen=True, slots=True)
class Box:
    """A secret as it is kept: encrypted. `set_at` in seconds since the epoch."""

    user: str
    name: str
    box: bytes = field(repr=False)
    former: bytes | None = field(repr=False)
    set_at: float


def check_secret_name(name: str) -> str:
    """Return the name of a secret, which is that of an environment variable. Raises InvalidInput."""
    if not ENV_NAME.fullmatch(name) or name.startswith("CELLGATE_") or name in _NOT_SECRET:
        raise InvalidInput(
            f"{name[:40]!r} can't be a secret's name: it is that of an environment variable, 1 to 128 of"
            " A-Z a-z 0-9 _, and none of Cellgate's own"
        )
    return name


def check_secret_value(value: str) -> str:
    """Return the value of a secret. Raises InvalidInput, which does not show it."""
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise InvalidInput("The value must not contain lone surrogates") from None
    if "\x00" in value:
        raise InvalidInput("The value must not contain NUL characters")
    if size > MOST_VALUE:
        raise InvalidInput(f"The value is {size} bytes long; at most {MOST_VALUE} are taken")
    if len(value) < SHORTEST or len(set(value)) < LEAST_DIFFERENT:
        raise InvalidInput(
            f"The value needs at least {SHORTEST} characters, {LEAST_DIFFERENT} of them different: a simpler"
            " one would be found, and replaced, in ordinary text"
        )
    return value


def check_secret_names(names: list[str] | None) -> tuple[str, ...]:
    """Return the names of a session's secrets, each once. Raises InvalidInput."""
    chosen = tuple(dict.fromkeys(names or ()))
    if len(chosen) > MOST_OF_A_SESSION:
        raise InvalidInput(f"secrets names {len(chosen)}; a session has at most {MOST_OF_A_SESSION}")
    for name in chosen:
        check_secret_name(name)
    return chosen


class SecretKey:
    """Encrypts and decrypts values, each bound to its owner and its name (AES-256-GCM).

    `former`: the key that this one is replacing, with which values may still be encrypted.
    """

    def __init__(self, key: bytes, former: SecretKey | None = None) -> None:
        self._key = key
        self.former = former

    @classmethod
    def new(cls) -> SecretKey:
        """Return a new random key."""
        return cls(randomness.token_bytes(_KEY_BYTES))

    def after(self, former: SecretKey) -> SecretKey:
        """Return this key as the one that is to replace `former`."""
        return SecretKey(self._key, former)

    @property
    def alone(self) -> SecretKey:
        """The key without the former one, once that one is needed no more."""
        return SecretKey(self._key)

    @property
    def content(self) -> bytes:
        """The content of a file with this key."""
        return self._key + (b"" if self.former is None else self.former._key)

    @property
    def mark(self) -> str:
        """Digits by which the key can be told from others, and nothing else learned of it."""
        return self.derived("mark").hex()[:32]

    def derived(self, purpose: str) -> bytes:
        """Return a key for another purpose, the same wherever this key is; it reveals nothing of this one."""
        return hmac.digest(self._key, DERIVED + purpose.encode(), "sha256")

    @cached_property
    def _cipher(self) -> AESGCM:
        # Imported late: it takes 7 MB of memory, and most gateways have no secrets.
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415

        return AESGCM(self._key)

    def seal(self, user: str, name: str, value: str) -> bytes:
        """Encrypt a value, bound to its user and name."""
        nonce = randomness.token_bytes(_NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, value.encode(), _bound_to(user, name))

    def open(self, user: str, name: str, box: bytes) -> str:
        """Return the value. Raises StorageError if the box is damaged, another's, or of another key."""
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415

        try:
            value = self._cipher.decrypt(box[:_NONCE_BYTES], box[_NONCE_BYTES:], _bound_to(user, name))
        except (InvalidTag, ValueError) as error:
            if self.former is not None:
                return self.former.open(user, name, box)
            raise StorageError(
                f"The secret {name} of {user} can't be read: it is damaged, or {SECRET_KEY} is another"
            ) from error
        return value.decode()


def open_boxes(key: SecretKey, boxes: Iterable[Box]) -> list[Secret]:
    """Return the secrets in these boxes. Raises StorageError that names all whose values can't be read."""
    found = []
    lost: list[Box] = []
    for box in boxes:
        try:
            value = key.open(box.user, box.name, box.box)
        except StorageError:
            lost.append(box)
            continue
        former = None
        former_lost = False
        if box.former is not None:
            try:
                former = key.open(box.user, box.name, box.former)
            except StorageError:
                # Its key was lost, and this one was made when the secret was set again.
                former_lost = True
        found.append(Secret(box.name, value, former, former_lost))
    if lost:
        raise StorageError(f"These secrets can't be read: {what_to_do(lost)}")
    return found


def unreadable(key: SecretKey, boxes: Iterable[Box]) -> list[Box]:
    """Return the boxes whose values can't be read with this key."""
    return [box for box in boxes if not _opens(key, box)]


def _opens(key: SecretKey, box: Box) -> bool:
    try:
        key.open(box.user, box.name, box.box)
    except StorageError:
        return False
    return True


def what_to_do(lost: Sequence[Box]) -> str:
    """Which secrets can't be read, and how the administrator mends that."""
    names: dict[str, list[str]] = {}
    for box in lost:
        names.setdefault(box.user, []).append(box.name)
    of_whom = "; ".join(f"{', '.join(of_user)} of {user}" for user, of_user in names.items())
    return (
        f"{of_whom}. They are damaged, or {SECRET_KEY} is not the key that they were set with: put that one"
        f" back from a backup, or set each again (cellgate secret set {lost[0].name} --user {lost[0].user}),"
        " or remove it (cellgate secret remove)"
    )


def _bound_to(user: str, name: str) -> bytes:
    return f"{user}\0{name}".encode()


def load_secret_key(path: Path, *, create: bool, mounted: bool = False) -> SecretKey:
    """Return the key in the file at `path`, made if missing with `create`. Raises StorageError.

    `mounted`: the operator has named the file. Container engines show secrets as links, for all to read.
    """
    try:
        if create and not os.path.lexists(path):
            _make(path)
        descriptor = open_regular(path, follow=mounted)
        with os.fdopen(descriptor, "rb") as file:
            if os.fstat(descriptor).st_mode & 0o077 and not mounted:
                raise StorageError(f"The key {path} can be read by other users; chmod 600 it")
            key = file.read(2 * _KEY_BYTES + 1)
    except OSError as error:
        raise StorageError(f"The key {path} of the secrets can't be used: {in_brief(error)}") from error
    if len(key) == 2 * _KEY_BYTES and not mounted:
        # It is being replaced (`rekey`), or that was interrupted.
        return SecretKey(key[:_KEY_BYTES], SecretKey(key[_KEY_BYTES:]))
    if len(key) != _KEY_BYTES:
        raise StorageError(
            f"{path} is not the key of the secrets: it must be {_KEY_BYTES} bytes long. Put the right one"
            " back from a backup, or remove it and all secrets, and set these again"
        )
    return SecretKey(key)


def replace_secret_key(path: Path, key: SecretKey) -> None:
    """Write a key in the place of the present one; it appears whole, and durably. Raises StorageError."""
    try:
        with _draft(path, key) as draft:
            draft.replace(path)
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise StorageError(f"The key {path} can't be written: {in_brief(error)}") from error


def _make(path: Path) -> None:
    """Write a new key; if another process has just done so, that one stays. It appears whole."""
    with _draft(path, SecretKey.new()) as draft, suppress(FileExistsError):
        os.link(draft, path)


@contextmanager
def _draft(path: Path, key: SecretKey) -> Iterator[Path]:
    """Yield a file with the key beside its place, and remove the file if it is still there then."""
    draft = path.with_name(f".{path.name}.{randomness.token_hex(8)}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(draft, flags, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(key.content)
            file.flush()
            os.fsync(descriptor)
        yield draft
    finally:
        draft.unlink(missing_ok=True)
