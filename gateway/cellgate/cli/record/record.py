"""``cellgate record``: maintenance of a gateway's record, and of the key that signs its exports.

`stats`, `trail`, `clock` and `backup` work while a gateway is running; `compact`, `restore` and `migrate`
need exclusive access to the folder; a gateway reads the key when it starts. `purge` is the gateway's work.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn

from traitlets import Bool, Integer, Unicode

from cellgate.cli.actions import check_options, choose_action, forms_of
from cellgate.cli.base import BaseApp, UsageError, expanded, switches
from cellgate.cli.terminal.tables import without_controls
from cellgate_kernels.base.errors import CellgateError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Mapping

    from cellgate.record.findings import Finding
    from cellgate.record.store.postgresql.record_connection import RecordAddress
    from cellgate.record.trail import TrailRow


class RecordApp(BaseApp):
    """``cellgate record``."""

    name = "cellgate-record"
    usage = "stats|trail|clock|compact|key|backup FILE|backup FOLDER|restore FILE|migrate|purge [options]"
    actions = {  # noqa: RUF012
        "stats": "",
        "trail": "",
        "clock": "",
        "compact": "",
        "key": "",
        "backup": "FILE|FOLDER",
        "restore": "FILE",
        "migrate": "",
        "purge": "",
    }
    forms = forms_of(actions)
    description = """
        Works on the data folder of a gateway.

        `stats` shows how much is recorded and how much space it takes. `compact` stores equal values once
        and long ones apart, if older versions did not, and gives free space back; no gateway may be running,
        and it needs free space of about the record's size.

        `trail` prints the audit trail, an entry a line: which records were begun and purged, what was
        changed about users and tokens, who asked for the sessions of others, and who was refused. Changes
        of users and tokens are entered by a gateway: the last line says how many wait for one to start.
        `--after N` leaves out the first N entries; `--json` prints each as it was hashed, with its hash.
        `cellgate verify` checks the chain.

        `clock` shows how far the system's clock is believed, where records are removed for their age
        (`retention_days`). After it has leapt, no record is removed for its age until the gateway has run for
        a day. `clock --trust` says that the clock is right, which a gateway believes from its next check for
        old records on.

        `backup FILE` writes everything that is committed now to a file; a gateway may be serving. It checks
        the copy, and exits with 1 if something is not valid. With a folder the file is named by the time, and
        `--keep N` removes all such files but the newest N, once the new one is valid. A backup holds neither
        files of sessions nor the signing key.

        `restore FILE` checks such a copy and makes it the record; no gateway may be running. It does not hold
        what was recorded after the backup: with --force an existing record is set aside under another name.

        `migrate --record URL` moves the record of the data folder into an empty database of PostgreSQL, and
        `migrate --back --record URL` moves it back; no gateway may be running. The copy is checked and
        counted before it counts, and the original is kept under another name.

        `purge --principal NAME` removes all that is recorded of a user, with the files of the sessions; those
        that live end. The gateway of the data folder does it, so it must be serving. On a terminal it asks
        first. Backups keep what they have.

        With `--record URL`, or CELLGATE_RECORD, `stats` and `trail` are those of the database.

        `key` prints the public half of the key that signs exports; give it to those who check them with
        `cellgate verify --key`. `key --create` makes one first, `key --rotate` replaces it by a new one; a
        running gateway signs with it from its next start on. The public halves of former keys are listed
        below, each with the time of its replacement: what they signed stays valid, so keep giving them too.
    """
    examples = """
        cellgate record stats
        cellgate record trail --after 1200
        cellgate record clock --trust
        cellgate record compact
        cellgate record key --create
        cellgate record key --rotate
        cellgate record backup /backups/record-monday.sqlite3
        cellgate record backup /backups --keep 14
        cellgate record restore /backups/record-monday.sqlite3 --force
        cellgate record migrate --record postgresql://cellgate@db.example.org/cellgate
        cellgate record purge --principal ada --yes
    """

    options_of_some = MappingProxyType(
        {
            "force": "backup restore",
            "anyway": "restore",
            "after": "trail",
            "keep": "backup",
            "json": "trail",
            "trust": "clock",
            "create": "key",
            "rotate": "key",
            "back": "migrate",
            "principal": "purge",
            "yes": "purge",
        }
    )

    force = Bool(False, help="Replace an existing file, or set an existing record aside.").tag(config=True)
    anyway = Bool(False, help="Restore a copy even if the check finds something.").tag(config=True)
    after = Integer(0, min=0, help="Print only entries after this number.").tag(config=True, metavar="N")
    keep = Integer(0, min=0, help="Keep the newest N backups of the folder; 0: all.").tag(
        config=True, metavar="N"
    )
    json = Bool(False, help="Print JSON.").tag(config=True)
    trust = Bool(False, help="Say that the system's clock is right.").tag(config=True)
    create = Bool(False, help="Make a key; refused if there is one.").tag(config=True)
    rotate = Bool(False, help="Replace the key by a new one; the former public half stays listed.").tag(
        config=True
    )
    record = Unicode(help="The database of PostgreSQL that the record is in, or is moved to.").tag(
        config=True, metavar="URL", not_empty=True
    )
    back = Bool(False, help="Move the record out of the database, into the data folder.").tag(config=True)

    principal = Unicode(help="Whose sessions to remove, with their records and files.").tag(
        config=True, metavar="NAME", not_empty=True
    )
    yes = Bool(False, help="Remove without asking.").tag(config=True)

    aliases = {  # noqa: RUF012
        "principal": "RecordApp.principal",
        "after": "RecordApp.after",
        "keep": "RecordApp.keep",
        "record": "RecordApp.record",
        **BaseApp.aliases,
    }
    flags = switches(
        "RecordApp",
        create=create,
        rotate=rotate,
        trust=trust,
        json=json,
        force=force,
        anyway=anyway,
        back=back,
        yes=yes,
    )

    def start(self) -> NoReturn:
        """Run the action of the first argument."""
        works = {
            "stats": self._stats,
            "trail": self._trail,
            "clock": self._clock,
            "compact": self._compact,
            "key": self._key,
            "migrate": self._migrate,
            "purge": self._purge,
        }
        copies = {"backup": self._backup, "restore": self._restore}
        match self.extra_args:
            case ["migrate", address] if "://" in address:
                # A password may be in it: the message does not repeat it.
                raise UsageError(
                    "migrate takes the database by --record: cellgate record migrate --record URL"
                )
            case ["key", "create" | "rotate" as word, *_]:
                raise UsageError(f"what key does is an option: cellgate record key --{word}")
            case ["verify", *_]:
                raise UsageError("the record is checked by a command of its own: cellgate verify")
        name, files = choose_action("cellgate record", self.usage, self.actions, self.extra_args)
        check_options(self, name)
        self._check_kind(name)
        valid = True
        if name in works:
            works[name]()
        else:
            # As at Ctrl-C, no unfinished copy stays: it may be as large as the record.
            signal.signal(signal.SIGTERM, _leave)
            valid = copies[name](expanded(files[0]).absolute())
        sys.stdout.flush()
        raise SystemExit(0 if valid else 1)

    def _check_kind(self, action: str) -> None:
        """Refuse what is only for a record in SQLite, and say what does it in PostgreSQL."""
        others = {
            "backup": "pg_dump --format=custom --schema=cellgate makes a backup of it",
            "restore": "pg_restore puts a backup by pg_dump into an empty database",
            "compact": "PostgreSQL gives space back by itself; VACUUM FULL does so at once",
        }
        if self.record and action in others:
            raise UsageError(f"the record is in PostgreSQL: {others[action]}")
        if action == "migrate" and not self.record:
            raise UsageError("say which database: cellgate record migrate --record postgresql://...")

    @property
    def _address(self) -> RecordAddress:
        from cellgate.record.store.opening import record_address  # noqa: PLC0415 - keeps --help quick

        return record_address(self.record)

    @property
    def _record(self) -> Path:
        from cellgate.record.store.sqlite.location import RECORD  # noqa: PLC0415 - keeps --help quick

        return self.data_path / RECORD

    def _backup(self, target: Path) -> bool:
        from cellgate.cli.record.copies import back_up  # noqa: PLC0415 - keeps --help quick
        from cellgate.record.store.sqlite.backup import named_by_time, remove_old  # noqa: PLC0415

        folder = target if target.is_dir() else None
        if folder is not None:
            target = named_by_time(folder)
        elif self.keep:
            raise UsageError(f"--keep is for backups in a folder, and {target} is none")
        progress = _Progress()
        copied = back_up(self._record, target, replace=self.force, progress=progress.tell)
        sys.stdout.write(f"{target}: {copied.bytes:,} bytes, {len(copied.findings)} checks\n")
        valid = _tell_problems(copied.problems)
        if folder is not None and self.keep and valid:
            for old in remove_old(folder, self.keep):
                sys.stdout.write(f"removed {old}\n")
        return valid

    def _restore(self, source: Path) -> bool:
        from cellgate.cli.record.copies import restore  # noqa: PLC0415

        copied = restore(
            source, self._record, replace=self.force, anyway=self.anyway, progress=_Progress().tell
        )
        sys.stdout.write(f"{self._record}: {copied.bytes:,} bytes, from {source}\n")
        return _tell_problems(copied.problems)

    def _migrate(self) -> None:
        address = self._address
        from cellgate.record.findings import counted  # noqa: PLC0415
        from cellgate.record.store.postgresql import migration  # noqa: PLC0415 - an extra

        if self.back:
            moved, target = migration.move_back(address, self._record), str(self._record)
        else:
            moved, target = migration.move_in(self._record, address), str(address)
        counts = moved.counts
        told = [counted(counts.sessions, "session"), counted(counts.executions, "execution")]
        told += [counted(counts.events, "event"), counted(counts.entries, "entry")]
        sys.stdout.write(
            f"{target}: {', '.join(told)} of the audit trail, checked; the original is now {moved.former}\n"
        )

    def _purge(self) -> None:
        if not self.principal or self.principal == "*":
            raise UsageError("say whose sessions: cellgate record purge --principal NAME")
        running = self._running_gateway()
        if running is None:
            raise UsageError(
                f"no gateway serves with {self.data_path}, and only a gateway purges: start it, or name"
                " another folder by --data-dir"
            )
        from cellgate.cli.record.purging import purge, sessions_of  # noqa: PLC0415 - keeps --help quick
        from cellgate.client import Gateway, GatewayError  # noqa: PLC0415
        from cellgate.client.transport import SYSTEM_TRUST, Trust  # noqa: PLC0415

        trust = Trust(certificate=running.certificate) if running.certificate else SYSTEM_TRUST
        gateway = Gateway(running.url, running.token or None, trust=trust, principal=self.principal)
        try:
            sessions = asyncio.run(sessions_of(gateway))
            if not sessions:
                sys.stdout.write(f"Nothing is recorded of {self.principal}\n")
            elif self._may_purge(sessions):
                asyncio.run(purge(gateway, sessions, lambda each: sys.stdout.write(f"purged: {each}\n")))
        except GatewayError as error:
            raise UsageError(error.message) from error

    def _may_purge(self, sessions: list[str]) -> bool:
        """Return whether the user agrees. Raises UsageError if nobody can be asked, or does not agree."""
        if self.yes:
            return True
        if sys.stdin.isatty():
            whose = f"{len(sessions)} sessions of {without_controls(self.principal)}"
            asked = f"Remove {whose}, with their records and files, for good? [y/N] "
            if input(asked).strip().lower() in {"y", "yes"}:
                return True
        raise UsageError("nothing was removed; --yes removes without asking")

    def _statistics(self) -> dict[str, int]:
        if self.record:
            address = self._address
            from cellgate.record.store.postgresql import check  # noqa: PLC0415 - an extra

            return check.statistics_of(address)
        from cellgate.record.store.sqlite import upkeep  # noqa: PLC0415 - keeps --help quick

        return asdict(upkeep.statistics_of(self._record))

    def _stats(self) -> None:
        for name, value in self._statistics().items():
            sys.stdout.write(f"{name.replace('_', ' '):<14} {value:>15,}\n")

    def _entries(self) -> Iterator[TrailRow]:
        if self.record:
            address = self._address
            from cellgate.record.store.postgresql import check  # noqa: PLC0415 - an extra

            return check.trail_of(address, self.after)
        from cellgate.record.store.sqlite import upkeep  # noqa: PLC0415 - keeps --help quick

        return upkeep.trail_of(self._record, self.after)

    def _acts(self) -> Generator[Mapping[str, Any], None, None]:
        if self.record:
            address = self._address
            from cellgate.record.store.postgresql import check  # noqa: PLC0415 - an extra

            return check.acts_of(address)
        from cellgate.record.store.sqlite.upkeep import acts_of  # noqa: PLC0415 - keeps --help quick

        return acts_of(self._record)

    def _trail(self) -> None:
        for row in self._entries():
            if self.json:
                line = f'{{"hash":"{row.hash.hex()}","entry":{row.body.decode()}}}\n'
                sys.stdout.write(without_controls(line) if sys.stdout.isatty() else line)
                continue
            fields = json.loads(row.body)
            front = f"{fields.pop('seq'):>6}  {fields.pop('at')}  {fields.pop('type')}"
            told = [f"{name}={json.dumps(value)}" for name, value in fields.items()]
            sys.stdout.write("  ".join([front, *told]) + "\n")
        if not self.json:
            self._tell_waiting()

    def _tell_waiting(self) -> None:
        """Say how many changes of users and tokens are not in the trail yet, if there are any."""
        from cellgate.identity.store.opening import UsersPlace  # noqa: PLC0415
        from cellgate.server.acts import waiting  # noqa: PLC0415

        folder = UsersPlace(self.data_path)
        places = [UsersPlace(self.data_path, self.record), folder] if self.record else [folder]
        try:
            number = waiting(self._acts(), *places)
        except CellgateError as error:
            sys.stdout.flush()
            sys.stderr.write(f"cellgate: how many acts wait is not known: {error.message}\n")
            return
        if number:
            acts = "1 act waits" if number == 1 else f"{number:,} acts wait"
            sys.stdout.write(
                f"{acts} for the next start of the gateway; one that serves enters them within a second\n"
            )

    def _clock(self) -> None:
        from cellgate.sessions import proven_time  # noqa: PLC0415 - keeps --help quick

        if self.trust:
            proven_time.trust(self.data_path)
            sys.stdout.write("A gateway believes the system's clock from its next check for old records on\n")
            return
        state = proven_time.read_state(self.data_path)
        if state is None:
            sys.stdout.write("No gateway has removed records for their age here (`retention_days`)\n")
        elif not state.leaps:
            sys.stdout.write("The system's clock is believed\n")
        for leap in () if state is None else state.leaps:
            when = "while a gateway ran" if leap.seen else "while no gateway looked"
            ahead, left = (timedelta(seconds=round(each)) for each in (leap.ahead, leap.left))
            by = f"by {ahead}" if leap.ahead else "back, or one that is not known"
            sys.stdout.write(f"a leap {by}, {when}: it counts when the gateway has run for {left} more\n")

    def _compact(self) -> None:
        from cellgate.record.store.sqlite import upkeep  # noqa: PLC0415

        with upkeep.alone(self._record) as db:
            before = upkeep.statistics(db).file_bytes
            changed = upkeep.compact(db)
            after = upkeep.statistics(db).file_bytes
        sys.stdout.write(f"{changed:,} rows changed; the file had {before:,} bytes and has {after:,}\n")

    def _key(self) -> None:
        from cellgate.record.keys import former_keys, load_key, make_key, replace_key  # noqa: PLC0415

        if self.create and self.rotate:
            raise UsageError("--create makes the first key, --rotate replaces it: not both")
        key = make_key(self.data_path) if self.create else load_key(self.data_path)
        if key is None:
            raise UsageError(f"{self.data_path} has no signing key; make one with --create")
        if self.rotate:
            key = replace_key(self.data_path, key)
            sys.stderr.write("A gateway that runs signs with the new key from its next start on.\n")
        sys.stdout.write(key.public + "\n")
        for former in former_keys(self.data_path, key):
            sys.stdout.write(f"{former.public}  until {former.until}\n")


def _leave(number: int, frame: object) -> NoReturn:
    raise SystemExit(128 + number)


class _Progress:
    """Reports the progress of a copy on standard error, every two seconds."""

    def __init__(self) -> None:
        self._due = time.monotonic() + 2

    def tell(self, done: int, total: int) -> None:
        """Report `done` of `total` pages, if it is time."""
        if time.monotonic() >= self._due and total:
            self._due = time.monotonic() + 2
            sys.stderr.write(f"{done * 100 // total} % copied\n")
            sys.stderr.flush()


def _tell_problems(problems: Iterable[Finding]) -> bool:
    """Print the problems that a check found; returns True if there were none."""
    valid = True
    for found in problems:
        valid = False
        sys.stdout.write(f"NOT VALID  {found.subject}: {found.problem}\n")
    return valid
