"""/v1/sessions/{s}/widgets and below it: a session's Jupyter widgets, and what is done to one.

Events tell how widgets go on; for pages that come later ``record.export`` folds the events so far.
``sessions.widget_messages`` sends the kernel what somebody does.
"""

from __future__ import annotations

from cellgate.errors import Conflict, ShuttingDown
from cellgate.execution.checks import check_session_key
from cellgate.http.base import BaseHandler
from cellgate.http.operation import JSON, READS, Answer, operation
from cellgate.http.v1.download import EXPORTS, DownloadHandler
from cellgate.identity.principal import Permission
from cellgate.sessions.widget_messages import send_to_widget, widget_message
from cellgate.wire.answers import SessionWidgets, WidgetHandled
from cellgate.wire.models import WidgetBody
from cellgate_kernels.base.errors import KernelBusy, KernelDied
from cellgate_kernels.codec.structure import is_heavy


class WidgetsHandler(DownloadHandler):
    """A session's widgets."""

    @operation(
        "get_widgets",
        "Get the last states of a session's widgets",
        Answer(200, "The widgets, of a branch also those before it.", {JSON: SessionWidgets}),
        errors=EXPORTS,
        needs=Permission.READ,
    )
    async def get(self, key: str) -> None:
        await self.while_there(self._widgets(key))

    async def _widgets(self, key: str) -> None:
        archive = self.services.sessions.archive
        parts = archive.exports.widgets(await archive.moment(self.owner, key, self.login.reach))
        await self.send(parts, kind=JSON, name=f"{key}.widgets.json")


class WidgetHandler(BaseHandler):
    """One widget."""

    @operation(
        "move_widget",
        "Move a widget, or send it a message",
        Answer(200, "The kernel has handled it.", {JSON: WidgetHandled}),
        description=(
            "Sends the session's kernel a comm message of the widget, as Jupyter's clients do. The kernel"
            " must be idle: 409 `busy` while a cell runs or waits. What it changes and shows comes as events"
            " without an execution. It may take as long as a cell, and counts as one that runs in the quotas;"
            " an interrupt of the session ends it."
        ),
        body={JSON: WidgetBody},
        errors=(*READS, ShuttingDown, KernelBusy, KernelDied, Conflict),
        needs=Permission.RUN,
    )
    async def post(self, key: str, widget: str) -> None:
        body = await self.body(WidgetBody)
        if is_heavy(self.raw_body()):
            message = await self.services.storage.lanes.texts.run(widget_message, widget, body)
        else:
            message = widget_message(widget, body)
        session = self.services.sessions.manager.live(self.owner, check_session_key(key))
        self.answer(await send_to_widget(session, message))
