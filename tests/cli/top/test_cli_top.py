"""``quire top``: what keys do, what is drawn from given rows, and one look at a real node."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from cli_invoke import invoke
from rich.console import Console

from quire.cli.client import NodeClient
from quire.cli.top import command
from quire.cli.top.keys import keys_of
from quire.cli.top.screen import screen, seconds
from quire.cli.top.state import (
    BACKSPACE,
    DOWN,
    END,
    ENTER,
    ESCAPE,
    HOME,
    PAGE_DOWN,
    PAGE_UP,
    SORTS,
    UP,
    Kill,
    Quit,
    Signal,
    Snapshot,
    View,
    lines,
    pressed,
    state_of,
    told,
    waiting_s,
)
from quire.core.errors import EngineLost

NOW_S = 1000.0


def row(process: int, **fields: Any) -> dict[str, Any]:
    figures = (
        "num_calls",
        "num_queues",
        "num_pages",
        "num_device_blocks",
        "num_host_blocks",
        "num_disk_blocks",
        "num_generated_tokens",
        "num_prefilled_tokens",
        "num_cached_tokens",
        "num_encoded_tokens",
        "num_preemptions",
    )
    made: dict[str, Any] = {
        "process": process,
        "id": f"prog-{process:024x}"[:17],
        "parent": None,
        "form": "inferlet",
        "name": f"name{process}",
        "client_id": None,
        "tenant": "t",
        "state": "running",
        "wait": None,
        "level": 0.0,
        "engines": ["m#0"],
        **dict.fromkeys(figures, 0),
        **dict.fromkeys(("service_s", "path_s", "cost_s", "waiting_s"), 0.0),
        "created": NOW_S - process,
    }
    assert fields.keys() <= made.keys()
    return made | fields


def answer(*rows: dict[str, Any], **fields: Any) -> dict[str, Any]:
    engine = {
        "engine": "m#0",
        "model": "m",
        "state": "ready",
        "detail": "",
        "num_running": 2,
        "num_waiting": 1,
        "num_in_flight": 1,
        "messages": [{"num_decodes": 2, "num_chunks": 1, "num_tokens": 34, "num_steps": 1}],
        "num_blocks": 64,
        "num_held_blocks": 10,
        "num_cached_blocks": 0,
        "num_host_blocks": 8,
        "num_free_host_blocks": 8,
        "num_cached_host_blocks": 0,
        "num_disk_blocks": 0,
        "num_free_disk_blocks": 0,
        "num_cached_disk_blocks": 0,
        "num_tokens": fields.pop("num_tokens", 100),
        "step_s": 0.01,
    }
    node = {
        "ready": True,
        "detail": "",
        "policy": "plas",
        "time": fields.pop("time", NOW_S),
        "uptime_s": 70.0,
    }
    made = {"next": "1-1", "whole": True, "more": False, "ended": []}
    return {**made, "programs": list(rows), "engines": [engine], "node": node, **fields}


def snapshot_of(*rows: dict[str, Any]) -> Snapshot:
    return told(Snapshot(), answer(*rows))


def drawn(snapshot: Snapshot, view: View, width: int = 80, height: int = 24) -> list[str]:
    console = Console(width=width, height=height, color_system=None, markup=False, emoji=False)
    with console.capture() as captured:
        console.print(screen(snapshot, view, width, height))
    return captured.get().rstrip("\n").split("\n")


def order(snapshot: Snapshot, view: View) -> list[int]:
    return [one["process"] for one, _ in lines(snapshot, view)]


# -- what is known ---------------------------------------------------------------------------------


def test_changes_are_put_into_what_is_known_and_a_whole_answer_replaces_it() -> None:
    known = snapshot_of(row(1), row(2))
    later = answer(row(2, num_pages=7), whole=False, ended=[1], next="1-9")
    known = told(known, later)
    assert {process: one["num_pages"] for process, one in known.rows.items()} == {2: 7}
    assert known.next == "1-9"
    assert told(known, answer(row(3))).rows.keys() == {3}


def test_engines_stand_in_the_order_of_their_numbers() -> None:
    said = answer()
    [engine] = said["engines"]
    names = ["m#10", "m#2", "b", "m#1"]
    said["engines"] = [{**engine, "engine": name} for name in names]
    found = [one["engine"] for one in told(Snapshot(), said).engines]
    assert found == ["b", "m#1", "m#2", "m#10"]


def test_tokens_per_second_need_two_answers_and_an_engine_that_goes_on() -> None:
    known = snapshot_of()
    assert known.rates == {}
    known = told(known, answer(time=NOW_S + 2, num_tokens=150))
    assert known.rates == {"m#0": 25.0}
    known = told(known, answer(time=NOW_S + 3, num_tokens=10))
    assert known.rates == {}, "it began anew"


def test_levels_are_shown_with_their_parts() -> None:
    """The whole part decides over memory, so it is not rounded."""
    text = "\n".join(drawn(snapshot_of(row(1, level=9.75), row(2, level=12.0)), View(), 120))
    assert " 9.75 " in text
    assert " 12 " in text


# -- order and choice ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sort", "expected"),
    [
        ("service", [2, 1, 3]),
        ("waiting", [3, 1, 2]),
        ("age", [3, 2, 1]),
        ("pages", [1, 3, 2]),
        ("tokens", [3, 1, 2]),
        ("path", [2, 3, 1]),
        ("name", [2, 1, 3]),
    ],
)
def test_rows_stand_in_the_chosen_order(sort: Any, expected: list[int]) -> None:
    snapshot = snapshot_of(
        row(1, service_s=2.0, num_pages=9, name="b", num_generated_tokens=1),
        row(2, service_s=5.0, num_pages=1, name="a", path_s=3.0),
        row(
            3,
            num_pages=4,
            name="c",
            path_s=1.0,
            num_generated_tokens=4,
            wait={"reason": "seat", "since": NOW_S - 6},
        ),
    )
    assert order(snapshot, View(sort=sort)) == expected


@pytest.mark.parametrize(("text", "expected"), [("idle", [2]), ("IDLE", [2]), ("seat", [3])])
def test_a_filter_finds_the_states_that_the_table_shows(text: str, expected: list[int]) -> None:
    """A client that sends nothing is ``idle`` in the table, and ``program`` in the feed."""
    own, seat = ({"reason": one, "since": NOW_S} for one in ("program", "seat"))
    snapshot = snapshot_of(row(1), row(2, wait=own), row(3, wait=seat))
    assert order(snapshot, View(filter=text)) == expected


def test_waiting_counts_up_to_now_but_not_what_its_own_code_takes() -> None:
    assert waiting_s(row(1, waiting_s=2.0), NOW_S) == 2.0
    wait = {"reason": "memory", "since": NOW_S - 3}
    assert waiting_s(row(1, waiting_s=2.0, wait=wait), NOW_S) == 5.0
    assert waiting_s(row(1, waiting_s=2.0, wait=wait | {"reason": "program"}), NOW_S) == 2.0


@pytest.mark.parametrize(
    ("text", "expected"),
    [("AGENT", [1]), ("seat", [2]), ("running", [1]), ("cli", [2]), ("m#1", [2]), ("nobody", [])],
)
def test_a_filter_looks_at_names_engines_and_reasons(text: str, expected: list[int]) -> None:
    wait = {"reason": "seat", "since": NOW_S}
    snapshot = snapshot_of(
        row(1, name="my_agent"), row(2, client_id="cli-7", wait=wait, engines=["m#1"])
    )
    assert order(snapshot, View(filter=text)) == expected


def test_a_tree_has_children_below_their_parents_in_the_same_order() -> None:
    snapshot = snapshot_of(
        row(1, service_s=1.0),
        row(2, parent=1, service_s=2.0),
        row(3, parent=1, service_s=3.0),
        row(4, parent=77, service_s=9.0),
        row(5, parent=3),
    )
    view = View(is_tree=True)
    assert [(one["process"], depth) for one, depth in lines(snapshot, view)] == [
        (4, 0), (1, 0), (3, 1), (5, 2), (2, 1)
    ]  # fmt: skip


# -- keys ------------------------------------------------------------------------------------------

THREE = snapshot_of(row(1, service_s=3.0), row(2, service_s=2.0), row(3, form="session"))


def after(view: View, *keys: str) -> View:
    for key in keys:
        view, effect = pressed(view, key, THREE)
        assert effect is None, key
    return view


def test_s_goes_round_all_orders_and_t_turns_the_tree_on_and_off() -> None:
    view, seen = View(), []
    for _ in SORTS:
        view = after(view, "s")
        seen.append(view.sort)
    assert sorted(seen) == sorted(SORTS)
    assert view.sort == "service"
    assert after(view, "t").is_tree
    assert not after(view, "t", "t").is_tree


def test_f_takes_a_text_until_enter_and_escape_leaves_the_old_one() -> None:
    typing = after(View(), "f", "q", "x", BACKSPACE, "s")
    assert (typing.mode, typing.typed, typing.filter) == ("filter", "qs", "")
    assert (after(typing, ENTER).filter, after(typing, ENTER).mode) == ("qs", "table")
    assert after(after(typing, ENTER), "f", "z", ESCAPE).filter == "qs"
    assert after(typing, UP).typed == "qs", "an arrow is no text"


def test_a_slash_filters_too_and_escape_shows_all_programs_again() -> None:
    view = after(View(), "/", "x", ENTER)
    assert view.filter == "x"
    assert after(view, ESCAPE).filter == ""


def test_the_ends_of_the_table_and_pages_of_it_are_marked() -> None:
    known = snapshot_of(*(row(number, service_s=-number) for number in range(1, 31)))
    view, seen = View(), []
    for key in (DOWN, PAGE_DOWN, END, PAGE_UP, HOME):
        view, _ = pressed(view, key, known)
        seen.append(view.selected)
    assert seen == [1, 11, 30, 20, 1]
    assert keys_of("\x1bOH\x1b[1~\x1bOF\x1b[4~") == [HOME, HOME, END, END]


def test_arrows_mark_a_row_and_stay_within_the_table() -> None:
    view = after(View(), DOWN)
    assert view.selected == 1
    assert after(view, DOWN).selected == 2
    assert after(view, UP).selected == 1
    assert after(view, *[DOWN] * 5).selected == 3
    assert after(View(filter="nobody"), DOWN).selected is None


def test_k_ends_a_program_after_a_yes_and_after_nothing_else() -> None:
    asked = after(View(), DOWN, "k")
    assert asked.mode == "kill"
    view, effect = pressed(asked, "y", THREE)
    assert effect == Kill(THREE.rows[1]["id"], is_session=False)
    assert view.mode == "table"
    for key in ("n", "q", ENTER):
        view, effect = pressed(asked, key, THREE)
        assert (view.mode, effect) == ("table", None)
    view, effect = pressed(asked, "y", told(THREE, answer(row(2))))
    assert effect is None, "it has ended by itself"


def test_k_ends_a_session_as_one_and_nothing_that_has_no_id() -> None:
    assert "arrow" in after(View(), "k").message
    _, effect = pressed(after(View(), DOWN, DOWN, DOWN, "k"), "y", THREE)
    assert effect == Kill(THREE.rows[3]["id"], is_session=True)
    view, effect = pressed(View(selected=1), "k", snapshot_of(row(1, id=None)))
    assert (view.mode, effect) == ("table", None)
    assert "no id" in view.message


def test_i_sends_a_program_a_signal_and_leaves_sessions_alone() -> None:
    launched = row(1)
    snapshot = snapshot_of(launched, row(2, form="session"), row(3, id=None))
    asked, effect = pressed(View(selected=1), "i", snapshot)
    assert (asked.mode, effect) == ("signal", None)
    _, effect = pressed(asked, "e", snapshot)
    assert effect == Signal(launched["id"], "end_of_input")
    _, effect = pressed(asked, "c", snapshot)
    assert effect == Signal(launched["id"], "cancel")
    left, effect = pressed(asked, "x", snapshot)
    assert (left.mode, left.message, effect) == ("table", "nothing was sent", None)
    writing, _ = pressed(asked, "m", snapshot)
    for key in ("g", "p", BACKSPACE, "o"):
        writing, effect = pressed(writing, key, snapshot)
        assert effect is None
    assert drawn(snapshot, writing)[-1].startswith("message: go_")
    assert pressed(writing, ESCAPE, snapshot)[0].mode == "table"
    gone, effect = pressed(writing, ENTER, snapshot_of())
    assert (gone.mode, effect) == ("table", None)
    _, effect = pressed(writing, ENTER, snapshot)
    assert effect == Signal(launched["id"], "message", "go")
    assert "takes no signal" in pressed(View(selected=2), "i", snapshot)[0].message
    assert "no id to signal it by" in pressed(View(selected=3), "i", snapshot)[0].message


def test_enter_shows_one_program_and_any_key_goes_back() -> None:
    view = after(View(), DOWN, ENTER)
    assert view.mode == "detail"
    assert after(view, "x").mode == "table"
    assert after(View(), "?", "x").mode == "table"
    assert after(View(), "m", "x").mode == "table"
    for mode in (view, after(View(), "?"), after(View(), "m"), View()):
        assert pressed(mode, "q", THREE)[1] == Quit()


def test_a_key_is_told_whole_whatever_the_terminal_sends_with_it() -> None:
    assert keys_of("s\x1b[A\x1bOBk\n\x1b[3~\x1b") == [
        "s", UP, DOWN, "k", ENTER, "\x1b[3~", ESCAPE
    ]  # fmt: skip


# -- the screen ------------------------------------------------------------------------------------


def test_eighty_columns_hold_every_line_without_colour() -> None:
    wait = {"reason": "memory", "since": NOW_S - 2}
    long = row(1, name="x" * 90, service_s=12345.6, num_pages=10**6, wait=wait, level=3.0)
    shown = drawn(snapshot_of(long, row(2)), View())
    assert all(len(line) <= 80 for line in shown)
    assert shown[0].startswith("ready  up 1 min  policy plas  2 programs: 1 running, 0 idle, 1 wai")
    assert shown[1] == "m#0 ready  2 running  1 waiting  pages 10/64  - tok/s"
    (line,) = (line for line in shown if "prog-" in line and "memory" in line)
    for text in ("prog-0000000", "3", "12346", "2.0", "1000000"):
        assert text in line.split(), line
    assert "\x1b" not in "".join(shown)


@pytest.mark.parametrize(
    ("amount_s", "shown"),
    [(0.0, "0.00"), (0.124, "0.12"), (1.5, "1.5"), (4.26, "4.3"), (99.4, "99.4"), (812.3, "812")],
)
def test_times_have_the_digits_that_are_significant(amount_s: float, shown: str) -> None:
    assert seconds(amount_s) == shown


def test_a_wide_screen_has_all_columns_and_a_tree_is_indented() -> None:
    child = row(2, parent=1, form="workflow", path_s=4.25, num_host_blocks=6, num_calls=2)
    shown = drawn(snapshot_of(row(1), child), View(is_tree=True), width=140)
    line = next(line for line in shown if "└name2" in line)
    for text in ("workflow", "4.2", "6", "2", "m#0"):
        assert text in line.split(), line


def test_what_does_not_fit_is_left_out_around_the_marked_row() -> None:
    snapshot = snapshot_of(*(row(number) for number in range(1, 101)))
    shown = drawn(snapshot, View(sort="age", selected=50), height=12)
    assert len(shown) == 12
    assert any("name50" in line for line in shown)
    assert not any("name100" in line for line in shown)


def test_how_many_programs_do_not_fit_is_told() -> None:
    snapshot = snapshot_of(*(row(number) for number in range(1, 101)))
    line = "sort age  48 to 54 of 100"
    assert drawn(snapshot, View(sort="age", selected=50), height=12)[2] == line
    assert drawn(snapshot_of(row(1)), View(), height=12)[2] == "sort service"


def test_a_program_that_is_taller_than_the_screen_can_be_read_to_its_end() -> None:
    known = snapshot_of(row(1))
    view = after(View(), DOWN, ENTER)
    shown = drawn(known, view)
    assert len(shown) == 24
    assert shown[-1].startswith("1 to 18 of 27  up, down: scroll")
    assert not any("num_preemptions" in line for line in shown)
    view, _ = pressed(view, END, known)
    shown = drawn(known, view)
    assert shown[-1].startswith("10 to 27 of 27")
    assert any("num_preemptions" in line for line in shown)
    view, _ = pressed(pressed(view, HOME, known)[0], PAGE_DOWN, known)
    assert drawn(known, view)[-1].startswith("10 to 27 of 27")
    assert pressed(view, "x", known)[0].mode == "table"
    assert pressed(pressed(view, "x", known)[0], ENTER, known)[0].scrolled == 0


def test_the_question_names_an_unnamed_program_once() -> None:
    unnamed = row(1, name=row(1)["id"])
    asked = drawn(snapshot_of(unnamed), View(mode="kill", selected=1))[-1]
    assert asked == "y: end prog-000000000000, any other key: leave it"


def test_one_program_and_the_question_are_shown() -> None:
    wait = {"reason": "pages", "since": NOW_S - 4}
    snapshot = snapshot_of(row(1, wait=wait, num_preemptions=8))
    detail = "\n".join(drawn(snapshot, View(mode="detail", selected=1), height=60))
    assert "pages, 4.0 s" in detail
    idle = snapshot_of(row(1, wait={"reason": "program", "since": NOW_S - 4}))
    detail = "\n".join(drawn(idle, View(mode="detail", selected=1), height=60))
    assert "its own code or its client, 4.0 s" in detail
    assert "num_preemptions" in detail
    view = View(mode="kill", selected=1)
    assert drawn(snapshot, view)[-1].startswith("y: end prog-000000000000 (name1), any")
    assert "show families as trees" in "\n".join(drawn(snapshot, replace(view, mode="help")))


@pytest.mark.parametrize("width", [80, 140])
def test_memory_has_a_bar_for_each_tier_and_what_stands_in_the_messages(width: int) -> None:
    known = snapshot_of()
    engine = known.engines[0] | {"num_held_blocks": 32, "num_cached_blocks": 1}
    engine |= {"num_free_host_blocks": 3, "num_cached_host_blocks": 4}
    engine |= {"num_disk_blocks": 20, "num_free_disk_blocks": 5, "num_cached_disk_blocks": 12}
    other = engine | {"engine": "m#1", "num_host_blocks": 0, "num_disk_blocks": 0, "messages": []}
    shown = drawn(replace(known, engines=(engine, other)), View(mode="memory"), width=width)
    first, host, disk, messages, second, none = (line.rstrip() for line in shown[-7:-1])
    assert re.match(r"m#0 +device +█+▒·+ +32 [+] 1 of 64$", first)
    assert abs(first.count("█") - first.count("·")) <= 2, "half of them are held"
    assert re.match(r" +host +█+▒+·+ +1 [+] 4 of 8$", host)
    assert re.match(r" +disk +█+▒+·+ +3 [+] 12 of 20$", disk)
    assert messages.split(maxsplit=1) == ["messages", "decodes 2, chunks 1, tokens 34"]
    assert second.startswith("m#1")
    assert none.split() == ["messages", "none"]


def test_long_messages_leave_room_for_the_names_of_engine_and_tier() -> None:
    known = snapshot_of()
    engine = known.engines[0] | {"engine": "quire-mini#0"}
    engine["messages"] = 3 * [engine["messages"][0]]
    shown = "\n".join(drawn(replace(known, engines=(engine,)), View(mode="memory"), width=90))
    assert "quire-mini#0" in shown
    assert " device " in shown
    assert " messages decodes 2, chunks 1, tokens 34; " in shown
    assert " of 64" in shown


def test_the_details_of_a_program_that_has_ended_say_so() -> None:
    shown = "\n".join(drawn(snapshot_of(row(2)), View(mode="detail", selected=1)))
    assert "this program has ended" in shown
    assert "name2" not in shown


def test_a_name_of_a_client_cannot_write_to_the_terminal() -> None:
    shown = "\n".join(drawn(snapshot_of(row(1, name="\x1b[2J[red]x")), View()))
    assert "\x1b" not in shown
    assert "\\u001b[2J[red]x" in shown


def test_a_state_is_what_is_waited_for() -> None:
    assert state_of(row(1)) == "running"
    assert state_of(row(1, wait={"reason": "program", "since": 0.0})) == "idle"
    assert state_of(row(1, wait={"reason": "seat", "since": 0.0})) == "seat"


# -- the command -----------------------------------------------------------------------------------

Capture = pytest.CaptureFixture[str]


@pytest.mark.e2e
@pytest.mark.timeout(300)
def test_one_look_at_a_real_node_as_json_and_as_a_table(
    capsys: Capture, shipped_server: str
) -> None:
    request = {"program": "text_completion", "args": ["Hello,", "1"], "wait": True}
    with NodeClient(shipped_server) as node:
        node.launch(request)
    ran = invoke(capsys, "top", "--once", "--json", "--url", shipped_server)
    record = json.loads(ran.out)
    assert (ran.code, record["node"]["ready"]) == (0, True)
    assert record["engines"][0]["num_tokens"] > 0
    assert [one["state"] for one in record["programs"]] == ["idle"] * len(record["programs"])
    table = invoke(capsys, "top", "--once", "--url", shipped_server).out
    assert record["engines"][0]["engine"] in table
    assert "policy" in table
    assert "quit" not in table, "no key is read"


class TypedKeys:
    """A terminal in which one key after another is pressed; each finds what is drawn by then."""

    def __init__(self, keys: str, file: io.StringIO) -> None:
        self._keys = list(keys)
        self._file = file
        self.found: list[str] = []

    def __enter__(self) -> TypedKeys:
        return self

    def __exit__(self, *exc_info: object) -> None:
        pass

    def read(self, timeout_s: float) -> list[str]:
        self.found.append(self._file.getvalue())
        return [self._keys.pop(0)]


def test_the_screen_is_drawn_before_each_key_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = io.StringIO()
    keys = TypedKeys("?q", file)
    monkeypatch.setattr(command, "TerminalKeys", lambda: keys)
    monkeypatch.setattr(command, "look", lambda node, known: THREE)
    console = Console(file=file, width=100, height=30, force_terminal=True, color_system=None)
    nobody: Any = None
    command._watch(nobody, View(), console, 3600.0)
    table, with_help = keys.found
    assert "policy plas" in table
    assert len(with_help) > len(table), "the list of keys is drawn over it"


class LeavingNode:
    """A node that answers, then is away for two looks, and has been started again afterwards."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def changes(self, since: str) -> dict[str, Any]:
        self.asked.append(since)
        if len(self.asked) in (2, 3):
            raise EngineLost(f"no node answers, look {len(self.asked)}")
        return answer(row(len(self.asked)), whole=True)


