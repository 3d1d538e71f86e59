"""Outputs that try to read, to leave, to send, to freeze and to deceive, in a real browser."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.clients.console.attacks import NAVIGATING, READING, SENDING, script
from tests.clients.console.listeners import Listeners
from tests.clients.console.mounting import display, framed, markup, mount, stream, wait_until
from tests.support.browser import OPTIONS, Browsers, link, opened, program
from tests.support.server import PATIENCE, GatewayProcess, until

UDP = {"udp-stun": "peer('stun:HOST')", "udp-turn": "peer('turn:HOST')"}
ALL = {**UDP, **SENDING}
NESTED = {"udp-nested": "inner(`<script>(${peer})('stun:HOST')<\\/script>`)"}
"""Chromium 156 ends the process of the outputs for it, and the driver then takes the page for crashed."""
DONE = "\nglobalThis.done = true;"
AHEAD = "--disable-background-networking"


def document(code: str) -> str:
    """A page, or the markup of an output, that runs this."""
    escaped = code.replace("</script", "<\\/script")
    return f"<p>hostile</p><script>{escaped}</script>"


def attempts(listeners: Listeners, ways: dict[str, str]) -> str:
    return script({name: (listeners.url(name), code) for name, code in ways.items()}) + DONE


@pytest.fixture(scope="module")
def browser(browsers: Browsers) -> Any:
    """All that users have: what is tried here may be a matter of any part of it."""
    return browsers.get(whole=True)


@pytest.fixture
def outside() -> Iterator[Listeners]:
    """What outputs try to reach."""
    with Listeners([*ALL, *NAVIGATING, *NESTED]) as listeners:
        yield listeners


class Unprotected:
    """Pages that try the same without any protection, in the same browser."""

    def __init__(self, page: Any) -> None:
        self._page = page

    def reach_all(self, ways: dict[str, str], *, together: bool) -> None:
        """Try each of them, and wait until all have arrived: then those of outputs would have as well."""
        with Listeners([*ways, "server"]) as listeners:
            groups = [ways] if together else [{name: code} for name, code in ways.items()]
            for number, group in enumerate(groups):
                listeners.pages[f"/{number}"] = document(attempts(listeners, group))
            opened = []
            for number in range(len(groups)):
                opened.append(self._page.context.new_page())
                opened[-1].goto(listeners.url("server", f"/{number}"), wait_until="commit")
            missing = listeners.wait(ways, PATIENCE)
            for each in [*self._page.context.pages]:
                if each is not self._page:
                    each.close()
            assert missing == set(), "these prove nothing: they do not even work without protection"


def inside(page: Any, number: int = 0) -> Any:
    """The frame of an output, once its script has run."""
    framed(page, number).locator("p").first.wait_for()
    frames = [frame for frame in page.frames if frame.parent_frame is not None and "frame.html" in frame.url]
    frames[number].wait_for_function("globalThis.done")
    return frames[number]


def test_nothing_is_sent(page: Any, outside: Listeners) -> None:
    code = attempts(outside, ALL)
    mount(
        page,
        markup(document(code)),
        display({"application/javascript": f"{code}; element.innerHTML = '<p>x</p>'"}),
    )
    for number in range(2):
        inside(page, number)
    Unprotected(page).reach_all(ALL, together=True)
    assert outside.reached == set()


def test_no_nested_document_sends_either(page: Any, console: GatewayProcess, outside: Listeners) -> None:
    page.evaluate("setInterval(() => fetch('console/nothing'), 200) && 0")
    mount(page, markup(document(attempts(outside, NESTED))))
    with opened(page.context.browser) as other:
        Unprotected(other).reach_all(NESTED, together=True)
    assert outside.reached == set()
    # The page has survived whatever became of the output.
    seen = not_found(console)
    until(lambda: not_found(console) > seen, otherwise="the page asks nothing more")


def not_found(gateway: GatewayProcess) -> int:
    """How often the gateway has answered 404."""
    text = gateway.get("/metrics").body.decode()
    found = re.search(r'^cellgate_http_responses_total{status="404"} (\d+)', text, re.MULTILINE)
    assert found is not None
    return int(found[1])


NAMES = """
for (const rel of ["dns-prefetch", "preconnect", "prefetch"])
  put(`<link rel="${rel}" href="//${rel}-${U}/">`);
