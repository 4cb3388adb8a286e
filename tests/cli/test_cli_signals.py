"""SIGTERM and SIGHUP are one Ctrl-C for a command."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator

import pytest
from cli_invoke import invoke

from quire.cli import app
from quire.cli.exit_codes import EXIT_INTERRUPTED
from quire.cli.signals import ended_like_ctrl_c

ENDING = [signal.SIGTERM, signal.SIGHUP]


@pytest.fixture(autouse=True)
def _not_ignored() -> Iterator[None]:
    """Under nohup a process ignores SIGHUP from its start, and a command then goes on doing so."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in ENDING}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def interrupts() -> Iterator[list[int]]:
    """The numbers of the signals that a handler for Ctrl-C has got."""
    found: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: found.append(number))
    yield found
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("number", ENDING)
def test_they_interrupt_and_leave_the_signals_as_they_were(number: signal.Signals) -> None:
    with pytest.raises(KeyboardInterrupt), ended_like_ctrl_c():
        signal.raise_signal(number)
    assert signal.getsignal(number) is signal.SIG_DFL


@pytest.mark.parametrize("number", ENDING)
def test_whoever_handles_ctrl_c_handles_them(number: signal.Signals, interrupts: list[int]) -> None:
    with ended_like_ctrl_c():
        signal.raise_signal(number)
    assert interrupts == [signal.SIGINT]


def test_a_loop_cancels_its_main_task() -> None:
    async def work() -> str:
        try:
            signal.raise_signal(signal.SIGTERM)
            await asyncio.sleep(3600)
        finally:
            cleaned.append(True)
        return "not reached"

    cleaned: list[bool] = []
    with pytest.raises(KeyboardInterrupt), ended_like_ctrl_c():
        asyncio.run(work())
    assert cleaned == [True]


def test_a_command_behind_an_ampersand_ends_though_it_ignores_ctrl_c() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with pytest.raises(KeyboardInterrupt), ended_like_ctrl_c():
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_command_under_nohup_outlives_its_terminal(interrupts: list[int]) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ended_like_ctrl_c():
            signal.raise_signal(signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
    assert interrupts == []


def test_on_another_thread_nothing_changes() -> None:
    seen: list[object] = []

    def work() -> None:
        with ended_like_ctrl_c():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.SIG_DFL]


def test_a_command_that_gets_one_has_the_status_of_ctrl_c(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "choose_form", lambda: signal.raise_signal(signal.SIGTERM))
    assert invoke(capsys, "--version").code == EXIT_INTERRUPTED
