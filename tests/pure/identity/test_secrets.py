"""Secrets: what they may be, that their values are nowhere in clear, and who finds them when."""

from __future__ import annotations

import stat
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from cellgate.errors import Conflict, NotFound, StorageError
from cellgate.identity.directory import PrincipalDirectory
from cellgate.identity.principal import Role
from cellgate.identity.secrets import (
    MOST_OF_A_SESSION,
    MOST_VALUE,
    SECRET_KEY,
    Secret,
    check_secret_name,
    check_secret_names,
    check_secret_value,
    load_secret_key,
)
from cellgate.identity.store import user_database
from cellgate.identity.store.opening import open_users, reader_of_users
from cellgate_kernels.base.errors import InvalidInput
from tests.support.commands import cellgate

VALUE = "sk-ABC 123456 é🔑"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with open_users(tmp_path, create=True) as store:
        store.add_user("ada", Role.USER)
        store.add_user("bob", Role.USER)
    return tmp_path


@pytest.fixture
async def directory(folder: Path) -> AsyncGenerator[PrincipalDirectory, None]:
    made = PrincipalDirectory(reader_of_users(folder), "token")
    await made.refresh()
    yield made
    await made.close()


def put(folder: Path, user: str, name: str, value: str) -> None:
    key = load_secret_key(folder / SECRET_KEY, create=True)
    with open_users(folder) as store:
        store.set_secret(user, name, key.seal(user, name, value))


@pytest.mark.parametrize("name", ["API_KEY", "_a", "x" * 128])
def test_names_are_those_of_variables(name: str) -> None:
    assert check_secret_name(name) == name


