"""The result of one execution, built from its events: live as they arrive, or from the record afterwards.

Pure. Building a result from large outputs is slow: `heavy` says when it belongs in a thread, with a `copy` of
the builder, because more events may arrive in between. ``cellgate_kernels.outputs`` collects the outputs,
``pictures`` handles images, and handlers do the HTTP. A builder keeps an execution's outputs in memory, so
its owner drops it once the result has been delivered.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from cellgate.execution.pictures import Images, without_images
from cellgate_kernels.encoding import encode, encode_in_steps
from cellgate_kernels.outputs import OutputArea, stderr, stdout, text
from cellgate_kernels.outputs import plain as without_ansi

_OF_THE_EVENT = frozenset({"seq", "type", "at", "session", "execution"})
EVENT_COST = 64
"""The cost of an event in addition to its bytes."""
_HEAVY = 128 * 1024
"""Bytes of outputs; with a backspace after each letter, this many take some hundredths of a second."""
_NOT_FINISHED: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "status": "queued",
        "cause": None,
        "execution_count": None,
        "error": None,
        "started_at": None,
        "finished_at": None,
        "duration_ms": None,
        "queue_ms": None,
        "truncated": False,
        "kernel": {"state": "busy", "replaced": False},
    }
)


class ResultBuilder:
    """Takes the events of one execution in order; `result` can be called at any time."""

    def __init__(self) -> None:
        self._area = OutputArea()
        self._session: str | None = None
        self._execution: str | None = None
        self._fields = dict(_NOT_FINISHED)
        self._files: list[dict[str, Any]] = []
        self._packages: list[dict[str, Any]] = []
        self._weight = 0

    def apply(self, event: Mapping[str, Any], size: int = 0) -> None:
        """Add an event as the wire shows it, including what a thread of an ended cell prints later.

        `size`: its approximate size in bytes, if it may be large.
        """
        self._weight += size + EVENT_COST
        self._session = event["session"]
        self._execution = event["execution"]
        match event["type"]:
            case "queued":
                return
            case "started":
                self._fields["started_at"] = event["at"]
                self._fields["execution_count"] = event["execution_count"]
            case "finished":
                self._fields |= {k: v for k, v in event.items() if k not in _OF_THE_EVENT}
            case "file":
                if event["action"] != "deleted":
                    self._files.append({k: v for k, v in event.items() if k not in _OF_THE_EVENT})
            case "packages":
                self._packages += [{**each, "action": event["action"]} for each in event["packages"]]
            case event_type:
                self._area.apply(event_type, event)
        if self._fields["status"] == "queued":
            self._fields["status"] = "running"

    @property
    def heavy(self) -> bool:
        """Whether building the result takes too long for the event loop."""
        return self._weight > _HEAVY

    def copy(self) -> ResultBuilder:
        """A cheap snapshot, which shares whatever does not change."""
        made = ResultBuilder()
        made._area = self._area.copy()
        made._session = self._session
        made._execution = self._execution
        made._fields = dict(self._fields)
        made._weight = self._weight
        made._files = list(self._files)
        made._packages = list(self._packages)
        return made

    @property
    def finished(self) -> bool:
        """Whether the execution has ended."""
        return self._fields["status"] not in {"queued", "running"}

    def result(
        self, *, plain: bool = False, max_text: int | None = None, images: Images = Images.INLINE
    ) -> dict[str, Any]:
        """The result of the wire contract; until `finished`, the result so far, "queued" or "running".

        With `plain`, no string contains ANSI codes. With `max_text`, no text has more than so many
        characters, or is longer than the mark that replaces its middle. `images`: where images are.
        """
        outputs = self._area.outputs()
        error = self._fields["error"]
        if plain:
            outputs = without_ansi(outputs)
            error = error and without_ansi([error])[0]
        texts = {"stdout": stdout(outputs), "stderr": stderr(outputs), "text": text(outputs)}
        address = f"/v1/sessions/{self._session}/executions/{self._execution}"
        if max_text is not None:
            places = {name: f"GET {address}{_only(outputs, name)}" for name in texts}
            texts = {name: shorten(value, max_text, places[name]) for name, value in texts.items()}
            error = error and _shorten_error(error, max_text, f"GET {address}{_only(outputs, 'error')}")
            outputs = [
                _shorten_output(output, max_text, f"GET {address}{_place(index, output)}")
                for index, output in enumerate(outputs)
            ]
        if images is not Images.INLINE:
            outputs = [
                without_images(output, f"{address}/output/{index}" if images is Images.URL else None)
                for index, output in enumerate(outputs)
            ]
        known = {"session": self._session, "execution": self._execution, **self._fields}
        return {
            **known,
            "outputs": outputs,
            **texts,
            "error": error,
            "files": self._files,
            "packages": self._packages,
        }


def encoded_result(builder: ResultBuilder, view: Mapping[str, Any]) -> list[bytes]:
    """`builder.result` with the options `view`, as JSON in parts."""
    result = builder.result(**view)
    if not builder.heavy:
        return [encode(result) + b"\n"]  # the newline is for terminals
    return [*encode_in_steps(result), b"\n"]


def shorten(value: str, limit: int, whole: str) -> str:
    """Head and tail of `value` in `limit` characters, and between them a mark that points to the `whole`."""
    mark = f"\n[cellgate: {len(value)} characters, cut here; {whole} has them all]\n"
    if len(value) <= max(limit, len(mark)):
        return value
    room = max(0, limit - len(mark))
    tail = room // 2
    return value[: room - tail] + mark + value[len(value) - tail :]


def _only(outputs: list[dict[str, Any]], text: str) -> str:
    """The path of a whole text below its execution: its only output, or the result if there are several."""
    found = [
        index
        for index, output in enumerate(outputs)
        if text == "text" or text in {output["output_type"], output.get("name")}
    ]
    return _place(found[0], outputs[found[0]]) if len(found) == 1 else ""


def _place(index: int, output: dict[str, Any]) -> str:
    """The path of an output's whole text below its execution."""
    pictured = any(mime.startswith("image/") for mime in output.get("data", ()))
    return f"/output/{index}{'?type=text/plain' if pictured else ''}"


def _shorten_output(output: dict[str, Any], limit: int, whole: str) -> dict[str, Any]:
    """Cut text for people; cutting what a program renders (HTML, images, JSON) would break it."""
    match output["output_type"]:
        case "stream":
            return {**output, "text": shorten(output["text"], limit, whole)}
        case "error":
            return _shorten_error(output, limit, whole)
    data = output["data"]
    if "text/plain" not in data:
        return output
    return {**output, "data": {**data, "text/plain": shorten(data["text/plain"], limit, whole)}}


def _shorten_error(error: dict[str, Any], limit: int, whole: str) -> dict[str, Any]:
    traceback = shorten("\n".join(error["traceback"]), limit, whole)
    return {
        **error,
        "evalue": shorten(error["evalue"], limit, whole),
        "traceback": traceback.split("\n") if error["traceback"] else [],
    }
