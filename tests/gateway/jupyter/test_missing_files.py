"""A Jupyter client's cell that misses a file which lies beside the notebook: a line says how to send it."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from tests.gateway.cli.conftest import Shell
from tests.support.channels import channels, kinds, text
from tests.support.server import GatewayProcess

READ = "print(open('data.csv').read())"
LINE = (
    "[cellgate: this session has no file {name}. Files beside a notebook stay where the notebook is; send"
    " this one with `cellgate files put {key} {words}`, or in the gateway's console]\n"
)


def line(key: str, name: str, words: str = "") -> str:
    return LINE.format(key=key, name=name, words=words or name)


async def test_the_line_comes_before_the_reply_once_and_what_it_says_works(
    jupyter: GatewayProcess, kernel: str, tmp_path: Path
) -> None:
    (tmp_path / "data.csv").write_text("a,b\n1,2\n")
    async with channels(jupyter, kernel) as client:
        messages = await client.run(READ)
        assert kinds(messages) == ["busy", "execute_input", "error", "stream", "execute_reply", "idle"]
        assert messages[3]["content"] == {"name": "stderr", "text": line(kernel, "data.csv")}
        assert messages[3]["channel"] == "iopub"
        assert text(await client.run(READ)) == ""
        found = re.search("`cellgate (.*)`", messages[3]["content"]["text"])
        assert found is not None
        Shell(jupyter, tmp_path).lines(*shlex.split(found[1]))
        assert text(await client.run(READ)) == "a,b\n1,2\n\n"


async def test_the_line_is_neither_in_the_record_nor_for_others(jupyter: GatewayProcess, kernel: str) -> None:
    async with channels(jupyter, kernel) as client, channels(jupyter, kernel) as other:
        msg_id = await client.execute(READ)
        assert text(await client.ended(msg_id)) == line(kernel, "data.csv")
        await client.run("print('on')")
        assert text(await other.until(lambda message: message["msg_type"] == "stream")) == "on\n"
    assert "cellgate files put" not in jupyter.get(f"/v1/sessions/{kernel}/notebook").body.decode()
    first = next(event for event in jupyter.recorded(kernel) if event["type"] == "finished")
    assert (first["status"], first["error"]["ename"]) == ("error", "FileNotFoundError")
    result = jupyter.get(f"/v1/sessions/{kernel}/executions/{first['execution']}").json()
    assert [output["output_type"] for output in result["outputs"]] == ["error"]


async def test_other_failures_have_no_such_line(jupyter: GatewayProcess, kernel: str) -> None:
    """A caught error least of all, nor one of another client than Jupyter's."""
    caught = f"try:\n    {READ}\nexcept FileNotFoundError: print('made')"
    async with channels(jupyter, kernel) as client:
        assert text(await client.run(caught)) == "made\n"
        for code in (
            "open('/data.csv')",
            "open('../data.csv')",
            "import subprocess; subprocess.run(['no-such-program'])",
            "raise FileNotFoundError('data.csv')",
        ):
            assert text(await client.run(code)) == "", code
        assert jupyter.execute(kernel, READ)["stderr"] == ""
        # What was missed through another interface has not been told.
        assert text(await client.run(READ)) == line(kernel, "data.csv")


async def test_a_file_in_a_folder_is_sent_there(jupyter: GatewayProcess, kernel: str, tmp_path: Path) -> None:
    (tmp_path / "in put").mkdir()
    (tmp_path / "in put" / "a.csv").write_text("1")
    read = "print(open('./in put/a.csv').read())"
    async with channels(jupyter, kernel) as client:
        told = text(await client.run(read))
        assert told == line(kernel, "in put/a.csv", "'in put/a.csv' 'in put/a.csv'")
        Shell(jupyter, tmp_path).lines("files", "put", kernel, "in put/a.csv", "in put/a.csv")
        assert text(await client.run(read)) == "1\n"
