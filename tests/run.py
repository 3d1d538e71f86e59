"""The run of a suite: pytest once for each part, then again for the tests that failed, on a quiet machine.

    python -m tests.run --reports FOLDER "-n 2 tests/pure" "-n 4 tests/gateway" -- -k journal

Each argument before ``--`` is a part, as pytest's arguments; what follows goes to each. Parts run in turn,
and a part that has failed is the last. Failed tests run again when their part is over, one at a time with
nothing beside them, twice at most. One that passes then is listed as ``RERUN``; more than ten such tests fail
the run. One file has all failures of all tries. pytest-rerunfailures repeats a test at once, among the others
that made it fail: not what is wanted here.

It starts pytest and reads what the plugin ``tests/support/outcomes.py`` writes. It imports nothing of
Cellgate.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.support.outcomes import PASSED, SKIPPED, Outcomes, read

TRIES = 3
MOST_TRIED_AGAIN = 10
"""Of all parts; with more of them something is wrong with the machine or the code."""
SLOWEST = 40
GIB = 2**30
LEAST_DISK, LEAST_MEMORY = 4 * GIB, 2 * GIB
"""Free where temporary files are, and available, at the start: with less, tests fail and can't say why."""
NOTHING_COLLECTED = 5
"""The exit code of pytest when no test fits the arguments: no fault of a part, but one of the whole."""


@dataclass(slots=True)
class Run:
    """What is known of the whole run so far."""

    reports: Path
    arguments: list[str]
    """Of each part."""
    ended: dict[str, str] = field(default_factory=dict)
    """How each test ended at last, by node id."""
    passed_later: list[str] = field(default_factory=list)
    still_failing: list[str] = field(default_factory=list)
    failures: dict[str, dict[int, str]] = field(default_factory=dict)
    """What was told of each test that has failed, by node id and number of the try."""

    @property
    def failures_file(self) -> Path:
        """Where all failures of all tries are written."""
        return self.reports / "failures.txt"

    def note(self, number: int, failures: Mapping[str, str]) -> None:
        """Add those of a try, and write all of them anew: whoever stops the run finds what there was."""
        for name, text in failures.items():
            self.failures.setdefault(name, {})[number] = text
        self.failures_file.write_text(in_one_text(self.failures))


def run_part(run: Run, number: int, part: list[str]) -> int:
    """Run one part, and its failed tests again. The exit code is pytest's; 0 if all passed at last.

    Not again, if pytest did not come to its last test: of those that did not run nothing is known.
    """
    name = f"part-{number}"
    shown = [f"--durations={SLOWEST}", f"--junit-xml={run.reports / name}.xml"]
    code, first = _pytest(run, name, [*part, *shown, *run.arguments])
    run.ended |= first.tests
    run.note(1, first.not_collected | first.failures)
    if code != 1 or first.stopped or first.not_collected or not first.failed:
        run.still_failing += [*first.not_collected, *first.failed]
        return code
    if len(run.failures) > MOST_TRIED_AGAIN:
        run.still_failing += first.failed
        _say(f"{len(run.failures)} tests failed; more than {MOST_TRIED_AGAIN} are not tried again")
        return code
    return _try_again(run, name, part, first)


def _try_again(run: Run, name: str, part: list[str], first: Outcomes) -> int:
    """Run the failed tests of a part alone, until they have passed or were run `TRIES` times in all."""
    seed = [] if first.seed is None else [f"--randomly-seed={first.seed}"]
    named = run.reports / f"{name}-failed.txt"
    failing = first.failed
    for number in range(2, TRIES + 1):
        _say(f"try {number} of {TRIES}, one at a time, of tests that failed: {len(failing)}")
        named.write_text("\n".join(failing))
        # Not measured, not ended by the first failure, in one process: whatever the part's arguments say.
        alone = ["-n0", "--maxfail=0", "--no-cov", f"--named-in={named}", *seed]
        code, again = _pytest(run, f"{name}-try-{number}", [*part, *run.arguments, *alone])
        run.note(number, again.not_collected | again.failures)
        for each in failing:
            if again.tests.get(each) == PASSED:
                run.passed_later.append(each)
                run.ended[each] = PASSED
        failing = [each for each in failing if each not in run.passed_later]
        if not failing or code not in (0, 1):
            break
    run.still_failing += failing
    return 1 if failing else 0


