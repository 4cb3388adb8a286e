"""A process that ends by an error of its own ends when its node has read the error, not before."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
import zmq

from quire.core.config import EngineConfig
from quire.core.ids import ModelId
from quire.node.engines.engine_process import serve
from quire.node.transports import child_link
from quire.node.transports.child_link import Executing, NodeLink, live
from quire.node.transports.messages import engine_codec, node_codec
from quire.node.transports.packing import pack


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    before, hook = signal.getsignal(signal.SIGTERM), sys.unraisablehook
    yield
    signal.signal(signal.SIGTERM, before)
    sys.unraisablehook = hook


def test_behind_its_last_word_a_process_waits_for_its_node(monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[str] = []

    class Link:
        def __init__(self, *_: object) -> None: ...

        def shake_hands(self, token: str) -> None:
            happened.append(token)

        def rest(self) -> None:
            happened.append("waits")
            raise SystemExit(0)  # as the handler of SIGTERM does

        def close(self) -> None:
            happened.append("closed")

    def fails(*_: Any) -> int:
        happened.append("last word")
        return 5

    monkeypatch.setattr(child_link, "NodeLink", Link)
    lifeline: Any = SimpleNamespace(answer=lambda busy_s: None)
    order: Any = SimpleNamespace(endpoint="", token="greets")
    assert live(order, lifeline, node_codec(), engine_codec(), fails) == 5
    assert happened == ["greets", "last word", "waits", "closed"]


def test_the_wait_ends_by_sigterm_and_by_no_message() -> None:
    context = zmq.Context()
    node = context.socket(zmq.PAIR)
    endpoint = f"tcp://127.0.0.1:{node.bind_to_random_port('tcp://127.0.0.1')}"
    link: NodeLink[Any] = NodeLink(endpoint, node_codec(), engine_codec())
    signal.signal(signal.SIGTERM, Executing().on_sigterm)
    node.send(pack([b"a message that came too late"]))
    ending = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM))
    ending.start()
    with pytest.raises(SystemExit):
        link.rest()
    ending.join()
    assert not link.has_message
    assert signal.set_wakeup_fd(-1) == -1
    link.close()
    node.close()
    context.term()


@pytest.mark.parametrize("steps", [1, 0], ids=["while it loads", "at the end of loading"])
def test_a_sigterm_whose_exception_was_lost_ends_the_process_at_the_next_step(steps: int) -> None:
    """Python ignores what a finalizer raises, also the ``SystemExit`` of the signal's handler."""
    executing = Executing()
    said: list[object] = []

    def load(config: EngineConfig, tell: Callable[[str, float], None]) -> Any:
        tell("reading weights", 0.0)
        with suppress(SystemExit):
            executing.on_sigterm(signal.SIGTERM, None)
        for _ in range(steps):
            tell("reading weights", 0.5)
        return SimpleNamespace(close=lambda: said.append("closed"))

    link: Any = SimpleNamespace(say=said.append)
    with pytest.raises(SystemExit):
        serve(link, EngineConfig(source="s", name=ModelId("m")), load, executing)
    assert [type(one).__name__ for one in said] == ["Progress"] + ["str"] * (1 - steps)


class Finalized:
    """Its finalizer calls ``then``."""

    def __init__(self, then: Callable[[], object]) -> None:
        self._then = then

    def __del__(self) -> None:
        self._then()


def fails() -> None:
    raise SystemExit(3)


def test_the_end_that_was_asked_for_is_not_reported_as_ignored(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    executing = Executing()
    monkeypatch.setattr(sys, "unraisablehook", executing.on_ignored)
    Finalized(fails)  # nobody has asked for this end
    assert "Exception ignored" in capfd.readouterr().err
    Finalized(lambda: executing.on_sigterm(signal.SIGTERM, None))
    assert executing.end_asked
    assert not capfd.readouterr().err
    Finalized(lambda: 1 // 0)
    assert "ZeroDivisionError" in capfd.readouterr().err
