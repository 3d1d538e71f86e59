"""A session's rows as a Jupyter notebook of nbformat 4.5: one code cell per execution.

A cell that a rollback undid is a raw cell, so that whoever runs the notebook gets what the session has.

Pure: rows in, cells and metadata out, one cell at a time; the same rows make the same notebook. ``survey``
finds a cell's rows, ``cellgate_kernels.protocol.outputs`` applies events to its outputs, and ``text`` writes
it. The result is valid by construction, given events as the kernel layer makes them; the tests check it
against nbformat's own schema.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType, structs, to_builtins

from cellgate.record import text
from cellgate.record.export.page_order import PageOrder, plain_lines
from cellgate.record.export.survey import Rows, Survey, SurveyPlace
from cellgate.record.export.widgets import WidgetStates
from cellgate.record.keys import SigningKey
from cellgate.record.rows import EventRow, SessionRow
from cellgate.record.seal import cell_digest, make_seal
from cellgate.wire.endings import describe_end, note_output
from cellgate.wire.events import BranchedFrom, Finished, PackagesChanged, Queued, Started
from cellgate_kernels.base.resources import MIB
from cellgate_kernels.codec.decoding import json_decoder
from cellgate_kernels.protocol.outputs import OutputArea

NOTEBOOK_CAP = 16 * MIB
UNDONE_RAW = "raw"
"""What the metadata of a notebook say whose undone cells are raw cells."""
_RAW = {"format": "text/plain", "raw_mimetype": "text/plain", "tags": ["undone"]}
"""Of a raw cell: no converter takes it for markup of its own form."""

_OF_LANGUAGE: Mapping[str, type | tuple[type, ...]] = {
    "version": str,
    "mimetype": str,
    "file_extension": str,
    "pygments_lexer": str,
    "nbconvert_exporter": str,
    "codemirror_mode": (str, dict),
}
_UNANSWERED = frozenset({"cancelled", "died"})

_decode = json_decoder(dict[str, Any]).decode
_queued = json_decoder(Queued).decode
_started = json_decoder(Started).decode
_finished = json_decoder(Finished).decode
_packages = json_decoder(PackagesChanged).decode


@dataclass(frozen=True, slots=True)
class Export:
    """Facts about an export that are not in the rows, and how much of the outputs it shows.

    `outputs`: whether it has any. `cap`: values of outputs with more characters are cut or left out, None for
    no limit; the record has them all. Of a branch, `ancestors`: the sessions that it continues, the oldest
    first; `absence`: why the oldest is not named, if so; `inherited`: whether their cells are shown.
    `undone`: whether cells that a rollback undid are shown; `undone_as_code`: as code cells, which notebooks
    of earlier versions have. `repeats`: whether a cell that ran again names the client's cell, which those
    don't. `order`: the file whose order the cells have; None for the order in which they ran.
    """

    gateway_version: str
    exported_at: str
    outputs: bool = True
    cap: int | None = NOTEBOOK_CAP
    inherited: bool = True
    undone: bool = True
    undone_as_code: bool = False
    repeats: bool = True
    order: PageOrder | None = None
    ancestors: tuple[BranchedFrom, ...] = ()
    absence: str | None = None


@dataclass(frozen=True, slots=True)
class NotebookPart:
    """Rows that were surveyed, and the key of their session."""

    session: str
    survey: Survey
    rows: Rows


class Notebook:
    """The notebook of a session, up to the last surveyed row. `inherited`: what it continues as a branch.

    Cells are in the order in which they started; one that never started keeps its place in the queue. Without
    outputs they have neither outputs nor a count, only the metadata of their run.
    """

    def __init__(
        self,
        session: SessionRow,
        survey: Survey,
        rows: Rows,
        export: Export,
        inherited: Sequence[NotebookPart] = (),
    ) -> None:
        self._session = structs.replace(session, **survey.facts.fields)
        self._survey = survey
        self._parts = (*inherited, NotebookPart(session.key, survey, rows))
        self._export = export
        self._shown: set[str] = set()

    def cells(self) -> Iterator[dict[str, Any]]:
        """Yield the cells, made one at a time on demand."""
        if self._export.order is not None:
            yield from self._arranged(self._export.order)
            return
        for part in self._parts:
            for place in part.survey.in_order():
                if not self._export.undone and part.survey.undoing(place) is not None:
                    continue
                yield self._cell(part, place).to_notebook(self._export)

    def _arranged(self, order: PageOrder) -> Iterator[dict[str, Any]]:
        """Yield the file's cells in its order: with outputs if the record has the execution of this code.

        Each execution is shown once: further cells that name it did not run.
        """
        self._shown.clear()
        for wanted in order.cells:
            found = None if wanted.execution is None else self._find(wanted.execution)
            if found is None or found[1].execution in self._shown:
                yield wanted.unrun()
                continue
            part, place = found
            cell = self._cell(part, place)
            if plain_lines(cell.source) != wanted.source:
                yield wanted.unrun(changed=place.execution)
            elif self._export.undone or part.survey.undoing(place) is None:
                self._shown.add(place.execution)
                yield {**cell.to_notebook(self._export), "id": wanted.id}

    def _find(self, execution: str) -> tuple[NotebookPart, SurveyPlace] | None:
        for part in self._parts:
            if (place := part.survey.places.get(execution)) is not None:
                return part, place
        return None

    def _cell(self, part: NotebookPart, place: SurveyPlace) -> _Cell:
        cell = _Cell(place.execution, place.cell_id, place.first_seq)
        for row in place.rows(part.rows):
            cell.apply(row, outputs=self._export.outputs)
        if "hash_seed" not in part.survey.facts.environment:
            # Records from before this fact made notebooks without names of variables, and those are sealed.
            cell.flags.pop("env", None)
        if place.repeats is not None and self._export.repeats:
            cell.flags["repeats"] = place.repeats
        if part.survey.inherited:
            cell.flags["inherited"] = {"session": part.session, "execution": place.execution}
        if (rollback := part.survey.undoing(place)) is not None:
            cell.flags["undone"] = {"checkpoint": rollback.checkpoint, "seq": rollback.seq}
        if self._export.outputs:
            for display_id, seq in part.survey.changed_elsewhere(place):
                for row in part.rows.read(seq, seq):
                    event = _decode(row.body)
                    cell.area.update_display(display_id, event["data"], event["metadata"])
        return cell

    def metadata(self) -> dict[str, Any]:
        """Return the notebook's metadata, without a seal."""
        kernel = _kernel_metadata(self._session.kernel, self.environment)
        return {**kernel, "cellgate": self._provenance(), **self._widgets()}

    def _widgets(self) -> dict[str, Any]:
        """Return the widgets' last states: outputs that a notebook keeps in one place."""
        return self.widgets().metadata() if self._export.outputs else {}

    def widgets(self) -> WidgetStates:
        """Return the last states of all widgets."""
        states = WidgetStates()
        for part in self._parts:
            for seq in part.survey.widgets:
                for row in part.rows.read(seq, seq):
                    states.apply(_decode(row.body))
        return states

    @property
    def environment(self) -> Mapping[str, Any]:
        """The environment of the newest kernel, with packages that the session installed."""
        facts = self._survey.facts
        known = facts.environment or self._session.environment
        if not facts.packages:
            return known
        installed = {name: package.version for name, package in facts.packages.items()}
        return {**known, "packages": {**known.get("packages", {}), **installed}}

    def _provenance(self) -> dict[str, Any]:
        """Return the notebook's origin, with as much of the environment as the record holds."""
        session = self._session
        facts = self._survey.facts
        export = self._export
        known = {
            "session": session.key,
            "principal": session.principal,
            "state": session.state,
            "created_at": session.created_at,
            "exported_at": export.exported_at,
            "isolation": session.isolation,
            **_environment(self.environment),
            "limits": session.limits,
            "metadata": session.metadata,
            "rows": self._survey.seq,
            "head": self._survey.head.hex(),
            "gateway_version": export.gateway_version,
            "outputs": export.outputs,
            "output_cap": export.cap,
        }
        if facts.recorded_by is not None:
            known["recorded_by"] = facts.recorded_by
        if session.branched_from is not None:
            known["branched_from"] = msgspec.to_builtins(session.branched_from)
            known["ancestors"] = self._ancestors()
            known["inherited"] = export.inherited
            if export.absence is not None:
                known["ancestor_left_out"] = export.absence
        if any(part.survey.facts.rollbacks for part in self._parts):
            known["undone"] = UNDONE_RAW if export.undone and not export.undone_as_code else export.undone
        known |= self._repeats_and_order()
        if left_out := sum(part.survey.widgets_left_out for part in self._parts):
            known["widget_messages_left_out"] = left_out
        if self._survey.processes:
            known["processes"] = self._survey.processes
        if facts.packages:
            packages = [facts.packages[name] for name in sorted(facts.packages)]
            known["installed_packages"] = msgspec.to_builtins(packages)
        if facts.files:
            known["input_files"] = [{"path": path, **facts.files[path]} for path in sorted(facts.files)]
        return known

    def _repeats_and_order(self) -> dict[str, Any]:
        """Return whether cells ran again, and whose order the cells have if it is not that of the record.

        In such an order `cells` have been yielded before.
        """
        known: dict[str, Any] = {}
        if self._export.repeats and any(part.survey.repeats for part in self._parts):
            known["repeats"] = True
        if (order := self._export.order) is not None:
            left_out = len({name for part in self._parts for name in part.survey.places} - self._shown)
            known["order"] = {"file": order.path, "sha256": order.digest, "cells_left_out": left_out}
        return known

    def _ancestors(self) -> list[dict[str, Any]]:
        """Return the sessions that this one continues and, if their cells are shown, each branch's seed."""
        told: list[dict[str, Any]] = [msgspec.to_builtins(each) for each in self._export.ancestors]
        for known, part in zip(told, self._parts[:-1], strict=False):
            if part.survey.seed is not None:
                known["seed"] = part.survey.seed
        return told

    def whole(self) -> dict[str, Any]:
        """Return the notebook as one value, without a seal."""
        cells = list(self.cells())
        return {"nbformat": 4, "nbformat_minor": 5, "metadata": self.metadata(), "cells": cells}

    def write(self, key: SigningKey | None = None) -> Iterator[str]:
        """Yield the sealed notebook in parts, as nbformat would write it, with one cell in memory."""
        digests: list[str] = []
        before = text.OPENING
        for cell in self.cells():
            shown = text.cell_text(text.split(cell))
            digests.append(cell_digest(shown))
            yield before + "\n  "
            yield shown
            before = ","
        metadata = self.metadata()
        metadata["cellgate"]["seal"] = msgspec.to_builtins(make_seal(digests, metadata, key))
        yield ("" if digests else before) + text.tail_text(metadata, empty=not digests)


