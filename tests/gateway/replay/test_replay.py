"""Replay as users do it, by HTTP and by command: a session is recorded, run again, and compared."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import psutil
import pytest

from cellgate.replay.environment import LEFT_OUT, Agreement, compare_locks, lock_of, recorded_seed
from cellgate.replay.files import input_files
from cellgate.replay.packages import installed_packages, pins
from cellgate_kernels.base.errors import InvalidInput
from tests.conftest import StartGateway, serving
from tests.support.commands import cellgate
from tests.support.server import IN_TIME, GatewayProcess, until

SAME = ["x = 20 + 1", "x * 2", "print('hello'); raise ValueError('<b>no</b>')"]
CHANGING = [
    "object()",
    "import datetime; print(datetime.datetime.now())",
    "import time; print(f'took {time.perf_counter():.9f} s')",
]
RANDOM = "import os; print('constant'); print(os.urandom(4).hex() + '<script>alert(1)</script>')"
PICTURE = """
import os, struct, zlib
from IPython.display import Image, display
def chunk(kind, data):
    return struct.pack('!I', len(data)) + kind + data + struct.pack('!I', zlib.crc32(kind + data))
row = b'\\0' + bytes(24) + os.urandom(24)
head = struct.pack('!IIBBBBB', 16, 8, 8, 2, 0, 0, 0)
made = chunk(b'IHDR', head) + chunk(b'IDAT', zlib.compress(row * 8)) + chunk(b'IEND', b'')
display(Image(b'\\x89PNG\\r\\n\\x1a\\n' + made))
"""


@pytest.fixture(scope="module")
def replaying(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """One gateway for the tests of this module."""
    data = tmp_path_factory.mktemp("replay") / "data"
    with serving(data, pool_size=2, keep_alive=0.3, cull_interval=0.5) as process:
        yield process


@pytest.fixture
def key(replaying: GatewayProcess) -> Iterator[str]:
    name = f"test-{os.urandom(6).hex()}"
    yield name
    replaying.delete(f"/v1/sessions/{name}")


def record(gateway: GatewayProcess, key: str, *cells: str) -> None:
    for code in cells:
        gateway.execute(key, code)


def replay(gateway: GatewayProcess, key: str, **fields: object) -> dict[str, Any]:
    answer = gateway.post(f"/v1/sessions/{key}/replay", fields, timeout=100)
    assert answer.status == 200, answer.body
    report = answer.json()
    assert isinstance(report, dict)
    return report


def verdicts(report: dict[str, Any]) -> list[str]:
    return [cell["verdict"] for cell in report["cells"]]


def test_cells_that_give_the_same_are_told_from_those_that_do_not(
    replaying: GatewayProcess, key: str
) -> None:
    record(replaying, key, *SAME, *CHANGING, RANDOM)
    report = replay(replaying, key)
    assert verdicts(report) == ["equal"] * 3 + ["normalised"] * 2 + ["unjudged", "different"]
    counts = {name: report[name] for name in ("same", "normalised", "unjudged", "different", "skipped")}
    assert counts == {"same": 5, "normalised": 2, "unjudged": 1, "different": 1, "skipped": 0}
    assert report["verdict"] == "different"
    rules = [cell["normalised"] for cell in report["cells"][3:5]]
    assert rules == [["memory addresses"], ["timestamps"]]
    assert [cell["same"] for cell in report["cells"][4:]] == [True, None, False]
    assert "durations" in report["cells"][5]["difference"]
    last = report["cells"][-1]
    assert (last["same"], last["status"]) == (False, {"recorded": "ok", "now": "ok"})
    [difference] = last["differences"]
    assert difference["part"] == "stdout"
    assert " constant" in difference["diff"].splitlines()
    listed = replaying.get(f"/v1/sessions/{key}/executions").json()["executions"]
    assert [cell["execution"] for cell in report["cells"]] == [row["execution"] for row in listed]
    assert report["head"] == replaying.get(f"/v1/sessions/{key}/notebook").headers["ETag"].strip('"')
    assert report["environment"] == {"agreement": Agreement.SAME, "changes": []}
    assert report["files"] == []


def test_a_replay_leaves_the_session_its_record_and_the_list_as_they_were(
    replaying: GatewayProcess, key: str
) -> None:
    record(replaying, key, "x = 1")
    before = replaying.recorded(key), replaying.get("/v1/sessions").json()["sessions"]
    assert verdicts(replay(replaying, key)) == ["equal"]
    assert (replaying.recorded(key), replaying.get("/v1/sessions").json()["sessions"]) == before
    assert replaying.execute(key, "x")["text"].strip() == "1"


def test_an_ended_session_is_replayed_and_what_never_ran_is_not(replaying: GatewayProcess, key: str) -> None:
    running = replaying.hold(key, "input('? ')")
    waiting = replaying.submit(key, "raise SystemError('never')")
    replaying.post(f"/v1/sessions/{key}/executions/{waiting}/cancel")
    replaying.answer(key, running, "x")
    replaying.ended(key, running)
    replaying.delete(f"/v1/sessions/{key}")
    report = replay(replaying, key)
    # Nobody answers an input() of a replay: it is at the end of its file at once, and that proves nothing.
    assert verdicts(report) == ["unjudged", "skipped"]
    assert (report["verdict"], report["different"]) == ("unjudged", 0)
    assert report["cells"][0]["status"] == {"recorded": "ok", "now": "error"}
    assert report["cells"][0]["reason"] == "It asks for input, and a replay has nobody to answer."
    assert report["cells"][1]["reason"] == "It did not run then."


def test_what_was_stopped_by_its_deadline_is_stopped_again(replaying: GatewayProcess, key: str) -> None:
    endless = "import time\nprint('begun', flush=True)\ntime.sleep(600)"
    replaying.execute(key, endless, timeout=IN_TIME)
    report = replay(replaying, key)
    assert report["cells"][0]["status"] == {"recorded": "timeout", "now": "timeout"}


def test_cells_that_had_variables_are_told_as_such(replaying: GatewayProcess, key: str) -> None:
    """Only their names are recorded. What gives the same without them is the same."""
    code = "import os; os.environ.get('SECRET')"
    replaying.execute(key, code, env={"SECRET": "a"})
    replaying.execute(key, "1 + 1", env={"SECRET": "a"})
    replaying.execute(key, code)
    report = replay(replaying, key)
    assert verdicts(report) == ["unjudged", "equal", "equal"]
    said = "It ran with environment variables whose values are not recorded: SECRET."
    assert [cell.get("reason") for cell in report["cells"]] == [said, None, None]
    assert "'a'" not in json.dumps(report["cells"][0]["source"])

    whole = f"{key}-whole"
    assert replaying.post("/v1/sessions", {"session": whole, "env": {"SECRET": "a"}}).status == 201
    try:
        replaying.execute(whole, code)
        replaying.execute(whole, "1 + 1")
        report = replay(replaying, whole)
    finally:
        replaying.delete(f"/v1/sessions/{whole}")
    assert verdicts(report) == ["unjudged", "equal"]
    said = "Its session had environment variables whose values are not recorded: SECRET."
    assert report["cells"][0]["reason"] == said


def test_a_cell_whose_kernel_died_gives_the_same_when_it_dies_again(
    replaying: GatewayProcess, key: str
) -> None:
    """The record's last output of it is the gateway's own remark."""
    record(
        replaying,
        key,
        "print('last words', flush=True); import os, time; time.sleep(1); os._exit(3)",
        "1 + 1",
    )
    report = replay(replaying, key)
    assert report["cells"][0]["status"] == {"recorded": "died", "now": "died"}
    assert verdicts(report) == ["equal", "equal"], report["cells"][0]


def test_sets_come_in_one_order_because_both_kernels_hash_alike(replaying: GatewayProcess, key: str) -> None:
    code = "print(*{str(i) for i in range(50)}); __import__('os').environ['PYTHONHASHSEED']"
    record(replaying, key, code)
    known = replaying.get(f"/v1/sessions/{key}/notebook").json()["metadata"]["cellgate"]
    assert known["hash_seed"] == "0"
    report = replay(replaying, key)
    assert verdicts(report) == ["equal"]
    assert report["hash_seed"] == {"recorded": "0", "now": "0"}

    seeded = f"{key}-seeded"
    body = {"session": seeded, "env": {"PYTHONHASHSEED": "12345"}}
    assert replaying.post("/v1/sessions", body).status == 201
    try:
        record(replaying, seeded, code)
        report = replay(replaying, seeded)
    finally:
        replaying.delete(f"/v1/sessions/{seeded}")
    assert verdicts(report) == ["equal"]
    assert report["hash_seed"] == {"recorded": "12345", "now": "12345"}


@pytest.mark.parametrize("told", ["random", "-1", "4294967296", "1" * 11, "0; rm", "", 5, None, [1]])
def test_a_hash_seed_that_no_kernel_starts_with_is_not_believed(told: object) -> None:
    assert recorded_seed({"metadata": {"cellgate": {"hash_seed": told}}}) is None


NOISY = "import os; print(0.5 * (1 + int.from_bytes(os.urandom(4), 'big') / 2**32 * 1e-6))"


def test_numbers_may_be_apart_as_far_as_is_asked_for(replaying: GatewayProcess, key: str) -> None:
    record(replaying, key, NOISY)
    assert verdicts(replay(replaying, key)) == ["different"]
    report = replay(replaying, key, rtol=1e-5)
    assert (verdicts(report), report["rtol"], report["same"]) == (["normalised"], 1e-5, 1)
    assert report["cells"][0]["normalised"][0].startswith("numbers within 1e-05 (largest difference ")
    for rtol in (-1, 1, 1e300, "0.1", True):
        assert replaying.post(f"/v1/sessions/{key}/replay", {"rtol": rtol}).reason == "bad_request"


class Page(HTMLParser):
    """What a page holds."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in {"src", "href"}]

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_is_self_contained_inert_and_shows_what_differs(replaying: GatewayProcess, key: str) -> None:
    record(replaying, key, *SAME, RANDOM, PICTURE)
    answer = replaying.post(f"/v1/sessions/{key}/replay?format=html", timeout=100)
    assert answer.status == 200, answer.body
    assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
    assert answer.headers["Content-Disposition"] == f'attachment; filename="{key}-replay.html"'
    policy = answer.headers["Content-Security-Policy"]
    assert policy.startswith("sandbox; default-src 'none'")
    page = Page(answer.body.decode())
    assert "script" not in page.tags
    assert all(address.startswith(("#", "data:image/png;base64,")) for address in page.addresses)
    assert page.tags.count("article") == 5
    assert page.tags.count("img") == 1
    for words in ("does not give what it gave", "<script>alert(1)</script>", "<b>no</b>", "pixels differ"):
        assert words in page.text