def test_a_node_that_goes_away_is_looked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.StringIO()
    keys = TypedKeys("....q", file)
    monkeypatch.setattr(command, "TerminalKeys", lambda: keys)
    console = Console(file=file, width=100, height=30, force_terminal=True, color_system=None)
    node: Any = LeavingNode()
    command._watch(node, View(), console, 0.0)
    screens = [found[len(before) :] for before, found in pairwise(["", *keys.found])]
    old = ["old: no node answers" in one for one in screens]
    assert old == [False, True, True, False, False]
    assert ["name1" in one for one in screens] == [True, True, True, False, False]
    assert node.asked == ["", *[answer()["next"]] * 4], "it goes on where it was"


def test_a_signal_is_sent_and_its_refusal_is_told() -> None:
    class SignalledNode:
        def __init__(self) -> None:
            self.sent: list[tuple[object, ...]] = []

        def signal(self, *what: object, node: str | None) -> None:
            self.sent.append((*what, node))
            if len(self.sent) == 2:
                raise EngineLost("it has\nended")

    node: Any = SignalledNode()
    assert command._done(node, Signal("prog-1", "message", "go")) == "sent prog-1 message"
    assert command._done(node, Signal("prog-1", "cancel", node="n")) == "it has ended"
    assert node.sent == [("prog-1", "message", "go", None), ("prog-1", "cancel", None, "n")]


