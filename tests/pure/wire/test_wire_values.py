"""The structs of the wire by themselves: other versions, a cell's options, the client's names, the page."""

from __future__ import annotations

import json
from typing import Any, get_type_hints

import msgspec
import pytest

import cellgate
from cellgate import client
from cellgate.wire.events import BY_TYPE
from cellgate.wire.models import CellKeywords, CellOptions


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


def test_the_packages_public_names_are_the_clients() -> None:
    assert cellgate.__all__ == client.__all__
    assert set(client.__all__) <= set(dir(cellgate))
    for name in client.__all__:
        assert getattr(cellgate, name) is getattr(client, name)
    with pytest.raises(AttributeError):
        _ = cellgate.Nothing
