"""Explorations over HTTP with real kernels: what the answer says, and that it is as large as one answer."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.commands import cellgate
from tests.support.server import IN_TIME, GatewayProcess
from tests.support.users import add_user, create_token


def explore(gateway: GatewayProcess, session: str, *cells: str, **options: Any) -> list[dict[str, Any]]:
    answer = gateway.post(f"/v1/sessions/{session}/explore", {"cells": cells, **options})
    assert answer.status == 200, answer.json()
    results: list[dict[str, Any]] = answer.json()["results"]
    return results


def test_alternatives_begin_with_the_session_and_leave_it_as_it_is(
    gateway: GatewayProcess, session: str
) -> None:
    gateway.execute(session, "x = [1]; open('a.txt', 'w').write('a')")
    found = explore(
        gateway,
        session,
        "x.append(2); open('a.txt', 'a').write('b'); print(x, open('a.txt').read())",
        "x[0] / 0",
        "import os; os._exit(3)",
        "import time; time.sleep(600)",
        timeout=IN_TIME,
    )
    assert [(each["status"], each["branch"]) for each in found] == [
        ("ok", "ended"),
        ("error", "ended"),
        ("died", "ended"),
        ("timeout", "ended"),
    ]
    assert found[0]["text"] == "[1, 2] ab\n"
    assert found[1]["error"]["ename"] == "ZeroDivisionError"
    assert gateway.execute(session, "x, open('a.txt').read()")["text"] == "([1], 'a')"
    for each in found:
        model = gateway.get(f"/v1/sessions/{each['session']}").json()
        assert (model["state"], model["cause"]) == ("ended", "explored")
        assert gateway.get(f"/v1/sessions/{each['session']}/audit/verify").json()["valid"]
        whole = gateway.get(f"/v1/sessions/{each['session']}/executions/{each['execution']}").json()
        assert whole["status"] == each["status"]
    tree = gateway.get(f"/v1/sessions/{session}/tree").json()
    assert [each["session"] for each in tree["branches"]] == [each["session"] for each in found]


def test_branches_that_are_kept_go_on(gateway: GatewayProcess, session: str) -> None:
    gateway.execute(session, "x = 1")
    found = explore(gateway, session, "x += 1", "x += 2", keep="all")
    assert [each["branch"] for each in found] == ["kept", "kept"]
    assert [gateway.execute(each["session"], "x")["text"] for each in found] == ["2", "3"]
    for each in found:
        gateway.delete(f"/v1/sessions/{each['session']}")
    assert gateway.execute(session, "x")["text"] == "1"


def test_the_session_goes_on_as_the_first_that_ends_well(gateway: GatewayProcess, session: str) -> None:
    """With its variables, its files at their usual place, and the cell in the session's own record."""
    gateway.execute(session, "import os; x = 1; open('a.txt', 'w').write('a')")
    found = explore(
        gateway,
        session,
        "x / 0",
        "import time; time.sleep(1); x += 10; open('a.txt', 'a').write('b'); print('x' * 5); x",
        "x += 100",
        "x += 1000",
        keep="first_ok",
    )
    assert [each["branch"] for each in found[:2]] == ["ended", "chosen"]
    assert {each["branch"] for each in found[2:]} <= {"ended", "skipped"}
    files = "x, open('/workspace/a.txt').read(), open('a.txt').read(), os.getcwd()"
    result = gateway.execute(session, files)
    assert (result["text"], result["execution_count"]) == ("(11, 'ab', 'ab', '/workspace')", 3)
    assert result["kernel"]["replaced"] is False
    own = gateway.get(f"/v1/sessions/{session}/executions/{found[1]['execution']}").json()
    assert (own["status"], own["text"], own["execution_count"]) == ("ok", "xxxxx\n11", 2)
    ended = gateway.get(f"/v1/sessions/{found[1]['session']}").json()
    assert (ended["state"], ended["cause"]) == ("ended", "chosen")
    notebook = gateway.get(f"/v1/sessions/{session}/notebook").json()
    assert len(notebook["cells"]) == 3
    report = gateway.post(f"/v1/sessions/{session}/replay", {}).json()
    assert (report["verdict"], report["same"]) == ("equal", 3), report
    assert gateway.get(f"/v1/sessions/{session}/audit/verify").json()["valid"]
    files = gateway.get(f"/v1/sessions/{session}/files").json()["files"]
    assert [(each["path"], each["size"]) for each in files] == [("a.txt", 2)]


