"""Users, tokens and secrets in their form on the wire, which is also what the commands print. Pure."""

from __future__ import annotations

from cellgate.identity.secrets import Box
from cellgate.identity.store.interface import Token, User
from cellgate.identity.tokens import scopes_text, time_text
from cellgate.wire.answers import SecretModel, TokenModel, UserModel


def user_model(user: User) -> UserModel:
    """Return the model of a user."""
    return UserModel(
        name=user.name,
        role=user.role.value,
        state="disabled" if user.disabled else "active",
        created_at=time_text(user.created_at),
    )


def token_model(token: Token) -> TokenModel:
    """Return the model of a token, which has nothing that lets anybody in."""
    reach = token.reach
    return TokenModel(
        id=token.id,
        user=token.user,
        scopes=None if token.scopes is None else scopes_text(token.scopes),
        sessions=reach.prefix + ("" if reach.exact else "*") if reach.prefix else None,
        created_at=time_text(token.created_at),
        expires_at=_moment(token.expires_at),
        revoked_at=_moment(token.revoked_at),
        made_by=token.made_by,
    )


def secret_model(box: Box) -> SecretModel:
    """Return the model of a secret, without its value."""
    return SecretModel(name=box.name, set_at=time_text(box.set_at))


def _moment(at: float | None) -> str | None:
    return None if at is None else time_text(at)
