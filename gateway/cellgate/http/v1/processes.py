"""/v1/sessions/{s}/processes: programs beside a session's kernel."""

from __future__ import annotations

from cellgate.errors import Conflict, NotAcceptable
from cellgate.execution.checks import check_session_key
from cellgate.http.operation import JSON, NDJSON, READS, RUNS, SSE, Answer, Format, operation
from cellgate.http.streaming import StreamingHandler
from cellgate.identity.principal import Permission
from cellgate.processes.request import check_input, check_process, check_signal
from cellgate.processes.run import ProcessRun
from cellgate.wire.answers import ProcessList, ProcessModel
from cellgate.wire.events import Event
from cellgate.wire.models import ProcessBody, ProcessInputBody, SignalBody


class ProcessAnswers(StreamingHandler):
    """Answers with a process, or with its events."""

    def find(self, key: str, process: str) -> ProcessRun:
        """Return the process of a live session. Raises NotFound."""
        session = self.services.sessions.manager.live(self.owner, check_session_key(key))
        return session.processes.find(process)

    async def answer_model(self, run: ProcessRun, status: int = 200) -> None:
        """Answer with its state and output so far, once both are durable."""
        model = run.model(self.services.front.base_url)
        size = run.size
        await run.recorded()
        await self.answer_large(model, size, status)

    async def answer_events(self, run: ProcessRun, form: Format) -> None:
        """Answer with its events, from the first to the last."""
        await self.stream(run.events(), form)


class ProcessesHandler(ProcessAnswers):
    """The programs of a session."""

    @operation(
        "list_processes",
        "List a session's processes",
        Answer(200, "Those that run, and the last that ended.", {JSON: ProcessList}),
        errors=READS,
        needs=Permission.READ,
    )
    async def get(self, key: str) -> None:
        session = self.services.sessions.manager.live(self.owner, check_session_key(key))
        runs = session.processes.all
        models = [run.model(self.services.front.base_url) for run in runs]
        size = sum(run.size for run in runs)
        await session.log.commit()
        await self.answer_large(ProcessList(processes=models), size)

    @operation(
        "run_program",
        "Run a program",
        Answer(
            200,
            "The process at its end, or its events as they happen. A program that fails is a 200 too.",
            {JSON: ProcessModel, NDJSON: Event, SSE: Event},
        ),
        Answer(202, "It runs (`wait` is false).", {JSON: ProcessModel}, {"Location": "The process's path."}),
        description=(
            "It runs beside the session's cells, in the same sandbox, and ends with the kernel at the latest."
            " A session that is not there is made."
        ),
        body={JSON: ProcessBody},
        errors=(*RUNS, NotAcceptable),
        needs=Permission.RUN,
    )
    async def post(self, key: str) -> None:
        form = self.accepted()
        body = await self.body(ProcessBody)
        request = check_process(body, waits=body.wait and form is Format.JSON)
        async with self.waiting(form) as moved:
            run = await self.services.sessions.manager.start_process(self.owner, key, request, moved=moved)
        if form is not Format.JSON:
            await self.answer_events(run, form)
        elif body.wait:
            await run.wait()
            if not self.disconnected:
                await self.answer_model(run)
        else:
            self.set_location(f"/v1/sessions/{key}/processes/{run.id}")
            await self.answer_model(run, 202)


class ProcessHandler(ProcessAnswers):
    """One process."""

    @operation(
        "get_process",
        "Get a process",
        Answer(
            200,
            "Its state and output so far; as a stream, all its events.",
            {JSON: ProcessModel, NDJSON: Event, SSE: Event},
        ),
        errors=(*READS, NotAcceptable),
        needs=Permission.READ,
    )
    async def get(self, key: str, process: str) -> None:
        form = self.accepted()
        run = self.find(key, process)
        if form is Format.JSON:
            await self.answer_model(run)
        else:
            await self.answer_events(run, form)

    @operation(
        "end_process",
        "End a process",
        Answer(204, "It was told to end, or has ended already."),
        description="Its process group gets SIGTERM, and SIGKILL five seconds later.",
        errors=READS,
        needs=Permission.RUN,
    )
    async def delete(self, key: str, process: str) -> None:
        self.find(key, process).terminate()
        self.set_status(204)


class ProcessInputHandler(ProcessAnswers):
    """The input of a process."""

    @operation(
        "write_process_input",
        "Send input to a process",
        Answer(204, "The input was passed on."),
        body={JSON: ProcessInputBody},
        errors=(*READS, Conflict),
        needs=Permission.RUN,
    )
    async def post(self, key: str, process: str) -> None:
        body = await self.body(ProcessInputBody)
        self.find(key, process).give_input(check_input(body), close=body.close)
        self.set_status(204)


class ProcessSignalHandler(ProcessAnswers):
    """Signals to a process."""

    @operation(
        "signal_process",
        "Send a signal to a process",
        Answer(204, "The signal was sent to its process group."),
        body={JSON: SignalBody},
        errors=(*READS, Conflict),
        needs=Permission.RUN,
    )
    async def post(self, key: str, process: str) -> None:
        body = await self.body(SignalBody)
        self.find(key, process).signal(check_signal(body.signal))
        self.set_status(204)