def test_files_of_alternatives_are_their_own_under_every_name(gateway: GatewayProcess, session: str) -> None:
    """Whichever name a cell or its program uses; the session has none of them, and its record says so."""
    gateway.execute(session, "import os, subprocess")
    found = explore(
        gateway,
        session,
        "open('/mnt/data/alt1.csv', 'w').write('a'); open('/mnt/data/res.txt', 'w').write('one')",
        "open('/home/user/res.txt', 'w').write('two')\n"
        "subprocess.run('pwd; cat /workspace/res.txt', shell=True)",
        "import time; time.sleep(0.5); os.path.exists('/mnt/data/res.txt'), os.getcwd()",
        keep="all",
    )
    assert [each["text"] for each in found][1:] == [
        "/workspace\ntwo\nCompletedProcess(args='pwd; cat /workspace/res.txt', returncode=0)",
        "(False, '/workspace')",
    ]
    made = [sorted(each["path"] for each in each["files"]) for each in found]
    assert made == [["alt1.csv", "res.txt"], ["res.txt"], []]
    read = [gateway.execute(each["session"], "open('/workspace/res.txt').read()") for each in found[:2]]
    assert [each["text"] for each in read] == ["'one'", "'two'"]
    result = gateway.execute(session, "os.listdir('/mnt/data')")
    assert (result["text"], result["files"]) == ("[]", [])
    assert gateway.get(f"/v1/sessions/{session}/files").json()["files"] == []
    for each in found:
        gateway.delete(f"/v1/sessions/{each['session']}")


def test_the_session_goes_on_with_files_of_every_name(gateway: GatewayProcess, session: str) -> None:
    """Twice, and then it goes back."""
    gateway.post("/v1/sessions", {"session": session, "checkpoint": "auto"})
    gateway.execute(session, "import os; open('/mnt/data/chosen.csv', 'w').write('none')")
    for turn in ("one", "two"):
        write = (
            f"open('/home/user/chosen.csv', 'w').write('{turn}'); open('/mnt/data/{turn}.txt', 'w').close()"
        )
        (found,) = explore(gateway, session, write, keep="first_ok")
        assert found["branch"] == "chosen"
        assert gateway.execute(session, "open('/workspace/chosen.csv').read()")["text"] == repr(turn)
        data = gateway.get(f"/v1/sessions/{session}/files/chosen.csv").body
        assert data == turn.encode()
    listing = "sorted(os.listdir('/mnt/data')), os.getcwd()"
    assert gateway.execute(session, listing)["text"] == (
        "(['chosen.csv', 'one.txt', 'two.txt'], '/workspace')"
    )
    # The last two cells, and the alternative that was chosen last.
    for _ in range(3):
        assert gateway.post(f"/v1/sessions/{session}/undo", {}).status == 200
    assert gateway.execute(session, listing)["text"] == "(['chosen.csv', 'one.txt'], '/workspace')"
    assert gateway.execute(session, "open('/home/user/chosen.csv').read()")["text"] == "'one'"


def test_if_none_ends_well_the_session_stays_as_it_is(gateway: GatewayProcess, session: str) -> None:
    gateway.execute(session, "x = 1")
    found = explore(gateway, session, "x = 2; 1 / 0", "exit()", keep="first_ok")
    assert [each["branch"] for each in found] == ["ended", "ended"]
    assert gateway.execute(session, "x")["text"] == "1"


def test_one_that_can_not_become_the_session_stays_as_a_branch(gateway: GatewayProcess, session: str) -> None:
    gateway.execute(session, "x = 1")
    thread = "import threading; e = threading.Event(); threading.Thread(target=e.wait, name='mine').start()"
    found = explore(gateway, session, f"{thread}; x = 2", "x = 3", keep="first_ok")
    assert (found[0]["branch"], found[0]["problem"]["reason"]) == ("kept", "cannot_branch")
    assert gateway.execute(session, "x")["text"] == "1"
    assert gateway.execute(found[0]["session"], "e.set(); x")["text"] == "2"
    gateway.delete(f"/v1/sessions/{found[0]['session']}")