def test_progress_is_told_cell_by_cell_and_the_report_comes_last(replaying: GatewayProcess, key: str) -> None:
    record(replaying, key, "1", "import time; time.sleep(1)")
    with replaying.stream("POST", f"/v1/sessions/{key}/replay", {}) as stream:
        lines = [json.loads(line) for line in stream]
    told = [line for line in lines if line["type"] != "keepalive"]
    assert [line["type"] for line in told] == ["cell", "cell", "report"]
    assert [line["status"] for line in told[:2]] == ["ok", "ok"]
    assert len(lines) > len(told), "a quiet stream shows signs of life"
    assert told[-1]["same"] == 2


def test_a_client_that_leaves_ends_the_replay(replaying: GatewayProcess, key: str) -> None:
    marker = f"marker-{key}"
    code = f"import os, time\nopen('/tmp/{marker}', 'a').write('x'); time.sleep(2)"
    record(replaying, key, code)
    kernels = replaying.get("/v1/info").json()["pool"]["in_use"]
    try:
        connection: http.client.HTTPConnection = replaying.connect()
        connection.request(
            "POST", f"/v1/sessions/{key}/replay", b"{}", {"Authorization": f"Bearer {replaying.token}"}
        )
        until(lambda: Path(f"/tmp/{marker}").read_text() == "xx", "the replay does not begin")
        connection.close()
        until(
            lambda: replaying.get("/v1/info").json()["pool"]["in_use"] <= kernels,
            "the replay's kernel remains",
        )
    finally:
        Path(f"/tmp/{marker}").unlink(missing_ok=True)


