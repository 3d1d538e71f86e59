"""Opens the users of a data folder or of a cluster: the one place that chooses the store.

PostgreSQL's modules are imported only on demand: they are an extra, and a file needs none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cellgate.errors import StorageError
from cellgate.identity.secrets import (
    SECRET_KEY,
    SecretKey,
    load_secret_key,
    replace_secret_key,
    unreadable,
    what_to_do,
)
from cellgate.identity.store.interface import SignInLedger, UserReader, UserStore
from cellgate.identity.store.user_file import PRINCIPALS, UserFile, UserFileReader
from cellgate.record.store.opening import record_address

if TYPE_CHECKING:
    from cellgate.identity.store.user_tables import UserTables

OPTION = "--cluster"


@dataclass(frozen=True, slots=True)
class UsersPlace:
    """Where users are: in a data folder or, with `cluster`, in the database with this URL.

    `key_file`: the file with the key of the secrets; None: it is in the data folder.
    """

    data_dir: Path
    cluster: str = ""
    key_file: Path | None = None

    def __str__(self) -> str:
        return str(record_address(self.cluster, OPTION)) if self.cluster else f"data folder {self.data_dir}"

    def key(self, *, create: bool) -> SecretKey:
        """Return the key of the secrets; with `create` it is made if missing. Raises StorageError."""
        if self.key_file is not None:
            return load_secret_key(self.key_file, create=False, mounted=True)
        if create:
            self.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        return load_secret_key(self.data_dir / SECRET_KEY, create=create)

    @property
    def key_path(self) -> Path:
        """The file with the key."""
        return self.key_file or self.data_dir / SECRET_KEY


@contextmanager
def open_users(data_dir: Path, *, create: bool = False) -> Iterator[UserStore]:
    """Open the users of a data folder until the context ends. Raises what `open_users_at` raises."""
    with open_users_at(UsersPlace(data_dir), create=create) as store:
        yield store


@contextmanager
def open_users_at(
    place: UsersPlace, *, create: bool = False, by: Mapping[str, Any] | None = None
) -> Iterator[UserStore]:
    """Open the store until the context ends; with `create`, it is made. Raises StorageError, NotFound.

    In a cluster also InvalidInput for an invalid address. `by`: who makes the changes, as acts name them;
    None: the system's user of this process.
    """
    store: UserStore
    if place.cluster:
        address = record_address(place.cluster, OPTION)
        from cellgate.identity.store.user_tables import UserTables  # noqa: PLC0415 - an extra

        store = UserTables(address, create=create, by=by)
    else:
        if create:
            place.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        store = UserFile(place.data_dir / PRINCIPALS, create=create, by=by)
    with closing(store):
        yield store


def secret_key(place: UsersPlace) -> SecretKey:
    """Return the key to encrypt a secret with, made if there is none yet. Raises StorageError.

    In a cluster it must be the one that all gateways have.
    """
    if not place.cluster:
        return place.key(create=True)
    address = record_address(place.cluster, OPTION)
    from cellgate.identity.store.user_tables import UserTables  # noqa: PLC0415 - an extra

    with closing(UserTables(address, create=True)) as tables:
        return _checked_key(place, tables, create=True)


def rekey(data_dir: Path) -> int:
    """Replace the key of a data folder's secrets, and encrypt them anew; return how many there are.

    At each moment the file has the keys that open them all, also for a gateway that serves: first the new one
    beside the former, then the new one alone. A replacement that was interrupted is finished instead. Raises
    NotFound without users or secrets, and StorageError, at once if there are secrets that can't be read.
    """
    path = data_dir / SECRET_KEY
    with open_users(data_dir) as store:
        present = load_secret_key(path, create=False)
        if lost := unreadable(present, store.secrets()):
            raise StorageError(f"The key stays as it was, because secrets can't be read: {what_to_do(lost)}")
        key = SecretKey.new().after(present) if present.former is None else present
        replace_secret_key(path, key)
        number = store.rekey_secrets(key)
        replace_secret_key(path, key.alone)
    return number


def rekey_cluster(place: UsersPlace, new: Path) -> int:
    """Encrypt a cluster's secrets anew with the key in the file `new`, made if missing; return their number.

    From then on gateways need that key, so none may be running. Raises NotFound without users or a key, and
    StorageError.
    """
    address = record_address(place.cluster, OPTION)
    from cellgate.identity.store.user_tables import UserTables  # noqa: PLC0415 - an extra

    with closing(UserTables(address, create=False)) as tables:
        present = _checked_key(place, tables, create=False)
        if lost := unreadable(present, tables.secrets()):
            raise StorageError(f"The key stays as it was, because secrets can't be read: {what_to_do(lost)}")
        key = load_secret_key(new, create=True, mounted=True)
        return tables.rekey_secrets(key.after(present))


def _checked_key(place: UsersPlace, tables: UserTables, *, create: bool) -> SecretKey:
    """Return the key that all gateways of the cluster have; with `create`, the first one's is made."""
    known = tables.has_key()
    if known and not place.key_path.exists():
        raise StorageError(
            f"The gateways of the cluster ({tables.address}) have a key, and {place.key_path} does not exist:"
            " give a copy of the key by --cluster-key FILE"
        )
    key = place.key(create=create and not known)
    tables.check_key(key, place.key_path)
    return key


def reader_of_users(data_dir: Path) -> UserReader:
    """Return what reads the users of this data folder, which may have none yet."""
    return UserFileReader(data_dir / PRINCIPALS)


@dataclass(frozen=True, slots=True)
class ClusterUsers:
    """What a gateway needs of its cluster's users. `key`: the one that all its gateways have."""

    reader: UserReader
    ledger: SignInLedger
    key: SecretKey


def users_of_cluster(place: UsersPlace) -> ClusterUsers:
    """Return what reads a cluster's users, after a check that this gateway can be one of it.

    Raises StorageError, also for a data folder with users of its own, which would be let in no more.
    """
    own = place.data_dir / PRINCIPALS
    if own.exists():
        raise StorageError(
            f"The data folder has users of its own, {own}: move them into the cluster's database by"
            " `cellgate user migrate`, or move the file away"
        )
    key = secret_key(place)
    from cellgate.identity.store.sign_in_tables import SignInTables  # noqa: PLC0415 - an extra
    from cellgate.identity.store.user_tables import UserTablesReader  # noqa: PLC0415

    address = record_address(place.cluster, OPTION)
    return ClusterUsers(UserTablesReader(address, key), SignInTables(address), key)


def move_users(place: UsersPlace) -> int:
    """Move the users of the data folder into the cluster's database; return how many there are.

    The file is kept under another name. Raises StorageError, and NotFound without a file.
    """
    address = record_address(place.cluster, OPTION)
    from cellgate.identity.store.user_tables import UserTables  # noqa: PLC0415 - an extra

    path = place.data_dir / PRINCIPALS
    with closing(UserFile(path, create=False)) as file, closing(UserTables(address, create=True)) as tables:
        # The key first: without it the secrets that are moved could not be read.
        _checked_key(place, tables, create=not file.secrets())
        moved = tables.move_in(file)
    aside = path.with_name(f"{PRINCIPALS}.moved")
    if aside.exists():
        raise StorageError(f"The users were moved, but {aside} is in the way: move {path} away yourself")
    path.rename(aside)
    return moved
