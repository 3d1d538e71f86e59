"""Query parameters as values: the only place that parses the part of a URL after `?`.

An operation declares its parameters as a struct of ``wire.queries``. Other names are refused, like unknown
fields of a body: a misspelt `?puge=true` must not look obeyed. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import msgspec
from msgspec import inspect

from cellgate.http.unfit import unknown
from cellgate.wire.base import Query
from cellgate_kernels.base.errors import InvalidInput

TOKEN = "token"  # noqa: S105 - the name of the parameter
"""Allowed in any URL; `access` reads it."""
_LONGEST_NUMBER = 16
_TRUE, _FALSE = frozenset({"true", "1"}), frozenset({"false", "0"})

Reader = Callable[[str], Any]


def read_query(given: Mapping[str, list[bytes]], kind: type[Query]) -> Query:
    """Return the parameters; the last value of a repeated name counts. Raises InvalidInput that names it."""
    readers = _readers(kind)
    fields = dict(zip(kind.__struct_encode_fields__, kind.__struct_fields__, strict=True))
    values = {}
    for name, texts in given.items():
        if name == TOKEN:
            continue
        if name not in readers:
            raise InvalidInput(f"The query does not fit: {unknown('parameter', name, readers)}")
        try:
            text = texts[-1].decode()
        except UnicodeDecodeError:
            raise InvalidInput(f"{name} is not valid UTF-8") from None
        values[fields[name]] = readers[name](text)
    return kind(**values)


@cache
def _readers(kind: type[Query]) -> Mapping[str, Reader]:
    """Return the reader of each parameter, by name."""
    described = inspect.type_info(kind)
    assert isinstance(described, inspect.StructType)
    return {each.encode_name: _reader(each.encode_name, each.type) for each in described.fields}


def _reader(name: str, described: inspect.Type) -> Reader:
    while isinstance(described, inspect.Metadata):
        described = described.type
    if isinstance(described, inspect.UnionType):
        # None stands for a parameter that is not given.
        (described,) = (each for each in described.types if not isinstance(each, inspect.NoneType))
        return _reader(name, described)
    if isinstance(described, inspect.BoolType):
        return lambda text: _flag(name, text)
    if isinstance(described, inspect.IntType):
        least, most = described.ge, described.le
        assert least is not None
        assert most is not None
        return lambda text: _number(name, text, least, most)
    if isinstance(described, inspect.LiteralType):
        words = [str(word) for word in described.values]
        return lambda text: _word(name, text, words)
    assert isinstance(described, inspect.StrType), f"{name} is of a type that no address can hold"
    return lambda text: text


def _flag(name: str, text: str) -> bool:
    word = text.strip().lower()
    if word in _TRUE or word in _FALSE:
        return word in _TRUE
    raise InvalidInput(f"{name} must be true or false")


def _number(name: str, text: str, least: int, most: int) -> int:
    digits = text.strip()
    countable = digits.isascii() and digits.isdecimal() and len(digits) <= _LONGEST_NUMBER
    if not countable or not least <= int(digits) <= most:
        raise InvalidInput(f"{name} must be a whole number from {least} to {most}")
    return int(digits)


def _word(name: str, text: str, words: list[str]) -> str:
    if text.strip() not in words:
        raise InvalidInput(f"{name} must be one of {', '.join(words)}")
    return text.strip()


def schema_of(kind: type[Query]) -> dict[str, Any]:
    """Return the JSON schema of each parameter, by name."""
    components: dict[str, Any] = msgspec.json.schema_components([kind])[1]
    properties: dict[str, Any] = components[kind.__name__].get("properties", {})
    return properties