def test_an_undo_takes_back_the_alternative_that_was_chosen(gateway: GatewayProcess, session: str) -> None:
    gateway.post("/v1/sessions", {"session": session, "checkpoint": "auto"})
    gateway.execute(session, "x = 1")
    explore(gateway, session, "x = 2", keep="first_ok")
    assert gateway.execute(session, "x")["text"] == "2"
    assert gateway.post(f"/v1/sessions/{session}/undo", {}).json()["rolled_back"]["undone"] == 1
    # The variables are those of the alternative, so its cell is not undone.
    cells = gateway.get(f"/v1/sessions/{session}/notebook?undone=false").json()["cells"]
    assert ["".join(cell["source"]) for cell in cells] == ["x = 1", "x = 2"]
    assert gateway.post(f"/v1/sessions/{session}/undo", {}).json()["rolled_back"]["undone"] == 1
    assert gateway.execute(session, "x")["text"] == "1"
    cells = gateway.get(f"/v1/sessions/{session}/notebook?undone=false").json()["cells"]
    assert ["".join(cell["source"]) for cell in cells] == ["x = 1", "x"]
    assert gateway.get(f"/v1/sessions/{session}/audit/verify").json()["valid"]
    report = gateway.post(f"/v1/sessions/{session}/replay", {}).json()
    assert (report["verdict"], report["same"]) == ("equal", 2), report


def test_all_results_together_are_as_large_as_one_answer(gateway: GatewayProcess, session: str) -> None:
    gateway.execute(session, "1")
    answer = gateway.post(f"/v1/sessions/{session}/explore", {"cells": ["print('x' * 10**6)"] * 5 + ["2"]})
    assert len(answer.body) < 1_200_000
    texts = [each["text"] for each in answer.json()["results"]]
    assert texts[-1] == "2"
    assert all("cellgate: 1000001 characters, cut here" in text for text in texts[:-1])


@pytest.mark.parametrize("body", [{"cells": []}, {"cells": ["1"] * 17}, {"cells": ["1"], "keep": "some"}, {}])
def test_what_can_not_be_explored_is_refused_and_makes_nothing(
    gateway: GatewayProcess, session: str, body: dict[str, Any]
) -> None:
    gateway.execute(session, "1")
    assert gateway.post(f"/v1/sessions/{session}/explore", body).reason == "bad_request"
    assert gateway.get(f"/v1/sessions/{session}/tree").json()["branches"] == []


def test_a_refusal_is_that_of_a_branch(gateway: GatewayProcess, session: str) -> None:
    assert gateway.post(f"/v1/sessions/{session}/explore", {"cells": ["1"]}).reason == "not_found"
    waits = "import threading; e = threading.Event(); threading.Thread(target=e.wait, name='mine').start()"
    gateway.execute(session, waits)
    refused = gateway.post(f"/v1/sessions/{session}/explore", {"cells": ["1"]})
    assert (refused.status, refused.reason) == (409, "cannot_branch")
    assert refused.json()["obstacles"] == [{"kind": "thread", "name": "mine"}]
    assert explore(gateway, session, "1 + 1", anyway=True)[0]["text"] == "2"
    gateway.execute(session, "e.set()")


def test_the_branches_of_a_limited_token_are_within_its_reach(gateway: GatewayProcess) -> None:
    add_user(gateway, "zoe")
    _, limited = create_token(gateway, "zoe", "--sessions", "ag-")
    assert gateway.post("/v1/sessions", {"session": "ag-1"}, token=limited).status == 201
    answer = gateway.post("/v1/sessions/ag-1/explore", {"cells": ["1"]}, token=limited)
    (found,) = answer.json()["results"]
    assert found["session"].startswith("ag-1-")
    assert gateway.get(f"/v1/sessions/{found['session']}", token=limited).status == 200
    gateway.delete("/v1/sessions/ag-1", token=limited)
    assert cellgate("user", "remove", "zoe", "--data-dir", gateway.data_dir).returncode == 0
