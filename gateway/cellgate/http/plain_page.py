"""The few pages that the gateway makes itself, such as a refusal: text, without scripts or styles. Pure."""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass

POLICY = "default-src 'none'; frame-ancestors 'none'"


@dataclass(frozen=True, slots=True)
class Form:
    """A button that sends these fields to an address."""

    address: str
    fields: Mapping[str, str]
    button: str

    @property
    def html(self) -> str:
        """The form as HTML."""
        fields = "".join(
            f'<input type="hidden" name="{html.escape(name)}" value="{html.escape(value)}">'
            for name, value in self.fields.items()
        )
        return (
            f'<form method="post" action="{html.escape(self.address)}">{fields}'
            f"<button>{html.escape(self.button)}</button></form>"
        )


def plain_page(
    title: str, text: str, *, refresh: str = "", link: tuple[str, str] | None = None, form: Form | None = None
) -> bytes:
    """Return a page. `refresh`: HTML's http-equiv value. `link`: an address and its text."""
    again = f'<meta http-equiv="refresh" content="{html.escape(refresh)}">' if refresh else ""
    way = f'<p><a href="{html.escape(link[0])}">{html.escape(link[1])}</a></p>' if link else ""
    button = "" if form is None else form.html
    page = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">{again}'
        f"<title>{html.escape(title)}</title></head>"
        f"<body><h1>{html.escape(title)}</h1><p>{html.escape(text)}</p>{way}{button}</body></html>\n"
    )
    return page.encode()
