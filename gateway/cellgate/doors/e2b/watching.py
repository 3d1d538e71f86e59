"""A sandbox's folders that clients watch: a stream of what changes in one, or calls that ask for it.

A look at the folder says what has changed since the one before (``files.folder_watch``). A stream looks a few
times a second, and the next time once its client has taken what it was told; a call looks when it is asked.
"""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import Callable, Sequence
from typing import Final

from msgspec import field
from tornado.iostream import StreamClosedError

from cellgate.doors.base import Asked
from cellgate.doors.e2b.base import SandboxHandler
from cellgate.doors.e2b.envelopes import EnvelopesHandler, envelope, last, opened
from cellgate.doors.e2b.files import FEW, told_of
from cellgate.doors.sandbox.outside import HIDDEN
from cellgate.doors.sandbox.paths import parse_home_path
from cellgate.errors import NotFound
from cellgate.files.folder_watch import FolderChange, FolderWatch
from cellgate.files.tree import MAX_DEPTH, Item
from cellgate.http.message import decode, encode
from cellgate.http.operation import Format, requires
from cellgate.identity.principal import Permission
from cellgate.sessions.sandboxes import Sandbox
from cellgate_kernels.base.errors import CellgateError, InvalidInput

EVERY: Final = 0.25
"""Seconds between two looks of a stream."""
REST: Final = 10.0
"""The pause after a look, at least, in times of what the look took."""
ID_BYTES: Final = 8


class WatchBody(Asked, frozen=True):
    """A folder to watch. `include_entry`: whether each event says what is at its path."""

    path: str
    recursive: bool = False
    include_entry: bool = field(name="includeEntry", default=False)


class WatcherBody(Asked, frozen=True):
    """Which watch is meant."""

    watcher: str = field(name="watcherId", default="")


class WatchingHandler(SandboxHandler):
    """A handler that looks at watched folders."""

    connect = True

    def watched(self) -> Sandbox:
        """Return what is known of the sandbox. Raises SandboxGone."""
        return self.services.sessions.sandboxes.of(self.session())

    async def begin(self, asked: WatchBody) -> str:
        """Begin to watch a folder; return the watch's name.

        Raises NotFound, InvalidInput if it is no folder, Conflict and QuotaExceeded if it has too many
        entries, QueueFull if too many are watched. Then it is not watched.
        """
        name = secrets.token_hex(ID_BYTES)
        depth = MAX_DEPTH if asked.recursive else 1
        watch = FolderWatch(parse_home_path(asked.path), depth, tells_items=asked.include_entry)
        sandbox = self.watched()
        sandbox.begin_watch(name, watch)
        try:
            watch.begin(await self._look(watch))
        except BaseException:
            sandbox.watches.pop(name, None)
            raise
        return name

    async def changes(self, watch: FolderWatch) -> list[FolderChange]:
        """Return what has changed since the last look. A folder that is gone has no entries until it is back.

        Raises SandboxGone, Conflict and QuotaExceeded.
        """
        async with watch.turn:
            try:
                items = await self._look(watch)
            except (NotFound, InvalidInput):
                self.session()
                items = []
            if len(items) + watch.size > FEW:
                return await self.services.storage.lanes.texts.run(watch.take, items)
            return watch.take(items)

    async def made(
        self,
        make: Callable[[FolderWatch, Sequence[FolderChange]], list[bytes]],
        watch: FolderWatch,
        found: Sequence[FolderChange],
    ) -> list[bytes]:
        """Return the messages that `make` builds from changes; in a thread if there are many changes."""
        if len(found) > FEW:
            return await self.services.storage.lanes.texts.run(make, watch, found)
        return make(watch, found)

    async def _look(self, watch: FolderWatch) -> list[Item]:
        files, key = self.services.sessions.files, self.session().row.key
        found = await files.look_into(self.owner, key, watch.parts, watch.depth)
        items = [item for item in found if not item.path.startswith(HIDDEN)]
        # The files of a session that has ended meanwhile have not changed, they are gone with it.
        self.watched().check_watched(watch, len(items))
        return items


class WatchDirHandler(EnvelopesHandler, WatchingHandler):
    """Watch a folder, by a stream."""

    @requires(Permission.FILES)
    async def post(self) -> None:
        """Stream what changes in a folder, until the call's time is over or its client leaves."""
        self.session()
        asked, timeout = decode(opened(self.raw_body()), WatchBody), self.timeout()
        self.set_head(Format.NDJSON)
        name = await self.begin(asked)
        sandbox = self.watched()
        try:
            await self._follow(sandbox.watch(name), timeout)
        except StreamClosedError:
            self.on_connection_close()
        except CellgateError as error:
            self.write_problem(error, Format.NDJSON)
        finally:
            sandbox.watches.pop(name, None)

    async def _follow(self, watch: FolderWatch, timeout: float | None) -> None:
        loop = asyncio.get_running_loop()
        end = math.inf if timeout is None else loop.time() + timeout
        self.write(envelope({"start": {}}))
        await self.flush()
        told = loop.time()
        while not self.disconnected:
            began = loop.time()
            found = await self.changes(watch)
            pause = max(EVERY, REST * (loop.time() - began))
            if found:
                await self.write_parts(await self.made(_envelopes, watch, found))
                told = loop.time()
            elif loop.time() - told >= self.services.front.keep_alive:
                self.write(envelope({"keepalive": {}}))
                await self.flush()
                told = loop.time()
            if (left := end - loop.time()) <= 0:
                self.write(last("deadline_exceeded", "The time for which the folder is watched is over"))
                return
            await asyncio.wait([self._gone], timeout=min(pause, left))


class WatchersHandler(WatchingHandler):
    """The folders whose changes clients ask for: `filesystem.Filesystem/CreateWatcher`."""

    @requires(Permission.FILES)
    async def post(self) -> None:
        """Watch one more, until it is removed or the sandbox ends."""
        self.session()
        self.answer({"watcherId": await self.begin(await self.body(WatchBody))})


class WatcherEventsHandler(WatchingHandler):
    """What has changed in a folder: `filesystem.Filesystem/GetWatcherEvents`."""

    @requires(Permission.FILES)
    async def post(self) -> None:
        """Tell what has changed since the last such call, or since the folder is watched."""
        self.session()
        body = await self.body(WatcherBody)
        watch = self.watched().watch(body.watcher)
        found = await self.changes(watch)
        await self.answer_parts(await self.made(_events, watch, found))


class WatcherRemovalHandler(WatchingHandler):
    """The end of a watch: `filesystem.Filesystem/RemoveWatcher`."""

    @requires(Permission.FILES)
    async def post(self) -> None:
        """Watch a folder no longer."""
        self.session()
        body = await self.body(WatcherBody)
        sandbox = self.watched()
        sandbox.watch(body.watcher)
        del sandbox.watches[body.watcher]
        self.answer({})


def _envelopes(watch: FolderWatch, changes: Sequence[FolderChange]) -> list[bytes]:
    return [envelope({"filesystem": _told(watch, change)}) for change in changes]


def _events(watch: FolderWatch, changes: Sequence[FolderChange]) -> list[bytes]:
    return [encode({"events": [_told(watch, change) for change in changes]})]


def _told(watch: FolderWatch, change: FolderChange) -> dict[str, object]:
    told: dict[str, object] = {"name": watch.relative(change.path), "type": f"EVENT_TYPE_{change.kind}"}
    if watch.tells_items and change.item is not None:
        told["entry"] = told_of(change.item)
    return told
