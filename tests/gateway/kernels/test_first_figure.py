"""What a zygote has drawn before it forks: kernels find the fonts, and nothing else of it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from cellgate_kernels.provisioners.fork_server import ForkSettings
from cellgate_kernels.specs.catalog import data_folder
from tests.support.kernels import FORK, StartKernel

ZYGOTE = Path(__file__).parents[3] / "kernels" / "cellgate_kernels" / "image" / "zygote.py"


@pytest.fixture
def backend(sandbox: None) -> str:
    return FORK


@pytest.fixture
def fork_settings() -> ForkSettings:
    """As a gateway has them."""
    return ForkSettings()


# Before, the modules are loaded, so that what loading alone changes is no difference.
LOADS = """
import gc, importlib.util, json, os, random, sys
import matplotlib, numpy.random
matplotlib.use("agg")
from matplotlib import font_manager, pyplot
from matplotlib._pylab_helpers import Gcf

spec = importlib.util.spec_from_file_location("zygote", sys.argv[1])
zygote = importlib.util.module_from_spec(spec)
spec.loader.exec_module(zygote)

def state():
    gc.collect()
    open_now = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
    return {
        "figures": [*Gcf.figs],
        "settings": [*map(str, matplotlib.rcParams.items())],
        "random": str(random.getstate()),
        "numpy": [numpy.random.get_state()[1].tolist(), *numpy.random.get_state()[2:]],
        "threads": zygote.threads(),
        "shares memory": zygote.shares_memory(),
        "files": sorted(os.readlink(path) for path in open_now if os.path.exists(path)),
        "folder": os.listdir(),
        "environ": dict(os.environ),
    }

def found():
    return font_manager.fontManager._findfont_cached.cache_info().currsize

before, known = state(), found()
_, failed = zygote.load_modules(lambda: None, ["numpy", "matplotlib.pyplot"], lambda: None)
after = state()
print(json.dumps({
    "fonts": [known, found()],
    "failed": failed,
    "changed": [name for name in before if before[name] != after[name]],
    "threads": after["threads"],
    "shares memory": after["shares memory"],
    "next figure": pyplot.figure().number,
}))
"""


def test_a_zygote_draws_and_nothing_of_it_stays_but_fonts(kernel_prefix: Path, tmp_path: Path) -> None:
    """In the interpreter of the kernel environment, with the zygote of this checkout."""
    spec = json.loads((kernel_prefix / "kernels" / "python3" / "kernel.json").read_text())
    fonts = data_folder(Path(spec["argv"][0]).parents[1]) / "matplotlib"
    done = subprocess.run(
        [spec["argv"][0], "-W", "error", "-c", LOADS, ZYGOTE],
        cwd=tmp_path,
        env={
            "HOME": str(tmp_path),
            "MPLCONFIGDIR": str(fonts),
            "OPENBLAS_NUM_THREADS": "1",
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == {
        "fonts": [0, 1],
        "failed": [],
        "changed": [],
        "threads": 1,
        "shares memory": False,
        "next figure": 1,
    }


SEES = """
import json, sys, threading
import matplotlib
from matplotlib import font_manager, pyplot
from matplotlib._pylab_helpers import Gcf
print(json.dumps({
    "fonts": font_manager.fontManager._findfont_cached.cache_info().currsize > 0,
    "seen": {
        "figures": [*Gcf.figs],
        "numbers": pyplot.get_fignums(),
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "backend": matplotlib.get_backend(),
        # The backend sets `interactive` when it is loaded: in a kernel started cold with its first figure.
        **{name: str(value) for name, value in matplotlib.rcParams.items() if name != "interactive"},
    },
}))
"""
DRAWS = "import matplotlib.pyplot as plt; plt.plot([1, 2]); print(plt.gcf().number); plt.show()"


async def test_the_first_figure_of_a_kernel_is_its_first(start_kernel: StartKernel) -> None:
    forked = await start_kernel()
    started = await start_kernel(extra_env={"PYTHONDONTWRITEBYTECODE": ""})
    assert (forked.provisioner.way, started.provisioner.way) == ("fork", "cold")
    one, other = json.loads(await forked.print(SEES)), json.loads(await started.print(SEES))
    assert (one["fonts"], other["fonts"]) == (True, False)
    assert one["seen"] == other["seen"]
    drawn = [await kernel.run(DRAWS) for kernel in (forked, started)]
    assert [result.text for result in drawn] == ["1\n", "1\n"]
    (figure,), (expected,) = (result.of_type("display_data") for result in drawn)
    assert figure["data"] == expected["data"]
