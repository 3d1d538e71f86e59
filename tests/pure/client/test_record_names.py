"""What a file's name says of the form in which the client writes a record to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from cellgate.client.calls import form_of
from cellgate.client.errors import InvalidInput


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("a", "ipynb"),
        ("a.ipynb", "ipynb"),
        ("run-2026.11.27", "ipynb"),
        ("a.ipynb.part", "ipynb"),
        ("a.HTML", "html"),
        ("a.md", "markdown"),
        ("a.sh", "script"),
        ("a.zip", "bundle"),
    ],
)
def test_only_a_known_extension_says_something(name: str, form: str) -> None:
    assert form_of(Path(name)) == form


@pytest.mark.parametrize("name", ["a.pdf", "a.JSON", "a.txt", "a.docx", "a.csv", "a.ipynb.gz"])
def test_the_name_of_another_kind_of_file_is_refused_with_the_way_out(name: str) -> None:
    with pytest.raises(InvalidInput, match='form="ipynb" writes a notebook under any name'):
        form_of(Path(name))
