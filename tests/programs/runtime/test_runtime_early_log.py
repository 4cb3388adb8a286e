"""What a program says before anybody listens is told to the first who does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quire.core.ids import ProgramId
from quire.programs.runtime.running import _MAX_EARLY_LOG, RunningProgram
from quire.programs.services.mailbox import Mailbox


class Heard:
    def __init__(self) -> None:
        self.lines: list[tuple[str, str, Mapping[str, Any]]] = []

    def __call__(self, level: str, text: str, fields: Mapping[str, Any]) -> None:
        self.lines.append((level, text, fields))


def running() -> RunningProgram:
    return RunningProgram(ProgramId(1), "talks", Mailbox("talks"), lambda reason: None)


def test_lines_come_in_order_and_once() -> None:
    program, heard = running(), Heard()
    program.log("info", "first", {"a": 1})
    program.log("error", "second")
    program.listen_log(heard)
    program.log("info", "third")
    expected = [("info", "first", {"a": 1}), ("error", "second", {}), ("info", "third", {})]
    assert heard.lines == expected
    again = Heard()
    program.listen_log(again)
    assert again.lines == []


def test_of_many_lines_the_latest_are_kept() -> None:
    program, heard = running(), Heard()
    for number in range(_MAX_EARLY_LOG + 2):
        program.log("info", str(number))
    program.listen_log(heard)
    assert [text for _, text, _ in heard.lines] == [str(n + 2) for n in range(_MAX_EARLY_LOG)]
