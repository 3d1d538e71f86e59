"""The structs of the wire by themselves: other versions, a cell's options, the client's names, the page."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import pytest

import cellgate
from cellgate import client
from cellgate.http.metrics import SESSION_ENDS
from cellgate.wire import words
from cellgate.wire.events import BY_TYPE
from cellgate.wire.models import CellKeywords, CellOptions, LimitsBody, LimitsKeywords

ROOT = Path(__file__).parents[3]


def test_a_session_that_is_resumed_from_a_record_of_the_first_version_is_read() -> None:
    """Its events of the session have state, cause and kernel only."""
    head = {"seq": 1, "session": "s", "execution": None, "type": "session", "at": ""}
    body = json.dumps({**head, "state": "idle", "cause": None, "kernel": "python3"})
    event = msgspec.json.decode(body, type=BY_TYPE["session"])
    assert json.loads(msgspec.json.encode(event)) == json.loads(body)


def test_what_a_newer_gateway_adds_is_ignored() -> None:
    head = {"seq": 1, "session": "s", "execution": "e", "type": "stream", "at": ""}
    body = json.dumps({**head, "name": "stdout", "text": "a", "colour": "red"})
    event: Any = msgspec.json.decode(body, type=BY_TYPE["stream"])
    assert (event.text, event.name) == ("a", "stdout")


def test_the_options_of_a_cell_are_named_once() -> None:
    """As keyword arguments they are typed once more, next to the struct: both have the same names."""
    options = {each.name: each for each in msgspec.structs.fields(CellOptions)}
    assert get_type_hints(CellKeywords).keys() == options.keys()


def test_the_limits_of_a_session_are_named_and_typed_once() -> None:
    """As a dictionary they are typed once more, next to the struct: both have the same names and types."""
    assert get_type_hints(LimitsKeywords) == get_type_hints(LimitsBody)


def test_the_causes_are_those_of_the_documentation() -> None:
    """Only type checkers read the words, so they are taken from the source."""
    listed = (Path(words.__file__).read_text()).partition("Cause = Literal[")[2].partition("]")[0]
    causes = set(re.findall(r'"(\w+)"', listed))
    told: set[str] = set()
    for paragraph in (ROOT / "docs/reference/api.md").read_text().split("\n\n"):
        told |= set(re.findall(r"\bwith the cause `(\w+)`", " ".join(paragraph.split())))
        if paragraph.startswith("| status | meaning | causes |"):
            told |= {
                each for row in paragraph.splitlines() for each in re.findall(r"`(\w+)`", row.split("|")[3])
            }
        elif paragraph.startswith(("The causes of ", "`cause` is that of ")):
            # Before each list of causes stands the status that they are of.
            told |= set(re.findall(r"`(\w+)`", re.sub(r"[Cc]auses of `\w+`|^`cause`", "", paragraph)))
    assert told == causes
    assert causes >= set(SESSION_ENDS)


def test_the_packages_public_names_are_the_clients() -> None:
    assert cellgate.__all__ == client.__all__
    assert set(client.__all__) <= set(dir(cellgate))
    for name in client.__all__:
        assert getattr(cellgate, name) is getattr(client, name)
    with pytest.raises(AttributeError):
        _ = cellgate.Nothing
