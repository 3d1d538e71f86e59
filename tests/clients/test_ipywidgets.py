"""ipywidgets itself: a slider that a client moves, and the state of it all in the exported notebook."""

from __future__ import annotations

import base64
from typing import Any

import jsonschema
import nbformat

from cellgate.record.export.widgets import STATE
from tests.support.channels import Channels, Sent, channels, is_idle
from tests.support.requirements import require
from tests.support.server import GatewayProcess

# What the notebook's metadata say of widgets, by the documentation of ipywidgets' protocol.
TEXT: dict[str, object] = {"type": "string", "minLength": 1}
BUFFER = {
    "type": "object",
    "properties": {
        "data": {"type": "string"},
        "encoding": {"enum": ["base64", "hex"]},
        "path": {"type": "array", "items": {"type": ["string", "integer"]}},
    },
    "required": ["data", "encoding", "path"],
    "additionalProperties": False,
}
MODEL = {
    "type": "object",
    "properties": {
        "model_name": TEXT,
        "model_module": TEXT,
        "model_module_version": TEXT,
        "state": {"type": "object"},
        "buffers": {"type": "array", "items": BUFFER},
    },
    "required": ["model_name", "model_module", "state"],
    "additionalProperties": False,
}
SCHEMA = {
    "type": "object",
    "properties": {
        "version_major": {"const": 2},
        "version_minor": {"type": "integer"},
        "state": {"type": "object", "additionalProperties": MODEL},
    },
    "required": ["version_major", "version_minor", "state"],
    "additionalProperties": False,
}

CELL = """
import ipywidgets
slider = ipywidgets.IntSlider(value=1, max=100)
picture = ipywidgets.Image(value=b"\\x00picture\\xff", format="png")
seen = []
def show(x):
    seen.append(x)
    print("x is", x)
both = ipywidgets.interact(show, x=slider)
display(picture)
slider.comm.comm_id
"""


async def moved(client: Channels, comm_id: str, value: int) -> None:
    """What a client sends when somebody moves a slider; returns when the kernel has dealt with it."""
    content: Sent = {
        "comm_id": comm_id,
        "data": {"method": "update", "state": {"value": value}, "buffer_paths": []},
    }
    msg_id = await client.send("comm_msg", content)
    await client.until(lambda message: is_idle(message, msg_id))


def models(state: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """The states of all models of this name."""
    return [model for model in state.values() if model["model_name"] == name]


async def test_the_notebook_has_widgets_as_clients_left_them(jupyter: GatewayProcess, kernel: str) -> None:
    async with channels(jupyter, kernel) as client:
        found = await client.run("import importlib.util; importlib.util.find_spec('ipywidgets') is None")
        if any(m["content"].get("data", {}).get("text/plain") == "True" for m in found):
            require("ipywidgets", "the kernel environment has no ipywidgets")
        messages = await client.run(CELL)
        (result,) = [m["content"] for m in messages if m["msg_type"] == "execute_result"]
        comm_id = result["data"]["text/plain"].strip("'")
        for value in (7, 42):
            await moved(client, comm_id, value)
        last = await client.run("seen, slider.value")
        (result,) = [m["content"] for m in last if m["msg_type"] == "execute_result"]
        assert result["data"]["text/plain"] == "([1, 7, 42], 42)"

    answer = jupyter.get(f"/v1/sessions/{kernel}/notebook")
    notebook = answer.json()
    nbformat.validate(notebook)
    widgets = notebook["metadata"]["widgets"][STATE]
    jsonschema.validate(widgets, SCHEMA)
    state = widgets["state"]
    assert state[comm_id]["state"]["value"] == 42
    (picture,) = models(state, "ImageModel")
    assert [(b["path"], base64.b64decode(b["data"])) for b in picture["buffers"]] == [
        (["value"], b"\x00picture\xff")
    ]
    views = [
        output["data"]["application/vnd.jupyter.widget-view+json"]["model_id"]
        for cell in notebook["cells"]
        for output in cell["outputs"]
        if "application/vnd.jupyter.widget-view+json" in output.get("data", {})
    ]
    assert len(views) == 2
    assert set(views) <= set(state)
    assert jupyter.get(f"/v1/sessions/{kernel}/audit/verify").json()["valid"]
