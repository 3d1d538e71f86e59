"""The console's page of users: what an administrator does there, and who does not see it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.console.using import answer, expect
from tests.conftest import serving
from tests.support.browser import link, opened
from tests.support.server import GatewayProcess
from tests.support.users import add_user, create_token


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[GatewayProcess]:
    """A gateway of its own: others' lists of users would have these."""
    with serving(tmp_path / "data") as gateway:
        yield gateway


def act(page: Any, user: str, entry: str) -> None:
    """Choose something from a user's menu."""
    page.get_by_role("button", name=f"Actions for {user}").click()
    page.get_by_role("menuitem", name=entry).click()


def ends_credentials(gateway: GatewayProcess, page: Any, row: Any) -> None:
    """Revoke a token of Ada's, and remove her secret."""
    name, text = create_token(gateway, "ada")
    act(page, "ada", "Tokens and secrets…")
    dialog = page.get_by_role("dialog", name="Tokens and secrets of ada")
    expect(dialog.get_by_role("row").filter(has_text="read")).to_contain_text("until ")
    other = dialog.get_by_role("row").filter(has_text=name)
    expect(other).to_contain_text("all of the role")
    other.get_by_role("button", name="Revoke").click()
    page.get_by_role("dialog", name=f"Revoke {name}?").get_by_role("button", name="Revoke").click()
    expect(other).to_contain_text("revoked")
    assert gateway.get("/v1/me", token=text).status == 401
    dialog.get_by_role("row").filter(has_text="KEY").get_by_role("button", name="Remove").click()
    page.get_by_role("dialog", name="Remove KEY?").get_by_role("button", name="Remove").click()
    expect(dialog.get_by_text("No secrets.")).to_be_visible()
    page.keyboard.press("Escape")
    expect(row).to_be_visible()


def test_an_administrator_adds_a_user_and_gives_them_a_token(gateway: GatewayProcess, browser: Any) -> None:
    with opened(browser, permissions=["clipboard-read", "clipboard-write"]) as page:
        page.goto(link(gateway))
        page.get_by_role("link", name="Users").click()
        expect(page.get_by_text("There are no users yet")).to_be_visible()
        page.get_by_role("button", name="Add a user").click()
        answer(page, "Add", Name="ada")
        row = page.get_by_role("row").filter(has_text="ada")
        expect(row).to_contain_text("active")
        act(page, "ada", "Make a token…")
        answer(page, "Make the token", Scopes="read", Expires_after="1h")
        token = page.get_by_role("textbox", name="The token").input_value()
        page.get_by_role("button", name="Copy", exact=True).click()
        expect(page.get_by_text("Copied")).to_be_visible()
        assert page.evaluate("navigator.clipboard.readText()") == token
        found = gateway.get("/v1/me", token=token).json()
        assert (found["principal"], found["scopes"]) == ("ada", ["read"])
        page.get_by_role("button", name="Close", exact=True).click()
        assert token not in page.content()
        act(page, "ada", "Set a secret…")
        answer(page, "Set", Name="KEY", Value="short")
        expect(page.get_by_text("The value needs at least")).to_be_visible()
        act(page, "ada", "Set a secret…")
        answer(page, "Set", Name="KEY", Value="a-long-secret-1")
        expect(page.get_by_text("Set KEY of ada")).to_be_visible()
        assert [each["name"] for each in gateway.get("/v1/users/ada/secrets").json()["secrets"]] == ["KEY"]
        ends_credentials(gateway, page, row)
        act(page, "ada", "Change the role…")
        page.get_by_label("Role", exact=True).select_option("auditor")
        answer(page, "Change")
        expect(row).to_contain_text("auditor")
        act(page, "ada", "Disable…")
        answer(page, "Disable")
        expect(row).to_contain_text("disabled")
        assert gateway.get("/v1/me", token=token).status == 401
        act(page, "ada", "Enable")
        expect(row).to_contain_text("active")
        act(page, "ada", "Remove…")
        answer(page, "Remove", Type_ada_to_confirm="ada")
        expect(page.get_by_text("There are no users yet")).to_be_visible()


def test_others_do_not_see_the_page(gateway: GatewayProcess, browser: Any) -> None:
    add_user(gateway, "bob")
    _, token = create_token(gateway, "bob")
    with opened(browser) as page:
        page.goto(link(gateway, token=token))
        expect(page.get_by_role("link", name="Gateway")).to_be_visible()
        expect(page.get_by_role("link", name="Users")).to_have_count(0)
        page.evaluate("location.hash = '#/users'")
        expect(page.get_by_text("Your token may not list users")).to_be_visible()