def test_what_can_t_be_replayed_is_refused(replaying: GatewayProcess, key: str) -> None:
    assert replaying.post("/v1/sessions/nobody/replay").reason == "not_found"
    record(replaying, key, "1")
    assert replaying.post(f"/v1/sessions/{key}/replay", {"always": True}).reason == "bad_request"
    assert replaying.post(f"/v1/sessions/{key}/replay?format=pdf").reason == "not_acceptable"


# ---- input files

READ = "print(open('in/a.csv').read())"


def put(gateway: GatewayProcess, key: str, path: str, data: bytes, *, status: int = 201) -> None:
    assert gateway.request("PUT", f"/v1/sessions/{key}/files/{path}", data).status == status


@pytest.fixture
def given(replaying: GatewayProcess, key: str, request: pytest.FixtureRequest) -> str:
    """A session with four input files: one as it was, one changed, one removed, one replaced by a link."""
    limits = getattr(request, "param", {})
    assert replaying.post("/v1/sessions", {"session": key, "limits": limits}).status == 201
    for path, data in (("in/a.csv", b"a,b\n"), ("changed", b"1"), ("gone", b"2"), ("link", b"a,b\n")):
        put(replaying, key, path, data)
    record(replaying, key, READ, "open('changed', 'w').write('3')")
    record(replaying, key, "import os\nos.unlink('gone'), os.unlink('link'), os.symlink('in/a.csv', 'link')")
    return key


