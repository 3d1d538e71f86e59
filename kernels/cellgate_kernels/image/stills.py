"""Puts a still beside what cells show as a chart, so that it is seen where no program draws charts.

Plotly's and Vega's charts are data; a plainly installed JupyterLab, a page made of a notebook or a code host
shows no more than its other forms. A still is SVG, which Deno draws with ``stills.js``, if the environment
has Deno: one process for plotly's and one for Vega's charts of a cell, started with the first and gone at the
cell's end, so that between cells the kernel has no child. Without a still there is a sentence that says why.
Altair's charts are data too, unless a cell has chosen another renderer.

A still is never worth a failure: whatever goes wrong, the chart is shown without it.
"""

import json
import os
import resource
import select
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from time import monotonic

KINDS = (
    ("application/vnd.plotly.", "plotly"),
    ("application/vnd.vegalite.", "vega-lite"),
    ("application/vnd.vega.", "vega"),
)
SVG, PLAIN = "image/svg+xml", "text/plain"
PICTURES = ("image/", "application/pdf")
LONGEST_CHART = 8 * 2**20  # characters of JSON
LONGEST_STILL = 2**20  # bytes
MOST = 64  # in a cell
PATIENCE = 10.0  # seconds for one
# Private memory that Deno needs, and what it needs if it compiles nothing, which is slower.
USUAL, LEAST = 900 * 2**20, 300 * 2**20
CALLED = {"plotly": "Plotly chart", "vega-lite": "Vega-Lite chart", "vega": "Vega chart"}
SHOWN_BY = "Cellgate's console shows it, and so does a program for notebooks that draws such charts"


class Drawing:
    """The process that draws one cell's charts."""

    def __init__(self, program, plotly):
        here = Path(__file__).resolve().parent
        memory = resource.getrlimit(resource.RLIMIT_DATA)[0]
        if 0 <= memory < LEAST:
            raise MemoryError("the session has too little memory for it")
        flags = "--max-old-space-size=256"
        if 0 <= memory < USUAL:
            flags += ",--jitless"
        readable = ",".join(str(path) for path in (here, plotly) if path is not None)
        self.process = subprocess.Popen(
            [
                *(program, "run", "--quiet", "--no-prompt", "--no-config", "--no-remote", "--no-npm"),
                *("--no-lock", "--no-code-cache", f"--v8-flags={flags}", f"--allow-read={readable}"),
                *(str(here / "stills.js"), "" if plotly is None else plotly.as_uri()),
            ],
            # Neither settings nor files of the session's: it writes nothing.
            env={"DENO_DIR": "/dev/null/none", "NO_COLOR": "1"},
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            # An interrupt is the kernel's.
            start_new_session=True,
        )
        # Where memory runs out, the still is lost and not the session's variables.
        with suppress(OSError):
            Path(f"/proc/{self.process.pid}/oom_score_adj").write_text("1000", encoding="ascii")
        for pipe in (self.process.stdin, self.process.stdout):
            os.set_blocking(pipe.fileno(), False)

    def ask(self, question):
        """The answer to a line, which is one line too. Raises OSError."""
        line = question + b"\n"
        answer = b""
        taking, giving = self.process.stdin.fileno(), self.process.stdout.fileno()
        end = monotonic() + PATIENCE
        while not answer.endswith(b"\n"):
            poll = select.poll()
            poll.register(giving, select.POLLIN)
            if line:
                poll.register(taking, select.POLLOUT)
            left = end - monotonic()
            ready = dict(poll.poll(max(0, left) * 1000))
            if not ready:
                raise TimeoutError("it takes too long")
            if taking in ready:
                line = line[os.write(taking, line[: 2**16]) :]
            if giving in ready:
                part = os.read(giving, 2**16)
                if not part:
                    raise ChildProcessError("what draws it has ended")
                answer += part
        return answer

    def end(self):
        """End the process, and wait until it is gone."""
        self.process.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            with suppress(OSError):
                pipe.close()
        self.process.wait()


