"""Key sets: which keys of them are used, and for what."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from cellgate.identity.jwks import MOST_BYTES, MOST_KEYS, Algorithm, parse_keys
from cellgate_kernels.base.errors import InvalidInput
from tests.support.identity import Signer, key_set, signer

GOOD = signer(name="good")


def names(*keys: dict[str, Any]) -> list[str | None]:
    """The names of the keys that are used beside a good one."""
    found = parse_keys(key_set(GOOD.jwk(), *keys))
    assert found.keys[0].name == "good"
    return [key.name for key in found.keys[1:]]


def test_keys_are_found_by_name_and_algorithm() -> None:
    rsa_key, edwards = signer("RS256", "r"), signer("EdDSA", "e")
    keys = parse_keys(key_set(rsa_key.jwk(), edwards.jwk(), GOOD.jwk()))
    for name, algorithm in (("r", "RS256"), ("r", "PS256"), ("e", "EdDSA"), ("good", "ES256")):
        found = keys.find(name, Algorithm(algorithm))
        assert found is not None
        assert found.name == name
    assert keys.find("r", Algorithm.ES256) is None
    assert keys.find("../../r", Algorithm.RS256) is None
    assert keys.find("", Algorithm.RS256) is None
    assert len(keys.ids) == 3


def test_a_token_without_a_name_of_a_key_needs_a_single_key() -> None:
    one = parse_keys(key_set(GOOD.jwk(), signer("EdDSA").jwk()))
    assert one.find(None, Algorithm.ES256) is not None
    two = parse_keys(key_set(GOOD.jwk(), signer(name="other").jwk()))
    assert two.find(None, Algorithm.ES256) is None


def test_of_two_keys_with_the_same_name_the_first_counts() -> None:
    keys = parse_keys(key_set(GOOD.jwk(), signer(name="other").jwk(kid="good")))
    assert keys.find("good", Algorithm.ES256) == keys.keys[0]


def test_the_id_of_a_key_is_the_keys_own() -> None:
    first = parse_keys(key_set(GOOD.jwk()))
    assert parse_keys(key_set(GOOD.jwk(kid="renamed", use="sig", x5t="x"))).ids == first.ids
    assert parse_keys(key_set(signer(name="other").jwk())).ids != first.ids


@pytest.mark.parametrize(
    "fields",
    [
        {"use": "enc"},
        {"key_ops": ["sign"]},
        {"alg": "ES384"},
        {"alg": "HS256"},
        {"alg": "none"},
        {"kty": "oct", "k": "c2VjcmV0"},
        {"kty": "RSA"},
        {"kty": "ec"},
        {"kty": 5},
        {"kid": 5},
        {"crv": "P-384"},
        {"crv": "secp256k1"},
        {"x": "AAAA"},
        {"x": "é"},
        {"y": ""},
    ],
)
def test_a_key_for_something_else_or_damaged_is_left_out(fields: dict[str, Any]) -> None:
    assert names(signer(name="other").jwk(**fields)) == []


@pytest.mark.parametrize("key", [5, [], "x", None, {}, [[[[]]]]])
def test_what_is_no_key_is_left_out(key: Any) -> None:
    assert names(key) == []


def test_weak_and_oversized_keys_are_left_out() -> None:
    weak = Signer("weak", "RS256", rsa.generate_private_key(65537, 1024))
    heavy = signer("RS256").jwk(n="_" * (16384 // 6))
    slow = signer("RS256").jwk(e="_" * 342)
    assert names(weak.jwk(), heavy, slow) == []


def test_a_private_key_is_not_read_as_one() -> None:
    from jwt.algorithms import ECAlgorithm

    private = ECAlgorithm.to_jwk(GOOD.private, as_dict=True)
    assert "d" in private
    (key,) = parse_keys(key_set({**private, "kid": "k"})).keys
    assert not hasattr(key.public, "private_numbers")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"[]",
        b"<html>",
        b'{"keys": 5}',
        b'{"keys": []}',
        b'{"keys": [{"kty": "oct", "k": "c2VjcmV0"}]}',
        b'{"keys": ' + b"[" * 100_000,
        b"\xff\xfe",
    ],
)
def test_what_is_no_key_set(body: bytes) -> None:
    with pytest.raises(InvalidInput, match=r"key set|Key Set"):
        parse_keys(body)


def test_ten_thousand_keys_are_too_many() -> None:
    small = {"kty": "oct"}
    body = json.dumps({"keys": [small] * 10_000 + [GOOD.jwk()]}).encode()
    assert len(body) < MOST_BYTES
    with pytest.raises(InvalidInput, match=f"at most {MOST_KEYS} keys"):
        parse_keys(body)
    with pytest.raises(InvalidInput, match="larger than"):
        parse_keys(json.dumps({"keys": [GOOD.jwk()] * 10_000}).encode())


def test_a_key_set_may_have_many_keys() -> None:
    keys = parse_keys(key_set(*(GOOD.jwk(kid=str(number)) for number in range(MOST_KEYS))))
    assert keys.find("99", Algorithm.ES256) is not None
