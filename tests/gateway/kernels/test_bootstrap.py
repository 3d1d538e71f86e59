"""How Cellgate starts ipykernel: like an ordinary ipykernel to user code, but quicker to speak and keeping
all it said.
"""

from __future__ import annotations

import asyncio
import json

import pytest

from cellgate_kernels.testing.backend import StartKernel
from tests.support.kernels import FORK


@pytest.fixture(params=["sandbox", FORK])
def backend(sandbox: None, request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def test_user_code_finds_an_ordinary_kernel(start_kernel: StartKernel) -> None:
    kernel = await start_kernel()
    found = json.loads(
        await kernel.print(
            "import json, os, sys\n"
            "print(json.dumps([sys.argv[0], sys.path, sorted(sys.modules['__main__'].__dict__)]))"
        )
    )
    program, path, names = found
    assert program.endswith("site-packages/ipykernel_launcher.py")
    assert not [entry for entry in path if entry.endswith("share/cellgate")], "the start-up file's folder"
    assert "" in path
    assert not {"main", "application", "leave_if_orphaned", "prepare_home", "shutil", "__file__"} & set(names)


async def test_output_is_flushed_at_once_and_no_history_is_kept(start_kernel: StartKernel) -> None:
    kernel = await start_kernel()
    code = "import sys; print(sys.stdout.flush_interval, get_ipython().history_manager.enabled)"
    assert await kernel.print(code) == "0.01 False\n"
    assert "ZeroDivisionError" in (await kernel.run("1/0")).reply["traceback"][-1]


async def test_a_slow_reader_misses_nothing(start_kernel: StartKernel) -> None:
    kernel = await start_kernel()
    msg_id = kernel.send("for i in range(2500): display(i)")
    # Reading iopub begins only when all was said.
    reply = await kernel.client.get_shell_msg(timeout=60)
    assert reply["content"]["status"] == "ok"
    shown = []
    while len(shown) < 2500:
        message = await kernel.client.get_iopub_msg(timeout=60)
        if message["msg_type"] == "display_data" and message["parent_header"]["msg_id"] == msg_id:
            shown.append(int(message["content"]["data"]["text/plain"]))
    assert shown == list(range(2500))


async def test_preloaded_modules_are_there_but_in_nobodys_way(start_kernel: StartKernel) -> None:
    kernel = await start_kernel(extra_env={"CELLGATE_PRELOAD": "fractions, matplotlib.pyplot"})
    code = "import os, sys; print('matplotlib.pyplot' in sys.modules, 'fractions' in sys.modules"
    code += ", 'CELLGATE_PRELOAD' in os.environ, 'matplotlib' in globals())"
    assert await kernel.print(code) == "True True False False\n"
    result = await kernel.run("import matplotlib.pyplot as plt; plt.plot([1, 2]);")
    assert "image/png" in result.of_type("display_data")[0]["data"]


async def test_a_module_that_cant_be_preloaded_ends_the_kernel_with_its_name(
    start_kernel: StartKernel,
) -> None:
    with pytest.raises(RuntimeError):
        await start_kernel(extra_env={"CELLGATE_PRELOAD": "no_such_module"})


async def test_the_reason_of_a_failed_preload_is_in_the_log(new_manager) -> None:  # type: ignore[no-untyped-def]
    manager = new_manager()
    await manager.start_kernel(extra_env={"CELLGATE_PRELOAD": "no_such_module"})
    async with asyncio.timeout(60):
        assert (await asyncio.shield(manager.provisioner.exited)).code == 1
    assert "no_such_module" in await manager.provisioner.log_tail()
    await manager.shutdown_kernel(now=True)