def _pytest(run: Run, name: str, arguments: list[str]) -> tuple[int, Outcomes]:
    """Call pytest; what it did not live to tell is empty."""
    path = run.reports / f"{name}.json"
    plugin = ["-p", "tests.support.outcomes", f"--outcomes={path}"]
    command = [sys.executable, "-m", "pytest", *arguments, *plugin]
    with subprocess.Popen(command, env=_without_make(os.environ)) as process:
        # The interrupt of a terminal reaches pytest, too: it ends, and so do we. An end from outside may not.
        handlers = {signal.SIGINT: lambda *_: None, signal.SIGTERM: lambda *_: process.terminate()}
        usual = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        try:
            code = process.wait()
        finally:
            for number, handler in usual.items():
                signal.signal(number, handler)
    return code, read(path) or Outcomes()


def _without_make(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables without those that make hands to a make below it, as tests that call make must not
    get the arguments of this run.
    """
    given = {word.partition("=")[0] for word in shlex.split(environment.get("MAKEFLAGS", "")) if "=" in word}
    own = {"MAKEFLAGS", "MFLAGS", "MAKEOVERRIDES", "MAKELEVEL"}
    return {name: value for name, value in environment.items() if name not in given | own}


def in_one_text(failures: Mapping[str, Mapping[int, str]]) -> str:
    """Return all failures, with the tries of a test one after another."""
    parts = [
        f"{'=' * 20} {name}, try {number} of {TRIES}\n{text}\n"
        for name, tries in failures.items()
        for number, text in tries.items()
    ]
    return "\n".join(parts)


def _say(line: str) -> None:
    sys.stdout.write(f"\n== {line}\n")
    sys.stdout.flush()


def tell(run: Run, code: int, seconds: float) -> None:
    """Print how the whole run ended, each test counted once."""
    if run.passed_later:
        _say(f"passed on another try: {len(run.passed_later)} (all failures: {run.failures_file})")
        sys.stdout.writelines(f"RERUN {name}\n" for name in run.passed_later)
    if run.still_failing:
        _say(f"failed: {len(run.still_failing)} (all failures: {run.failures_file})")
        sys.stdout.writelines(f"FAILED {name}\n" for name in run.still_failing)
        one = shlex.quote(run.still_failing[0])
        sys.stdout.write(f"Run one alone: {sys.executable} -m pytest {one}\n")
    elif code:
        _say(f"no test failed, and pytest ended with {code}: see above")
    counted = Counter(run.ended.values())
    numbers = {
        "failed": len(run.still_failing),
        "passed": counted[PASSED] - len(run.passed_later),
        "passed on another try": len(run.passed_later),
        "skipped": counted[SKIPPED],
    }
    told = ", ".join(f"{number} {what}" for what, number in numbers.items() if number or what == "passed")
    _say(f"{told} in {int(seconds) // 60}:{int(seconds) % 60:02}")


def too_little(disk: int, memory: int) -> str | None:
    """Say what the machine has too little of, in bytes free and available; None if it has enough."""
    for what, found, least in (
        (f"disk in {tempfile.gettempdir()}", disk, LEAST_DISK),
        ("memory", memory, LEAST_MEMORY),
    ):
        if found < least:
            return f"too little {what}: {found / GIB:.1f} GiB are free, and the tests need {least // GIB} GiB"
    return None


def main(arguments: list[str]) -> int:
    """Run all parts. The exit code is 0, that of the part that failed, pytest's 5 when no test ran, or 2 if
    the machine has too little for them.
    """
    split = arguments.index("--") if "--" in arguments else len(arguments)
    parser = argparse.ArgumentParser(prog="python -m tests.run", description=__doc__.splitlines()[0])
    parser.add_argument("--reports", type=Path, required=True, help="the folder of reports, made anew")
    parser.add_argument("parts", nargs="+", metavar="PART", help="arguments of one call of pytest")
    asked = parser.parse_args(arguments[:split])
    lacking = too_little(shutil.disk_usage(tempfile.gettempdir()).free, psutil.virtual_memory().available)
    if lacking is not None:
        _say(lacking)
        return 2
    shutil.rmtree(asked.reports, ignore_errors=True)
    asked.reports.mkdir(parents=True)
    run, begun, code = Run(asked.reports.resolve(), arguments[split + 1 :]), time.monotonic(), 0
    for number, part in enumerate(asked.parts, 1):
        code = run_part(run, number, shlex.split(part))
        if code not in (0, NOTHING_COLLECTED):
            break
    code = 0 if code == NOTHING_COLLECTED and run.ended else code
    tell(run, code, time.monotonic() - begun)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
