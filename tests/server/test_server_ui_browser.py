"""The page ``/ui`` in a browser: what it shows, what its keys do, and what it says without a node.

All waits are for something in the page; none is for a time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from browser import browser, tab
from playwright.sync_api import Browser, Locator, Page, Route, expect
from scripted_server import MODEL, GatedEngine, RunningServer, running_server

from quire.core.config import ServerConfig, TenantConfig
from quire.core.ids import TenantId

HOSTILE = "<img src=x onerror=\"document.title='broken in'\">"
KEYS = {name: f"key-of-{name}-0123456789" for name in "ab"}

ECHO = '''
from quire.programs.inferlet import inferlet

@inferlet()
async def echo(api):
    """Sends back what it gets."""
    while True:
        await api.send(await api.receive())
'''


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as running:
        yield running


@pytest.fixture(scope="module")
def node() -> Iterator[RunningServer]:
    config = ServerConfig(allow_native_upload=True, drain_timeout_s=1.0)
    with running_server(config) as running:
        yield running


@pytest.fixture
def page(chromium: Browser, node: RunningServer) -> Iterator[Page]:
    with tab(chromium) as page:
        yield page


@pytest.fixture
def api(node: RunningServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=node.url, timeout=60) as http:
        yield http


def session(api: httpx.Client, name: str, parent: str | None = None) -> None:
    headers = {"x-quire-program-id": name} | ({"x-quire-parent-id": parent} if parent else {})
    body = {"model": MODEL, "prompt": "say yes", "max_tokens": 8}
    api.post("/v1/completions", json=body, headers=headers).raise_for_status()


def launch(api: httpx.Client, name: str) -> str:
    answer = api.post("/v1/programs", json={"source": ECHO, "client_id": name})
    answer.raise_for_status()
    return str(answer.json()["id"])


def visit(page: Page, node: RunningServer) -> None:
    page.goto(f"{node.url}/ui")
    expect(page.locator("#link")).to_have_text("live")


def line(page: Page, name: str) -> Locator:
    label = page.locator(".label", has_text=re.compile(f"^{re.escape(name)}$"))
    return page.locator("[data-process]").filter(has=label)


def names(page: Page) -> list[str]:
    """In the order in which they stand on the screen."""
    lines = page.locator("[data-process]").all()
    found = {int(one.get_attribute("aria-rowindex") or 0): one for one in lines}
    return [found[index].locator(".label").inner_text() for index in sorted(found)]


def choose(page: Page, text: str) -> None:
    page.get_by_role("searchbox", name="Filter programs").fill(text)


# -- what it shows ---------------------------------------------------------------------------------


def test_programs_appear_and_go_while_one_looks(
    page: Page, node: RunningServer, api: httpx.Client
) -> None:
    visit(page, node)
    session(api, "while-open")
    expect(line(page, "while-open").locator(".state")).to_have_text("idle")
    expect(line(page, "while-open").locator(".c-form")).to_have_text("session")
    api.delete("/v1/sessions/while-open").raise_for_status()
    expect(line(page, "while-open")).to_have_count(0)


def test_what_a_program_is_called_is_text(
    page: Page, node: RunningServer, api: httpx.Client
) -> None:
    launch(api, HOSTILE)
    visit(page, node)
    choose(page, "onerror")
    expect(line(page, HOSTILE)).to_be_visible()
    line(page, HOSTILE).click()
    expect(page.locator("#panel h2")).to_have_text(HOSTILE)
    page.get_by_role("button", name="End…").click()
    expect(page.locator("#confirm-dialog .question")).to_contain_text(HOSTILE)
    expect(page.locator("img")).to_have_count(0)
    assert page.title().endswith("Quire")


def test_why_a_program_waits_and_what_stands_in_the_message_it_waits_behind(
    chromium: Browser,
) -> None:
    engine = GatedEngine()
    with (
        running_server(load=lambda: engine) as node,
        httpx.Client(base_url=node.url, timeout=60) as api,
        ThreadPoolExecutor(2) as clients,
        tab(chromium) as page,
    ):
        visit(page, node)
        engine.gate.clear()
        try:
            clients.submit(session, api, "in-message")
            assert engine.arrived.wait(60)
            words = page.locator(".message-words")
            expect(words).to_contain_text(re.compile("now 1 decode, 1 chunk, [0-9]+ tokens"))
            expect(line(page, "in-message").locator(".state")).to_have_text("running")
            clients.submit(session, api, "behind")
            expect(line(page, "behind").locator(".state")).to_have_text("its turn")
            line(page, "behind").click()
            expect(page.locator("#panel .reason")).to_contain_text(
                "the next batch message to the engine"
            )
        finally:
            engine.gate.set()
        expect(line(page, "behind").locator(".state")).to_have_text("idle")
        expect(page.locator(".message-words")).to_contain_text("no batch message in flight")


def test_an_engine_shows_its_pages_by_tier(
    page: Page, node: RunningServer, api: httpx.Client
) -> None:
    session(api, "fills-pages")
    visit(page, node)
    card = page.locator(".engine")
    expect(card.locator("h3")).to_have_text("scripted#0")
    expect(card.locator(".engine-state")).to_have_text("ready")
    device = card.get_by_role("img", name=re.compile("^device, 1,024 pages: [0-9]+ held"))
    expect(device).to_be_visible()
    squares = device.locator(".free").get_attribute("d") or ""
    assert squares.count("M") > 100, "it is empty but for a few pages"


def test_families_are_trees_that_fold(page: Page, node: RunningServer, api: httpx.Client) -> None:
    for name, parent in (("root", None), ("child", "root"), ("grandchild", "child")):
        session(api, name, parent)
    visit(page, node)
    page.keyboard.press("t")
    expect(line(page, "root")).to_have_attribute("aria-level", "1")
    expect(line(page, "child")).to_have_attribute("aria-level", "2")
    expect(line(page, "grandchild")).to_have_attribute("aria-level", "3")
    line(page, "root").locator(".fold").click()
    expect(line(page, "child")).to_have_count(0)
    expect(line(page, "root")).to_have_attribute("aria-expanded", "false")
    page.keyboard.press("ArrowRight")
    expect(line(page, "grandchild")).to_have_count(1)
    page.keyboard.press("Enter")
    page.locator("#panel .family button", has_text="child").click()
    expect(page.locator("#panel h2")).to_have_text("child")


def test_keys_mark_and_open_where_nothing_has_the_focus(
    page: Page, node: RunningServer, api: httpx.Client
) -> None:
    """As behind the dialog that asks for the key."""
    session(api, "by-key")
    visit(page, node)
    choose(page, "by-key")
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("ArrowDown")
    expect(line(page, "by-key")).to_have_attribute("aria-selected", "true")
    page.keyboard.press("Enter")
    expect(page.locator("#panel h2")).to_have_text("by-key")


def test_a_click_on_a_heading_sorts_and_another_one_turns_it_round(
    page: Page, node: RunningServer, api: httpx.Client
) -> None:
    for name in ("sorted-b", "sorted-a", "sorted-c"):
        session(api, name)
    visit(page, node)
    choose(page, "sorted-")
    heading = page.get_by_role("columnheader", name="Program")
    heading.get_by_role("button").click()
    expect(heading).to_have_attribute("aria-sort", "ascending")
    expect(page.locator("[data-process]")).to_have_count(3)
    assert names(page) == ["sorted-a", "sorted-b", "sorted-c"]
    heading.get_by_role("button").click()
    expect(heading).to_have_attribute("aria-sort", "descending")
    assert names(page) == ["sorted-c", "sorted-b", "sorted-a"]
    page.get_by_role("treegrid").focus()
    page.keyboard.press("s")
    form = page.get_by_role("columnheader", name="Form")
    expect(form).to_have_attribute("aria-sort", "ascending")
    expect(heading).not_to_have_attribute("aria-sort", re.compile("."))


def test_a_thousand_programs_are_few_elements(chromium: Browser) -> None:
    tenant = TenantId("default")
    with running_server() as node, tab(chromium) as page:

        def create() -> None:
            for number in range(1000):
                node.node.create_session(tenant, f"many-{number:04}")

        node.call(create)
        visit(page, node)
        grid = page.get_by_role("treegrid")
        expect(grid).to_have_attribute("aria-rowcount", "1001")
        page.get_by_role("columnheader", name="Program").get_by_role("button").click()
        expect(line(page, "many-0000")).to_be_visible()
        assert page.locator("[data-process]").count() < 60
        grid.focus()
        page.keyboard.press("End")
        expect(line(page, "many-0999")).to_be_in_viewport()
        expect(line(page, "many-0999")).to_have_attribute("aria-selected", "true")
        expect(line(page, "many-0000")).to_have_count(0)
        assert page.locator("[data-process]").count() < 60


def test_a_click_is_meant_for_the_line_on_which_it_began(
    page: Page, node: RunningServer, api: httpx.Client
) -> None:
    session(api, "moving-1")
    session(api, "moving-2")
    visit(page, node)
    choose(page, "moving-")
    heading = page.get_by_role("columnheader", name="Program")
    heading.get_by_role("button").click()
    expect(heading).to_have_attribute("aria-sort", "ascending")
    line(page, "moving-1").hover()
    page.mouse.down()
    page.evaluate("document.querySelector('.head .c-name button').click()")
    expect(heading).to_have_attribute("aria-sort", "descending")
    page.mouse.up()
    expect(page.locator("#panel h2")).to_have_text("moving-1")


# -- keys ------------------------------------------------------------------------------------------


def test_it_can_be_used_without_a_mouse(page: Page, node: RunningServer, api: httpx.Client) -> None:
    for name in ("keyed-1", "keyed-2"):
        session(api, name)
    visit(page, node)
    page.get_by_role("columnheader", name="Program").get_by_role("button").click()
    page.keyboard.press("/")
    page.keyboard.type("keyed-")
    page.keyboard.press("Enter")
    grid = page.get_by_role("treegrid")
    expect(grid).to_be_focused()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    expect(line(page, "keyed-2")).to_have_attribute("aria-selected", "true")
    marked = line(page, "keyed-2").get_attribute("id") or ""
    expect(grid).to_have_attribute("aria-activedescendant", marked)
    page.keyboard.press("Enter")
    expect(page.get_by_role("complementary")).to_be_focused()
    expect(page.locator("#panel h2")).to_have_text("keyed-2")
    grid.focus()
    page.keyboard.press("ArrowUp")
    expect(page.locator("#panel h2")).to_have_text("keyed-1")
    page.keyboard.press("Escape")
    expect(page.locator("#panel")).to_be_hidden()
    expect(grid).to_be_focused()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_be_visible()


def test_a_program_is_ended_only_after_a_yes(
    page: Page, node: RunningServer, api: httpx.Client
) -> None:
    program = launch(api, "to-end")
    visit(page, node)
    choose(page, "to-end")
    line(page, "to-end").click()
    page.keyboard.press("k")
    expect(page.locator("#confirm-dialog .question")).to_contain_text("to-end")
    page.keyboard.press("Enter")
    expect(page.locator("#said")).to_have_text("Nothing was ended.")
    page.keyboard.press("k")
    page.get_by_role("button", name="Yes").click()
    expect(line(page, "to-end")).to_have_count(0)
    expect(page.locator("#panel .reason")).to_have_text(
        "It was cancelled: program 'echo': cancelled by its owner"
    )
    assert api.get(f"/v1/programs/{program}").json()["ended"] is not None


def test_of_a_program_that_fails_while_it_is_open_the_reason_is_shown(
    page: Page, node: RunningServer, api: httpx.Client
) -> None:
    source = ECHO.replace("echo", "to_fail").replace("await api.send", "raise ValueError")
    program = api.post("/v1/programs", json={"source": source}).json()["id"]
    visit(page, node)
    choose(page, "to_fail")
    line(page, "to_fail").click()
    api.post(f"/v1/programs/{program}/signal", json={"signal": "message", "message": "<b>no</b>"})
    expect(page.locator("#panel .reason")).to_have_text(
        "It has failed: program 'to_fail' raised ValueError: <b>no</b>"
    )


def test_those_that_have_ended_are_listed_with_their_outcomes(
    page: Page, node: RunningServer, api: httpx.Client
) -> None:
    source = ECHO.replace("await api.send", "raise ValueError")
    failed = api.post("/v1/programs", json={"source": source, "client_id": "long-ago"}).json()["id"]
    api.post(f"/v1/programs/{failed}/signal", json={"signal": "message", "message": "<b>no</b>"})
    session(api, "open-session")
    later = launch(api, "just-now")
    visit(page, node)
    chip = page.locator("#states").get_by_role("button", name="ended")
    chip.click()
    expect(line(page, "long-ago").locator(".state")).to_have_text("failed")
    expect(line(page, "just-now")).to_have_count(0)
    expect(line(page, "open-session")).to_have_count(0)
    line(page, "long-ago").click()
    expect(page.locator("#panel .reason")).to_have_text(
        "It has failed: program 'echo' raised ValueError: <b>no</b>"
    )
    expect(page.locator("#panel .actions button")).to_have_count(0)
    expect(page.locator("#panel dt", has_text="Tokens generated")).to_be_visible()
    expect(page.locator("#panel dt", has_text="Blocks on device")).to_be_hidden()
    api.delete(f"/v1/programs/{later}").raise_for_status()
    expect(line(page, "just-now").locator(".state")).to_have_text("cancelled")
    kept = [one for one in api.get("/v1/programs").json()["data"] if one.get("ended")]
    expect(chip.locator("b")).to_have_text(str(len(kept)))
    page.locator("#filter").fill("failed")
    expect(line(page, "just-now")).to_have_count(0)
    expect(line(page, "long-ago")).to_be_visible()
    chip.click()
    expect(line(page, "long-ago")).to_have_count(0)


def test_a_message_gets_into_a_mailbox_and_a_session_can_be_ended(
    page: Page, node: RunningServer, api: httpx.Client
) -> None:
    program = launch(api, "reads")
    visit(page, node)
    line(page, "reads").click()
    page.get_by_role("button", name="Send message…").click()
    page.get_by_role("textbox", name="Message").fill("hello")
    page.get_by_role("button", name="Send", exact=True).click()
    expect(page.locator("#said")).to_contain_text("is in its mailbox")
    with api.stream("GET", f"/v1/programs/{program}/events") as events:
        said = next(text for text in events.iter_lines() if text.startswith("data: "))
        assert json.loads(said.removeprefix("data: "))["text"] == "hello"
    session(api, "to-close")
    line(page, "to-close").click()
    page.get_by_role("button", name="End session…").click()
    page.get_by_role("button", name="Yes").click()
    expect(line(page, "to-close")).to_have_count(0)


# -- the timeline ----------------------------------------------------------------------------------


def call(arrival: float, end: float | None, outcome: str | None, **fields: Any) -> dict[str, Any]:
    return {
        "kind": "decode",
        "arrival": arrival,
        "sent": arrival + 1,
        "first_token": None if end is None else end - 1,
        "end": end,
        "outcome": outcome,
        "waiting_s": 1.0,
        "num_prefilled_tokens": 30,
        "num_cached_tokens": 12,
        "num_generated_tokens": 5,
        "num_preemptions": 0,
        "error": None,
        **fields,
    }


def trace(*calls: dict[str, Any]) -> dict[str, Any]:
    """Of a program that waited for a tool between its first two calls, and was swapped out."""
    message = {"engine": "scripted#0", "number": 7, "num_commands": 2, "num_tokens": 31}
    swap = {"direction": "out", "tier": "host", "num_blocks": 4, "lost": False}
    swap |= {"start": 1011.0, "end": 1012.0}
    waits = [{"start": 1010.0, "end": 1020.0}]
    program = {"calls": list(calls), "waits": waits, "transfers": [swap], "end": None}
    messages = [message | {"start": 1001.0, "end": 1010.0}]
    return {"time": 1040.0, "programs": [program], "messages": messages}


def test_a_timeline_is_the_nodes_own_record(
    page: Page, node: RunningServer, api: httpx.Client
) -> None:
    for _ in range(2):
        session(api, "traced")
    visit(page, node)
    line(page, "traced").click()
    expect(page.locator(".calls tbody tr")).to_have_count(2)
    expect(page.locator(".readout")).to_contain_text("2 calls, ")
    session(api, "traced")
    expect(page.locator(".calls tbody tr")).to_have_count(3)


def test_a_timeline_has_calls_waits_swaps_and_messages(
    page: Page, node: RunningServer, api: httpx.Client
) -> None:
    lost = {"code": "engine_lost", "message": "<b>lost</b>"}
    told = trace(
        call(1000.0, 1010.0, "done"),
        call(1020.0, 1030.0, "failed", error=lost),
        call(1025.0, None, None),
    )
    page.route("**/v1/programs/*/trace", lambda route: route.fulfill(json=told))
    session(api, "with-trace")
    visit(page, node)
    line(page, "with-trace").click()
    drawn = page.locator(".timeline-drawing")
    expect(drawn.locator(".answer")).to_have_count(2)
    expect(drawn.locator(".failed")).to_have_count(2)
    words = "data-words"
    expect(drawn.locator(".wait")).to_have_attribute(words, "tool, client or own code: 10.0 s")
    expect(drawn.locator(".swap")).to_have_attribute(words, "4 pages to the host, 1.0 s")
    expect(drawn.locator(".carried")).to_have_attribute(words, re.compile("^message 7 of scripted"))
    rows = page.locator(".calls tbody tr")
    expect(rows).to_have_count(3)
    expect(rows.nth(1)).to_have_text(re.compile("^decode, failed.*10.0 s42 [+] 5$"))
    drawn.locator(".failed").first.hover()
    expect(page.locator(".readout")).to_contain_text("<b>lost</b>")
    page.get_by_role("button", name="10 s").click()
    expect(drawn.locator(".failed")).to_have_count(1)
    expect(drawn.locator(".wait")).to_have_count(0)


def test_a_node_without_a_record_of_calls_says_so(
    page: Page, node: RunningServer, api: httpx.Client
) -> None:
    page.route("**/v1/programs/*/trace", lambda route: route.fulfill(status=404, json={}))
    session(api, "without-trace")
    visit(page, node)
    line(page, "without-trace").click()
    expect(page.locator("#panel .note")).to_contain_text("keeps no record of it")


# -- keys of the node ------------------------------------------------------------------------------


def test_it_asks_for_a_key_keeps_it_for_the_tab_and_shows_the_tenant_its_own(
    chromium: Browser,
) -> None:
    tenants = [TenantConfig(TenantId(name), api_keys=(key,)) for name, key in KEYS.items()]
    with running_server(ServerConfig(drain_timeout_s=1.0), tenants) as node, tab(chromium) as page:
        for name, key in KEYS.items():
            headers = {"authorization": f"Bearer {key}"}
            with httpx.Client(base_url=node.url, timeout=60, headers=headers) as api:
                session(api, f"of-{name}")
        sent: list[str] = []
        page.on("request", lambda request: sent.append(request.url))
        page.goto(f"{node.url}/ui")
        dialog = page.get_by_role("dialog", name="API key")
        expect(dialog).to_contain_text("asks for an API key")
        for key, answer in (("wrong", "does not know the key"), (KEYS["a"], None)):
            dialog.get_by_label("Key").fill(key)
            page.keyboard.press("Enter")
            if answer is not None:
                expect(dialog).to_contain_text(answer)
        expect(page.locator("#link")).to_have_text("live")
        expect(line(page, "of-a")).to_be_visible()
        expect(line(page, "of-b")).to_have_count(0)
        page.reload()
        expect(line(page, "of-a")).to_be_visible()
        assert not any("key-of" in url for url in sent)


# -- without a node --------------------------------------------------------------------------------


def test_it_says_that_the_node_has_gone_and_is_there_again_with_it(chromium: Browser) -> None:
    with tab(chromium) as page:
        with running_server() as first, httpx.Client(base_url=first.url, timeout=60) as api:
            session(api, "before")
            visit(page, first)
            expect(line(page, "before")).to_be_visible()
        expect(page.locator("#link")).not_to_have_text("live")
        expect(page.locator("#notice")).to_be_visible()
        expect(page.locator("body")).to_have_class(re.compile("stale"))
        with running_server(port=first.port) as again:
            expect(page.locator("#link")).to_have_text("live")
            expect(page.locator("#notice")).to_be_hidden()
            expect(line(page, "before")).to_have_count(0)
            with httpx.Client(base_url=again.url, timeout=60) as api:
                session(api, "after")
            expect(line(page, "after")).to_be_visible()


def test_a_node_that_is_older_than_the_page_is_told_from_one_that_is_gone(
    page: Page, node: RunningServer
) -> None:
    def answer(route: Route) -> None:
        route.fulfill(content_type="application/json", body="{}")

    page.route("**/v1/programs/changes", answer)
    page.goto(f"{node.url}/ui")
    expect(page.locator("#notice")).to_contain_text("older than this page")


# -- windows ---------------------------------------------------------------------------------------


def test_what_an_empty_table_says_is_below_its_head(chromium: Browser, node: RunningServer) -> None:
    for width in (360, 1280):
        with tab(chromium, width=width, height=640) as page:
            visit(page, node)
            page.locator("#filter").fill("no program has this name")
            said, head = page.locator("#empty"), page.get_by_role("columnheader").first
            expect(said).to_be_visible()
            box, above = said.bounding_box(), head.bounding_box()
            assert box is not None
            assert above is not None
            assert box["y"] >= above["y"] + above["height"], width


def test_a_narrow_window_shows_what_matters(
    chromium: Browser, node: RunningServer, api: httpx.Client
) -> None:
    session(api, "narrow")
    with tab(chromium, width=360, height=640) as page:
        visit(page, node)
        choose(page, "narrow")
        expect(line(page, "narrow").locator(".c-state")).to_be_visible()
        expect(line(page, "narrow").locator(".c-tenant")).to_be_hidden()
        width = page.evaluate("document.documentElement.scrollWidth")
        assert width <= 360
        line(page, "narrow").click()
        box = page.locator("#panel").bounding_box()
        assert box is not None
        assert (box["x"], box["width"]) == (0, 360)
        page.get_by_role("button", name="Close").click()
        expect(page.locator("#panel")).to_be_hidden()


def test_the_id_of_a_program_with_a_long_name_is_in_sight(
    chromium: Browser, node: RunningServer, api: httpx.Client
) -> None:
    """Names with one beginning are told apart by it where the window is narrow."""
    names = [f"an-agent-of-which-there-are-many-with-a-long-name-{index}" for index in "12"]
    for name in names:
        session(api, name)
    with tab(chromium, width=420, height=800) as page:
        visit(page, node)
        choose(page, "an-agent-of-which")
        for name in names:
            expect(line(page, name)).to_be_visible()
            cell = line(page, name).locator(".c-name").bounding_box()
            known = line(page, name).locator(".id").bounding_box()
            assert cell is not None
            assert known is not None
            assert known["width"] > 0
            assert known["x"] + known["width"] <= cell["x"] + cell["width"]
            expect(line(page, name).locator(".id")).to_contain_text("prog-")
            expect(line(page, name).locator(".id-prefix")).to_be_hidden()
    with tab(chromium, width=1280, height=800) as page:
        visit(page, node)
        expect(line(page, names[0]).locator(".id-prefix")).to_be_visible()


@pytest.mark.parametrize(("scheme", "is_dark"), [("light", False), ("dark", True)])
def test_it_is_dark_where_the_system_is(
    chromium: Browser, node: RunningServer, scheme: str, is_dark: bool
) -> None:
    with tab(chromium, scheme=scheme) as page:
        visit(page, node)
        color = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, re.findall(r"\d+", color)[:3])) < 3 * 128) is is_dark


# -- modules ---------------------------------------------------------------------------------------


def test_events_are_read_wherever_their_bytes_are_cut(page: Page, node: RunningServer) -> None:
    visit(page, node)
    text = ': alive\n\nid: 1-2\ndata: {"name": "ü"}\n\ndata: [DONE]\n\ndata: cut off'
    read = page.evaluate(
        """async (text) => {
            const { readEvents } = await import("/ui/event_reader.js");
            const bytes = new TextEncoder().encode(text);
            const found = [];
            for (let size = 1; size <= bytes.length; size += 1) {
                const body = new ReadableStream({
                    start(stream) {
                        for (let at = 0; at < bytes.length; at += size) {
                            stream.enqueue(bytes.slice(at, at + size));
                        }
                        stream.close();
                    },
                });
                const events = [];
                for await (const event of readEvents(body)) {
                    events.push(event);
                }
                found.push(JSON.stringify(events));
            }
            return found;
        }""",
        text,
    )
    events: list[dict[str, Any]] = json.loads(read[0])
    assert events == [
        {"id": "", "data": ""},
        {"id": "1-2", "data": '{"name": "ü"}'},
        {"id": "", "data": "[DONE]"},
    ]
    assert set(read) == {read[0]}


def test_every_kind_of_page_has_a_square_and_all_squares_are_used(
    page: Page, node: RunningServer
) -> None:
    visit(page, node)
    spread = """async (amounts) => {
        const { spread } = await import("/ui/page_map.js");
        return spread(amounts, 192);
    }"""
    assert page.evaluate(spread, [3, 0, 100]) == [3, 0, 100], "a square is a page"
    squares = page.evaluate(spread, [1, 0, 5000, 20])
    assert sum(squares) == 192
    assert squares[:2] == [1, 0]
    assert 1 <= squares[3] < squares[2]


def test_what_the_node_has_forgotten_has_no_number_here(page: Page, node: RunningServer) -> None:
    visit(page, node)
    found = page.evaluate(
        """async () => {
        const { EndedPrograms } = await import("/ui/ended_programs.js");
        let kept = [];
        const ended = new EndedPrograms({ programs: async () => kept }, () => {});
        const record = (id, parent) => ({ id, parent, name: id, client_id: null, ended: 2,
                                          created: 1, form: "inferlet" });
        const seen = new Set();
        for (let look = 0; look < 50; look += 1) {
            kept = [record(`p${look}`, "above"), record(`p${look + 1}`, null)];
            await ended.read(Infinity);
            [...ended.rows.keys()].forEach((number) => seen.add(number));
        }
        return { known: ended.numKnown, shown: ended.rows.size, seen: seen.size };
    }"""
    )
    assert found == {"known": 3, "shown": 2, "seen": 51}


def test_a_filter_finds_the_node_of_a_program(page: Page, node: RunningServer) -> None:
    visit(page, node)
    found = page.evaluate(
        """async () => {
        const { linesOf } = await import("/ui/order.js");
        const row = (process, node) => ({ process, node, id: `p${process}`, name: "",
            client_id: null, tenant: "t", form: "inferlet", engines: [], wait: null,
            service_s: 0 });
        const view = { sort: "service", filter: "NODE-B", state: null, tree: false };
        return linesOf([row(1, "node-a"), row(2, "node-b"), row(3)], view, 0)
            .map((line) => line.row.process);
    }"""
    )
    assert found == [2]


def test_an_engine_that_comes_up_later_stands_where_it_belongs(
    page: Page, node: RunningServer
) -> None:
    visit(page, node)
    found = page.evaluate(
        """async () => {
        const { EngineCards } = await import("/ui/engine_cards.js");
        const list = document.createElement("ul");
        const cards = new EngineCards(list);
        const figures = ["num_running", "num_waiting", "num_blocks", "num_held_blocks",
            "num_cached_blocks", "num_host_blocks", "num_free_host_blocks",
            "num_cached_host_blocks", "num_disk_blocks", "num_free_disk_blocks",
            "num_cached_disk_blocks"];
        const engine = (name) => ({ engine: name, state: "ready", detail: "", messages: [],
            step_s: null, ...Object.fromEntries(figures.map((one) => [one, 0])) });
        const looks = [["m#0", "m#1", "m#10"], ["m#1", "m#10"], ["m#0", "m#1", "m#2", "m#10"]];
        for (const names of looks) {
            cards.show({ engines: names.map(engine), rates: new Map() }, undefined);
        }
        return [...list.children].map((card) => card.querySelector("h3").textContent);
    }"""
    )
    assert found == ["m#0", "m#1", "m#2", "m#10"]
