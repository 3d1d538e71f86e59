"""The secrets of one session: their values for its kernels, and all values that its outputs may hold.

A value may change while a session uses it: kernels started afterwards get the new one, while files or a
kernel may still hold the old one. So every value that the session's kernels ever got is masked until its end.
The source of values is ``principals.directory``; ``cellgate_kernels.protocol.masking`` does the work.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Protocol

from cellgate.errors import StorageError
from cellgate.identity.secrets import Secret
from cellgate_kernels.protocol.masking import Masker, MessageMasker


class SecretSource(Protocol):
    """Where secrets come from."""

    async def check_secrets(self, owner: str, names: Collection[str]) -> None:
        """Check the owner's secrets. Raises InvalidInput that names a missing one, StorageError."""

    def missing_secrets(self, owner: str, names: Collection[str]) -> Sequence[str]:
        """Return the names for which the owner has no secret."""

    def secrets(self, owner: str, names: Collection[str]) -> Sequence[Secret]:
        """Return the owner's secrets of these names that exist now. Raises StorageError."""


class SessionSecrets:
    """The secrets that a session was created with."""

    def __init__(self, source: SecretSource, owner: str, names: Collection[str]) -> None:
        self._source = source
        self._owner = owner
        self._names = tuple(names)
        # In the order in which they became known.
        self._values: dict[tuple[str, str], None] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the secrets that the session was created with."""
        return self._names

    def copied(self) -> SessionSecrets:
        """Return a copy for a branch of the session, whose kernel has the same values."""
        copy = SessionSecrets(self._source, self._owner, self._names)
        copy._values = self._values.copy()
        return copy

    def current(self) -> tuple[tuple[str, str], ...]:
        """Return names and values for a kernel to start, without removed secrets. Raises StorageError."""
        found = self._source.secrets(self._owner, self._names)
        for secret in found:
            self._values[secret.name, secret.value] = None
            if secret.former is not None:
                self._values[secret.name, secret.former] = None
        return tuple((secret.name, secret.value) for secret in found)

    def adopted(self) -> tuple[tuple[str, str], ...]:
        """Return `current` for a kernel of an earlier gateway, which may still have former values.

        Raises StorageError also when a former value can't be read, because it would not be masked.
        """
        found = self._source.secrets(self._owner, self._names)
        if lost := [secret.name for secret in found if secret.former_lost]:
            raise StorageError(
                f"What these secrets of {self._owner} were before can't be read, so it would be shown:"
                f" {', '.join(lost)}"
            )
        return self.current()

    def names_masker(self) -> Masker:
        """Return a masker for host names, which are in lower case."""
        lower = ((name, value.lower()) for name, value in self._values)
        return Masker([*self._values, *lower])

    def in_names(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Return a file's fields without values of secrets in its path."""
        path = self.text_masker().text(fields["path"])
        return fields if path == fields["path"] else {**fields, "path": path}

    def masker(self) -> MessageMasker:
        """Return a masker for the messages of a kernel that got `current`."""
        return MessageMasker(self.text_masker())

    def text_masker(self) -> Masker:
        """Return a masker for other texts of a kernel that got `current`, and of programs beside it."""
        return Masker(self._values)
