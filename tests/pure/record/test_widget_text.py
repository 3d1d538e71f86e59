"""Widgets in text: tqdm's bars as tqdm writes them, others by class and value, whatever their states are."""

from __future__ import annotations

from typing import Any

import pytest

from cellgate.cli.run.widgets import LastWidgets
from cellgate.client import ClearOutput, CommMessage, CommOpened, DisplayData, Finished
from cellgate.execution.results import ResultBuilder
from cellgate.record.export.widget_text import ShownWidgets, widget_text
from cellgate_kernels.codec.telling import WIDGET_VIEW

BAR: dict[str, dict[str, Any]] = {
    "box": {"_model_name": "HBoxModel", "children": ["IPY_MODEL_left", "IPY_MODEL_bar", "IPY_MODEL_right"]},
    "left": {"_model_name": "HTMLModel", "value": "up:\u2007\u2007\u20070%"},
    "bar": {"_model_name": "FloatProgressModel", "min": 0.0, "max": 4.0, "value": 0.0},
    "right": {"_model_name": "HTMLModel", "value": "\u20070/4\u2007[00:00&lt;?,\u2007?it/s]"},
}
"""The states of a bar of ``tqdm.notebook``, without those of layouts and styles."""
CHANGES: dict[str, dict[str, Any]] = {
    "left": {"value": "up:\u2007\u200750%"},
    "right": {"value": "\u20072/4\u2007[00:01&lt;00:01,\u20072.00it/s]"},
    "bar": {"value": 2.0, "bar_style": "danger"},
}
FIRST = "up:   0%|          | 0/4 [00:00<?, ?it/s]"
LAST = "up: 50%|█████     | 2/4 [00:01<00:01, 2.00it/s]"
SHOWN = {"text/plain": FIRST, WIDGET_VIEW: {"model_id": "box", "version_major": 2, "version_minor": 0}}


def events() -> list[dict[str, Any]]:
    known = {"session": "s", "execution": "e", "at": ""}
    return [
        {**known, "type": "queued"},
        {**known, "type": "started", "execution_count": 1},
        *({**known, "type": "comm_open", "comm_id": name, "data": {"state": BAR[name]}} for name in BAR),
        {**known, "type": "display_data", "data": SHOWN, "metadata": {}},
        *({**known, "type": "comm_msg", "comm_id": n, "data": {"state": CHANGES[n]}} for n in CHANGES),
        {**known, "type": "stream", "name": "stdout", "text": "done\n"},
    ]


@pytest.mark.parametrize("copies", [0, 1, 2])
def test_the_text_of_a_result_has_the_last_state_and_its_outputs_the_first(copies: int) -> None:
    builder = ResultBuilder()
    for event in events():
        builder.apply(event)
    for _ in range(copies):
        builder = builder.copy()
    result = builder.result()
    assert result.text == f"{LAST}\ndone\n"
    assert result.outputs[0]["data"] == SHOWN


def test_a_widget_that_has_not_changed_keeps_its_own_text() -> None:
    builder = ResultBuilder()
    for event in events()[:-4]:
        builder.apply(event)
    assert builder.result().text == FIRST


def test_commands_show_a_widget_when_its_cell_has_ended() -> None:
    known: dict[str, Any] = {"seq": 1, "session": "s", "execution": "e"}
    opened = [CommOpened(**known, comm_id=name, data={"state": BAR[name]}) for name in BAR]
    changed = [CommMessage(**known, comm_id=name, data={"state": CHANGES[name]}) for name in CHANGES]
    shown = DisplayData(**known, data=SHOWN)
    unknown = DisplayData(**known, data={WIDGET_VIEW: {"model_id": "other"}, "text/plain": "Other()"})
    ended = Finished(**known, status="ok")

    def passed(*events: Any) -> list[Any]:
        widgets = LastWidgets()
        return [
            event for each in events for event in widgets.passed(each) if "Comm" not in type(each).__name__
        ]

    after = passed(*opened, shown, unknown, *changed, ended)
    assert [getattr(event, "data", {}).get("text/plain") for event in after] == ["Other()", LAST, None]
    cleared = ClearOutput(**known)
    assert passed(*opened, shown, cleared, ended) == [cleared, ended]


@pytest.mark.parametrize(
    ("state", "told"),
    [
        (
            {"_model_name": "IntSliderModel", "value": 9, "description": "n"},
            "IntSlider(value=9, description='n')",
        ),
        ({"_model_name": "IntRangeSliderModel", "value": [1, 2]}, "IntRangeSlider(value=(1, 2))"),
        ({"_model_name": "DropdownModel", "_options_labels": ["a", "b"], "index": 1}, "Dropdown(value='b')"),
        ({"_model_name": "DropdownModel", "_options_labels": ["a"], "index": 7}, "Dropdown()"),
        ({"_model_name": "ButtonModel", "description": "go"}, "Button(description='go')"),
        ({"_model_name": "LabelModel", "value": "a <b>b</b>"}, "a b"),
        (
            {"_model_name": "IntProgressModel", "value": 10**400, "max": 1, "description": "p"},
            "p|          |",
        ),
        ({"_model_name": "FloatTextModel", "value": 10**5000}, "FloatText(value=...)"),
        (
            {"_model_name": "OutputModel", "outputs": [{"text": "a\r\n"}, {"data": {"text/plain": "b"}}, 3]},
            "a\r\nb",
        ),
        ({"_model_name": 5, "value": 1}, ""),
        ({"value": 1}, ""),
    ],
)
def test_what_a_widget_is_told_as(state: dict[str, Any], told: str) -> None:
    assert widget_text("m", {"m": state}.get) == told


def test_a_widget_within_itself_and_a_thousand_more_are_told_in_part() -> None:
    states: dict[str, dict[str, Any]] = {
        str(n): {"_model_name": "VBoxModel", "children": [f"IPY_MODEL_{n + 1}"] * 50 + ["IPY_MODEL_leaf"]}
        for n in range(100)
    }
    states["leaf"] = {"_model_name": "LabelModel", "value": "x" * 1000}
    states["99"]["children"] = ["IPY_MODEL_0"]
    assert len(widget_text("0", states.get)) < 20_000


def test_widgets_of_a_cell_that_show_the_same_are_not_read_again_and_again() -> None:
    """A hundred boxes around one long text are as many readings of it, on the loop that others share."""
    read: list[str] = []

    class Html(str):
        """A text that knows how much of it was taken."""

        def __getitem__(self, part: Any) -> str:
            read.append(super().__getitem__(part))
            return read[-1]

    shown = ShownWidgets()
    shown.change("text", {"state": {"_model_name": "HTMLModel", "value": Html("<" * 10_000)}})
    for number in range(100):
        box = {"_model_name": "VBoxModel", "children": ["IPY_MODEL_text"]}
        shown.change(str(number), {"state": box})
        shown.show({"application/vnd.jupyter.widget-view+json": {"model_id": str(number)}})
    assert 10_000 <= sum(map(len, read)) < 20_000
    read.clear()
    shown.last()
    assert sum(map(len, read)) < 20_000