def test_why_an_engine_does_not_serve_stands_beside_its_state() -> None:
    said = answer()
    said["engines"][0] |= {"state": "restarting", "detail": "it was ended\nby SIGKILL"}
    shown = drawn(told(Snapshot(), said), View())
    assert shown[1].startswith("m#0 restarting (it was ended by SIGKILL)  2 running")


def many_engines(num: int) -> Snapshot:
    said = answer(row(1), row(2))
    [engine] = said["engines"]
    said["engines"] = [{**engine, "engine": f"m#{n}"} for n in range(num)]
    said["engines"][40]["state"] = "restarting"
    return told(Snapshot(), said)


def test_many_engines_leave_room_for_programs() -> None:
    shown = drawn(many_engines(64), View())
    assert len(shown) <= 24
    assert "? help" in shown[-1]
    assert "name2" in "\n".join(shown)
    assert shown[1].startswith("m#40 restarting"), "what does not serve is not left out"
    assert "57 other engines, m: all  114 running  57 waiting  pages 570/3648" in shown[8]


def test_the_memory_of_many_engines_can_be_read_to_its_end() -> None:
    snapshot = many_engines(64)
    view, _ = pressed(View(), "m", snapshot)
    first = drawn(snapshot, view)
    assert len(first) <= 24
    assert first[-1].startswith("1 to 3 of 64  up, down: scroll")
    view, _ = pressed(view, END, snapshot)
    last = drawn(snapshot, view)
    assert last[-1].startswith("62 to 64 of 64")
    assert any(line.startswith("m#63") for line in last)
    assert pressed(view, "x", snapshot)[0].mode == "table"


def test_a_narrow_screen_keeps_the_way_to_the_help() -> None:
    last = drawn(THREE, View(), width=60)[-1]
    assert "? help" in last
    assert "q quit" in last


def test_what_top_cannot_do_is_refused_with_a_remedy(capsys: Capture) -> None:
    ran = invoke(capsys, "top", "--json")
    assert (ran.code, "add --once" in ran.err) == (2, True)
    ran = invoke(capsys, "top", "--once", "--url", "http://127.0.0.1:9")
    assert ran.code != 0
    assert "quire serve" in ran.err
    ran = invoke(capsys, "top", "--url", "http://127.0.0.1:9")
    assert (ran.code, "--once" in ran.err) == (2, True)


def test_a_terminal_that_cannot_be_redrawn_is_refused(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    dumb = Console(force_terminal=True, _environ={"TERM": "dumb"})
    monkeypatch.setattr(command, "output", lambda: dumb)
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))
    ran = invoke(capsys, "top", "--url", "http://127.0.0.1:9")
    assert (ran.code, "add --once" in ran.err) == (2, True)
