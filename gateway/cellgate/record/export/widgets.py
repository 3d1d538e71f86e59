"""The state of a session's Jupyter widgets, folded from its cells' comm messages and, for Output widgets,
from the outputs that they show.

Pure: events in, in order, and the notebook's ``metadata.widgets`` out, as nbclient makes it. A model keeps
its last state even if its comm was closed or its kernel is gone: the notebook shows what the user saw. The
console, which shows what there is now, is told which comms were closed.
Source: ipywidgets, "Jupyter widgets messaging protocol", and its schema of the notebook's state.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from cellgate_kernels.protocol.outputs import OutputArea

_NAMES = ("model_name", "model_module", "model_module_version")
STATE = "application/vnd.jupyter.widget-state+json"


def saved_states(metadata: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the states of widgets by the ids of their models, from the metadata of any notebook."""
    found: Any = metadata
    for name in ("widgets", STATE, "state"):
        found = found.get(name) if isinstance(found, Mapping) else None
    models = found.items() if isinstance(found, Mapping) else ()
    return {
        comm_id: {"_model_name": model.get("model_name"), **model["state"]}
        for comm_id, model in models
        if isinstance(model, Mapping) and isinstance(model.get("state"), Mapping)
    }


class WidgetStates:
    """The states from events that `apply` folds in: of comms, and of outputs that widgets show."""

    def __init__(self) -> None:
        self._states: dict[str, dict[str, Any]] = {}
        self._outputs: dict[str, OutputArea] = {}
        self._buffers: dict[str, dict[bytes, dict[str, Any]]] = {}
        self._closed: set[str] = set()

    def apply(self, event: Mapping[str, Any]) -> None:
        """Fold in one event; one without a state or a widget changes nothing."""
        if "widget" in event:
            self._show(event["widget"], event)
            return
        comm_id = event["comm_id"]
        if event.get("type") == "comm_close":
            self._closed.add(comm_id)
            return
        if event.get("type") == "comm_open":
            self._closed.discard(comm_id)
        data = event["data"]
        state = data.get("state")
        if not isinstance(state, dict):
            return
        self._states.setdefault(comm_id, {}).update(state)
        if "outputs" in state:
            # A client, or the cell's own code, has set what the widget shows.
            self._outputs.pop(comm_id, None)
        paths = data.get("buffer_paths")
        if not isinstance(paths, list):
            return
        for path, buffer in zip(paths, event["buffers"], strict=False):
            # A newer buffer at the same path replaces the older one.
            buffers = self._buffers.setdefault(comm_id, {})
            buffers[msgspec.json.encode(path)] = {"data": buffer, "encoding": "base64", "path": path}

    def _show(self, comm_id: str, event: Mapping[str, Any]) -> None:
        """Keep an output in the widget's state, as a client that shows the widget does."""
        area = self._outputs.setdefault(comm_id, OutputArea())
        area.apply(event["type"], {name: value for name, value in event.items() if name != "widget"})

    @property
    def closed(self) -> list[str]:
        """The ids of widgets that were closed."""
        return [comm_id for comm_id in self._states if comm_id in self._closed]

    def models(self) -> dict[str, dict[str, Any]]:
        """Return the widgets by their ids, as a notebook's metadata have them."""
        return {
            comm_id: self._model(comm_id, state)
            for comm_id, state in self._states.items()
            if "_model_name" in state
        }

    def metadata(self) -> dict[str, Any]:
        """Return the notebook's metadata for widgets; empty when there are none."""
        shown = self.models()
        if not shown:
            return {}
        return {"widgets": {STATE: {"state": shown, "version_major": 2, "version_minor": 0}}}

    def _model(self, comm_id: str, state: dict[str, Any]) -> dict[str, Any]:
        if comm_id in self._outputs:
            state = {**state, "outputs": self._outputs[comm_id].outputs()}
        model: dict[str, Any] = {name: state.get(f"_{name}") for name in _NAMES}
        model["state"] = state
        buffers = self._buffers.get(comm_id)
        if buffers:
            model["buffers"] = list(buffers.values())
        return model
