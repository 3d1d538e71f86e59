"""``cellgate open``: the console in this user's browser, signed in.

It asks the gateway for a ticket and gives the browser the address with it. Where there is no browser, it
prints the address instead, and nothing else, so that it can be copied or passed on by a script.
"""

from __future__ import annotations

import asyncio
import sys
import webbrowser
from collections.abc import Mapping
from urllib.parse import quote, urlsplit

from traitlets import Bool

from cellgate.cli.base import CommandApp, UsageError, switches
from cellgate.wire.models import SESSION_KEY

_DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")


class OpenApp(CommandApp):
    """``cellgate open``."""

    name = "cellgate-open"
    usage = "[SESSION] [options]"
    description = """
        Opens the gateway's console in your browser, signed in with your token; with SESSION, at that session.

        Where there is no browser, or with --no-browser, it prints the address. That works once, within a
        minute: whoever opens it is signed in as you.
    """
    examples = """
        cellgate open
        cellgate open my-session
        cellgate open --no-browser
    """

    no_browser = Bool(False, help="Print the address, and open nothing.").tag(config=True)

    flags = switches("OpenApp", no_browser=no_browser)

    async def run_command(self) -> int:
        from cellgate.client.transport import without_version  # noqa: PLC0415 - keeps --help quick

        if len(self.extra_args) > 1:
            raise UsageError(f"unexpected argument {self.extra_args[1]!r}: {self._short_usage()}")
        session = self.extra_args[0] if self.extra_args else ""
        if session and not SESSION_KEY.fullmatch(session):
            raise UsageError(f"{session!r} can't be the name of a session")
        gateway = self.gateway()
        if session:
            await gateway.get_session(session)
        opened = await gateway.console_url()
        # At the address by which we have reached it: a proxy in between may have told it another.
        url = f"{without_version(self.address())}/?{urlsplit(opened.url).query}"
        if session:
            url += f"#/sessions/{quote(session)}"
        shown = not self.no_browser and has_browser(sys.platform, self.environment)
        if shown and await asyncio.to_thread(webbrowser.open, url):
            sys.stderr.write(f"Opened {url.partition('?')[0]} in your browser.\n")
        else:
            self.print(url)
        return 0


def has_browser(platform: str, environment: Mapping[str, str]) -> bool:
    """Return whether somebody sits at this machine who can see a browser, as far as the environment tells."""
    if platform in {"win32", "darwin"}:
        return True
    return any(environment.get(name) for name in _DISPLAYS)
