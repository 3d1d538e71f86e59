"""Finding cells in the page of a long session, of which few are in the document."""

from __future__ import annotations

from typing import Any

import pytest

from tests.clients.console.using import editor, expect, show
from tests.support.server import GatewayProcess

pytestmark = pytest.mark.usefixtures("quiet")


def test_cells_are_found_by_code_and_outputs_and_gone_through(page: Any, console: GatewayProcess) -> None:
    for number in range(60):
        said = "'the Needle'" if number in {3, 31} else number
        console.execute("haystack", f"print({said})")
    show(page, "haystack")
    expect(page.get_by_text("print(59)")).to_be_in_viewport()
    page.keyboard.press("Escape")
    page.keyboard.type("/needle")
    field = page.get_by_label("Find in code and outputs")
    expect(field).to_have_value("needle")
    told = page.locator("search").get_by_role("status")
    expect(told).to_have_text("2 of 2")
    later = page.locator("article[aria-posinset='32']")
    expect(later).to_be_in_viewport()
    expect(later).to_contain_text("the Needle")
    page.keyboard.press("Enter")
    expect(told).to_have_text("1 of 2")
    expect(page.locator("article[aria-posinset='4']")).to_be_in_viewport()
    page.get_by_role("button", name="Later cell").click()
    expect(later).to_be_in_viewport()
    field.fill("no such thing")
    expect(told).to_have_text("No cell has it")
    field.press("Escape")
    expect(field).to_have_count(0)
    expect(editor(page)).not_to_be_focused()
