"""Puts a still beside what cells show as a chart, so that it is seen where no program draws charts.

Plotly's and Vega's charts are data; a plainly installed JupyterLab, a page made of a notebook or a code host
shows no more than its other forms. A still is SVG, which Deno draws with ``stills.js``, if the environment
has Deno: one process for plotly's and one for Vega's charts of a cell, started with the first and gone at the
cell's end, so that between cells the kernel has no child; one for a chart that is shown between cells is gone
with it. Without a still there is a sentence that says why. Threads may show charts at the same time, which
are drawn one after the other. Altair's charts are data too, unless a cell has chosen another renderer.
Whatever goes wrong, the chart is shown without its still.
"""

import json
import os
import resource
import select
import subprocess
import sys
import threading
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
LONGEST_ANSWER = 2 * LONGEST_STILL + 2**16  # bytes of JSON
PATIENCE = 10.0  # seconds for one
MOST_SECONDS = 15.0  # for all of a cell, which has a deadline of its own
# Private memory that Deno needs, and what it needs if it compiles nothing, which is slower.
USUAL, LEAST = 900 * 2**20, 300 * 2**20
LARGE = "it would be large"
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

    def ask(self, question, patience):
        """Return the answer to a line, also in one line. Raises OSError, and ValueError if unreadable."""
        line = question + b"\n"
        answer = bytearray()
        taking, giving = self.process.stdin.fileno(), self.process.stdout.fileno()
        end = monotonic() + patience
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
                if len(answer) > LONGEST_ANSWER:
                    raise ValueError(LARGE)
        return answer

    def end(self):
        """End the process, and wait until it is gone."""
        self.process.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            with suppress(OSError):
                pipe.close()
        self.process.wait()


class Hooks(threading.local):
    """What ipykernel does with each message: the same in threads as in the one that runs cells."""

    def __init__(self, hooks):
        self.hooks = list(hooks)


class Stills:
    """The stills of a kernel's cells. `begin` it once for a shell, in the thread that runs cells."""

    def __init__(self):
        # One chart at a time: an answer does not say whose it is.
        self.lock = threading.Lock()
        # By what draws: Vega takes the page that plotly.js needs for a browser's.
        self.drawings = {}
        self.abandoned = []
        self.in_cell = False
        self.drawn = 0
        self.seconds = 0.0

    def begin(self, shell):
        """Give charts that the shell shows a still from now on."""
        for publisher in (shell.display_pub, shell.displayhook):
            register = getattr(publisher, "register_hook", None)
            if register is not None:
                register(self.with_still)
                with suppress(Exception):  # then threads of cells show charts without one
                    publisher._thread_local = Hooks([*publisher._hooks])
        shell.events.register("pre_execute", self.begin_cell)
        shell.events.register("post_execute", self.end_cell)
        os.register_at_fork(after_in_child=self.let_go)

    def begin_cell(self):
        """Reset the number of stills and the time that they took, for a new cell."""
        self.in_cell = True
        self.drawn = 0
        self.seconds = 0.0

    def end_cell(self):
        """End the drawing programs. A thread that waits for one of them returns at once."""
        self.in_cell = False
        for drawing in list(self.drawings.values()):
            drawing.process.kill()
        with self.lock:
            self.end()

    def end(self):
        """End what draws; whoever calls it has the lock."""
        drawings, self.drawings = self.drawings, {}
        for drawing in drawings.values():
            drawing.end()

    def let_go(self):
        """Forget, in a child of this process, what is its parent's: a thread may have had the lock."""
        self.lock = threading.Lock()
        self.in_cell = False
        # Not finalised: the processes are not this one's to wait for.
        self.abandoned += self.drawings.values()
        for drawing in self.drawings.values():
            for pipe in (drawing.process.stdin, drawing.process.stdout):
                with suppress(OSError):
                    pipe.close()
        self.drawings = {}

    def with_still(self, message):
        """Return the message of a display or a result; of a chart without a picture, with its still."""
        with suppress(Exception):
            data = message["content"].get("data")
            chart = chart_of(data) if isinstance(data, dict) else None
            if chart is not None:
                self.add(data, *chart)
        return message

    def add(self, data, mime, kind):
        """Add the still to a chart's forms, or say in its text why there is none."""
        with self.lock:
            began = monotonic()
            try:
                found = self.still(kind, data[mime])
            except (KeyboardInterrupt, Exception) as error:
                # It may be in the middle of a line.
                self.end()
                if isinstance(error, KeyboardInterrupt):
                    raise
                found = without(str(error) or type(error).__name__)
            finally:
                self.seconds += monotonic() - began
            if not self.in_cell:
                self.end()
        if "svg" in found:
            data[SVG] = found["svg"]
            return
        plain = data.get(PLAIN)
        shown_by = f". {SHOWN_BY}" if found["elsewhere"] else ""
        sentence = f"[{CALLED[kind]} without a still: {found['why']}{shown_by}]"
        data[PLAIN] = f"{plain}\n{sentence}" if isinstance(plain, str) and plain else sentence

    def still(self, kind, value):
        """Return a chart's SVG, or why there is none."""
        program = Path(sys.executable).with_name("deno")
        if not program.is_file():
            return without("there is no Deno in this environment")
        plotly = of_plotly()
        if kind == "plotly" and plotly is None:
            return without("this environment's plotly has no plotly.js")
        self.drawn += 1
        if self.drawn > MOST:
            return without(f"{MOST} charts of this cell have one")
        left = MOST_SECONDS - self.seconds
        if left <= 0:
            return without(f"the charts of this cell took {MOST_SECONDS:g} s to draw")
        chart = json.dumps({"kind": kind, "value": json.loads(value) if isinstance(value, str) else value})
        if len(chart) > LONGEST_CHART:
            return without("it has much data")
        draws = "plotly" if kind == "plotly" else "vega"
        if draws not in self.drawings:
            self.drawings[draws] = Drawing(str(program), plotly)
        found = json.loads(self.drawings[draws].ask(chart.encode(), min(PATIENCE, left)))
        if len(found.get("svg", "").encode()) > LONGEST_STILL:
            return without(LARGE)
        return found


def without(why):
    """Return an answer without a still, of a chart that others can draw."""
    return {"why": why, "elsewhere": True}


def chart_of(data):
    """Return the type of the chart that these forms have, and its kind, if none of them is a picture."""
    if any(mime.startswith(PICTURES) for mime in data):
        return None
    return next(((mime, kind) for mime in data for begin, kind in KINDS if mime.startswith(begin)), None)


def of_plotly():
    """Return the plotly.js that the environment's plotly makes figures for; None if there is none."""
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