def restored(report: dict[str, Any]) -> list[str]:
    assert [file["path"] for file in report["files"]] == ["changed", "gone", "in/a.csv", "link"]
    assert all("reason" in file for file in report["files"] if not file["restored"])
    return [file["path"] for file in report["files"] if file["restored"]]


@pytest.mark.parametrize(("ended", "given"), [(False, {}), (True, {"idle_timeout": 3})], indirect=["given"])
def test_input_files_that_are_as_they_were_are_restored(
    replaying: GatewayProcess, given: str, ended: bool
) -> None:
    """Also of a session without a kernel; its own files are not touched, whatever the replay does to its."""
    record(replaying, given, "w = open('in/a.csv', 'a').close")
    if ended:
        until(lambda: replaying.model(given)["state"] == "ended", "the session does not end")
    before = replaying.get(f"/v1/sessions/{given}/files").json()
    report = replay(replaying, given)
    assert restored(report) == ["in/a.csv"]
    assert verdicts(report)[0] == "equal"
    assert replaying.get(f"/v1/sessions/{given}/files").json() == before


def test_a_replay_that_writes_to_its_input_files_writes_to_copies(
    replaying: GatewayProcess, key: str
) -> None:
    put(replaying, key, "a.txt", b"first")
    record(replaying, key, "open('a.txt').read()", "import os\nif os.getenv('NEVER'): raise OSError")
    record(replaying, key, "f = open('a.txt', 'r+'); f.write('other'); f.close()")
    put(replaying, key, "a.txt", b"first", status=200)
    report = replay(replaying, key)
    assert report["files"] == [{"path": "a.txt", "restored": True}]
    assert verdicts(report) == ["equal"] * 3
    assert replaying.get(f"/v1/sessions/{key}/files/a.txt").body == b"first"


def test_the_page_tells_what_was_not_restored(replaying: GatewayProcess, given: str) -> None:
    answer = replaying.post(f"/v1/sessions/{given}/replay?format=html", timeout=100)
    text = Page(answer.body.decode()).text
    assert "Input files" in text
    assert "not restored: It is not there any more." in text
    assert "not restored: It is not what it was" in text


def test_the_command_takes_input_files_from_a_bundle_or_from_beside_the_notebook(
    replaying: GatewayProcess, given: str, tmp_path: Path
) -> None:
    (tmp_path / "b.zip").write_bytes(replaying.get(f"/v1/sessions/{given}/bundle").body)
    done = call(replaying, tmp_path, "b.zip", "-o", "report.json")
    assert done.stderr == ""
    assert "file in/a.csv: restored" in done.stdout
    assert restored(json.loads((tmp_path / "report.json").read_text())) == ["in/a.csv"]

    export(replaying, given, tmp_path / "a.ipynb")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_bytes(b"a,b\n")
    (tmp_path / "changed").write_bytes(b"4")
    (tmp_path / "link").symlink_to("in/a.csv")
    done = call(replaying, tmp_path, "a.ipynb", "-o", "report.json")
    assert done.stderr.startswith("missing beside a.ipynb: ")
    assert "in/a.csv" not in done.stderr
    assert f". Copy what is missing to {tmp_path}, or replay a bundle" in done.stderr
    where = f"--data-dir {replaying.data_dir}"
    assert f"cellgate export {given} -o a.zip {where} && cellgate replay a.zip {where}\n" in done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert restored(report) == ["in/a.csv"]
    assert verdicts(report)[0] == "equal"