put(`<meta http-equiv="x-dns-prefetch-control" content="on">`);
peer(`stun:stun-${U}`);
"""
LOOKS_AHEAD = {"net": {"network_prediction_options": 0}, "dns_prefetching": {"enabled": True}}
"""Preferences of a profile: Debian turns looking ahead off, other distributors of the browser do not."""


def test_no_name_is_looked_up(browser: Any, console: GatewayProcess, tmp_path: Path) -> None:
    """Whoever has a domain's name server sees each name that is asked for."""
    log, profile = tmp_path / "network.json", tmp_path / "profile"
    (profile / "Default").mkdir(parents=True)
    (profile / "Default" / "Preferences").write_text(json.dumps(LOOKS_AHEAD))
    options = [each for each in OPTIONS if each != AHEAD]
    options += [f"--log-net-log={log}", "--net-log-capture-mode=Everything"]
    with (
        closing(
            browser.browser_type.launch_persistent_context(
                profile, executable_path=program(whole=True), args=options, ignore_default_args=[AHEAD]
            )
        ) as context,
        Listeners(["server"], {"/": document(script({"names": ("control.example.org", NAMES)}))}) as server,
    ):
        page = context.new_page()
        page.goto(link(console))
        mount(page, markup(document(script({"names": ("output.example.org", NAMES)}) + DONE)))
        inside(page)
        control = context.new_page()
        control.goto(server.url("server", "/"))
        control.wait_for_load_state("networkidle")
    seen = log.read_text(errors="replace")
    names = [f"{kind}-{{}}.example.org" for kind in ("dns-prefetch", "preconnect", "prefetch", "stun")]
    assert [name for name in names if name.format("control") not in seen] == []
    assert "output.example.org" not in seen


BEGUN = """() => {
  window.begun = new Set();
  addEventListener("message", ({ data, source }) => data?.begun && begun.add(source));
}"""


def test_nothing_leads_away(page: Any, outside: Listeners) -> None:
    came: list[str] = []
    page.context.on("page", lambda opened: came.append(opened.url))
    address = page.url
    page.evaluate(BEGUN)
    codes = [attempts(outside, {name: code}) for name, code in NAVIGATING.items()]
    mount(page, *(markup(document(f"parent.postMessage({{ begun: true }}, '*'); {code}")) for code in codes))
    wait_until(page, "(count) => begun.size === count", arg=len(codes))
    assert came == []
    Unprotected(page).reach_all(NAVIGATING, together=False)
    assert outside.reached == set()
    assert page.url == address
    assert page.evaluate("document.querySelector('#mounted') !== null")


def test_nothing_is_read(page: Any) -> None:
    tried = ", ".join(f"[{name!r}, async () => ({code})]" for name, code in READING.items())
    code = f"""
      globalThis.found = {{}};
      const trying = async ([name, read]) => {{
        try {{ await read(); found[name] = "read"; }}
        catch (error) {{ found[name] = error.name ?? "refused"; }}
      }};
      Promise.all([{tried}].map(trying)).then(() => (globalThis.done = true));
    """
    mount(page, markup("<p>another</p><script>globalThis.done = true</script>"), markup(document(code)))
    inside(page, 0)
    found = inside(page, 1).evaluate("found")
    assert set(found) == set(READING)
    assert [name for name, outcome in found.items() if outcome == "read"] == []


