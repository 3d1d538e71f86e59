"""The page's pure modules, each by itself, in the browser that they are for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from cellgate_kernels.protocol.outputs import strip_ansi
from tests.support.browser import link, opened
from tests.support.server import GatewayProcess


@pytest.fixture(scope="module")
def page(console: GatewayProcess, browser: Any) -> Iterator[Any]:
    """One page for all of them: what is under test keeps nothing."""
    with opened(browser) as shown:
        shown.goto(link(console))
        yield shown


def run(page: Any, module: str, body: str, given: Any = None) -> Any:
    """What the body of a function returns; `its` is the module, `given` the argument."""
    code = f"""async (given) => {{
      const its = await import(new URL("console/app/{module}", document.baseURI).href);
      {body}
    }}"""
    return page.evaluate(code, given)


# ---- outputs ----------------------------------------------------------------------------------------------

REDUCED = "return given.reduce((shown, event) => its.reduce(shown, event), its.NOTHING)"


def reduced(page: Any, *events: dict[str, Any]) -> Any:
    """The outputs that these events make, without what only the reducer needs."""
    shown = run(page, "cell_outputs.js", REDUCED, list(events))
    kept = {"kind", "name", "text", "data", "metadata", "display_id", "ename", "evalue", "traceback"}
    return [{name: value for name, value in each.items() if name in kept} for each in shown["outputs"]]


def text(*pieces: str, name: str = "stdout") -> list[dict[str, Any]]:
    return [{"type": "stream", "name": name, "text": piece} for piece in pieces]


def shown(value: str, **others: Any) -> dict[str, Any]:
    return {"type": "display_data", "data": {"text/plain": value}, "metadata": {}, **others}


def texts(outputs: list[dict[str, Any]]) -> list[str]:
    return [each["text"] if each["kind"] == "stream" else each["data"]["text/plain"] for each in outputs]


def test_text_of_one_stream_is_joined(page: Any) -> None:
    outputs = reduced(page, *text("a", "b\n"), *text("c", name="stderr"), *text("d"))
    assert [(each["name"], each["text"]) for each in outputs] == [
        ("stdout", "ab\n"),
        ("stderr", "c"),
        ("stdout", "d"),
    ]


@pytest.mark.parametrize(
    ("pieces", "seen"),
    [
        (["10 %\r", "20 %\r", "30 %\n"], "30 %\n"),
        (["10 %", "\r9 %"], "9 %%"),
        (["a\r", "\nb"], "a\nb"),
        (["typo\b\b", "pe"], "type"),
        (["\b\bx"], "x"),
        (["\x1b[31mred\r", "\x1b[32mgo"], "\x1b[32mgo"),
        (["kept\nlost\r", "won"], "kept\nwont"),
    ],
)
def test_lines_are_written_over_as_on_a_terminal(page: Any, pieces: list[str], seen: str) -> None:
    assert texts(reduced(page, *text(*pieces))) == [seen]


@pytest.mark.parametrize("mark", ["\b", "\r", "\b\r"])
def test_writing_over_a_long_line_looks_at_its_end_alone(page: Any, mark: str) -> None:
    """Of 900,000 characters each of a thousand pieces would look at all."""
    body = """
      const usual = String.prototype[Symbol.iterator];
      let looked = 0;
      String.prototype[Symbol.iterator] = function* () {
        for (const each of { [Symbol.iterator]: () => usual.call(this) }) { looked += 1; yield each; }
      };
      try {
        let shown = its.reduce(its.NOTHING, { type: "stream", name: "stdout", text: "x".repeat(900_000) });
        for (let number = 0; number < 1000; number += 1) {
          shown = its.reduce(shown, { type: "stream", name: "stdout", text: given + "y" });
        }
        return { looked, length: shown.outputs[0].text.length };
      } finally {
        String.prototype[Symbol.iterator] = usual;
      }
    """
    found = run(page, "cell_outputs.js", body, mark)
    assert found["looked"] < 1000 * 8300
    assert 899_000 <= found["length"] <= 901_000


def test_of_a_long_line_the_last_row_is_written_over(page: Any) -> None:
    assert texts(reduced(page, *text("a" * 8190 + "bbc", "\rd", "\b\b\be"))) == ["a" * 8190 + "bbe"]
    assert texts(reduced(page, *text("a" * 8192 + "\r", "b"))) == ["a" * 8192 + "b"]
    assert texts(reduced(page, *text("a" * 8191 + "\r", "b"))) == ["b" + "a" * 8190]


@pytest.mark.parametrize(
    ("traceback", "line"),
    [
        (
            "\x1b[31mE\x1b[39m  Traceback\n\x1b[36mCell\x1b[39m In[2], line 7\n\nCell In[1], line 3, in f()",
            "7",
        ),
        ("E Traceback\nCell In[4], line 9\n\nFile lib.py:5, in g()\n\nCell In[4], line 2, in f()", "2"),
        ("  Cell In[3], line 12\n    x =\n       ^\nSyntaxError: invalid syntax", "12"),
        ("Error: of another language\n    at line 5", None),
        ("", None),
    ],
)
def test_an_error_has_the_line_of_its_own_cell(page: Any, traceback: str, line: str | None) -> None:
    assert run(page, "../outputs/failure.js", "return its.lineOf(given) ?? null", traceback) == line


def test_of_an_error_no_more_is_read_than_the_line_that_is_shown(page: Any) -> None:
    body = """
      const usual = String.prototype.replace;
      let longest = 0;
      String.prototype.replace = function (...given) {
        longest = Math.max(longest, this.length);
        return usual.apply(this, given);
      };
      try {
        const evalue = "\\x1b[31mred\\x1b[0m" + "x".repeat(2_000_000);
        const made = its.Failure({ output: { ename: "Error", evalue, traceback: [] } });
        return { longest, made: JSON.stringify(made).slice(0, 300).includes("Error: red") };
      } finally {
        String.prototype.replace = usual;
      }
    """
    assert run(page, "../outputs/failure.js", body) == {"longest": 20_000, "made": True}


def test_returns_without_end_take_one_pass(page: Any) -> None:
    """Looked for from each of them to the last, they would take the square of their number."""
    outputs = reduced(page, *text("a" + "\r" * 400_000 + "b", "\r" * 400_000, "\r" * 400_000 + "\nc"))
    assert texts(outputs) == ["b\nc"]


def test_writing_over_takes_time_by_length_alone(page: Any) -> None:
    """Half a million characters that as many backspaces take, in one event: quadratic, it would never end."""
    assert texts(reduced(page, *text("a" * 450_000 + "\b" * 450_000 + "b"))) == ["b"]


def test_erasing_takes_time_by_length_alone(page: Any) -> None:
    """As long as it is little it is done; a text that erases a long row again and again is left as it is."""
    body = "return its.rows(given).map((row) => row.map((run) => run.text).join(''))"
    assert run(page, "../outputs/ansi.js", body, "12345\b\b\x1b[1K") == ["    5"]
    bomb = ("x" * 50_000 + "\b\b\x1b[1K\r") * 40
    assert run(page, "../outputs/ansi.js", body, bomb) == ["x" * 50_000]


@pytest.mark.parametrize(
    "given",
    [
        "open \x1b]8;;never closed\nLAST\n",
        "open \x1bPnever closed\nLAST\n",
        "open \x1b_G\nLAST\n",
        "open \x1b[31\nLAST\n",
        "open \x1b\nLAST\n",
        "a\x1b]0;title\x07b\x1b]8;;http://x\x1b\\c\x1b(0d\x1bce\x1b[1;31mf\x1b[0m",
        "\x1b]" * 9 + "\x1b\\x",
    ],
)
def test_a_sequence_without_end_hides_nothing(page: Any, given: str) -> None:
    """The page shows what the plain form of the result has."""
    body = """
      const shown = its.rows(given).map((row) => row.map((run) => run.text).join("")).join("\\n");
      return [shown, its.plain(given)];
    """
    assert run(page, "../outputs/ansi.js", body, given) == [strip_ansi(given), strip_ansi(given)]


def test_of_long_text_the_beginning_and_the_end_are_kept(page: Any) -> None:
    body = """
      let shown = its.NOTHING;
      for (let line = 0; line < 60_000; line += 1)
        shown = its.reduce(shown, {type: "stream", name: "stdout", text: `line ${line} ${given}\\n`});
      const [{text, left_out}] = shown.outputs;
      const mark = /\\n\\[[\\d,]+ characters are not shown here\\]\\n/.test(text);
      const ends = [text.slice(0, 7), text.trimEnd().split("\\n").at(-1)];
      return {length: text.length, left_out, mark, ends, most: its.MOST_TEXT};
    """
    line = "x" * 40
    kept = run(page, "cell_outputs.js", body, line)
    written = sum(len(f"line {number} {line}\n") for number in range(60_000))
    assert kept["ends"] == ["line 0 ", f"line 59999 {line}"]
    assert kept["mark"]
    assert kept["length"] < kept["most"] + 300_000
    assert abs(kept["length"] + kept["left_out"] - written) < 100


def test_outputs_are_cleared_at_once_or_with_the_next(page: Any) -> None:
    clear = {"type": "clear_output", "wait": True}
    assert texts(reduced(page, *text("a"), clear)) == ["a"]
    assert texts(reduced(page, *text("a"), clear, *text("b"))) == ["b"]
    assert texts(reduced(page, *text("a"), {"type": "clear_output", "wait": False})) == []


def test_an_update_changes_every_display_of_its_id(page: Any) -> None:
    update = {**shown("new", display_id="one"), "type": "update_display_data"}
    other = {**update, "display_id": "two"}
    outputs = reduced(
        page, shown("a", display_id="one"), shown("b"), shown("c", display_id="one"), update, other
    )
    assert texts(outputs) == ["new", "b", "new"]


def test_what_a_widget_shows_is_not_the_cells(page: Any) -> None:
    assert reduced(page, {**text("inside")[0], "widget": "c"}, *text("own")) == [
        {"kind": "stream", "name": "stdout", "text": "own"}
    ]


def test_a_result_is_read_as_its_events_are(page: Any) -> None:
    outputs = [
        {"output_type": "stream", "name": "stdout", "text": ["a\n", "b"]},
        {"output_type": "execute_result", "data": {"text/plain": "1"}, "metadata": {}, "execution_count": 1},
        {"output_type": "error", "ename": "E", "evalue": "v", "traceback": ["t"]},
    ]
    made = run(page, "cell_outputs.js", "return its.ofResult(given).outputs", outputs)
    assert [each["kind"] for each in made] == ["stream", "result", "error"]
    assert made[0]["text"] == "a\nb"


def test_a_text_that_a_result_has_cut_is_told_as_such(page: Any) -> None:
    """Where the rest of it is, the gateway says to programs; readers get a link."""
    mark = "[cellgate: 50000000 characters, cut here; GET /v1/sessions/s/executions/e/output/0 has them all]"
    body = "return its.ofResult(given).outputs.map(({ text, left_out }) => [text, left_out])"

    def read(text: str) -> Any:
        return run(page, "cell_outputs.js", body, [{"output_type": "stream", "name": "stdout", "text": text}])

    assert read(f"begin\n{mark}\nend\n") == [
        ["begin\n[49,999,991 characters are not shown here]\nend\n", 49_999_991]
    ]
    assert read("[cellgate: no mark]\n") == [["[cellgate: no mark]\n", 0]]


def test_a_list_of_outputs_is_never_changed(page: Any) -> None:
    body = """
      const one = its.reduce(its.NOTHING, given[0]);
      const before = JSON.stringify(one);
      const two = its.reduce(one, given[1]);
      return [one !== two, one.outputs !== two.outputs, JSON.stringify(one) === before,
              its.reduce(two, {type: "file"}) === two];
    """
    assert run(page, "cell_outputs.js", body, text("a", "b")) == [True, True, True, True]


# ---- cells ------------------------------------------------------------------------------------------------


def test_a_cell_is_made_of_its_events(page: Any) -> None:
    events = [
        {"type": "queued", "code": "input()", "position": 2, "at": "2026-01-01T00:00:00Z", "timeout": 5},
        {"type": "queued", "waiting_for": "kernel", "position": 1, "code": ""},
        {"type": "started", "code": "input()", "execution_count": 7, "at": "2026-01-01T00:00:01Z"},
        {"type": "input_request", "prompt": "name ", "password": False, "seq": 4},
        {"type": "input_reply", "prompt": "name ", "value": "Ada"},
        *text("hello"),
        {"type": "file", "path": "a.csv", "action": "created"},
        {"type": "finished", "status": "ok", "at": "2026-01-01T00:00:02Z", "duration_ms": 12.5, "kernel": {}},
    ]
    body = """
      const cells = [];
      let cell = its.unloaded("queued", null);
      for (const event of given) cells.push((cell = its.reduceCell(cell, event)));
      return cells;
    """
    cells = run(page, "cells.js", body, events)
    assert [each["status"] for each in cells] == ["queued"] * 2 + ["running"] * 5 + ["ok"]
    assert (cells[1]["code"], cells[1]["waitingFor"], cells[1]["position"]) == ("input()", "kernel", 1)
    assert cells[3]["asking"] == {"prompt": "name ", "password": False, "seq": 4}
    assert cells[4]["asking"] is None
    assert [each["text"] for each in cells[4]["shown"]["outputs"]] == ["name Ada\n"]
    assert (cells[7]["count"], cells[7]["durationMs"], cells[7]["timeout"]) == (7, 12.5, 5)
    assert cells[7]["files"] == [{"path": "a.csv", "action": "created"}]


def test_an_end_that_no_output_tells_of_is_told(page: Any) -> None:
    died = {"type": "finished", "status": "died", "cause": "out_of_memory", "kernel": {"replaced": True}}
    died["error"] = {"ename": "KernelDied", "evalue": "It ran out of memory.", "traceback": []}
    body = "return its.reduceCell(its.unloaded('running', null), given)"
    assert run(page, "cells.js", body, died)["problem"] == "It ran out of memory."
    body = """
      const failed = its.reduceCell(its.unloaded("running", null), {type: "error", ename: "E", evalue: "v"});
      return its.reduceCell(failed, given);
    """
    assert run(page, "cells.js", body, {**died, "status": "error"})["problem"] is None


def test_pieces_of_one_stream_are_condensed(page: Any) -> None:
    events = [
        {"seq": 1, "execution": "a", **text("1")[0]},
        {"seq": 2, "execution": "a", **text("2")[0]},
        {"seq": 3, "execution": "b", **text("3")[0]},
        {"seq": 4, "execution": "b", **text("4", name="stderr")[0]},
        {"seq": 5, "execution": "b", "type": "finished"},
        {"seq": 6, "execution": "b", **text("6", name="stderr")[0]},
    ]
    kept = run(page, "cells.js", "return its.condensed(given)", events)
    assert [(each["seq"], each.get("text")) for each in kept] == [
        (2, "12"),
        (3, "3"),
        (4, "4"),
        (5, None),
        (6, "6"),
    ]


# ---- lists ------------------------------------------------------------------------------------------------


def test_heights_tell_where_items_are(page: Any) -> None:
    body = """
      const heights = new its.Heights(100);
      const plain = Array.from({length: given}, (_, index) => 10 + (index * 7919) % 500);
      heights.grow(given / 2);
      for (let index = 0; index < given / 2; index += 1) heights.set(index, plain[index]);
      heights.grow(given);
      for (let index = given / 2; index < given; index += 1) heights.set(index, plain[index]);
      let sum = 0;
      for (let index = 0; index < given; index += 1) {
        if (heights.offset(index) !== sum) return `offset of ${index}`;
        if (heights.at(sum) !== index) return `beginning of ${index}`;
        if (heights.at(sum + plain[index] - 1) !== index) return `end of ${index}`;
        sum += plain[index];
      }
      if (heights.total !== sum) return "total";
      return [heights.at(-5), heights.at(sum + 5), heights.set(0, plain[0])];
    """
    assert run(page, "heights.js", body, 1000) == [0, 999, 0]


LIST = """
async () => {
  const at = (path) => new URL(`console/${path}`, document.baseURI).href;
  const { html, render } = await import(at("vendor/preact.js"));
  const { VirtualList } = await import(at("app/virtual_list.js"));
  const place = document.createElement("div");
  place.style.cssText = "position: fixed; inset: 0 auto auto 0; width: 300px; height: 400px; z-index: 1000";
  document.body.append(place);
  const items = Array.from({ length: 30 }, (_, number) => ({ id: `item-${number}` }));
  let atEnd = true;
  const props = {
    items,
    count: items.length,
    keyOf: (item) => item.id,
    draw: (item) => html`<article id=${item.id} style=${{ height: "100px" }} />`,
    onRange: () => undefined,
    onEnd: (is) => (atEnd = is),
    label: "Items",
    handle: { current: null },
  };
  render(html`<${VirtualList} ...${props} />`, place);
  const frames = async () => {
    for (let left = 4; left; left -= 1) await new Promise(requestAnimationFrame);
  };
  const box = place.querySelector(".feed-box");
  const last = () => place.querySelector("#item-29");
  const found = {};
  const note = async (name) => {
    await frames();
    found[name] = [atEnd, box.scrollHeight - box.clientHeight - box.scrollTop < 2];
  };
  await note("begun");
  // It has grown, and the list is told of a former step only now.
  last().style.height = "600px";
  box.dispatchEvent(new Event("scroll"));
  await note("grown");
  for (let steps = 100; steps; steps -= 1) {
    box.scrollTop -= 1;
    await new Promise(requestAnimationFrame);
  }
  await note("left");
  last().style.height = "700px";
  await note("grown below");
  place.remove();
  return found;
}
"""


def test_a_reader_is_at_the_end_until_they_leave_it(page: Any) -> None:
    assert page.evaluate(LIST) == {
        "begun": [True, True],
        "grown": [True, True],
        "left": [False, False],
        "grown below": [False, False],
    }


def test_a_list_is_filtered_and_ordered(page: Any) -> None:
    sessions = [
        {
            "session": "b",
            "title": None,
            "principal": "ada",
            "kernel": "python3",
            "state": "idle",
            "memory": 5,
        },
        {"session": "a", "title": "Plots", "principal": "bob", "kernel": "python3", "state": "busy"},
        {"session": "c", "title": None, "principal": "ada", "kernel": "bash", "state": "ended", "memory": 9},
    ]

    def found(search: str = "", state: str = "all", principal: str = "", column: str = "session") -> str:
        body = """
          const fit = given.sessions.filter((each) => its.fits(each, given.filter));
          return its.sorted(fit, given.order).map((each) => each.session).join("");
        """
        given = {
            "sessions": sessions,
            "filter": {"search": search, "state": state, "principal": principal},
            "order": {"column": column, "down": column == "memory"},
        }
        return str(run(page, "listing.js", body, given))

    assert found() == "bca"  # by what is shown: the title, where there is one
    assert found(state="live") == "ba"
    assert found(state="ended") == "c"
    assert found(search="PLOT") == "a"
    assert found(search="ada python") == "b"
    assert found(principal="ada") == "bc"
    assert found(column="memory") == "cba"


def test_processors_are_the_rise_of_their_time(page: Any) -> None:
    body = "return given.models.reduce((last, [at, model]) => its.withProcessors(model, last, at), null)"

    def used(*models: tuple[float, dict[str, Any]]) -> Any:
        return run(page, "listing.js", body, {"models": models}).get("processors")

    assert used((0, {"kernel_id": "k", "cpu": 1.0})) is None
    assert used((0, {"kernel_id": "k", "cpu": 1.0}), (2000, {"kernel_id": "k", "cpu": 4.0})) == 1.5
    assert used((0, {"kernel_id": "k", "cpu": 9.0}), (2000, {"kernel_id": "l", "cpu": 4.0})) is None
    steps = [(0, 1.0), (2000, 3.0), (2100, 3.1)]
    assert used(*((at, {"kernel_id": "k", "cpu": cpu}) for at, cpu in steps)) == 1.0


def test_a_measurement_that_is_told_twice_is_no_pause(page: Any) -> None:
    """A gateway for which measuring is dear tells the same for some seconds."""
    body = "return given.reduce((last, [at, model]) => its.withProcessors(model, last, at), null).processors"

    def used(state: str, *told: tuple[float, float]) -> Any:
        models = [(at, {"kernel_id": "k", "cpu": cpu, "state": state}) for at, cpu in told]
        return run(page, "listing.js", body, models)

    busy = [(0, 1.0), (2000, 3.0), (4000, 3.0), (6000, 3.0)]
    assert used("busy", *busy) == 1.0
    assert used("busy", *busy, (8000, 9.0)) == 1.0
    assert used("busy", *busy, (12_000, 3.0)) == 0
    assert used("idle", (0, 1.0), (2000, 1.0)) == 0
    assert used("idle", *busy) == 0


def test_a_folder_shows_what_is_in_it(page: Any) -> None:
    paths = ["b.txt", "data/", "data/x10.csv", "data/x9.csv", "data/deep/er/y", "a2", "a10"]
    files = [{"path": path, "size": 1} for path in paths]
    body = "return its.within(given.files, given.folder).map((each) => each.path)"
    assert run(page, "files.js", body, {"files": files, "folder": ""}) == ["data/", "a2", "a10", "b.txt"]
    assert run(page, "files.js", body, {"files": files, "folder": "data/"}) == [
        "data/deep/",
        "data/x9.csv",
        "data/x10.csv",
    ]


# ---- families ---------------------------------------------------------------------------------------------

TREE = {
    "session": "root",
    "ancestors": [],
    "branches": [
        {"session": "one", "branched_from": {"session": "root", "seq": 20}},
        {"session": "two", "branched_from": {"session": "root", "seq": 30}},
        {"session": "three", "branched_from": {"session": "one", "seq": 15}},
    ],
}


@pytest.mark.parametrize(
    ("one", "other", "common", "sides"),
    [
        ("one", "two", "root", [[("one", 0, None)], [("root", 20, 30), ("two", 0, None)]]),
        ("root", "one", "root", [[("root", 20, None)], [("one", 0, None)]]),
        (
            "three",
            "two",
            "root",
            [[("one", 0, 15), ("three", 0, None)], [("root", 20, 30), ("two", 0, None)]],
        ),
    ],
)
def test_sessions_part_where_the_earlier_branch_was_made(
    page: Any, one: str, other: str, common: str, sides: list[list[tuple[str, int, int | None]]]
) -> None:
    body = "return its.parted(its.nodes(given.tree, {}), given.one, given.other)"
    parted = run(page, "family.js", body, {"tree": TREE, "one": one, "other": other})
    assert parted["common"] == common
    found = [[(each["session"], each["after"], each["until"]) for each in side] for side in parted["sides"]]
    assert found == sides


# ---- words and addresses ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("its.bytes(0)", "0 B"),
        ("its.bytes(1536)", "1.5 KiB"),
        ("its.bytes(256 * 1024 ** 2)", "256 MiB"),
        ("its.duration(0.2)", "< 1 ms"),
        ("its.duration(1234)", "1.2 s"),
        ("its.duration(200_000)", "3 min 20 s"),
        ("its.clock(7500)", "2 h 5 min"),
        ("its.ago('2026-01-01T00:00:00Z', Date.parse('2026-01-01T00:03:10Z'))", "3 min"),
        ("its.ago('nonsense', 0)", ""),
        ("its.counted(1, 'cell')", "1 cell"),
        ("its.counted(10_000, 'cell')", "10,000 cells"),
        ("its.because('out_of_memory')", "the kernel ran out of memory"),
        ("its.because('something_new')", "something new"),
        ("its.because('interrupt_requested', null, 'ada')", "somebody interrupted it"),
        ("its.because('interrupt_requested', 'ada', 'ada')", "interrupted by you"),
        ("its.because('interrupt_requested', 'root\u202e', 'ada')", "interrupted by root\ufffd"),
    ],
)
def test_numbers_are_told_in_words(page: Any, call: str, words: str) -> None:
    assert run(page, "words.js", f"return {call}") == words


UNSEEN = "\xad\u034f\u115f\u1160\u3164\u180e\ufff9\ufffa\ufffb\U000e0000\U000e0041\U000e007f"


def test_names_can_not_pass_for_others(page: Any) -> None:
    given = ["a b-ü.csv", "invoice\u202efdp.exe", "two\nlines", "zero\u200bwidth", "long" * 100, *UNSEEN]
    shown = run(page, "words.js", "return given.map((name) => its.seen(name))", given)
    assert shown[:4] == ["a b-ü.csv", "invoice\ufffdfdp.exe", "two\ufffdlines", "zero\ufffdwidth"]
    assert len(shown[4]) == 301
    assert shown[5:] == ["\ufffd"] * len(UNSEEN)


@pytest.mark.parametrize(
    ("fragment", "route"),
    [
        ("", {"view": "sessions"}),
        ("#/", {"view": "sessions"}),
        ("#/gateway", {"view": "gateway"}),
        ("#/users", {"view": "users"}),
        ("#/sessions/a~b", {"view": "session", "session": "a~b", "execution": None, "principal": None}),
        (
            "#/sessions/a/e1?principal=b%20c",
            {"view": "session", "session": "a", "execution": "e1", "principal": "b c"},
        ),
        ("#/sessions/a/b/c", {"view": "unknown"}),
        ("#/%ff", {"view": "unknown"}),
    ],
)
def test_fragments_name_views(page: Any, fragment: str, route: dict[str, Any]) -> None:
    body = "const found = its.parse(given); return {...found, execution: found.execution ?? null}"
    found = run(page, "router.js", body, fragment)
    assert {name: found.get(name) for name in route} == route


@pytest.mark.parametrize(
    ("language", "source", "kinds"),
    [
        ("python", "def f(): # c", ["word:def", "comment:# c"]),
        ("python", "x = f'''a\nb''' + 0x1f", ["string:f'''a\nb'''", "number:0x1f"]),
        ("python", "s = 'never closed", ["string:'never closed"]),
        ("python", "%pip install x\ny % z", ["mark:%pip install x"]),
        ("javascript", "const a = `b` // c", ["word:const", "string:`b`", "comment:// c"]),
        ("bash", 'echo "$X" # c', ['string:"$X"', "comment:# c"]),
        ("cobol", "MOVE 1 TO X.", []),
    ],
)
def test_source_has_colours(page: Any, language: str, source: str, kinds: list[str]) -> None:
    pieces = run(
        page,
        "highlight.js",
        "return its.pieces(given.source, given.language)",
        {"source": source, "language": language},
    )
    assert "".join(piece for _, piece in pieces) == source
    assert [f"{kind}:{piece}" for kind, piece in pieces if kind] == kinds
