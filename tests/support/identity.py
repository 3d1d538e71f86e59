"""An identity provider's keys and tokens, and tokens that no provider would make."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt import PyJWS
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

ISSUER = "https://login.example.org/realms/lab"
AUDIENCE = "cellgate"
NOW = 1_800_000_000.0
CLAIMS: dict[str, Any] = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ada", "exp": NOW + 300, "iat": NOW}


@dataclass(frozen=True)
class Signer:
    """A private key by this name, which signs with one algorithm."""

    name: str
    algorithm: str
    private: Any

    def jwk(self, **fields: object) -> dict[str, Any]:
        """The public key as a JSON Web Key."""
        kind = {"RS": RSAAlgorithm, "PS": RSAAlgorithm, "ES": ECAlgorithm, "Ed": OKPAlgorithm}
        made = kind[self.algorithm[:2]].to_jwk(self.private.public_key(), as_dict=True)
        return {**made, "kid": self.name, **fields}

    def sign(self, claims: object = CLAIMS, header: Mapping[str, Any] | None = None) -> str:
        """A token with these claims, or these bytes, whatever they are."""
        named = {"alg": self.algorithm, "kid": self.name, **(header or {})}
        signed = f"{part(named)}.{part(claims)}"
        algorithm = PyJWS().get_algorithm_by_name(self.algorithm)
        return f"{signed}.{part(algorithm.sign(signed.encode(), self.private))}"

    def pem(self) -> bytes:
        """The public key as servers publish it."""
        return bytes(self.private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))


@cache
def signer(algorithm: str = "ES256", name: str = "one") -> Signer:
    """A signer; the same one for the same arguments."""
    private: Any
    match algorithm[:2]:
        case "RS" | "PS":
            private = rsa.generate_private_key(65537, 2048)
        case "ES":
            private = ec.generate_private_key({"ES256": ec.SECP256R1, "ES384": ec.SECP384R1}[algorithm]())
        case _:
            private = ed25519.Ed25519PrivateKey.generate()
    return Signer(name, algorithm, private)


def key_set(*keys: Mapping[str, Any]) -> bytes:
    """A JSON Web Key Set."""
    return json.dumps({"keys": keys}).encode()


def part(content: object) -> str:
    """Part of a token: anything as JSON, or bytes as they are."""
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def forged(header: object, claims: object = CLAIMS, secret: bytes | None = None) -> str:
    """A token with an empty signature, or one by HMAC with this secret."""
    signed = f"{part(header)}.{part(claims)}"
    if secret is None:
        return f"{signed}."
    return f"{signed}.{part(hmac.digest(secret, signed.encode(), hashlib.sha256))}"
