"""The gateway's own token: what it may be, and what a change ends."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cellgate.console.sign_ins import SignIns
from cellgate.identity.administrator import Administrator, read_own_token
from cellgate.identity.derived import DerivedTokens
from cellgate.identity.directory import PrincipalDirectory
from cellgate.identity.login_bytes import LoginBytes
from cellgate.identity.principal import DEFAULT
from cellgate.identity.secrets import SecretKey
from cellgate.identity.store.opening import reader_of_users
from cellgate.identity.tokens import digest
from cellgate_kernels.base.errors import InvalidInput

KEY = b"k" * 32


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_a_file_has_the_token_and_may_end_its_line(tmp_path: Path, end: str) -> None:
    file = tmp_path / "token"
    file.write_bytes(f"a-good-token{end}".encode())
    assert read_own_token(file) == "a-good-token"


@pytest.mark.parametrize(
    "content", [b"", b"short", b"two words here", b"\xff" * 20, b"12345678\n\n", b"x" * 5000]
)
def test_what_clients_could_not_send_is_refused_and_not_shown(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "token"
    file.write_bytes(content)
    with pytest.raises(InvalidInput, match=f"^{file}") as raised:
        read_own_token(file)
    assert not content or content.decode("ascii", "replace") not in raised.value.message


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InvalidInput, match="no regular file"):
        read_own_token(tmp_path / "pipe")


async def test_a_change_ends_all_that_the_former_token_gave(tmp_path: Path) -> None:
    own = Administrator("the-former-one")
    directory = PrincipalDirectory(reader_of_users(tmp_path), own)
    sign_ins, derived = SignIns(directory.is_valid), DerivedTokens(directory.is_valid)
    assert directory.login(digest("the-former-one")) is DEFAULT
    secret, ticket, made = sign_ins.sign_in(DEFAULT), sign_ins.ticket(DEFAULT), derived.make(DEFAULT, "thing")
    own.change("the-new-one")
    now = directory.login(digest("the-new-one"))
    assert now is own.login
    assert directory.login(digest("the-former-one")) is None
    assert (directory.is_valid(own.login), directory.is_valid(DEFAULT)) == (True, False)
    again = derived.make(own.login, "thing")
    assert again != made
    assert sign_ins.find([secret]) is sign_ins.peek(ticket) is derived.login(made, "thing") is None
    assert derived.login(again, "thing") is own.login
    own.change("the-former-one")
    assert derived.login(made, "thing") is derived.login(again, "thing") is None
    await sign_ins.close()
    await directory.close()


def test_gateways_of_a_cluster_agree_however_often_each_has_changed_its_token() -> None:
    one, two = (Administrator("the-former-one", SecretKey(KEY)) for _ in range(2))
    for token in ("another-one", "the-new-one"):
        one.change(token)
    written = LoginBytes(one).write(one.login)
    assert LoginBytes(two).read(written) is None
    two.change("the-new-one")
    assert LoginBytes(two).read(written) is two.login
    assert LoginBytes(one).read(LoginBytes(one).write(DEFAULT)) is None
    assert LoginBytes(Administrator("the-new-one", SecretKey(b"o" * 32))).read(written) is None
