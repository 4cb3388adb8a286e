"""The watchdog's rounds, without a thread and without time."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from quire.programs.runtime import execution
from quire.programs.runtime.watchdog import BlockedLoop, Watchdog, program_stack
from quire.testing import VirtualClock


class Loop:
    """Answers at once, or when the test lets it."""

    def __init__(self) -> None:
        self.blocked = False
        self.waiting: list[Callable[[], None]] = []

    def post(self, callback: Callable[[], None]) -> None:
        if self.blocked:
            self.waiting.append(callback)
        else:
            callback()


def test_a_round_reports_once_and_says_when_the_loop_turns_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loop, clock = Loop(), VirtualClock()
    reports: list[BlockedLoop] = []
    waits: list[float | None] = []

    def wait(event: threading.Event, timeout_s: float | None) -> bool:
        waits.append(timeout_s)
        if timeout_s is None:
            assert watchdog.is_blocked
            clock.advance(2.5)
            for callback in loop.waiting:
                callback()
        return event.is_set()

    watchdog = Watchdog(
        post=loop.post,
        thread_id=threading.get_ident(),
        current_program=lambda: "7 (slow)",
        on_blocked=reports.append,
        clock=clock,
        threshold_s=0.5,
        wait=wait,
    )
    assert watchdog.probe()
    assert reports == []
    loop.blocked = True
    assert not watchdog.probe()
    assert not watchdog.is_blocked
    assert waits == [0.5, 0.5, None]
    assert [(report.program, report.threshold_s) for report in reports] == [("7 (slow)", 0.5)]
    assert "watchdog.probe()" in reports[0].stack
    assert "program 7 (slow) has blocked the program loop for 0.5 s" in caplog.text
    assert "was blocked for 2.500 s" in caplog.text


def test_the_stack_of_a_program_begins_with_its_own_code() -> None:
    runner: dict[str, Any] = {}
    exec(compile("def run(main): return main()", execution.__file__, "exec"), runner)
    stack = runner["run"](lambda: program_stack(sys._getframe()))
    assert stack.count("File ") == 1
    assert __file__ in stack
    assert "run(main)" not in stack
    assert "pytest" in program_stack(sys._getframe())
