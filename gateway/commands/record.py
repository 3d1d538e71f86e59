"""``cellgate record``: the record of a data folder as a store, and the key that signs what is exported of it.

It asks no gateway. `stats` may look while one runs; `compact` needs the folder to itself; a gateway reads the
key when it starts.
"""

from __future__ import annotations

import sys
from contextlib import closing
from dataclasses import asdict
from typing import NoReturn

from traitlets import Bool

from gateway.commands.base import BaseApp, UsageError

RECORD = "record.sqlite3"


class RecordApp(BaseApp):
    """``cellgate record``."""

    name = "cellgate-record"
    usage = "stats|compact|key [options]"
    description = """
        Works on the data folder of a gateway.

        `stats` tells how much is recorded and what it takes. `compact` stores equal values once where older
        versions did not, and gives free space back; no gateway may run meanwhile, and it needs free space of
        about the record's size.

        `key` prints the public half of the key that signs exports; give it to those who check them with
        `cellgate verify --key`. `key --create` makes one first; a gateway that runs already signs from its
        next start on.
    """
    examples = """
        cellgate record stats
        cellgate record compact
        cellgate record key --create
    """

    create = Bool(False, help="Make a key; refused when there is one.").tag(config=True)

    flags = {"create": ({"RecordApp": {"create": True}}, "Make a key; refused when there is one.")}  # noqa: RUF012

    def start(self) -> NoReturn:
        """Do what the argument names."""
        works = {"stats": self._stats, "compact": self._compact, "key": self._key}
        if len(self.extra_args) != 1 or self.extra_args[0] not in works:
            raise UsageError(f"one of {', '.join(works)} is needed: cellgate record {self.usage}")
        works[self.extra_args[0]]()
        sys.stdout.flush()
        raise SystemExit(0)

    def _stats(self) -> None:
        from gateway.record import schema, upkeep  # noqa: PLC0415 - keeps --help quick

        path = self.data_path / RECORD
        if not path.is_file():
            raise UsageError(f"there is no record at {path}")
        with closing(schema.open_reader(path)) as db:
            for name, value in asdict(upkeep.statistics(db)).items():
                sys.stdout.write(f"{name.replace('_', ' '):<14} {value:>15,}\n")

    def _compact(self) -> None:
        from gateway.record import upkeep  # noqa: PLC0415

        with upkeep.alone(self.data_path / RECORD) as db:
            before = upkeep.statistics(db).file_bytes
            changed = upkeep.compact(db)
            after = upkeep.statistics(db).file_bytes
        sys.stdout.write(f"{changed:,} rows changed; the file had {before:,} bytes and has {after:,}\n")

    def _key(self) -> None:
        from gateway.record.keys import load_key, make_key  # noqa: PLC0415

        key = make_key(self.data_path) if self.create else load_key(self.data_path)
        if key is None:
            raise UsageError(f"{self.data_path} has no signing key; make one with --create")
        sys.stdout.write(key.public + "\n")
