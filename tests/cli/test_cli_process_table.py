"""``quire ps``: the order of programs, their ages, children below their parents; ``logs``."""

from __future__ import annotations

import re
from typing import Any

import pytest

from quire.cli.console import output
from quire.cli.logs import behind
from quire.cli.process_table import chosen, duration, process_table


def record(public_id: str, created: float | None = None, **more: Any) -> dict[str, Any]:
    known = {"id": public_id, "name": public_id + "-n", "form": "inferlet", "state": "running"}
    return known | {"process": None, "created": created, "ended": None, "parent": None} | more


def names(programs: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> list[str]:
    output().print(process_table(programs, 1000.0))
    shown = capsys.readouterr().out
    return [found[0] for found in re.finditer(r"└?\w+-n", shown)]


def test_the_newest_stands_first_and_a_child_below_its_parent(
    capsys: pytest.CaptureFixture[str],
) -> None:
    programs = chosen(
        [
            record("old", 1.0),
            record("child", 5.0, parent="old"),
            record("grandchild", 6.0, parent="child"),
            record("younger", 7.0, parent="old"),
            record("orphan", 2.0, parent="gone"),
            record("new", 8.0),
            record("session"),
        ]
    )
    assert [name.replace("-n", "") for name in names(programs, capsys)] == [
        "new", "orphan", "old", "└younger", "└child", "└grandchild", "session"
    ]  # fmt: skip
    output().print(process_table(programs, 1000.0))
    assert "  └grandchild-n" in capsys.readouterr().out


def test_filters() -> None:
    programs = [record("a", 1.0, state="failed"), record("b", 2.0), record("c", 3.0, name="x")]
    assert [one["id"] for one in chosen(programs, state="running")] == ["c", "b"]
    assert [one["id"] for one in chosen(programs, name="x")] == ["c"]
    assert chosen(programs, state="failed", name="x") == []


def test_ages_and_durations_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    output().print(process_table([record("a", 880.0, ended=883.5)], 1000.0))
    assert re.search(r"running +2 min +3\.5 s", capsys.readouterr().out)


def test_an_ended_program_shows_what_it_has_used(capsys: pytest.CaptureFixture[str]) -> None:
    used = {"num_prefilled_tokens": 11, "num_cached_tokens": 22, "num_generated_tokens": 33}
    used["num_encoded_tokens"] = 44
    output().print(process_table([record("a", 880.0, ended=883.5, usage=used)], 1000.0))
    assert re.search(r"3\.5 s +11 +22 +33 +44", capsys.readouterr().out)


LONG_NAMES = ["contextual-retrieval", "naive-rag", "a" * 60]


@pytest.mark.parametrize("width", [60, 80, 100])
def test_in_a_narrow_terminal_columns_are_left_out_before_names_are_folded(
    width: int, capsys: pytest.CaptureFixture[str]
) -> None:
    used = {"num_prefilled_tokens": 11, "num_cached_tokens": 22, "num_generated_tokens": 33}
    programs = [record(f"prog-{name}", 1.0, name=name, usage=used) for name in LONG_NAMES[:2]]
    output(width).print(process_table(programs, 1000.0, width=width))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= width
    for name in LONG_NAMES[:2]:
        assert [line for line in lines if name in line and "running" in line]
    assert ("computed" in lines[1], "generated" in lines[1]) == (width > 80, width > 60)


def test_a_name_of_any_length_leaves_room_for_state_and_age(
    capsys: pytest.CaptureFixture[str],
) -> None:
    programs = [record("prog", 1.0, name=LONG_NAMES[2])]
    output(80).print(process_table(programs, 1000.0, width=80))
    shown = capsys.readouterr().out
    assert "running" in shown
    assert "16 min" in shown


def test_without_a_width_all_columns_are_there() -> None:
    listed = process_table([record("prog", 1.0, name=LONG_NAMES[2])], 1000.0)
    assert [column.header for column in listed.columns][-2:] == ["generated", "pages"]


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (-1, "0.0 s"),
        (9.96, "10.0 s"),
        (59.9, "59 s"),
        (3599, "59 min"),
        (86399, "23 h"),
        (2e5, "2 d"),
    ],
)
def test_a_duration_has_one_unit(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown


def test_what_of_a_log_is_new() -> None:
    lines = [{"text": str(number)} for number in range(6)]
    assert behind([], lines[:2]) == lines[:2]
    assert behind(lines[:2], lines[:4]) == lines[2:4]
    assert behind(lines[:4], lines[2:6]) == lines[4:6], "the node has dropped the oldest"
    assert behind(lines[:2], lines[3:6]) == lines[3:6]
    assert behind(lines, lines) == []
