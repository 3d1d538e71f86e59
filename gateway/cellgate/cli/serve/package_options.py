"""The settings of packages, and the policy made from them.

``serve`` inherits them. ``packages`` does the installing, according to the policy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from traitlets import Float, Integer, List, Unicode

from cellgate.cli.base import BaseApp, absolute
from cellgate.cli.setting_checks import Size

if TYPE_CHECKING:
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

    packages = List(
        Unicode(), help="Names of packages that sessions may install, * for all; default: none."
    ).tag(config=True, metavar="NAME")
    package_index = Unicode(
        help="The address of the package index; default: what pip is configured to use on this machine."
    ).tag(config=True, metavar="URL")
    package_links = List(Unicode(), help="Folders or pages with additional wheels.").tag(
        config=True, metavar="PLACE"
    )
    package_timeout = Float(300.0, min=0.1, help="Seconds that one step of an install may take.").tag(
        config=True, metavar="SECONDS"
    )
    package_count = Integer(100, min=1, help="The most packages a session may have.").tag(config=True)
    package_disk = Size("2g", help="Size of a session's packages, unpacked.").tag(config=True, metavar="SIZE")
    package_cache = Size("4g", help="Size of the cache of packages for all sessions.").tag(
        config=True, metavar="SIZE"
    )
    package_lock_life = Float(
        86400.0, min=0, help="Seconds for which a list of requirements is not resolved again by the index."
    ).tag(config=True, metavar="SECONDS")

    aliases = {"allow-package": "ServeApp.packages", **BaseApp.aliases}  # noqa: RUF012

    def package_settings(self, environment: Mapping[str, str]) -> PackageSettings:
        """The policy, with the network's variables of `environment`. Raises InvalidInput."""
        from cellgate.packages.settings import PackageSettings  # noqa: PLC0415
        from cellgate_kernels.base.resources import parse_size  # noqa: PLC0415

        return PackageSettings(
            allowed=PackageSettings.allowing(self.packages),
            index=self.package_index,
            links=tuple(map(_place, self.package_links)),
            timeout=self.package_timeout,
            most=self.package_count,
            disk=parse_size(self.package_disk, name="package_disk"),
            cache=parse_size(self.package_cache, name="package_cache"),
            lock_life=self.package_lock_life,
            environment={name: environment[name] for name in PASSED if name in environment},
        )


def _place(link: str) -> str:
    """A page's address as it is; a folder's absolute path, because installs run in folders of their own."""
    return link if "://" in link else str(absolute(link))
