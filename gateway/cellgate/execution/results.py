"""The result of one execution, built from its events: live as they arrive, or from the record afterwards.

Pure. Building a result from large outputs is slow. If `heavy` is set, build it in a thread, from a `copy` of
the builder, because more events may arrive meanwhile. ``cellgate_kernels.protocol.outputs`` collects the
outputs, ``pictures`` handles images, and handlers do the HTTP. A builder keeps an execution's outputs in
memory, so its owner drops it once the result has been delivered.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec
from msgspec import UNSET

from cellgate.execution.answer_size import AnswerSize, Cutter, Whole
from cellgate.execution.pictures import Images, without_images
from cellgate.record.export.widget_text import ShownWidgets, with_last
from cellgate.wire.answers import FileChange, PackageChange, Result
from cellgate.wire.endings import RECORD_SET_BACK, describe_end, note_output
from cellgate.wire.events import ErrorInfo, Finished, KernelInfo
from cellgate.wire.usage import CellUsage
from cellgate_kernels.codec.encoding import encode, encode_in_steps
from cellgate_kernels.protocol.outputs import OutputArea, stderr, stdout, text
from cellgate_kernels.protocol.outputs import plain as without_ansi

EVENT_COST = 64
"""The cost of an event in addition to its bytes."""
_HEAVY = 32 * 1024
"""Bytes of outputs above which building takes hundredths of a second, for backspaces or HTML tags."""
_NOT_ENDED: Final[Mapping[str, Any]] = MappingProxyType({})
_BUSY: Final = KernelInfo(state="busy", replaced=False)


class ResultBuilder:
    """Takes the events of one execution in order; `result` can be called at any time."""

    def __init__(self) -> None:
        self._area = OutputArea()
        self._session = ""
        self._execution = ""
        self._begun = False
        self._started_at: str | None = None
        self._execution_count: int | None = None
        self._end = _NOT_ENDED
        self._files: list[FileChange] = []
        self._packages: list[PackageChange] = []
        self._weight = 0
        self._widgets: ShownWidgets | None = None
        """The last texts of widgets, for a cell that has made some."""
        self._last_of_widgets: dict[str, str] | None = None

    def apply(self, event: Mapping[str, Any], size: int = 0) -> None:
        """Add an event in its form on the wire, also text that a thread prints after the cell's end.

        `size`: its approximate size in bytes, if it may be large.
        """
        self._weight += max(size, _length(event)) + EVENT_COST
        self._session = event["session"]
        self._execution = event["execution"]
        match event["type"]:
            case "queued":
                return
            case "started":
                self._started_at = event["at"]
                self._execution_count = event["execution_count"]
            case "finished":
                self._end = event
            case "file":
                if event["action"] != "deleted":
                    self._files.append(msgspec.convert(event, FileChange))
            case "packages":
                action = event["action"]
                self._packages += [
                    msgspec.convert({**package, "action": action}, PackageChange)
                    for package in event["packages"]
                ]
            case "comm_open" | "comm_msg":
                if self._widgets is None:
                    self._widgets = ShownWidgets()
                self._widgets.change(event["comm_id"], event["data"])
            case event_type:
                if self._widgets is not None and "data" in event:
                    self._widgets.show(event["data"])
                self._area.apply(event_type, event)
        self._begun = True

    @property
    def area(self) -> OutputArea:
        """The outputs, for reading."""
        return self._area

    @property
    def heavy(self) -> bool:
        """Whether building the result takes too long for the event loop."""
        return self._weight > _HEAVY

    def copy(self) -> ResultBuilder:
        """Return a cheap snapshot, which shares all unchanging parts."""
        made = ResultBuilder()
        made._area = self._area.copy()
        made._session = self._session
        made._execution = self._execution
        made._begun = self._begun
        made._started_at = self._started_at
        made._execution_count = self._execution_count
        made._end = self._end
        made._weight = self._weight
        made._last_of_widgets = self._last()
        made._files = list(self._files)
        made._packages = list(self._packages)
        return made

    @property
    def finished(self) -> bool:
        """Whether the execution has ended."""
        return self._end is not _NOT_ENDED

    def result(
        self,
        *,
        plain: bool = False,
        size: AnswerSize | None = None,
        images: Images = Images.INLINE,
        base_url: str = "",
        kept: bool = True,
    ) -> Result:
        """Return the result of the wire contract; until `finished`, the result so far, "queued" or "running".

        With `plain`, no string contains ANSI codes. `size`: larger parts are cut or left out, with a mark.
        `images`: where images are. Addresses are paths below `base_url`. `kept`: if it can be read later.
        """
        end = self._end
        outputs = self._area.outputs()
        error = end.get("error")
        if plain:
            outputs = without_ansi(outputs)
            error = error and without_ansi([error])[0]
        shown = text([*self._with_widgets(outputs), *self._note(outputs)])
        texts = {"stdout": stdout(outputs), "stderr": stderr(outputs), "text": shown}
        address = f"{base_url}/v1/sessions/{self._session}/executions/{self._execution}"
        cutter = None
        wholes = outputs
        if size is not None and self._weight > size.small:
            whole = Whole(address if kept else None)
            cutter = Cutter(size, whole)
            texts = {name: cutter.text(value, _only(outputs, name, whole)) for name, value in texts.items()}
            error = error and cutter.error(error, _only(outputs, "error", whole))
            cutter.spend(*texts.values(), error, self._files, self._packages)
            outputs = cutter.texts(outputs)
        if images is not Images.INLINE:
            outputs = [
                without_images(output, f"{address}/output/{index}" if images is Images.URL else None)
                for index, output in enumerate(outputs)
            ]
        if cutter is not None:
            outputs = cutter.fitting(outputs, wholes)
        return Result(
            session=self._session,
            execution=self._execution,
            status=end.get("status", "running" if self._begun else "queued"),
            cause=end.get("cause"),
            execution_count=end.get("execution_count", self._execution_count),
            error=None if error is None else msgspec.convert(error, ErrorInfo),
            started_at=end.get("started_at", self._started_at),
            finished_at=end.get("finished_at"),
            duration_ms=end.get("duration_ms"),
            queue_ms=end.get("queue_ms"),
            truncated=end.get("truncated", False),
            interrupted_by=end.get("interrupted_by", UNSET),
            memory_kills=end.get("memory_kills", UNSET),
            usage=msgspec.convert(end["usage"], CellUsage) if "usage" in end else UNSET,
            kernel=msgspec.convert(end["kernel"], KernelInfo) if "kernel" in end else _BUSY,
            outputs=outputs,
            files=self._files,
            packages=self._packages,
            **texts,
        )

    def _with_widgets(self, outputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the outputs in their final form for a reader: widgets with their last text."""
        last = self._last()
        if not last:
            return outputs
        return [{**out, "data": with_last(out["data"], last)} if "data" in out else out for out in outputs]

    def _last(self) -> dict[str, str]:
        """Return the last texts of widgets; in a copy, the texts at the time of copying."""
        if self._last_of_widgets is not None:
            return self._last_of_widgets
        return {} if self._widgets is None else self._widgets.last()

    def _note(self, outputs: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
        """Yield the notebook's note below the outputs of a cell, if they do not say all there is to say."""
        told = "memory_kills" in self._end or self._end.get("kernel", {}).get("cause") == RECORD_SET_BACK
        if self._end.get("status", "ok") in {"ok", "error"} and not told:
            return
        error_shown = any(output["output_type"] == "error" for output in outputs)
        ended = msgspec.convert(self._end, Finished)
        if note := describe_end(ended, started=self._started_at is not None, error_shown=error_shown):
            yield note_output(note)


def encoded_result(builder: ResultBuilder, view: Mapping[str, Any]) -> list[bytes]:
    """Return `builder.result` with the options `view`, as JSON in parts."""
    result = builder.result(**view)
    if not builder.heavy:
        return [encode(result) + b"\n"]  # the newline is for terminals
    return [*encode_in_steps(result), b"\n"]


def _length(event: Mapping[str, Any]) -> int:
    """Return the characters of an event's output, as far as they can be counted quickly."""
    match event["type"]:
        case "stream":
            return len(event["text"])
        case "error":
            return len(event["evalue"]) + sum(map(len, event["traceback"]))
        case "display_data" | "execute_result" | "update_display_data":
            return sum(len(value) for value in event["data"].values() if isinstance(value, str))
    return 0


def _only(outputs: list[dict[str, Any]], text: str, whole: Whole) -> str:
    """Return the request for a whole text: its only output's, or the result's if there are several."""
    found = [
        index
        for index, output in enumerate(outputs)
        if text == "text" or text in {output["output_type"], output.get("name")}
    ]
    return whole.text(found[0], outputs[found[0]]) if len(found) == 1 else whole.result()
