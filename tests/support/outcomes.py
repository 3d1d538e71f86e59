"""A pytest plugin: writes to a file how each test ended, and runs those tests alone that another file names.

``tests/run.py`` loads it, to try failed tests again and to count each test once. It knows nothing of tries.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pytest

PASSED, SKIPPED, FAILED = "passed", "skipped", "failed"


@dataclass(slots=True)
class Outcomes:
    """How the tests of one call of pytest ended."""

    seed: int | None = None
    """Of pytest-randomly; None without it."""
    tests: dict[str, str] = field(default_factory=dict)
    """`PASSED`, `SKIPPED` or `FAILED` by node id; a test that fails in its set-up or its end has failed."""
    failures: dict[str, str] = field(default_factory=dict)
    """Tracebacks and captured output of failed tests, by node id."""
    not_collected: dict[str, str] = field(default_factory=dict)
    """Why files could not be read, by node id."""
    stopped: bool = False
    """Ended before its last test, as ``-x`` wants it."""

    @property
    def failed(self) -> list[str]:
        """The node ids of failed tests, in the order in which they failed."""
        return list(self.failures)


def read(path: Path) -> Outcomes | None:
    """What the plugin wrote to `path`; None if pytest ended before it could."""
    return Outcomes(**json.loads(path.read_text())) if path.exists() else None


def pytest_addoption(parser: pytest.Parser) -> None:
    """The files."""
    parser.addoption("--outcomes", type=Path, help="write to this file how each test ended")
    parser.addoption("--named-in", type=Path, help="run only tests that this file names, a node id a line")


def pytest_configure(config: pytest.Config) -> None:
    """Listen where the results of all processes arrive."""
    path = config.getoption("--outcomes")
    if path is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Listener(path), "cellgate-outcomes")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is not named."""
    path = config.getoption("--named-in")
    if path is None:
        return
    named = set(path.read_text().splitlines())
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in named])
    items[:] = [item for item in items if item.nodeid in named]


class _Listener:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._outcomes = Outcomes()

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._outcomes.not_collected[report.nodeid] = report.longreprtext

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        tests, failures, name = self._outcomes.tests, self._outcomes.failures, report.nodeid
        if report.failed:
            tests[name] = FAILED
            failures[name] = "\n".join([*([failures[name]] if name in failures else []), *_told(report)])
        elif report.skipped:
            tests.setdefault(name, SKIPPED)
        elif report.when == "call":
            tests.setdefault(name, PASSED)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        seed = getattr(session.config.option, "randomly_seed", None)
        self._outcomes.seed = seed if isinstance(seed, int) else None
        self._outcomes.stopped = bool(session.shouldfail or session.shouldstop)
        self._path.write_text(json.dumps(asdict(self._outcomes)))


def _told(report: pytest.TestReport) -> Iterator[str]:
    """What pytest would show of a failure."""
    yield f"{report.when}: {report.longreprtext}"
    for title, text in report.sections:
        yield f"--- {title} ---\n{text}"