@pytest.mark.parametrize("path", ["../secret", "/etc/hostname", "a/../../secret", ""])
def test_a_notebook_can_t_name_a_file_outside_of_its_folder(
    replaying: GatewayProcess, key: str, tmp_path: Path, path: str
) -> None:
    record(replaying, key, "1")
    folder = tmp_path / "notebooks"
    folder.mkdir()
    (tmp_path / "secret").write_bytes(b"secret")
    data = Path(path).read_bytes() if path.startswith("/") else b"secret"
    named = {"path": path, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    export(replaying, key, folder / "a.ipynb", input_files=[named])
    done = call(replaying, folder, "a.ipynb", "-o", "report.json")
    assert done.returncode == 0, done.stderr
    [file] = json.loads((folder / "report.json").read_text())["files"]
    assert not file["restored"]


@pytest.mark.parametrize("told", [1, ["a"], [{"path": 1}], [{}]])
def test_a_list_of_input_files_that_makes_no_sense_is_refused(told: object) -> None:
    with pytest.raises(InvalidInput, match="list of input files"):
        input_files({"metadata": {"cellgate": {"input_files": told}}})


# ---- the environment


@pytest.mark.parametrize(
    ("then", "now", "agreement", "changes"),
    [
        (
            {"python": "3.13.1", "packages": {"a": "1"}},
            {"python": "3.13.1", "packages": {"a": "1"}},
            "same",
            [],
        ),
        ({"packages": {"A_b.c": "1"}}, {"packages": {"a-b-c": "1"}}, "same", []),
        ({"python": "3.13.1", "packages": {}}, {"python": "3.13.2", "packages": {}}, "different", ["python"]),
        (
            {"packages": {"a": "1", "b": "1"}},
            {"packages": {"b": "2", "c": "1"}},
            "different",
            ["a", "b", "c"],
        ),
        ({"packages": {"a": "1.0-RC1"}}, {"packages": {"a": "1.0rc1"}}, "same", []),
        ({"packages": {"a": "1\n-r x", "b": "1"}}, {"packages": {"b": "1"}}, "different", [LEFT_OUT]),
        ({"packages": {"-r": "1"}}, {"packages": {}, "packages_left_out": 1}, "same", []),
        ({"packages": {}, "python": "3\x1b[31m"}, {"packages": {}}, "same", []),
        (None, {"packages": {}}, "unknown", []),
        ({"python": "3.13.1"}, {"packages": {}}, "unknown", []),
        ("3.13", {"packages": {}}, "unknown", []),
        ({"packages": {}}, None, "unknown", []),
    ],
)
def test_locks_are_compared(then: object, now: object, agreement: str, changes: list[str]) -> None:
    check = compare_locks(lock_of(then), lock_of(now))
    assert (check.agreement, [change.name for change in check.changes]) == (agreement, changes)


@pytest.mark.parametrize(
    "package",
    [
        {"name": "-r", "version": "1"},
        {"name": "a", "version": "1\n--index-url=http://127.0.0.1/"},
        {"name": "a @ http://127.0.0.1/a.whl", "version": "1"},
        {"name": "a", "version": "9" * 5000},
        {"name": "a", "version": 1},
        {"name": "a"},
        "a",
    ],
)
def test_a_notebook_s_installed_packages_are_packages(package: object) -> None:
    good = {"name": "Good_One", "version": "1.0-RC1", "requested": True}
    with pytest.raises(InvalidInput):
        installed_packages({"metadata": {"cellgate": {"installed_packages": [good, package]}}})
    packages = installed_packages({"metadata": {"cellgate": {"installed_packages": [good]}}})
    assert pins(packages) == (["Good_One==1.0rc1"], ["Good_One==1.0rc1"])


def call(gateway: GatewayProcess, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """``cellgate replay``."""
    return cellgate("replay", *words, f"--data-dir={gateway.data_dir}", cwd=folder, timeout=100)


def export(gateway: GatewayProcess, key: str, path: Path, **metadata: object) -> None:
    """The session's notebook, with other metadata of Cellgate's."""
    notebook = gateway.get(f"/v1/sessions/{key}/notebook").json()
    notebook["metadata"]["cellgate"] |= metadata
    path.write_text(json.dumps(notebook))


def test_the_command_replays_a_file_and_tells_by_its_exit_code(
    replaying: GatewayProcess, key: str, tmp_path: Path
) -> None:
    record(replaying, key, *SAME, CHANGING[0])
    export(replaying, key, tmp_path / "a.ipynb")
    done = call(replaying, tmp_path, "a.ipynb", "-o", "report.html")
    assert done.returncode == 0, done.stderr
    assert "4 the same, 0 different, 0 not to be judged, 0 not compared" in done.stdout
    assert "~ cell 4: memory addresses" in done.stdout
    assert "gives what it gave" in Page((tmp_path / "report.html").read_text()).text

    replaying.execute(key, "input('? ')", stdin=["answer"])
    record(replaying, key, CHANGING[2])
    export(replaying, key, tmp_path / "a.ipynb")
    done = call(replaying, tmp_path, "a.ipynb", "-o", "report.json")
    assert done.returncode == 3, (done.stdout, done.stderr)
    assert "? cell 5: It asks for input, and a replay has nobody to answer." in done.stdout
    assert "? cell 6: stdout: it differs in what may change from run to run" in done.stdout
    assert "4 the same, 0 different, 2 not to be judged, 0 not compared" in done.stdout
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["verdict"], report["unjudged"]) == ("unjudged", 2)

    record(replaying, key, RANDOM, NOISY)
    export(replaying, key, tmp_path / "a.ipynb")
    done = call(replaying, tmp_path, "a.ipynb", "-o", "report.json", "--rtol", "1e-5")
    assert done.returncode == 1, done.stderr
    assert "! cell 7: stdout: the text differs" in done.stdout
    assert "~ cell 8: numbers within 1e-05" in done.stdout
    assert json.loads((tmp_path / "report.json").read_text())["different"] == 1
    done = call(replaying, tmp_path, "a.ipynb", "--rtol", "2")
    assert (done.returncode, "rtol" in done.stderr) == (2, True)
    models = replaying.get("/v1/sessions?limit=1000").json()["sessions"]
    assert {m["state"] for m in models if m["session"].startswith("replay-")} == {"ended"}


def test_displays_that_later_cells_change_are_compared_as_they_are_in_the_end(
    replaying: GatewayProcess, key: str, tmp_path: Path
) -> None:
    record(
        replaying,
        key,
        "from IPython.display import display, update_display; print('a'); display(1, display_id='here')",
        "update_display(8, display_id='here')",
        "bar = display('0 %', display_id=True)",
        "for each in range(3): bar.update(f'{each} %')",
    )
    report = replay(replaying, key)
    assert verdicts(report) == ["equal"] * 4
    # As another program saves it.
    notebook = replaying.get(f"/v1/sessions/{key}/notebook").json()
    assert notebook["cells"][0]["outputs"][1]["data"] == {"text/plain": ["8"]}
    del notebook["metadata"]["cellgate"]
    for cell in notebook["cells"]:
        del cell["metadata"]["cellgate"]
    (tmp_path / "a.ipynb").write_text(json.dumps(notebook))
    done = call(replaying, tmp_path, "a.ipynb", "--anyway")
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert "4 the same, 0 different, 0 not to be judged, 0 not compared" in done.stdout


def test_where_nothing_ran_nothing_is_the_same(replaying: GatewayProcess, key: str, tmp_path: Path) -> None:
    assert replaying.post("/v1/sessions", {"session": key}).status == 201
    report = replaying.post(f"/v1/sessions/{key}/replay", {}).json()
    assert (report["verdict"], report["cells"]) == ("unjudged", [])
    export(replaying, key, tmp_path / "a.ipynb")
    done = call(replaying, tmp_path, "a.ipynb", "-o", "report.html")
    assert done.returncode == 3
    assert done.stderr == "No cell was compared: there are none.\n"
    assert "No cell was compared" in Page((tmp_path / "report.html").read_text()).text


def test_a_cell_that_might_run_longer_where_it_was_recorded_is_replayed(
    replaying: GatewayProcess, key: str, start_gateway: StartGateway, tmp_path: Path
) -> None:
    body = {"session": key, "limits": {"cell_timeout": 500}}
    assert replaying.post("/v1/sessions", body).status == 201
    replaying.execute(key, "1 + 1")
    export(replaying, key, tmp_path / "a.ipynb")
    strict = start_gateway(pool_size=0, max_cell_timeout=60)
    done = call(strict, tmp_path, "a.ipynb", "--anyway")
    assert done.returncode == 0, done.stderr


def test_another_environment_is_refused_unless_it_is_wanted_anyway(
    replaying: GatewayProcess, key: str, tmp_path: Path
) -> None:
    record(replaying, key, "1")
    export(replaying, key, tmp_path / "same.ipynb")
    lock = json.loads((tmp_path / "same.ipynb").read_text())["metadata"]["cellgate"]
    done = call(replaying, tmp_path, "same.ipynb")
    assert (done.returncode, done.stderr) == (0, "")
    assert "environment same" in done.stdout

    export(replaying, key, tmp_path / "other.ipynb", packages={**lock["packages"], "ipykernel": "0.1"})
    done = call(replaying, tmp_path, "other.ipynb")
    assert done.returncode == 2
    assert "ipykernel 0.1 -> " in done.stderr
    assert "--anyway" in done.stderr
    done = call(replaying, tmp_path, "other.ipynb", "--anyway")
    assert (done.returncode, done.stderr) == (0, "")
    assert "environment different" in done.stdout


OF_OTHERS = {
    "import time\nfor n in range(3):\n    print(f'\\rstep {n}', end='')\nprint()": [
        {"output_type": "stream", "name": "stdout", "text": ["\rstep 0\rstep 1", "\rstep 2\n"]}
    ],
    "1 / 0": [
        {
            "output_type": "error",
            "ename": "ZeroDivisionError",
            "evalue": "division by zero",
            "traceback": [
                "\x1b[0;31m-----\x1b[0m",
                "\x1b[0;32m<ipython-input-2-9e16a8d2e0a4>\x1b[0m in \x1b[0;36m<module>\x1b[0;34m\x1b[0m",
            ],
        }
    ],
    "40 + 2": [{"output_type": "pyout", "text": "42"}],
    "40 + 3": [{"output_type": "execute_result", "data": {"text/plain": 43}}],
}
"""Cells as nbclient, IPython 7 and old programs left them."""


def test_each_cell_of_a_notebook_of_others_has_a_verdict(replaying: GatewayProcess, tmp_path: Path) -> None:
    cells = [{"cell_type": "code", "source": source, "outputs": of} for source, of in OF_OTHERS.items()]
    (tmp_path / "a.ipynb").write_text(json.dumps({"nbformat": 4, "cells": cells}))
    done = call(replaying, tmp_path, "a.ipynb")
    assert (done.returncode, done.stderr) == (1, "")
    assert "~ cell 1: overwritten text" in done.stdout
    assert "! cell 2: error: the text differs" in done.stdout
    assert "-<cell> in <module>" in done.stdout
    assert "? cell 3: Its outputs in the notebook can't be compared: output 1 is of a kind" in done.stdout
    assert "= cell 4" in done.stdout


def test_text_like_an_old_traceback_does_not_break_a_session_s_replay(
    replaying: GatewayProcess, key: str
) -> None:
    name = "print('<ipython-input-1-' + os.urandom(6).hex() + '> in <module>')"
    record(replaying, key, f"import os; {name}", "40 + 2")
    report = replay(replaying, key)
    assert verdicts(report) == ["normalised", "equal"]
    assert report["cells"][0]["normalised"] == ["execution counts"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "no notebook"),
        ("PK\x05\x06" + "\0" * 18, "no bundle"),
        ('{"nbformat": 3}', "not a valid notebook"),
        ('{"nbformat": 5}', "not a notebook of nbformat 4"),
        ("[]", "no notebook"),
    ],
)
def test_a_file_that_is_no_notebook_is_refused(
    replaying: GatewayProcess, tmp_path: Path, content: str, said: str
) -> None:
    (tmp_path / "a.ipynb").write_text(content)
    done = call(replaying, tmp_path, "a.ipynb")
    assert done.returncode == 2
    assert said in done.stderr


def test_no_job_s_process_is_left(replaying: GatewayProcess, key: str) -> None:
    record(replaying, key, "1")
    replay(replaying, key)

    def jobs() -> int:
        count = 0
        for child in psutil.Process(replaying.process.pid).children():
            with suppress(psutil.NoSuchProcess):  # or a zombie: it has ended
                count += "cellgate.replay.report" in child.cmdline()
        return count

    until(lambda: not jobs(), "a job's process is left")