# ---- cells ------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Cell:
    """An execution according to its events so far."""

    execution: str
    cell_id: str
    first_seq: int
    last_seq: int = 0
    hash: str = ""
    source: str = ""
    flags: dict[str, Any] = field(default_factory=dict)
    started: Started | None = None
    finished: Finished | None = None
    area: OutputArea = field(default_factory=OutputArea)

    def apply(self, row: EventRow, *, outputs: bool) -> None:
        self.last_seq = row.seq
        self.hash = row.hash.hex()
        match row.type:
            case "queued":
                self._queue(_queued(row.body))
            case "started":
                self.started = _started(row.body)
                self.source = self.started.code
            case "finished":
                self.finished = _finished(row.body)
            case "packages":
                change = _packages(row.body)
                packages = msgspec.to_builtins(change.packages)
                self.flags.setdefault("packages", []).append({"action": change.action, "packages": packages})
            case "input_reply" if outputs:
                # As Jupyter's own front ends keep it.
                reply = _decode(row.body)
                shown = {"name": "stdout", "text": f"{reply['prompt']}{reply.get('value', '')}\n"}
                self.area.apply("stream", shown)
            case event_type if outputs:
                self.area.apply(event_type, _decode(row.body))

    def _queue(self, event: Queued) -> None:
        """Take the source from the request, and those options that are not the default."""
        if event.waiting_for is not msgspec.UNSET:
            return
        self.source = event.code
        if event.silent:
            self.flags["silent"] = True
        if event.store_history is False:
            self.flags["store_history"] = False
        if not isinstance(event.env, msgspec.UnsetType):
            self.flags["env"] = event.env

    def to_notebook(self, export: Export) -> dict[str, Any]:
        shown = self.area.outputs()
        known = self._known(shown)
        if export.cap is not None:
            shown = [_capped(output, export.cap) for output in shown]
        if "note" in known and export.outputs:
            shown.append(note_output(known["note"]))
        if "undone" in self.flags and not export.undone_as_code:
            metadata = {**self._timing(), **_RAW, "cellgate": known}
            return {"cell_type": "raw", "id": self.cell_id, "metadata": metadata, "source": self.source}
        return {
            "cell_type": "code",
            "id": self.cell_id,
            "execution_count": self._count() if export.outputs else None,
            "metadata": {**self._timing(), "cellgate": known},
            "source": self.source,
            "outputs": shown,
        }

    def _count(self) -> int | None:
        for event in (self.finished, self.started):
            if event is not None and event.execution_count is not None:
                return event.execution_count
        return None

    def _timing(self) -> dict[str, Any]:
        """Return Jupyter's keys for the messages that came; without an answering kernel there is no reply."""
        times: dict[str, str] = {}
        if self.started is not None:
            times["iopub.status.busy"] = self.started.at
            times["iopub.execute_input"] = self.started.at
        ended = self.finished
        if ended is not None and ended.status not in _UNANSWERED and not _gave_up(ended):
            ended_at = ended.finished_at or ended.at
            times["shell.execute_reply"] = ended_at
            times["iopub.status.idle"] = ended_at
        return {"execution": times} if times else {}

    def _known(self, shown: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
        return {
            "execution": self.execution,
            "seq": [self.first_seq, self.last_seq],
            **self._outcome(shown),
            **self.flags,
            "hash": self.hash,
        }

    def _outcome(self, shown: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
        ended = self.finished
        if ended is None:
            return {"status": "running" if self.started is not None else "queued"}
        known = {"status": ended.status, "cause": ended.cause, "duration_ms": ended.duration_ms}
        if not isinstance(ended.usage, UnsetType):
            known["usage"] = to_builtins(ended.usage)
        if ended.truncated:
            known["truncated"] = True
        if ended.kernel.replaced:
            known["kernel_replaced"] = True
        error_shown = any(output["output_type"] == "error" for output in shown)
        note = describe_end(ended, started=self.started is not None, error_shown=error_shown)
        return known | {"note": note} if note else known


def _gave_up(ended: Finished) -> bool:
    """Return whether the cell's kernel was killed before it could answer.

    Old records do not distinguish this from a kernel that was replaced before the cell.
    """
    return ended.kernel.replaced and (ended.status == "timeout" or ended.kernel.files is UNSET)


def _capped(output: dict[str, Any], cap: int) -> dict[str, Any]:
    """Return the output without values longer than `cap`: texts keep both ends, other values are left out."""
    match output["output_type"]:
        case "stream":
            return {**output, "text": _both_ends(output["text"], cap)}
        case "display_data" | "execute_result":
            data = output["data"]
            large = [mime for mime, value in data.items() if isinstance(value, str) and len(value) > cap]
            if not large:
                return output
            kept = {mime: value for mime, value in data.items() if mime not in large}
            notes = "".join(
                f"[cellgate: {mime}, {len(data[mime])} characters, is in the bundle]" for mime in large
            )
            plain = _both_ends(data["text/plain"], cap) if "text/plain" in data else ""
            return {**output, "data": {**kept, "text/plain": f"{plain}\n{notes}".strip("\n")}}
    return output


def _both_ends(value: str, cap: int) -> str:
    if len(value) <= cap:
        return value
    mark = f"\n[cellgate: {len(value)} characters, cut here; the bundle has them all]\n"
    return value[: cap // 2] + mark + value[len(value) - cap // 2 :]


# ---- metadata ---------------------------------------------------------------------------------------------


def _kernel_metadata(kernel: str, environment: Mapping[str, Any]) -> dict[str, Any]:
    """Return `kernelspec` and `language_info`, as far as the session's environment has them."""
    language = _language_info(environment.get("kernel_info", {}).get("language_info"))
    kernelspec = {"name": kernel, "display_name": str(environment.get("display_name") or kernel)}
    if language is None:
        return {"kernelspec": kernelspec}
    return {"kernelspec": {**kernelspec, "language": language["name"]}, "language_info": language}


def _language_info(reported: Any) -> dict[str, Any] | None:
    """Return a kernel's language_info without fields that nbformat does not allow."""
    if not isinstance(reported, dict) or not isinstance(reported.get("name"), str):
        return None
    fields = {key: reported[key] for key, kind in _OF_LANGUAGE.items() if isinstance(reported.get(key), kind)}
    return {"name": reported["name"], **fields}


def _environment(environment: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of the environment that Jupyter's own metadata does not hold."""
    known = {key: value for key, value in environment.items() if key not in {"kernel_info", "display_name"}}
    kernel_info = environment.get("kernel_info", {})
    for key in ("implementation", "implementation_version"):
        if key in kernel_info:
            known[key] = kernel_info[key]
    language = kernel_info.get("language_info")
    if isinstance(language, dict) and language.get("name") == "python":
        known.setdefault("python", language.get("version"))
    return known