def test_an_output_has_no_origin_and_stays_without_on_our_own_pages(
    page: Any, console: GatewayProcess
) -> None:
    asked: list[Any] = []
    page.on("request", lambda request: asked.append((request.frame, request.url)))
    mount(
        page,
        markup(document(DONE)),
        markup(document("location = new URL('../v1/me', location)")),
        markup(document("location = new URL('frame.html?again', location)")),
    )
    assert inside(page).evaluate("self.origin") == "null"
    again = page.frame(url=lambda url: url.endswith("frame.html?again"))
    while again is None:
        page.wait_for_timeout(50)
        again = page.frame(url=lambda url: url.endswith("frame.html?again"))
    assert again.evaluate("self.origin") == "null"
    of_frames = {url for frame, url in asked if frame.parent_frame is not None}
    assert [url for url in of_frames if "/console/" not in url] == []


def test_dialogs_downloads_and_prints_do_not_come_up(page: Any) -> None:
    came: list[str] = []
    page.on("dialog", lambda dialog: (came.append(dialog.type), dialog.dismiss()))
    page.on("download", lambda download: came.append("download"))
    code = """
      alert(1); confirm(1); prompt(1); print();
      addEventListener("beforeunload", (event) => event.preventDefault());
      const link = document.createElement("a");
      link.href = URL.createObjectURL(new Blob(["x"]));
      link.download = "x.txt";
      link.click();
    """
    mount(page, markup(document(code + DONE)))
    inside(page)
    mount(page, stream("gone"))
    page.get_by_text("gone").wait_for()
    assert came == []


def test_messages_that_say_nothing_change_nothing(page: Any) -> None:
    code = """
      const nested = document.createElement("iframe");
      nested.srcdoc = "<script>top.postMessage({ height: 1200 }, '*');</scr" + "ipt>";
      nested.onload = () => (globalThis.done = true);
      const send = (message) => parent.postMessage(message, "*");
      for (const height of ["900", NaN, Infinity, -1, null, {}, [900], true]) send({ height });
      send(null); send("height"); send(900); send({ draw: {} }); send({ theme: "dark" });
      send({ link: 7 }); send({ link: "javascript:alert(1)" });
      document.body.append(nested);
    """
    place = mount(page, markup(document(code)))
    inside(page)
    page.wait_for_timeout(1500)
    assert place.locator(".out-frame").bounding_box()["height"] < 400
    assert place.locator(".out-link").count() == 0


OPEN_PEER = """
window.RTCPeerConnection = class {
  createDataChannel() {}
  close() {}
  async setLocalDescription() {
    this.iceGatheringState = "complete";
    this.onicegatheringstatechange();
  }
};
"""


def test_where_a_browser_leaves_webrtc_open_outputs_wait_for_the_readers_word(page: Any) -> None:
    page.add_init_script(OPEN_PEER)
    page.reload()
    place = mount(page, markup("<p>drawn</p>"), markup("<p>drawn, too</p>"), stream("text"))
    place.get_by_text("can't keep outputs that run scripts from WebRTC").nth(1).wait_for()
    assert place.locator("iframe").count() == 0
    place.get_by_role("button", name="Draw such outputs").first.click()
    framed(page, 0).get_by_text("drawn").wait_for()
    framed(page, 1).get_by_text("drawn, too").wait_for()


def test_a_height_is_limited(page: Any) -> None:
    place = mount(page, markup("<div style='height: 9000000px'>high</div>"), stream("below"))
    framed(page).get_by_text("high").wait_for()
    wait_until(page, "document.querySelector('.out-place').offsetHeight > 1000")
    assert place.locator(".out-frame").bounding_box()["height"] == 2400


def test_an_output_that_floods_the_page_is_stopped(page: Any) -> None:
    flood = "setInterval(() => { for (let n = 0; n < 500; n += 1) parent.postMessage({height: n}, '*'); }, 1)"
    place = mount(page, markup(document(flood)), stream("below"))
    place.get_by_text("sent more messages").wait_for()
    assert place.locator("iframe").count() == 0
    place.get_by_role("button", name="Draw it again").click()
    place.get_by_text("sent more messages").wait_for()


