"""The last state of a Jupyter widget as text, for views without widgets: results, terminals and pages.

Pure: models' states in, a text out. A progress bar becomes a bar, a box the widgets in it, HTML its words.
Any other widget becomes ipywidgets' own text: its class and its value. States are from user code and may be
anything: a widget that contains itself, or thousands, is shown in part. ``widgets`` collects the states.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cellgate_kernels.codec.hypertext import read_html
from cellgate_kernels.codec.telling import PLAIN, WIDGET_VIEW, tell
from cellgate_kernels.protocol.outputs import render_stream

State = Mapping[str, Any]

_MODEL = "IPY_MODEL_"
_MOST_MODELS = 500
"""Most widgets in the text of one output, or of all in a cell, nested ones included."""
_DEEPEST = 20
_LONGEST = 16 * 1024
"""Characters of HTML and outputs that are read for texts: a cell's widgets may all show the same ones."""
_MOST_OUTPUTS = 20
_MOST_SHOWN = 100
"""Most widgets of one cell whose last state is shown."""
_LONGEST_VALUE = 200
_BAR = 10
_SIDE_BY_SIDE = frozenset({"HBoxModel"})
_MARKUP = frozenset({"HTMLModel", "HTMLMathModel", "LabelModel"})
_PROGRESS = frozenset({"FloatProgressModel", "IntProgressModel"})


def model_of(data: Mapping[str, Any]) -> str | None:
    """Return the id of the widget that an output shows; None if it shows none."""
    view = data.get(WIDGET_VIEW)
    model = view.get("model_id") if isinstance(view, Mapping) else None
    return model if isinstance(model, str) else None


def widget_text(model: str, find: Callable[[str], State | None]) -> str:
    """Return the text of a widget; empty if its state is unknown. `find`: returns the state of a model."""
    return _Teller(find).told(model, 0)


class ShownWidgets:
    """The widgets that a cell shows, with their last states: a progress bar is displayed before it begins.

    Only widgets that the cell itself has made are tracked; others keep the text that came with the output.
    """

    def __init__(self) -> None:
        self._states: dict[str, dict[str, Any]] = {}
        self._first: dict[str, str] = {}
        self._teller = _Teller(self._states.get)

    def change(self, model: str, data: Mapping[str, Any]) -> None:
        """Apply the data of a comm message: a state, or changes of one."""
        if isinstance(state := data.get("state"), Mapping):
            self._states.setdefault(model, {}).update(state)

    def show(self, data: Mapping[str, Any]) -> bool:
        """Apply the data of an output; return whether it shows a tracked widget."""
        model = model_of(data)
        if model is None or model not in self._states:
            return False
        if model not in self._first:
            if len(self._first) == _MOST_SHOWN:
                return False
            self._first[model] = self._teller.told(model, 0)
        return True

    def last(self) -> dict[str, str]:
        """Return the texts of the widgets that have changed since they were first shown."""
        teller = _Teller(self._states.get)
        now = {model: teller.told(model, 0) for model in self._first}
        return {model: told for model, told in now.items() if told and told != self._first[model]}


def with_last(data: Mapping[str, Any], last: Mapping[str, str]) -> Mapping[str, Any]:
    """Return the data of an output with the last text of the widget that it shows."""
    told = last.get(model_of(data) or "")
    return {**data, PLAIN: told} if told else data


@dataclass(slots=True)
class _Teller:
    find: Callable[[str], State | None]
    left: int = _MOST_MODELS
    room: int = _LONGEST

    def told(self, model: str, depth: int) -> str:
        self.left -= 1
        state = self.find(model) if self.left >= 0 and depth < _DEEPEST else None
        name = None if state is None else state.get("_model_name")
        if state is None or not isinstance(name, str):
            return ""
        if isinstance(children := state.get("children"), (list, tuple)):
            shown = self._children(children, depth)
            return _in_line(shown) if name in _SIDE_BY_SIDE else "\n".join(filter(None, shown))
        if name in _MARKUP:
            words = [self._words(state.get(each)) for each in ("description", "value")]
            return " ".join(filter(None, words))
        if name in _PROGRESS:
            return _in_line([self._words(state.get("description")), _bar(state)])
        if name == "OutputModel":
            outputs = state.get("outputs")
            return self._outputs(outputs) if isinstance(outputs, (list, tuple)) else ""
        return _described(name, state)

    def _children(self, children: Iterable[Any], depth: int) -> list[str]:
        shown: list[str] = []
        for child in children:
            if self.left <= 0:
                break
            if isinstance(child, str):
                shown.append(self.told(child.removeprefix(_MODEL), depth + 1))
        return shown

    def _words(self, value: object) -> str:
        return read_html(self._taken(value))

    def _taken(self, value: object) -> str:
        """Return as much of a text as fits."""
        taken = value[: self.room] if isinstance(value, str) else ""
        self.room -= len(taken)
        return taken

    def _outputs(self, outputs: Sequence[Any]) -> str:
        shown: list[str] = []
        for output in outputs[:_MOST_OUTPUTS]:
            if not isinstance(output, Mapping):
                continue
            data = output.get("data")
            if isinstance(data, Mapping):
                told = {mime: self._taken(value) for mime, value in data.items() if isinstance(value, str)}
                shown.append(tell(told))
            else:
                shown.append(render_stream(self._taken(output.get("text"))))
        return "\n".join(line.strip("\n") for line in shown if line)


def _in_line(parts: Iterable[str]) -> str:
    """Join parts side by side, a bar right behind its label, as tqdm writes it."""
    line = ""
    for part in filter(None, parts):
        line += part if not line or part.startswith("|") else f" {part}"
    return line


def _bar(state: State) -> str:
    least, most, value = (_number(state.get(name)) for name in ("min", "max", "value"))
    share = (value - least) / (most - least) if most > least else 0.0
    filled = round(_BAR * min(1.0, max(0.0, share)))
    return f"|{'█' * filled}{' ' * (_BAR - filled)}|"


def _number(value: object) -> float:
    """Return a number as a float; 0 for anything else, and for numbers larger than any float."""
    try:
        return float(value) if isinstance(value, (int, float)) else 0.0
    except OverflowError:
        return 0.0


def _described(name: str, state: State) -> str:
    known: dict[str, object] = {}
    if "value" in state:
        known["value"] = state["value"]
    elif "_options_labels" in state:
        labels, index = state["_options_labels"], state.get("index")
        if isinstance(labels, (list, tuple)) and isinstance(index, int) and 0 <= index < len(labels):
            known["value"] = labels[index]
    if description := state.get("description"):
        known["description"] = description
    told = ", ".join(f"{key}={_short(value)}" for key, value in known.items())
    return f"{name[:_LONGEST_VALUE].removesuffix('Model')}({told})"


def _short(value: object) -> str:
    if isinstance(value, (list, tuple)):
        value = tuple(value[:_LONGEST_VALUE])
    elif isinstance(value, str):
        value = value[:_LONGEST_VALUE]
    elif not isinstance(value, (bool, int, float)) and value is not None:
        return "..."
    try:
        told = repr(value)
    except ValueError:  # an integer of more digits than Python writes
        return "..."
    return told if len(told) <= _LONGEST_VALUE else f"{told[:_LONGEST_VALUE]}..."
