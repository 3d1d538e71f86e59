"""The settings of packages, and the policy made from them.

``serve`` inherits them. ``packages`` does the installing, according to the policy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from cellgate.cli.base import BaseApp, absolute
from cellgate.cli.serve.options import read, traits_of
from cellgate.packages.settings import PackageSettings

PASSED = (
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "PIP_CERT",
    "PIP_CONFIG_FILE",
    "REQUESTS_CA_BUNDLE",
    "SSL_CERT_FILE",
)
"""Variables of the gateway's environment that are passed on for installs: access to the network."""


class PackageOptions(BaseApp):
    """What sessions may install, and from where."""

    vars().update(traits_of(PackageSettings))

    aliases = {"allow-package": "ServeApp.packages", **BaseApp.aliases}  # noqa: RUF012

    def package_settings(self, environment: Mapping[str, str]) -> PackageSettings:
        """Make the policy, with the network's variables of `environment`. Raises InvalidInput."""
        given = read(PackageSettings, self)
        return replace(
            given,
            allowed=PackageSettings.allowing(given.allowed),
            links=tuple(map(_place, given.links)),
            environment={name: environment[name] for name in PASSED if name in environment},
        )


def _place(link: str) -> str:
    """Return a page's address as it is, and a folder's absolute path: installs run in other folders."""
    return link if "://" in link else str(absolute(link))
