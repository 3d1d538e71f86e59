"""The program of a cell hook: what it is told and may answer, and what it costs the next cell if it fails."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from cellgate.hook import program
from cellgate.hook.program import CellHookFailed, CellRefused, HookProgram, HookQuestion, check_program
from cellgate_kernels.base.errors import InvalidInput
from tests.support.server import PATIENCE, until

BEGINNING = f"""#!{sys.executable}
import json, os, subprocess, sys, time

def answer(cell, **more):
    print(json.dumps({{"id": cell["id"], "allow": True, **more}}), flush=True)

for line in sys.stdin:
    cell = json.loads(line)
    code = cell["code"]
"""

Hooks = Callable[[str], HookProgram]


@pytest.fixture
async def hooks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Hooks]:
    """Make hooks, each of the lines that follow `code = ...` in a program."""
    monkeypatch.setattr(program, "ANSWER_SECONDS", PATIENCE)
    monkeypatch.setattr(program, "START_SECONDS", PATIENCE)
    made: list[HookProgram] = []

    def make(text: str) -> HookProgram:
        path = tmp_path / f"hook{len(made)}"
        path.write_text(BEGINNING + "".join(f"    {line}\n" for line in text.splitlines()))
        path.chmod(0o700)
        made.append(HookProgram(check_program(path)))
        return made[-1]

    yield make
    for each in made:
        await each.close()


def cell(code: str = "", number: int = 0, **fields: str) -> HookQuestion:
    return HookQuestion(id=str(number), code=code, **fields)


async def test_a_cell_runs_if_the_program_says_so(hooks: Hooks) -> None:
    hook = hooks("answer(cell, allow=code != 'no', message=json.dumps(cell))")
    await hook.open()
    await hook.ask(cell("yes"))
    asked = HookQuestion("7", "ada", "s", "jupyter", "python", "no", {"a": "b"})
    with pytest.raises(CellRefused) as refused:
        await hook.ask(asked)
    assert json.loads(refused.value.message) == {
        "id": "7",
        "principal": "ada",
        "session": "s",
        "door": "jupyter",
        "language": "python",
        "code": "no",
        "user_expressions": {"a": "b"},
    }


async def test_a_refusal_without_a_message_says_so(hooks: Hooks) -> None:
    with pytest.raises(CellRefused, match="gives no reason"):
        await hooks("answer(cell, allow=False, message=' ')").ask(cell())


async def test_many_cells_at_once_get_their_own_answers(hooks: Hooks) -> None:
    hook = hooks("answer(cell, allow=False, message=code)")
    asked = [hook.ask(cell(f"code {number}", number, principal=str(number % 3))) for number in range(100)]
    await asyncio.wait(asked)
    assert [str(each.exception()) for each in asked] == [f"code {number}" for number in range(100)]


@pytest.mark.parametrize(
    ("what", "why"),
    [
        ("print('{', flush=True)", "malformed"),
        ("print('[]', flush=True)", "malformed"),
        ("print(json.dumps({'id': cell['id']}), flush=True)", "`allow`"),
        ("answer(cell, allow='yes')", "malformed"),
        ("answer(cell, message='x' * 2001)", "malformed"),
        ("print('x' * 100_000, flush=True)", "malformed"),
        (r"sys.stdout.buffer.write(b'\xff\n'); sys.stdout.flush()", "malformed"),
        ("answer({'id': 'another'})", "another question"),
        ("sys.exit(3)", "exit code 3"),
        ("os.kill(os.getpid(), 11)", "SIGSEGV"),
        ("print('{', end='', flush=True); sys.exit(4)", "exit code 4"),
    ],
)
async def test_whatever_else_it_does_refuses_that_cell_alone(hooks: Hooks, what: str, why: str) -> None:
    hook = hooks(f"if code == 'bad':\n    {what}\nelse:\n    answer(cell)")
    for _ in range(2):
        bad = hook.ask(cell("bad", 1, principal="eve"))
        good = hook.ask(cell("good", 2, principal="ada"))
        with pytest.raises(CellHookFailed, match=why):
            await bad
        await good
        assert not hook.failing


async def test_what_it_says_too_often_answers_no_other_cell(hooks: Hooks) -> None:
    """Otherwise a hook that answers twice would let a cell run that it refuses."""
    hook = hooks("answer(cell, allow=code != 'no')\nif code == 'twice': answer(cell); time.sleep(0.2)")
    await hook.ask(cell("twice", 1))
    with pytest.raises((CellHookFailed, CellRefused)) as refused:
        await hook.ask(cell("no", 2))
    assert isinstance(refused.value, CellHookFailed)


async def test_no_answer_in_time_is_none(hooks: Hooks, monkeypatch: pytest.MonkeyPatch) -> None:
    hook = hooks("if code == 'slow': time.sleep(600)\nanswer(cell)")
    await hook.ask(cell())
    with monkeypatch.context() as patch:
        patch.setattr(program, "ANSWER_SECONDS", 0.1)
        with pytest.raises(CellHookFailed, match=r"no answer within 0\.1 s"):
            await hook.ask(cell("slow"))
    assert hook.failing
    await hook.ask(cell())
    assert not hook.failing


async def test_the_first_answer_after_a_start_may_take_longer(
    hooks: Hooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It loads what it needs, and the cell that comes first is none the worse for that."""
    hook = hooks(
        "if code == 'slow': time.sleep(600)\nif 'loaded' not in globals(): time.sleep(0.5)\n"
        "loaded = 1\nanswer(cell)"
    )
    await hook.ask(cell())
    monkeypatch.setattr(program, "ANSWER_SECONDS", 0.1)
    for _ in range(2):
        with pytest.raises(CellHookFailed, match="no answer"):
            await hook.ask(cell("slow"))
        await hook.ask(cell("after"))


