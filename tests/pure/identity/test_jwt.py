"""Tokens of an identity provider: which are believed, and what they give."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellgate.errors import Forbidden, InvalidToken
from cellgate.identity.jwks import Algorithm, KeySet, parse_keys
from cellgate.identity.jwt import LEEWAY_SECONDS, MOST_TOKEN, JwtLogin, Verifier, is_jwt, read_header
from cellgate.identity.oidc_settings import OidcSettings, parse_roles
from cellgate.identity.principal import EVERYWHERE, Permission, Principal, Role
from cellgate_kernels.base.errors import InvalidInput
from tests.support.identity import AUDIENCE, CLAIMS, ISSUER, NOW, forged, key_set, part, signer

SETTINGS = OidcSettings(ISSUER, AUDIENCE)
WITH_ROLES = OidcSettings(ISSUER, AUDIENCE, role_claim="realm_access.roles")


def verify(
    token: str, keys: KeySet | None = None, settings: OidcSettings = SETTINGS, at: float = NOW
) -> JwtLogin:
    """What the gateway does with a token once it has keys."""
    header = read_header(token)
    key = (keys or parse_keys(key_set(signer().jwk()))).find(header.key, header.algorithm)
    assert key is not None, "no key"
    return Verifier(settings).verify(token, header, key, at, "jwt:x")


def refusal(token: str, settings: OidcSettings = SETTINGS, at: float = NOW) -> str:
    with pytest.raises(InvalidToken) as caught:
        verify(token, settings=settings, at=at)
    return caught.value.message


def claims(**changed: object) -> dict[str, Any]:
    """Good claims with these changes; None takes a claim away."""
    return {name: value for name, value in {**CLAIMS, **changed}.items() if value is not None}


@pytest.mark.parametrize("algorithm", list(Algorithm))
def test_a_token_by_each_algorithm_is_a_login(algorithm: str) -> None:
    by = signer(algorithm)
    login = verify(by.sign(), parse_keys(key_set(by.jwk())))
    assert (login.principal, login.reach, login.expires) == (Principal("ada"), EVERYWHERE, NOW + 300)
    assert login.permissions == set(Permission) - {Permission.METRICS}
    assert login.id == "jwt:x"


@pytest.mark.parametrize("typ", ["JWT", "at+jwt", "AT+JWT", "application/at+jwt"])
def test_the_types_of_access_tokens(typ: str) -> None:
    assert verify(signer().sign(header={"typ": typ})).principal.name == "ada"


@pytest.mark.parametrize("typ", ["logout+jwt", "dpop+jwt", "", "secevent+jwt"])
def test_tokens_for_something_else_are_refused(typ: str) -> None:
    assert "no access token" in refusal(signer().sign(header={"typ": typ}))


@pytest.mark.parametrize("alg", ["none", "None", "NONE", "HS256", "HS512", "RS1", "ES384", "", 5, None, []])
def test_no_other_algorithm(alg: object) -> None:
    assert "signature" not in refusal(forged({"alg": alg, "kid": "one"}))


def test_a_public_key_is_no_shared_secret() -> None:
    """The confusion of algorithms: HMAC with the published key, whose bytes everybody knows."""
    by = signer("RS256")
    for secret in (by.pem(), json.dumps(by.jwk()).encode(), key_set(by.jwk())):
        assert "algorithm is not accepted" in refusal(forged({"alg": "HS256", "kid": "one"}, secret=secret))


def test_a_key_verifies_only_what_it_is_for() -> None:
    rsa = signer("RS256")
    keys = parse_keys(key_set(rsa.jwk(alg="RS256")))
    assert keys.find("one", Algorithm.RS256) is not None
    for other in (Algorithm.PS256, Algorithm.ES256, Algorithm.EDDSA):
        assert keys.find("one", other) is None


def test_a_signature_by_another_key_of_the_same_name() -> None:
    assert "signature" in refusal(signer(name="two").sign(header={"kid": "one"}))


def test_any_changed_character_is_noticed() -> None:
    token = signer().sign()
    for place in range(token.index(".") + 1, len(token), 5):
        other = "A" if token[place] != "A" else "B"
        changed = token[:place] + other + token[place + 1 :]
        assert "token" in refusal(changed)


def test_keys_inside_a_token_are_not_looked_at() -> None:
    """jwk, jku, x5u and x5c would let a token bring the key that verifies it."""
    stranger = signer(name="stranger")
    header = {
        "kid": "one",
        "jwk": stranger.jwk(),
        "jku": "https://evil.example/k",
        "x5u": "file:///etc/passwd",
    }
    assert "signature" in refusal(stranger.sign(header=header))


@pytest.mark.parametrize("crit", [["b64"], ["exp"], [], "b64"])
def test_critical_extensions_are_refused(crit: object) -> None:
    assert "extensions" in refusal(forged({"alg": "ES256", "kid": "one", "crit": crit, "b64": False}))


def test_an_encrypted_token_says_so() -> None:
    assert "encrypted" in refusal(".".join([part({"alg": "RSA-OAEP", "enc": "A256GCM"}), "a", "b", "c", "d"]))


@pytest.mark.parametrize(
    "token",
    [
        "..",
        "a.b.c",
        "é.é.é",
        "=.=.=",
        f"{part(b'[]')}.{part({})}.",
        f"{part(b'null')}.{part({})}.",
        part(b"[" * 5000) + "..",
        part(b'{"a":' * 2000) + "..",
        f"{part(bytes(range(256)))}..",
        f"{part({'alg': 'ES256', 'kid': 5})}..",
        f"{part({'alg': 'ES256', 'kid': ['one']})}..",
        f"{part({'alg': ['ES256']})}..",
        "a.b.c.d",
    ],
)
def test_what_is_no_token_at_all(token: str) -> None:
    assert is_jwt(token)
    assert "can't be read" in refusal(token)


def test_a_giant_token_is_not_even_decoded() -> None:
    assert f"longer than the {MOST_TOKEN}" in refusal(signer().sign(claims(more="x" * MOST_TOKEN)))
    assert verify(signer().sign(claims(more="x" * 8000))).principal.name == "ada"


@pytest.mark.parametrize(
    "payload",
    [b"", b"[]", b"5", b"\xff", b"[" * 8000, b'{"a":' * 1500, b'{"iss": "x"', b"1" * 8000, b'{"exp": 1e999}'],
)
def test_signed_nonsense(payload: bytes) -> None:
    """The provider would have to be broken, but it must not break the gateway."""
    assert "token" in refusal(signer().sign(payload))


@pytest.mark.parametrize("missing", ["iss", "aud", "exp"])
def test_what_every_token_needs(missing: str) -> None:
    assert "missing or unfit" in refusal(signer().sign(claims(**{missing: None})))


@pytest.mark.parametrize(
    "changed",
    [
        {"iss": 5},
        {"aud": {"cellgate": 1}},
        {"aud": [5]},
        {"exp": "never"},
        {"exp": True},
        {"exp": 10**400},
        {"nbf": "x"},
        {"iat": []},
        {"scope": ["cellgate:run"]},
    ],
)
def test_claims_of_another_type(changed: dict[str, object]) -> None:
    assert "missing or unfit" in refusal(signer().sign(claims(**changed)))


@pytest.mark.parametrize("exp", [1e300, 1 << 50])
def test_a_time_beyond_all_reason_is_no_time(exp: float) -> None:
    assert "exp is unfit" in refusal(signer().sign(claims(exp=exp)))


@pytest.mark.parametrize("iss", [ISSUER + "/", ISSUER.upper(), "https://evil.example", ""])
def test_another_issuer(iss: str) -> None:
    assert f"another issuer: this gateway takes those of {ISSUER}" in refusal(signer().sign(claims(iss=iss)))


@pytest.mark.parametrize("aud", ["other", "Cellgate", ["a", "b"], []])
def test_another_audience(aud: object) -> None:
    assert "another audience: ask the provider for one for cellgate" in refusal(
        signer().sign(claims(aud=aud))
    )


def test_one_of_several_audiences() -> None:
    assert verify(signer().sign(claims(aud=["account", AUDIENCE]))).principal.name == "ada"


def test_a_token_ends_at_its_end() -> None:
    assert verify(signer().sign(), at=NOW + 299.9).expires == NOW + 300
    assert "has expired" in refusal(signer().sign(), at=NOW + 300)


@pytest.mark.parametrize("claim", ["nbf", "iat"])
def test_a_token_of_the_future_waits_unless_clocks_explain_it(claim: str) -> None:
    assert verify(signer().sign(claims(**{claim: NOW + LEEWAY_SECONDS})))
    assert "not valid yet" in refusal(signer().sign(claims(**{claim: NOW + LEEWAY_SECONDS + 1})))


@pytest.mark.parametrize("sub", [None, "", 5, "a b", "*", "../x", "x" * 129, ["ada"], {"a": 1}, "é"])
def test_a_claim_that_can_be_no_name(sub: object) -> None:
    message = refusal(signer().sign(claims(sub=sub)))
    assert "claim sub can't be a principal's name" in message


def test_another_claim_as_the_name() -> None:
    settings = OidcSettings(ISSUER, AUDIENCE, principal_claim="email")
    token = signer().sign(claims(email="ada@example.org"))
    assert verify(token, settings=settings).principal.name == "ada@example.org"


@pytest.mark.parametrize(
    ("roles", "role"),
    [
        (["cellgate-user"], Role.USER),
        (["x", "cellgate-auditor"], Role.AUDITOR),
        (["cellgate-user", "cellgate-admin"], Role.ADMIN),
        ("cellgate-admin", Role.ADMIN),
    ],
)
def test_a_claim_gives_the_role(roles: object, role: Role) -> None:
    token = signer().sign(claims(realm_access={"roles": roles}))
    assert verify(token, settings=WITH_ROLES).principal == Principal("ada", role)
    assert verify(token).principal == Principal("ada"), "without the setting roles mean nothing"


@pytest.mark.parametrize(
    "access",
    [
        None,
        {},
        {"roles": []},
        {"roles": ["admin", "x cellgate-admin"]},
        {"roles": {"cellgate-admin": 1}},
        [],
        "x",
    ],
)
def test_without_a_known_role_there_is_no_entry(access: object) -> None:
    with pytest.raises(Forbidden, match=r"claim realm_access\.roles has none of cellgate-admin"):
        verify(signer().sign(claims(realm_access=access)), settings=WITH_ROLES)


def test_the_name_of_a_claim_may_have_dots() -> None:
    settings = OidcSettings(
        ISSUER, AUDIENCE, role_claim="https://example.org/roles", roles=(("lab=a", Role.ADMIN),)
    )
    token = signer().sign(claims(**{"https://example.org/roles": ["lab=a"]}))
    assert verify(token, settings=settings).principal.role is Role.ADMIN


@pytest.mark.parametrize(
    ("scope", "permissions"),
    [
        ("openid email", set(Permission) - {Permission.METRICS}),
        ("openid cellgate:run", {Permission.RUN}),
        ("cellgate:run cellgate:read", {Permission.RUN, Permission.READ}),
        ("cellgate:metrics", set()),
        ("cellgate:everything", set()),
        ("cellgate:", set()),
    ],
)
def test_scopes_about_the_gateway_limit_a_token(scope: str, permissions: set[Permission]) -> None:
    assert verify(signer().sign(claims(scope=scope))).permissions == permissions


SECRET = "AKIA-very-secret"


def test_no_refusal_repeats_what_is_in_a_token() -> None:
    by = signer()
    for changed in (
        {"iss": SECRET},
        {"aud": SECRET},
        {"exp": SECRET},
        {"sub": SECRET + " "},
        {"scope": [SECRET]},
    ):
        assert SECRET not in refusal(by.sign(claims(**changed)))
    with pytest.raises(Forbidden) as caught:
        verify(by.sign(claims(realm_access={"roles": [SECRET]})), settings=WITH_ROLES)
    assert SECRET not in caught.value.message
    for header in ({"alg": SECRET}, {"alg": "ES256", "typ": SECRET}, {"alg": "ES256", "crit": [SECRET]}):
        assert SECRET not in refusal(forged({"kid": SECRET, **header}))


@given(st.text(), st.text(), st.text())
def test_nothing_but_a_refusal_comes_of_noise(one: str, two: str, three: str) -> None:
    with pytest.raises(InvalidToken):
        read_header(f"{one}.{two}.{three}")


ODD = st.sampled_from(
    ["", "ES256", "b64", "jwt", None, True, 0, -1.5, 1 << 70, [], ["b64"], {}, {"kid": "one"}]
)


@given(st.dictionaries(st.sampled_from(["kid", "typ", "crit", "b64", "jwk", "jku", "cty"]), ODD))
def test_nothing_but_a_refusal_comes_of_odd_headers(header: dict[str, object]) -> None:
    keys = parse_keys(key_set(signer().jwk()))
    with pytest.raises(InvalidToken):
        verify(forged({"alg": "ES256", **header, "kid": "one"}), keys)


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"issuer": "http://login.example.org"}, "must begin with https"),
        ({"issuer": "login.example.org"}, "must be a URL"),
        ({"issuer": "https://u:p@login.example.org"}, "must be a URL"),
        ({"issuer": "https://login.example.org?x=1"}, "no query"),
        ({"issuer": "https://login.example.org:x"}, "must be a URL"),
        ({"issuer": "file:///etc/passwd"}, "must be a URL"),
        ({"audience": ""}, "audience is missing"),
        ({"principal_claim": ""}, "no name"),
        ({"role_claim": "x", "roles": ()}, "means a role"),
    ],
)
def test_settings_that_can_not_be(changed: dict[str, Any], what: str) -> None:
    with pytest.raises(InvalidInput, match=what):
        OidcSettings(**{"issuer": ISSUER, "audience": AUDIENCE, **changed})


@pytest.mark.parametrize("issuer", ["http://127.0.0.1:9000", "http://localhost:1/x", "http://[::1]:9000"])
def test_a_provider_on_this_machine_needs_no_tls(issuer: str) -> None:
    assert OidcSettings(issuer, AUDIENCE).issuer == issuer


def test_pairs_of_values_and_roles() -> None:
    assert parse_roles(("a=b=user", "x=admin")) == (("a=b", Role.USER), ("x", Role.ADMIN))
    for word in ("x", "=user", "x=root", "x=", ""):
        with pytest.raises(InvalidInput, match="VALUE=ROLE"):
            parse_roles((word,))
