"""``cellgate record key``: the key that signs what the gateway of this data folder exports.

It asks no gateway. A gateway reads the key when it starts.
"""

from __future__ import annotations

import sys
from typing import NoReturn

from traitlets import Bool

from gateway.commands.base import BaseApp, UsageError


class RecordApp(BaseApp):
    """``cellgate record``."""

    name = "cellgate-record"
    usage = "key [options]"
    description = """
        Works on the data folder of a gateway. `key` prints the public half of the key that signs exports;
        give it to those who check them with `cellgate verify --key`. `key --create` makes one first; a
        gateway that runs already signs from its next start on.
    """
    examples = """
        cellgate record key --create
        cellgate record key
    """

    create = Bool(False, help="Make a key; refused when there is one.").tag(config=True)

    flags = {"create": ({"RecordApp": {"create": True}}, "Make a key; refused when there is one.")}  # noqa: RUF012

    def start(self) -> NoReturn:
        """Do what the argument names."""
        if self.extra_args != ["key"]:
            raise UsageError(f"one of `key` is needed: cellgate record {self.usage}")
        from gateway.record.keys import load_key, make_key  # noqa: PLC0415 - keeps --help quick

        key = make_key(self.data_path) if self.create else load_key(self.data_path)
        if key is None:
            raise UsageError(f"{self.data_path} has no signing key; make one with --create")
        sys.stdout.write(key.public + "\n")
        raise SystemExit(0)