@pytest.mark.parametrize(
    "what",
    [
        "answer(cell)\nprint('x' * 300_000, flush=True)",
        "subprocess.Popen(['sleep', '60'], start_new_session=True)\nanswer(cell, id='wrong')",
    ],
)
async def test_a_program_whose_pipes_stay_open_is_given_up_all_the_same(
    hooks: Hooks, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Because nobody reads what it says, or because another process has them."""
    monkeypatch.setattr(program, "LONGEST_PAUSE", 0.0)
    hook = hooks(f"if code == 'bad':\n    {what.replace(chr(10), chr(10) + '    ')}\nelse:\n    answer(cell)")
    async with asyncio.timeout(PATIENCE):
        for _ in range(3):
            asked = [hook.ask(cell("bad", 1)), hook.ask(cell("next", 2))]
            await asyncio.wait(asked)
            assert any(isinstance(each.exception(), CellHookFailed) for each in asked)
        await hook.ask(cell("good", 3))


async def test_a_question_that_nobody_waits_for_any_more_is_not_asked(hooks: Hooks) -> None:
    hook = hooks("if code == 'first': time.sleep(0.3)\nanswer(cell, allow=False, message=code)")
    first = hook.ask(cell("first", 1))
    left = hook.ask(cell("left", 2))
    await asyncio.sleep(0.1)
    hook.leave("2", left)
    hook.leave("1", first)
    with pytest.raises(CellRefused, match=r"^third$"):
        await hook.ask(cell("third", 3))
    assert left.cancelled()
    assert str(first.exception()) == "first"
    assert not hook._unasked


async def test_a_program_that_reads_nothing_is_given_up(
    hooks: Hooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook = hooks("answer(cell)\ntime.sleep(600)")
    await hook.ask(cell())
    monkeypatch.setattr(program, "ANSWER_SECONDS", 0.1)
    with pytest.raises(CellHookFailed, match="no answer"):
        await hook.ask(cell("x" * program.MOST_CODE))


async def test_a_long_cell_is_shown_and_a_longer_one_refused_unseen(hooks: Hooks) -> None:
    hook = hooks("answer(cell, allow=False, message=str(len(code)))")
    with pytest.raises(CellRefused, match=f"^{program.MOST_CODE}$"):
        await hook.ask(cell("\x01" * program.MOST_CODE))
    with pytest.raises(CellRefused, match="is not shown"):
        await hook.ask(cell("x" * (program.MOST_CODE + 1)))


async def test_who_waits_no_more_leaves_the_next_answer_to_the_next(hooks: Hooks) -> None:
    hook = hooks("if code == 'first': time.sleep(0.2)\nanswer(cell, allow=code == 'first')")
    await hook.open()
    left = asyncio.ensure_future(asyncio.wait([hook.ask(cell("first", 1))]))
    await asyncio.sleep(0.1)
    left.cancel()
    with pytest.raises(CellRefused):
        await hook.ask(cell("second", 2))


async def test_too_many_that_wait_are_refused(hooks: Hooks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "MOST_WAITING", 2)
    hook = hooks("time.sleep(0.3)\nanswer(cell)")
    asked = [hook.ask(cell(number=number, principal=str(number))) for number in range(4)]
    await asyncio.wait(asked)
    assert [each.exception() is None for each in asked] == [True, True, True, False]
    assert "too many cells wait" in str(asked[3].exception())


async def test_it_has_no_variables_of_the_gateway_and_its_own_folder(
    hooks: Hooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CELLGATE_TOKEN", "secret-token")
    hook = hooks("answer(cell, allow=False, message=json.dumps([sorted(os.environ), os.getcwd()]))")
    with pytest.raises(CellRefused) as refused:
        await hook.ask(cell())
    names, folder = json.loads(refused.value.message)
    assert set(names) - {"LC_CTYPE"} == {"PATH", "HOME", "LANG"}
    assert folder == str(hook.path.parent)


async def test_a_program_that_ends_between_two_cells_is_started_again(hooks: Hooks) -> None:
    hook = hooks("answer(cell)\nsys.exit()")
    await hook.ask(cell(number=1))
    assert hook._process is not None
    await hook._process.wait()
    await hook.ask(cell(number=2))


async def test_a_program_that_can_t_be_started_refuses_all(tmp_path: Path) -> None:
    path = tmp_path / "hook"
    path.write_text("#!/nonexistent/interpreter\n")
    path.chmod(0o700)
    hook = HookProgram(check_program(path))
    await hook.open()
    assert hook.failing
    for _ in range(2):
        with pytest.raises(CellHookFailed, match="No such file"):
            await hook.ask(cell())
    await hook.close()


def test_a_file_that_can_t_be_executed_is_no_program(tmp_path: Path) -> None:
    (tmp_path / "text").touch(0o600)
    for path in (tmp_path, tmp_path / "absent", tmp_path / "text"):
        with pytest.raises(InvalidInput, match=f"--cell-hook: {path} is no program"):
            check_program(path)


async def test_what_it_says_is_logged(hooks: Hooks, caplog: pytest.LogCaptureFixture) -> None:
    hook = hooks("print('a word', file=sys.stderr, flush=True)\nanswer(cell)")
    await hook.ask(cell())
    await hook.close()
    assert "The cell hook says: a word" in caplog.messages


async def test_of_many_words_the_first_are_logged_and_the_others_counted(
    hooks: Hooks, caplog: pytest.LogCaptureFixture
) -> None:
    hook = hooks("sys.stderr.write('word\\n' * 100_000); sys.stderr.flush()\nanswer(cell)")
    await hook.ask(cell())
    await hook.close()
    said = [message for message in caplog.messages if message.startswith("The cell hook")]
    assert said.count("The cell hook says: word") == program.MOST_LINES
    assert sum("lines more" in message for message in said) == 1


async def test_it_ends_with_the_gateway(hooks: Hooks, monkeypatch: pytest.MonkeyPatch) -> None:
    """By itself when its stdin does, or else by force, with what it has started."""
    monkeypatch.setattr(program, "GRACE", 0.1)
    willing = hooks("answer(cell)")
    await willing.ask(cell())
    assert willing._process is not None
    process = willing._process
    monkeypatch.setattr(program, "GRACE", PATIENCE)
    await willing.close()
    assert process.returncode == 0
    monkeypatch.setattr(program, "GRACE", 0.1)
    stubborn = hooks(
        "child = subprocess.Popen(['sleep', '600'])\n"
        "answer(cell, allow=False, message=str(child.pid))\ntime.sleep(600)"
    )
    with pytest.raises(CellRefused) as refused:
        await stubborn.ask(cell())
    child = int(str(refused.value))
    await stubborn.close()
    await asyncio.to_thread(until, lambda: _state(child) == "Z", "a child of the hook lives")


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return "Z"
