"""Both stores of records keep the contract of stores, and so can those of others."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from cellgate.record.store.interface import EventStore, RecordStore
from cellgate.record.store.memory import MemoryStore
from cellgate.record.store.sqlite.journal import Journal
from cellgate.testing.record_store import EventStoreContract, RecordStoreContract


class TestMemoryStore(EventStoreContract):
    @pytest.fixture
    def events(self) -> EventStore:
        return MemoryStore()


class TestJournal(RecordStoreContract):
    @pytest.fixture
    def store(self, journal: Journal) -> RecordStore:
        return journal


def test_the_example_of_the_guide_checks_a_store_from_outside(tmp_path: Path) -> None:
    guide = Path(__file__).parents[3] / "docs/how-to/test-with-fakes.md"
    (example,) = re.findall(
        r"```python\n(import pytest\n[^`]*MemoryStore.*?)```", guide.read_text(), re.DOTALL
    )
    (tmp_path / "test_my_store.py").write_text(example)
    command = [sys.executable, "-m", "pytest", "-q", "-o", "asyncio_mode=auto", "test_my_store.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert re.search(r"^3 passed", done.stdout, re.MULTILINE), done.stdout
