"""Output at its bounds: caps, floods, and what comes after the end of its cell."""

from __future__ import annotations

import psutil

from tests.support.server import IN_TIME, GatewayProcess, until

MIB = 1024 * 1024


def size_of_record(gateway: GatewayProcess) -> int:
    """Bytes of the database, its log included."""
    return sum(path.stat().st_size for path in gateway.data_dir.glob("record.sqlite3*"))


def test_text_beyond_the_cap_is_cut_where_it_is_seen(strict: GatewayProcess, strict_session: str) -> None:
    before = size_of_record(strict)
    result = strict.execute(strict_session, "for n in range(200_000): print(n)\nprint('end')\n'value'")
    assert (result["status"], result["truncated"]) == ("ok", True)
    assert result["stdout"].startswith("0\n1\n2\n")
    assert "[cellgate: output cut here" in result["stdout"]
    assert f"{64 * 1024} bytes" in result["stdout"].rpartition("[cellgate")[2]
    assert "end\n" not in result["stdout"]
    assert 48 * 1024 < len(result["stdout"]) < 65 * 1024
    assert result["outputs"][-1]["data"]["text/plain"] == "'value'"
    assert len(str(strict.recorded(strict_session))) < 512 * 1024
    assert size_of_record(strict) - before < 2 * MIB
    following = strict.execute(strict_session, "print('next')")
    assert (following["stdout"], following["truncated"]) == ("next\n", False)


def test_data_beyond_the_cap_is_replaced_by_a_remark(strict: GatewayProcess, strict_session: str) -> None:
    code = "from IPython.display import HTML, display\nfor n in range(3): display(HTML('x' * 40_000))"
    result = strict.execute(strict_session, code)
    assert result["truncated"] is True
    first, second = result["outputs"]
    assert len(first["data"]["text/html"]) == 40_000
    assert "[cellgate:" in second["data"]["text/plain"]
    assert "text/html" in second["data"]["text/plain"]


def test_an_error_after_too_much_output_is_still_told(strict: GatewayProcess, strict_session: str) -> None:
    result = strict.execute(strict_session, "print('x' * 200_000); 1 / 0")
    assert (result["status"], result["truncated"]) == ("error", True)
    assert result["outputs"][-1]["ename"] == result["error"]["ename"] == "ZeroDivisionError"


def test_a_hundred_megabytes_break_nothing(gateway: GatewayProcess, session: str) -> None:
    gateway.execute(session, "1")
    before = size_of_record(gateway)
    resident = psutil.Process(gateway.process.pid).memory_info().rss
    # Flushed: ipykernel else makes one message of 0.2 s of output, too large to be read at all.
    code = "for n in range(100): print(str(n) + 'x' * 999_999, flush=True)\n'end'"
    result = gateway.execute(session, code, "?max_text=0")
    assert (result["status"], result["truncated"]) == ("ok", True)
    kept = result["stdout"].partition("\n[cellgate: output cut here")[0]
    assert 9.5 * MIB < len(kept) <= 10 * MIB
    assert kept.startswith("0" + "x" * 999_999 + "\n1x")
    assert result["outputs"][-1]["data"]["text/plain"] == "'end'"
    assert size_of_record(gateway) - before < 40 * MIB

    assert psutil.Process(gateway.process.pid).memory_info().rss - resident < 150 * MIB
    assert gateway.execute(session, "'next'")["text"] == "'next'"


def test_a_cell_that_prints_without_end_can_be_stopped(strict: GatewayProcess, strict_session: str) -> None:
    begins = f"import time\nprint('x' * 100_000, flush=True)\ntime.sleep({IN_TIME - 1})\n"
    result = strict.execute(strict_session, begins + "while True: print('x' * 1000)", timeout=IN_TIME)
    assert (result["status"], result["truncated"]) == ("timeout", True)
    assert strict.execute(strict_session, "'next'")["text"] == "'next'"


def test_what_a_thread_prints_after_its_cells_end_belongs_to_that_cell(
    gateway: GatewayProcess, session: str
) -> None:
    gateway.post("/v1/sessions", {"session": session})
    code = "\n".join(
        [
            "import os, threading, time",
            "def later():",
            "    while not os.path.exists('go'): time.sleep(0.01)",
            "    print('late')",
            "threading.Thread(target=later).start()",
            "print('in time')",
        ]
    )
    result = gateway.execute(session, code)
    assert result["stdout"] == "in time\n"
    (gateway.workspace(session) / "go").touch()

    def late() -> bool:
        stdout = gateway.result(session, result["execution"])["stdout"]
        return bool(stdout == "in time\nlate\n")

    until(late, "the late output is not in its cell's result")
    [cell] = gateway.get(f"/v1/sessions/{session}/notebook").json()["cells"]
    assert "".join(cell["outputs"][0]["text"]) == "in time\nlate\n"
    assert gateway.result(session, result["execution"])["status"] == "ok"


def test_what_a_task_prints_while_another_cell_runs_belongs_to_its_own(
    gateway: GatewayProcess, session: str
) -> None:
    gateway.post("/v1/sessions", {"session": session})
    code = "\n".join(
        [
            "import asyncio, os",
            "async def later():",
            "    while not os.path.exists('go'): await asyncio.sleep(0.01)",
            "    print('late')",
            "task = asyncio.create_task(later())",
        ]
    )
    first = gateway.execute(session, code)["execution"]
    second = gateway.submit(session, "print('second', flush=True); await task; print('end')")
    until(lambda: gateway.result(session, second)["stdout"] == "second\n", "the second cell does not begin")
    (gateway.workspace(session) / "go").touch()
    assert gateway.ended(session, second)["stdout"] == "second\nend\n"
    assert gateway.result(session, first)["stdout"] == "late\n"
    cells = gateway.get(f"/v1/sessions/{session}/notebook").json()["cells"]
    assert ["".join(cell["outputs"][0]["text"]) for cell in cells] == ["late\n", "second\nend\n"]


def test_late_output_is_bounded_too(strict: GatewayProcess, strict_session: str) -> None:
    strict.post("/v1/sessions", {"session": strict_session})
    workspace = strict.workspace(strict_session)
    code = "\n".join(
        [
            "import os, threading, time",
            "def later():",
            "    while not os.path.exists('go'): time.sleep(0.01)",
            "    for n in range(100): print('x' * 10_000)",
            "    open('done', 'w').close()",
            "threading.Thread(target=later).start()",
        ]
    )
    execution = strict.execute(strict_session, code)["execution"]
    (workspace / "go").touch()
    until((workspace / "done").exists, "the thread does not end")
    strict.execute(strict_session, "'what was printed before this is recorded now'")
    late = strict.result(strict_session, execution)
    assert late["stdout"].startswith("xxx")
    assert "[cellgate: output cut here" in late["stdout"]
    assert len(late["stdout"]) < 80 * 1024
    assert len(str(strict.recorded(strict_session))) < 512 * 1024