@pytest.mark.parametrize("name", ["", "1A", "A-B", "A B", "é", "x" * 129, "CELLGATE_X", "PYTHONHASHSEED"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidInput):
        check_secret_name(name)


@pytest.mark.parametrize(
    "value", ["1234567", "        ", "--------", "a\0bcdefgh", "x" * MOST_VALUE + "abcd"]
)
def test_values_that_can_not_be_masked_are_refused_without_showing_them(value: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        check_secret_value(value)
    assert value not in refused.value.message


def test_a_session_names_few_secrets_once_each() -> None:
    assert check_secret_names(["A", "B", "A"]) == ("A", "B")
    assert check_secret_names(None) == ()
    with pytest.raises(InvalidInput):
        check_secret_names([f"A{number}" for number in range(MOST_OF_A_SESSION + 1)])


def test_values_are_encrypted_and_the_key_is_private(folder: Path) -> None:
    put(folder, "ada", "KEY", VALUE)
    assert stat.S_IMODE((folder / SECRET_KEY).stat().st_mode) == 0o600
    for path in folder.iterdir():
        assert b"123456" not in path.read_bytes()


async def test_a_secret_is_found_at_once_and_only_by_its_owner(
    folder: Path, directory: PrincipalDirectory
) -> None:
    with pytest.raises(InvalidInput, match="'KEY' of ada"):
        await directory.check_secrets("ada", ["KEY"])
    put(folder, "ada", "KEY", VALUE)
    await directory.check_secrets("ada", ["KEY"])
    assert directory.secrets("ada", ["KEY", "OTHER"]) == [Secret("KEY", VALUE)]
    assert directory.secrets("bob", ["KEY"]) == []
    with pytest.raises(InvalidInput, match="'KEY' of bob"):
        await directory.check_secrets("bob", ["KEY"])
    assert VALUE not in repr(directory.secrets("ada", ["KEY"]))


async def test_the_value_before_a_change_is_known_until_the_next(
    folder: Path, directory: PrincipalDirectory
) -> None:
    for number in range(3):
        put(folder, "ada", "KEY", f"{VALUE}{number}")
    await directory.refresh()
    assert directory.secrets("ada", ["KEY"]) == [Secret("KEY", f"{VALUE}2", f"{VALUE}1")]
    with open_users(folder) as store:
        store.remove_secret("ada", "KEY")
        assert [act.fields["act"] for act in store.acts(0)] == [
            *["user_added"] * 2,
            *["secret_set"] * 3,
            "secret_removed",
        ]
        assert store.acts(5)[0].fields.items() >= {"user": "ada", "secret": "KEY"}.items()
    await directory.refresh()
    assert directory.secrets("ada", ["KEY"]) == []


async def test_secrets_go_with_their_user(folder: Path, directory: PrincipalDirectory) -> None:
    put(folder, "ada", "KEY", VALUE)
    with open_users(folder) as store:
        store.remove_user("ada")
        store.add_user("ada", Role.USER)
        assert store.secrets("ada") == []


def test_who_is_not_there_has_no_secrets(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_users(folder) as store:
        with pytest.raises(NotFound):
            store.set_secret("nobody", "KEY", b"")
        with pytest.raises(NotFound):
            store.remove_secret("ada", "KEY")
        monkeypatch.setattr(user_database, "MOST_SECRETS", 1)
        store.set_secret("default", "KEY", b"")
        store.set_secret("default", "KEY", b"")
        with pytest.raises(Conflict):
            store.set_secret("default", "OTHER", b"")
        assert [box.name for box in store.secrets()] == ["KEY"]


async def test_a_box_opens_only_with_its_key_for_its_owner(
    folder: Path, directory: PrincipalDirectory
) -> None:
    key = load_secret_key(folder / SECRET_KEY, create=True)
    box = key.seal("ada", "KEY", VALUE)
    assert key.open("ada", "KEY", box) == VALUE
    for user, name, given in (
        ("bob", "KEY", box),
        ("ada", "OTHER", box),
        ("ada", "KEY", box[:-1]),
        ("a", "b", b""),
    ):
        with pytest.raises(StorageError):
            key.open(user, name, given)
    put(folder, "ada", "KEY", VALUE)
    (folder / SECRET_KEY).unlink()
    await directory.refresh()
    with pytest.raises(StorageError, match="is missing"):
        directory.secrets("ada", ["KEY"])
    load_secret_key(folder / SECRET_KEY, create=True)
    with open_users(folder) as store:
        store.add_user("cleo", Role.USER)
    await directory.refresh()
    with pytest.raises(StorageError, match="is not the key that they were set with"):
        directory.secrets("ada", ["KEY"])


async def test_a_lost_key_is_told_with_the_names_of_what_can_not_be_read(
    folder: Path, directory: PrincipalDirectory
) -> None:
    data = f"--data-dir={folder}"
    for user, name in (("ada", "KEY"), ("ada", "OTHER"), ("ada", "THIRD"), ("bob", "HIS")):
        put(folder, user, name, VALUE)
    kept = (folder / SECRET_KEY).read_bytes()
    (folder / SECRET_KEY).unlink()
    done = cellgate("secret", "set", "KEY", "--user", "ada", data, stdin="another-value")
    assert done.returncode == 0
    told = "OTHER, THIRD of ada; HIS of bob. They are damaged, or secrets.key is not the key"
    assert told in done.stderr
    assert "cellgate secret set OTHER --user ada" in done.stderr

    await directory.refresh()
    # It was set with the new key, and what it was before can't be known.
    assert directory.secrets("ada", ["KEY"]) == [Secret("KEY", "another-value", former_lost=True)]
    with pytest.raises(StorageError, match=r"can't be read: OTHER, THIRD of ada\. .*cellgate secret set"):
        directory.secrets("ada", ["KEY", "OTHER", "THIRD"])
    assert directory.missing_secrets("ada", ["OTHER", "NONE"]) == ["NONE"]

    for name in ("OTHER", "THIRD"):
        done = cellgate("secret", "remove", name, "--user", "ada", data)
        assert done.returncode == 0
    done = cellgate("secret", "set", "KEY", "--user", "ada", data, stdin="a-third-value")
    assert "HIS of bob" in done.stderr
    await directory.refresh()
    assert directory.secrets("ada", ["KEY"]) == [Secret("KEY", "a-third-value", "another-value")]

    (folder / SECRET_KEY).write_bytes(kept)
    await directory.refresh()
    assert directory.secrets("bob", ["HIS"]) == [Secret("HIS", VALUE)], "the key was put back"


@pytest.mark.parametrize("content", [b"", b"short", b"x" * 33])
def test_another_file_is_no_key(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / SECRET_KEY
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(StorageError, match="must be 32 bytes long"):
        load_secret_key(path, create=True)
    path.chmod(0o640)
    with pytest.raises(StorageError, match="chmod"):
        load_secret_key(path, create=False)


async def test_a_file_of_the_version_before_gets_secrets(folder: Path) -> None:
    with open_users(folder) as store:
        store._db.execute("DROP TABLE secrets")
        store._db.execute("ALTER TABLE tokens DROP COLUMN made_by")
        store._db.execute("PRAGMA user_version = 1")
    put(folder, "ada", "KEY", VALUE)
    with open_users(folder) as store:
        assert [user.name for user in store.users()] == ["ada", "bob"]
        assert [box.name for box in store.secrets("ada")] == ["KEY"]


# ---- by command --------------------------------------------------------------------------------------------


async def test_the_command_sets_lists_and_removes(folder: Path, directory: PrincipalDirectory) -> None:
    data = f"--data-dir={folder}"
    done = cellgate("secret", "set", "KEY", "--user", "ada", data, stdin=f"{VALUE}\n\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    await directory.refresh()
    assert directory.secrets("ada", ["KEY"]) == [Secret("KEY", f"{VALUE}\n")]
    shown = cellgate("secret", "list", "--user", "ada", data)
    assert "KEY" in shown.stdout
    assert "ABC" not in shown.stdout
    assert '"name": "KEY"' in cellgate("secret", "list", "--user", "ada", "--json", data).stdout
    assert cellgate("secret", "remove", "KEY", "--user", "ada", data).returncode == 0
    assert cellgate("secret", "list", "--user", "ada", data).stdout == "No secrets.\n"


def test_the_command_refuses_what_can_not_be(folder: Path, tmp_path: Path) -> None:
    data = f"--data-dir={folder}"
    for words, given, why in (
        (("set", "KEY"), VALUE, "--user"),
        (("set", "KEY", "--user", "nobody"), VALUE, "no user 'nobody'"),
        (("set", "1KEY", "--user", "ada"), VALUE, "1KEY"),
        (("set", "KEY", "--user", "ada"), "short\n", "8 characters"),
        (("remove", "KEY", "--user", "ada"), "", "no secret 'KEY'"),
    ):
        done = cellgate("secret", *words, data, stdin=given)
        assert done.returncode != 0
        assert why in done.stderr
        assert VALUE not in done.stderr
    assert not (folder / SECRET_KEY).exists()


def test_who_is_everybody_needs_no_user(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    done = cellgate("secret", "set", "KEY", "--user", "default", f"--data-dir={folder}", stdin=VALUE)
    assert (done.returncode, done.stderr) == (0, "")
    assert (folder / SECRET_KEY).exists()
