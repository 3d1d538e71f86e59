"""Sessions that end by themselves, as their page tells it; a page in use keeps its session."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.clients.console.using import act, altered, editor, expect, show
from tests.support.server import GatewayProcess, until

pytestmark = pytest.mark.usefixtures("quiet")


def end_of(gateway: GatewayProcess, session: str) -> dict[str, str]:
    ends: dict[str, str] = gateway.get(f"/v1/sessions/{session}").json()["ends"]
    return ends


def moment(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def test_an_end_is_told_before_and_put_off(page: Any, console: GatewayProcess) -> None:
    console.post("/v1/sessions", {"session": "soon", "limits": {"idle_timeout": 200}})
    show(page, "soon")
    told = page.get_by_label("New cell")
    expect(told).to_contain_text("This session ends in 3 min")
    first = moment(end_of(console, "soon")["at"])
    until(lambda: moment(end_of(console, "soon")["at"]) == first, "the end moves")
    page.wait_for_timeout(1100)
    told.get_by_role("button", name="Keep it").click()
    until(lambda: moment(end_of(console, "soon")["at"]) > first, "the session was not kept")


def test_a_sleep_is_told_before_and_put_off(page: Any, console: GatewayProcess) -> None:
    console.post("/v1/sessions", {"session": "drowsy"})
    moments: list[str] = []

    def tell(model: dict[str, Any]) -> dict[str, Any]:
        # No machine of tests has swap of its own; the rest of the answer is the gateway's.
        at = datetime.now(UTC) + timedelta(seconds=200)
        moments.append(at.strftime("%Y-%m-%dT%H:%M:%SZ"))
        return model | {"sleeps_at": moments[0]}

    altered(page, "drowsy", tell)
    show(page, "drowsy")
    told = page.get_by_label("New cell")
    expect(told).to_contain_text("This session falls asleep in 3 min")
    expect(told).to_contain_text("Its variables stay, and its next cell wakes it.")
    expect(told).not_to_contain_text("This session ends")
    first = moment(end_of(console, "drowsy")["at"])
    page.wait_for_timeout(1100)
    # The answer is waited for with the page's means: `tell` is called for this request, too.
    with page.expect_response(lambda response: response.request.method == "PATCH"):
        told.get_by_role("button", name="Keep it awake").click()
    assert moment(end_of(console, "drowsy")["at"]) > first
    page.unroute_all(behavior="wait")


def test_what_follows_the_idle_time_is_chosen_where_the_kernel_can_sleep(
    page: Any, console: GatewayProcess
) -> None:
    console.post("/v1/sessions", {"session": "dozer", "limits": {"lifetime": 7200}})
    # As above: whether a kernel of the tests can sleep is the machine's matter.
    altered(page, "dozer", lambda model: model | {"can_sleep": True})
    show(page, "dozer")
    act(page, "dozer", "Title and times")
    dialog = page.get_by_role("dialog")
    choice = dialog.get_by_label("After that")
    expect(choice).to_have_value("sleep")
    expect(choice.get_by_role("option")).to_have_text(
        ["It falls asleep: variables stay", "It ends: variables are lost"]
    )
    expect(dialog).to_contain_text("sleeps until its lifetime of 2 h is over or others need its room.")
    choice.select_option("end")
    with page.expect_response(lambda response: response.request.method == "PATCH"):
        dialog.get_by_role("button", name="Save").click()
    assert console.model("dozer")["limits"]["on_idle"] == "end"
    page.reload()
    expect(editor(page)).to_be_visible()
    act(page, "dozer", "Title and times")
    expect(choice).to_have_value("end")
    choice.select_option("sleep")
    with page.expect_response(lambda response: response.request.method == "PATCH"):
        dialog.get_by_role("button", name="Save").click()
    assert console.model("dozer")["limits"]["on_idle"] == "sleep"
    page.unroute_all(behavior="wait")


def test_no_sleep_is_offered_where_the_kernel_can_not_sleep(page: Any, console: GatewayProcess) -> None:
    console.post("/v1/sessions", {"session": "sleepless"})
    altered(page, "sleepless", lambda model: {name: model[name] for name in model if name != "can_sleep"})
    show(page, "sleepless")
    act(page, "sleepless", "Title and times")
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_label("Seconds without use until it ends")).to_be_visible()
    expect(dialog).to_contain_text("Its variables are lost then; its files and its record stay.")
    expect(dialog.get_by_label("After that")).to_have_count(0)
    page.unroute_all(behavior="wait")


def test_a_lifetime_is_told_without_a_way_to_keep_it(page: Any, console: GatewayProcess) -> None:
    console.post("/v1/sessions", {"session": "mortal", "limits": {"lifetime": 250}})
    show(page, "mortal")
    told = page.get_by_label("New cell")
    expect(told).to_contain_text("its lifetime of 4 min 10 s is over")
    expect(told.get_by_role("button", name="Keep it")).to_have_count(0)


def test_a_page_in_use_keeps_its_session(page: Any, console: GatewayProcess) -> None:
    console.post("/v1/sessions", {"session": "read"})
    page.clock.install()
    show(page, "read")
    first = moment(end_of(console, "read")["at"])
    page.wait_for_timeout(1100)
    page.mouse.move(200, 200)
    assert moment(end_of(console, "read")["at"]) == first
    page.clock.fast_forward(61_000)
    page.mouse.move(300, 300)
    until(lambda: moment(end_of(console, "read")["at"]) > first, "the session was not kept")
    expect(page.get_by_label("New cell")).not_to_contain_text("This session ends")


def test_an_ended_session_says_what_is_left(page: Any, console: GatewayProcess) -> None:
    console.execute("idled", "x = 1")
    show(page, "idled")
    console.request("PATCH", "/v1/sessions/idled", {"limits": {"idle_timeout": 0.2}})
    told = page.get_by_label("New cell")
    expect(told).to_contain_text("its session was not used. Its variables are gone; its files")
    console.execute("dropped", "x = 1")
    show(page, "dropped")
    console.delete("/v1/sessions/dropped")
    expect(told).to_contain_text("Its variables and files are gone; its record stays.")
