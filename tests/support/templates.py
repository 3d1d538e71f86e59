"""nbconvert's templates, compiled once: nbconvert alone compiles them for each page that it makes."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType

import pytest
from jinja2 import BytecodeCache
from jinja2.bccache import Bucket
from nbconvert.exporters import templateexporter


class Compiled(BytecodeCache):
    """The templates that were compiled before."""

    def __init__(self) -> None:
        self.codes: dict[tuple[str, str], CodeType] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        bucket.code = self.codes.get((bucket.key, bucket.checksum))

    def dump_bytecode(self, bucket: Bucket) -> None:
        assert bucket.code is not None
        self.codes[bucket.key, bucket.checksum] = bucket.code


@contextmanager
def compiled_once() -> Iterator[None]:
    """Let nbconvert keep what it compiles, for so long."""
    with pytest.MonkeyPatch.context() as patch:
        environment = functools.partial(templateexporter.Environment, bytecode_cache=Compiled())
        patch.setattr(templateexporter, "Environment", environment)
        yield
