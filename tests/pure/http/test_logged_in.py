"""The cookie of a client that has logged in as to a Jupyter server, and the word that it counts with."""

from __future__ import annotations

import pytest

from cellgate.http.jupyter.logged_in import (
    LOGIN_SECONDS,
    WORD_HEADER,
    is_recent,
    login_of,
    new_word,
    secret_for,
)
from cellgate.identity.derived import DerivedTokens
from cellgate.identity.principal import Login, Principal

NOW = 1_800_000_000.5
ADA = Login.of(Principal("ada"), token="1")


@pytest.mark.parametrize(
    "word", ["", "x", ".", "6b49d200", "6b49d200.", "6B49D200." + "a" * 32, "1." + "g" * 32]
)
def test_words_that_are_none(word: str) -> None:
    assert not is_recent(word, NOW, 1e12)


def test_a_word_is_good_for_its_time() -> None:
    word = new_word(NOW)
    assert word != new_word(NOW)
    for at, good in ((NOW - 1, False), (NOW, True), (NOW + 9, True), (NOW + 10, False)):
        assert is_recent(word, at, 10) is good


def test_a_secret_is_good_for_its_word_and_for_a_day() -> None:
    ended: set[str] = set()
    derived = DerivedTokens(lambda login: login.id not in ended)
    word = new_word(NOW)
    secret = secret_for(derived, ADA, word)

    def found(shown: str = word, secrets: tuple[str, ...] = (secret,), at: float = NOW) -> Login | None:
        return login_of(derived, {WORD_HEADER: shown}, list(secrets), at)

    assert found() == ADA
    assert found(secrets=("planted", secret)) == ADA
    assert found(secrets=()) is None
    assert found(new_word(NOW)) is None
    assert login_of(derived, {}, [secret], NOW) is None
    assert found(at=NOW + LOGIN_SECONDS - 1) == ADA
    assert found(at=NOW + LOGIN_SECONDS) is None
    later = f"{int(NOW) + 3600:x}{word[word.index('.') :]}"
    assert found(later, at=NOW + LOGIN_SECONDS) is None, "nobody makes it last longer"
    assert derived.login(secret, "i" + word.replace(".", "")) is None, "nor is it a sandbox's"
    ended.add(ADA.id)
    assert found() is None
