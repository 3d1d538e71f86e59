"""The public keys of an issuer of tokens: a JSON Web Key Set (RFC 7517) or one in PEM, each checked. Pure.

A key verifies the algorithms that its type and its `alg` allow, and no other: the algorithm in a token's
header only chooses among them. Keys of other kinds are left out, as the RFC wants. ``provider`` gets key
sets, ``jwt`` uses them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated

import msgspec
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key
from jwt import PyJWTError
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from cellgate_kernels.base.errors import InvalidInput

MOST_BYTES = 512 * 1024
MOST_KEYS = 100
RSA_BITS = range(2048, 8193)
MOST_EXPONENT = 1 << 32

PublicKey = RSAPublicKey | EllipticCurvePublicKey | Ed25519PublicKey


class Algorithm(StrEnum):
    """The algorithms of signatures that are accepted. None of them uses a shared secret."""

    RS256 = "RS256"
    PS256 = "PS256"
    ES256 = "ES256"
    EDDSA = "EdDSA"


@dataclass(frozen=True, slots=True)
class Key:
    """A public key. `id`: a digest of the key itself. `name`: its `kid`, or None."""

    id: str
    name: str | None
    algorithms: frozenset[Algorithm]
    public: PublicKey


@dataclass(frozen=True, slots=True)
class KeySet:
    """The keys that a provider publishes at present."""

    keys: tuple[Key, ...] = ()
    _named: Mapping[tuple[str, Algorithm], Key] = field(default_factory=dict)
    ids: frozenset[str] = frozenset()

    @classmethod
    def of(cls, keys: tuple[Key, ...]) -> KeySet:
        """Return a set of these keys. Of two with the same name and algorithm the first counts."""
        named: dict[tuple[str, Algorithm], Key] = {}
        for key in keys:
            if key.name is not None:
                for algorithm in key.algorithms:
                    named.setdefault((key.name, algorithm), key)
        return cls(keys, MappingProxyType(named), frozenset(key.id for key in keys))

    def find(self, name: str | None, algorithm: Algorithm) -> Key | None:
        """Return the key of this name for this algorithm; without a name, the algorithm's only key."""
        if name is not None:
            return self._named.get((name, algorithm))
        fitting = [key for key in self.keys if algorithm in key.algorithms]
        return fitting[0] if len(fitting) == 1 else None


class _Set(msgspec.Struct):
    keys: Annotated[list[msgspec.Raw], msgspec.Meta(max_length=MOST_KEYS)]


class _Jwk(msgspec.Struct, omit_defaults=True):
    """The public fields of a key; those of a private key are never read."""

    kty: str
    kid: str | None = None
    use: str | None = None
    alg: str | None = None
    key_ops: list[str] | None = None
    crv: str = ""
    n: str = ""
    e: str = ""
    x: str = ""
    y: str = ""


def parse_keys(body: bytes) -> KeySet:
    """Return the usable keys of a key set. Raises InvalidInput for an invalid set or one without a key."""
    if len(body) > MOST_BYTES:
        raise InvalidInput(f"The key set is larger than {MOST_BYTES} bytes")
    try:
        found = msgspec.json.decode(body, type=_Set)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput(f"It is not a JSON Web Key Set of at most {MOST_KEYS} keys ({error})") from error
    keys = KeySet.of(tuple(_usable(found.keys)))
    if not keys.keys:
        raise InvalidInput(
            f"None of the {len(found.keys)} keys in the key set is a public key for {', '.join(Algorithm)}"
        )
    return keys


def parse_public_key(body: bytes) -> KeySet:
    """Return the key set of one public key in PEM, as openssl writes it. Raises InvalidInput if invalid.

    The key is for one algorithm: the one that the holder of such a private key signs with.
    """
    if len(body) > MOST_BYTES:
        raise InvalidInput(f"The key is larger than {MOST_BYTES} bytes")
    if b"PRIVATE KEY" in body:
        raise InvalidInput(
            "It has a private key, which is for nobody but its owner: give the public one, which openssl pkey"
            " -in FILE -pubout writes"
        )
    if body.count(b"-----BEGIN ") > 1:
        raise InvalidInput("It has more than one key; give the one that signs now")
    try:
        public = load_pem_public_key(body)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise InvalidInput("It is not a public key in PEM") from error
    if isinstance(public, Ed25519PublicKey):
        algorithm = Algorithm.EDDSA
    elif isinstance(public, RSAPublicKey) and _is_sound(public):
        algorithm = Algorithm.RS256
    else:
        raise InvalidInput(
            f"It is neither a key of Ed25519 nor one of RSA with {RSA_BITS[0]} to {RSA_BITS[-1]} bits"
        )
    written = public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return KeySet.of((Key(hashlib.sha256(written).hexdigest(), None, frozenset({algorithm}), public),))


def _usable(parts: list[msgspec.Raw]) -> Iterator[Key]:
    for part in parts:
        try:
            key = _key(msgspec.json.decode(part, type=_Jwk))
        except (
            msgspec.MsgspecError,
            UnicodeDecodeError,
            RecursionError,
            PyJWTError,
            UnsupportedAlgorithm,
            ValueError,
        ):
            continue  # of an unknown kind, or damaged
        if key is not None:
            yield key


def _key(jwk: _Jwk) -> Key | None:
    """Return the key, or None if it is not for an accepted kind of signature."""
    if jwk.use not in {None, "sig"} or (jwk.key_ops is not None and "verify" not in jwk.key_ops):
        return None
    fields = {name: value for name in ("kty", "crv", "n", "e", "x", "y") if (value := getattr(jwk, name))}
    public: PublicKey
    match jwk.kty, jwk.crv:
        case "RSA", _:
            rsa = RSAAlgorithm.from_jwk(fields)
            if not isinstance(rsa, RSAPublicKey) or not _is_sound(rsa):
                return None
            public, algorithms = rsa, {Algorithm.RS256, Algorithm.PS256}
        case "EC", "P-256":
            curve = ECAlgorithm.from_jwk(fields)
            if not isinstance(curve, EllipticCurvePublicKey) or not isinstance(curve.curve, SECP256R1):
                return None
            public, algorithms = curve, {Algorithm.ES256}
        case "OKP", "Ed25519":
            edwards = OKPAlgorithm.from_jwk(fields)
            if not isinstance(edwards, Ed25519PublicKey):
                return None
            public, algorithms = edwards, {Algorithm.EDDSA}
        case _:
            return None
    if jwk.alg is not None:
        # RFC 9864 calls EdDSA with this curve Ed25519.
        algorithms &= {Algorithm.EDDSA if jwk.alg == "Ed25519" else jwk.alg}
    if not algorithms:
        return None
    identity = hashlib.sha256(msgspec.json.encode(fields, order="sorted")).hexdigest()
    return Key(identity, jwk.kid, frozenset(map(Algorithm, algorithms)), public)


def _is_sound(key: RSAPublicKey) -> bool:
    """Return whether the key is neither too weak nor so large that checks would be slow."""
    return key.key_size in RSA_BITS and key.public_numbers().e < MOST_EXPONENT
