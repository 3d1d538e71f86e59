"""Programs of ours that run beside a gateway in a process of their own, until their standard input ends."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.servers import HERE, source_path


@contextmanager
def beside(program: Path, *words: str, ready: bool = False) -> Iterator[Callable[[], Any]]:
    """The program at work; with `ready`, once it has said a line.

    What is yielded ends it and returns its report, which is one line of JSON.
    """
    with subprocess.Popen(
        [sys.executable, "-P", str(program), *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={"PYTHONPATH": source_path(HERE)},
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        until = process.stdin
        output = process.stdout

        def end() -> Any:
            until.close()
            return json.loads(output.readline())

        try:
            if ready:
                output.readline()
            yield end
        finally:
            until.close()