@pytest.mark.nightly
def test_an_endless_loop_freezes_neither_the_page_nor_other_outputs_for_long(page: Any) -> None:
    place = mount(page, markup("<p>harmless</p>"), markup(document("globalThis.begun = 1; for (;;);")))
    framed(page).get_by_text("harmless").wait_for()
    # The page answers while the loop runs.
    assert page.evaluate("1 + 1") == 2
    place.get_by_text("kept its process busy").wait_for(timeout=2000 * PATIENCE)
    assert place.get_by_text("This output was stopped").count() == 1
    framed(page).get_by_text("harmless").wait_for(timeout=1000 * PATIENCE)


def test_an_output_draws_within_its_place_only(page: Any) -> None:
    cover = "position: fixed; inset: -2000px; z-index: 2147483647; background: red"
    mount(page, stream("above"), markup(f"<p>in</p><div style='{cover}'>cover</div>"), stream("below"))
    framed(page).get_by_text("cover").wait_for()
    assert page.evaluate(AROUND).count("IFRAME") == 1


AROUND = """() => {
  const { left, top, bottom } = document.querySelector(".out-place").getBoundingClientRect();
  const at = (y) => document.elementFromPoint(left + 20, y).nodeName;
  return [at(top - 4), at((top + bottom) / 2), at(bottom + 4)];
}"""

RENDERED = {
    "text/markdown": "![x](U) <img src='U'> <style>@import 'U';</style>",
    "text/latex": r"$\includegraphics{U} \href{U}{x} \url{U} \htmlStyle{background:url(U)}{x}$",
    "application/vnd.vegalite.v5+json": {
        "data": {"url": "U"},
        "mark": {"type": "image"},
        "encoding": {"url": {"value": "U"}},
    },
    "application/vnd.vega.v5+json": {
        "width": 50,
        "height": 50,
        "data": [{"name": "d", "values": [{"a": 1}]}],
        "signals": [{"name": "s", "init": "[].constructor.constructor('fetch(\"U\")')()"}],
        "marks": [{"type": "image", "from": {"data": "d"}, "encode": {"enter": {"url": {"value": "U"}}}}],
    },
    "application/vnd.plotly.v1+json": {
        "data": [{"type": "scatter", "x": [1], "y": [1]}, {"type": "scattergeo", "lon": [1], "lat": [1]}],
        "layout": {"images": [{"source": "U", "x": 0, "y": 1, "sizex": 1, "sizey": 1}]},
        "config": {"topojsonURL": "U", "plotlyServerURL": "U"},
    },
    "image/svg+xml": (
        "<svg xmlns='http://www.w3.org/2000/svg' width='9' height='9' onload=\"fetch('U')\">"
        "<image href='U' width='9' height='9'/><style>@import 'U';</style><script href='U'/></svg>"
    ),
}


def test_renderers_fetch_nothing(page: Any) -> None:
    with Listeners(["renderers", "control"]) as listeners:
        url = listeners.url("renderers")
        mount(page, *(display({mime: _with(value, url)}) for mime, value in RENDERED.items()))
        for number in range(5):
            page.locator("iframe.out-frame").nth(number).scroll_into_view_if_needed()
            framed(page, number).locator("#output > *").first.wait_for(
                state="attached", timeout=2000 * PATIENCE
            )
        page.wait_for_timeout(1000)
        control = page.context.new_page()
        control.goto(listeners.url("control"))
        control.close()
        assert listeners.reached == {"control"}


def _with(value: Any, url: str) -> Any:
    """The same with the address in it."""
    if isinstance(value, str):
        return value.replace("U", url)
    if isinstance(value, list):
        return [_with(each, url) for each in value]
    return {key: _with(each, url) for key, each in value.items()} if isinstance(value, dict) else value