class Stills:
    """The stills of a kernel's cells. `begin` it once for a shell, in the thread that runs cells."""

    def __init__(self):
        # By what draws: Vega takes the page that plotly.js needs for a browser's.
        self.drawings = {}
        self.drawn = 0

    def begin(self, shell):
        """From now on, give charts that the shell shows a still."""
        for publisher in (shell.display_pub, shell.displayhook):
            register = getattr(publisher, "register_hook", None)
            if register is not None:
                register(self.with_still)
        shell.events.register("post_execute", self.end)

    def end(self):
        """End what draws, at the end of a cell."""
        drawings, self.drawings, self.drawn = self.drawings, {}, 0
        for drawing in drawings.values():
            drawing.end()

    def with_still(self, message):
        """The message of a display or a result; of a chart without a picture, with its still."""
        with suppress(Exception):
            data = message["content"].get("data")
            chart = chart_of(data) if isinstance(data, dict) else None
            if chart is not None:
                self.add(data, *chart)
        return message

    def add(self, data, mime, kind):
        """Add the still to a chart's forms, or say in its text why there is none."""
        try:
            found = self.still(kind, data[mime])
        except (KeyboardInterrupt, Exception) as error:
            # It may be in the middle of a line.
            drawn = self.drawn
            self.end()
            self.drawn = drawn
            if isinstance(error, KeyboardInterrupt):
                raise
            found = without(str(error) or type(error).__name__)
        if "svg" in found:
            data[SVG] = found["svg"]
            return
        plain = data.get(PLAIN)
        shown_by = f". {SHOWN_BY}" if found["elsewhere"] else ""
        sentence = f"[{CALLED[kind]} without a still: {found['why']}{shown_by}]"
        data[PLAIN] = f"{plain}\n{sentence}" if isinstance(plain, str) and plain else sentence

    def still(self, kind, value):
        """A chart's SVG, or why there is none."""
        program = Path(sys.executable).with_name("deno")
        if not program.is_file():
            return without("there is no Deno in this environment")
        plotly = of_plotly()
        if kind == "plotly" and plotly is None:
            return without("this environment's plotly has no plotly.js")
        self.drawn += 1
        if self.drawn > MOST:
            return without(f"{MOST} charts of this cell have one")
        chart = json.dumps({"kind": kind, "value": json.loads(value) if isinstance(value, str) else value})
        if len(chart) > LONGEST_CHART:
            return without("it has much data")
        draws = "plotly" if kind == "plotly" else "vega"
        if draws not in self.drawings:
            self.drawings[draws] = Drawing(str(program), plotly)
        found = json.loads(self.drawings[draws].ask(chart.encode()))
        if len(found.get("svg", "").encode()) > LONGEST_STILL:
            return without("it would be large")
        return found


def without(why):
    """An answer without a still, of a chart that others can draw."""
    return {"why": why, "elsewhere": True}


def chart_of(data):
    """The type of the chart that these forms have, and its kind, if none of them is a picture."""
    if any(mime.startswith(PICTURES) for mime in data):
        return None
    return next(
        ((mime, kind) for mime in data for begin, kind in KINDS if mime.startswith(begin)),
        None,
    )


def of_plotly():
    """The plotly.js that the environment's plotly makes figures for; None if there is none."""
    package = sys.modules.get("plotly")
    places = list(getattr(package, "__path__", ()))
    # Figures may also come as data, without the package.
    places += [str(Path(place) / "plotly") for place in sys.path if place.endswith("site-packages")]
    for place in places:
        script = Path(place).absolute() / "package_data" / "plotly.min.js"
        if script.is_file():
            return script
    return None


def altair_as_data(shell):
    """Show Altair's charts as data, where its own usual form is a page that loads what draws it.

    So the console draws them, and JupyterLab. A renderer that a cell has chosen is left as it is.
    """

    def forms(chart):
        from altair import renderers  # noqa: PLC0415

        if renderers.active != "default":
            return chart._repr_mimebundle_()
        with renderers.enable("mimetype", **renderers.options):
            made = chart._repr_mimebundle_()
        data, metadata = made if isinstance(made, tuple) else (made, {})
        # Altair 6 ends the name of its type otherwise than all programs that know such types.
        named = {mime: f"{mime.removesuffix('.json')}+json" for mime in data if mime.endswith(".json")}
        # Its text is advice for those who see nothing else; the usual one is the chart's own.
        data = {named.get(mime, mime): value for mime, value in data.items() if mime != PLAIN}
        return data, {named.get(mime, mime): value for mime, value in (metadata or {}).items()}

    formatter = shell.display_formatter.mimebundle_formatter
    for version in ("v5", "v6"):
        formatter.for_type_by_name(f"altair.vegalite.{version}.api", "TopLevelMixin", forms)
