"""Blocks of code in several languages: in order, saved where they say so, until one fails."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.server import IN_TIME, GatewayProcess, Response, send, until

FENCE = "```"


def blocks(gateway: GatewayProcess, session: str, body: object, query: str = "") -> Response:
    return gateway.post(f"/v1/sessions/{session}/execute-blocks{query}", body, timeout=120)


def block(language: str, code: str) -> dict[str, str]:
    return {"language": language, "code": code}


def done(answer: Response) -> dict[str, Any]:
    assert answer.status == 200, answer.body
    model = answer.json()
    assert isinstance(model, dict)
    return model


def test_blocks_run_in_order_in_one_kernel_and_one_workspace(gateway: GatewayProcess, session: str) -> None:
    body = {
        "blocks": [
            block("python", "x = 6; open('n', 'w').write('7')"),
            block("sh", "echo shell $(cat n)"),
            block("Python3", "print(x * int(open('n').read()))"),
        ]
    }
    model = done(blocks(gateway, session, body))
    assert (model["exit_code"], model["problem"]) == (0, None)
    assert [result["status"] for result in model["blocks"]] == ["ok"] * 3
    assert model["output"] == "1shell 7\n42\n".replace("1shell", "1\nshell")


def test_markdown_gives_its_fences_and_nothing_else(gateway: GatewayProcess, session: str) -> None:
    """A fence without a language is text: models show outputs in them."""
    text = (
        f"First:\n\n{FENCE}python\nprint(1)\n{FENCE}\n\n{FENCE}\n1\n{FENCE}\n\n{FENCE}bash\necho 2\n{FENCE}\n"
    )
    model = done(blocks(gateway, session, {"markdown": text}))
    assert (model["exit_code"], model["output"], len(model["blocks"])) == (0, "1\n2\n", 2)


def test_a_block_is_saved_under_its_filename_before_it_runs(gateway: GatewayProcess, session: str) -> None:
    module = "# filename: lib/words.py\nWORD = 'saved'\n"
    body = {
        "blocks": [
            block("python", module),
            block("sh", "# filename: go.sh\ncat go.sh | head -1"),
            block("python", "from lib.words import WORD; print(WORD)"),
        ]
    }
    model = done(blocks(gateway, session, body))
    assert model["output"] == "# filename: go.sh\nsaved\n"
    assert gateway.get(f"/v1/sessions/{session}/files/lib/words.py").body == module.encode()
    recorded = [event["path"] for event in gateway.recorded(session) if event["type"] == "file"]
    assert recorded[:1] == ["lib/words.py"]
    assert "go.sh" in recorded


def test_the_first_failure_stops_the_rest(gateway: GatewayProcess, session: str) -> None:
    body = {"blocks": [block("python", "print('a')"), block("bash", "echo b; exit 3"), block("python", "c")]}
    model = done(blocks(gateway, session, body, "?plain=true"))
    assert model["exit_code"] == 3
    assert [result["status"] for result in model["blocks"]] == ["ok", "error"]
    assert model["blocks"][1]["error"]["ename"] == "CalledProcessError"
    assert model["output"].startswith("a\nb\n")
    assert "exit status 3" in model["output"]


def test_a_block_ends_with_its_program_and_what_that_started_goes_on(
    gateway: GatewayProcess, session: str
) -> None:
    started = (
        "mkfifo go\n(read word < go; echo $word; echo error >&2; exec sleep 900) &\necho $! > number; echo up"
    )
    body = {"blocks": [block("bash", started), block("python", "1")], "timeout": IN_TIME}
    model = done(blocks(gateway, session, body))
    assert (model["exit_code"], model["output"]) == (0, "up\n1")
    # What it shows later is shown where it was started, and stands in no branch's way.
    answer = gateway.post(f"/v1/sessions/{session}/branch", {})
    assert answer.status == 201, answer.body
    assert gateway.delete(f"/v1/sessions/{answer.json()['session']}").status == 204
    gateway.execute(session, "print('later', file=open('go', 'w'))")

    def shown() -> dict[str, str]:
        cells = gateway.get(f"/v1/sessions/{session}/notebook").json()["cells"]
        return {output["name"]: "".join(output["text"]) for output in cells[0]["outputs"]}

    until(lambda: shown() == {"stdout": "up\nlater\n", "stderr": "error\n"}, "what came later is not shown")
    assert done(blocks(gateway, session, {"blocks": [block("bash", "kill $(cat number)")]}))["exit_code"] == 0


def test_a_program_that_ends_well_when_it_is_interrupted_is_interrupted(
    gateway: GatewayProcess, session: str
) -> None:
    code = "trap 'exit 0' INT\nwhile true; do sleep 0.1; done"
    model = done(blocks(gateway, session, {"blocks": [block("bash", code)], "timeout": IN_TIME}))
    (result,) = model["blocks"]
    assert (model["exit_code"], result["status"]) == (124, "timeout")
    assert result["error"]["ename"] == "KeyboardInterrupt"
    assert "exit status 0" not in result["text"]
    assert "scripts.py" not in result["text"]


@pytest.mark.parametrize(
    ("line", "code", "shown"),
    [
        ("--out a --err b", "echo 1; echo 2 >&2; seq 30000 | tail -1", "('1\\n30000\\n', '2\\n')"),
        ("--no-raise-error", "exit 3", "('', '')"),
        ("", "head -c 90000 /dev/zero | tr '\\0' x\n#" + 200_000 * "x", "('', '')"),
        ("--bg --out c", "echo 3", "('', '')"),
    ],
)
def test_the_magic_does_what_it_does_elsewhere(
    gateway: GatewayProcess, session: str, line: str, code: str, shown: str
) -> None:
    gateway.execute(session, "a = b = ''")
    result = gateway.execute(session, f"%%bash {line}\n{code}")
    assert result["status"] == "ok"
    assert len(result["text"]) == (90_000 if "90000" in code else 0)
    assert gateway.execute(session, "a, b")["text"] == shown


def test_a_timeout_is_124(gateway: GatewayProcess, session: str) -> None:
    body = {"blocks": [block("python", "import time; time.sleep(60)"), block("python", "1")], "timeout": 0.5}
    model = done(blocks(gateway, session, body))
    assert (model["exit_code"], len(model["blocks"])) == (124, 1)
    assert model["blocks"][0]["status"] == "timeout"


def test_the_record_holds_cells_that_plain_jupyter_runs(gateway: GatewayProcess, session: str) -> None:
    done(blocks(gateway, session, {"blocks": [block("sh", "echo hello")]}))
    (cell,) = gateway.get(f"/v1/sessions/{session}/notebook").json()["cells"]
    assert "".join(cell["source"]) == "%%bash\necho hello"


def test_a_block_that_can_t_be_saved_says_so_and_ends_the_run(gateway: GatewayProcess, session: str) -> None:
    made = "import os; os.symlink('/etc', 'link')"
    body = {"blocks": [block("python", made), block("python", "# filename: link/x\n1"), block("python", "2")]}
    model = done(blocks(gateway, session, body))
    assert (model["exit_code"], len(model["blocks"])) == (1, 1)
    assert model["problem"]["reason"] == "bad_request"
    answer = blocks(gateway, session, {"blocks": [block("python", "# filename: link/x\n1")]})
    assert answer.reason == "bad_request"


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"blocks": []},
        {"markdown": "no fence"},
        {"markdown": "x", "blocks": []},
        {"markdown": f"{FENCE}python\n1\n{FENCE}\n{FENCE}cobol\nSTOP RUN.\n{FENCE}"},
        {"blocks": [block("python", "1"), block("", "2")]},
        {"blocks": [block("python", "1")] * 65},
        {"blocks": [block("python", "1"), block("python", "# filename: ../x\n2")]},
        {"blocks": [block("python", "1"), block("sh", "# filename: /etc/passwd\n")]},
        {"blocks": [block("python", "a\0b")]},
        {"blocks": [block("python", "1")], "timeout": 0},
        {"blocks": [block("python", "1")], "on_disconnect": "hope"},
        {"blocks": [{"language": "python"}]},
    ],
)
def test_what_can_t_run_is_refused_before_anything_runs(
    gateway: GatewayProcess, session: str, body: object
) -> None:
    assert blocks(gateway, session, body).reason == "bad_request"
    assert gateway.get(f"/v1/sessions/{session}").status == 404


def test_a_client_that_leaves_can_take_its_blocks_with_it(gateway: GatewayProcess, session: str) -> None:
    body = {
        "blocks": [block("python", "open('begun', 'w').write('1')\nwhile True: pass"), block("python", "2")],
        "on_disconnect": "interrupt",
    }
    connection = gateway.connect()
    send(connection, "POST", f"/v1/sessions/{session}/execute-blocks", body)

    def started() -> bool:
        answer = gateway.get(f"/v1/sessions/{session}/files/begun")
        return answer.status == 200 and answer.body == b"1"

    until(started, "the block has not begun")
    connection.close()

    def ended() -> list[dict[str, Any]] | None:
        found = gateway.get(f"/v1/sessions/{session}/executions").json()["executions"]
        return found if found[0]["status"] not in {"queued", "running"} else None

    until(ended, "the block runs on")
    gateway.execute(session, "'behind what is left'")
    executions = gateway.get(f"/v1/sessions/{session}/executions").json()["executions"]
    assert [each["status"] for each in executions] == ["interrupted", "ok"]
