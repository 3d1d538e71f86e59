"""The state of a session's Jupyter widgets, folded from the comm messages of its cells.

Pure: events in their order in, the notebook's ``metadata.widgets`` out, as nbclient makes it. A model keeps
the state of its last message, also when its comm was closed or its kernel is gone: the notebook shows what
was seen. Source: ipywidgets, "Jupyter widgets messaging protocol", and its schema of the notebook's state.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

_NAMES = ("model_name", "model_module", "model_module_version")
STATE = "application/vnd.jupyter.widget-state+json"


class WidgetStates:
    """Fold `comm_open` and `comm_msg` events in by `apply`."""

    def __init__(self) -> None:
        self._states: dict[str, dict[str, Any]] = {}
        self._buffers: dict[str, dict[bytes, dict[str, Any]]] = {}

    def apply(self, event: Mapping[str, Any]) -> None:
        """Fold one event in; one without a state changes nothing."""
        data, comm_id = event["data"], event["comm_id"]
        state, paths = data.get("state"), data.get("buffer_paths")
        if not isinstance(state, dict):
            return
        self._states.setdefault(comm_id, {}).update(state)
        for path, buffer in zip(paths if isinstance(paths, list) else (), event["buffers"], strict=False):
            # The newest buffer of a place in the state is the one that counts.
            buffers = self._buffers.setdefault(comm_id, {})
            buffers[msgspec.json.encode(path)] = {"data": buffer, "encoding": "base64", "path": path}

    def metadata(self) -> dict[str, Any]:
        """What the notebook's metadata say of widgets; nothing when there are none."""
        shown = {
            comm_id: self._model(comm_id, state)
            for comm_id, state in self._states.items()
            if "_model_name" in state
        }
        if not shown:
            return {}
        return {"widgets": {STATE: {"state": shown, "version_major": 2, "version_minor": 0}}}

    def _model(self, comm_id: str, state: dict[str, Any]) -> dict[str, Any]:
        named = {name: state.get(f"_{name}") for name in _NAMES}
        buffers = self._buffers.get(comm_id)
        return {**named, "state": state, **({"buffers": list(buffers.values())} if buffers else {})}
