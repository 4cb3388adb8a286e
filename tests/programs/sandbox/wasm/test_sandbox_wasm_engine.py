"""The engine of a sandbox: its second thread ends whenever the first one says so."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from quire.programs.sandbox.wasm.engine import WasmEngine

pytest.importorskip("wasmtime")


class _Interleaved(threading.Event):
    """Has something happen right before it is cleared."""

    def __init__(self, before_clear: Callable[[], None]) -> None:
        super().__init__()
        self._before_clear = before_clear

    def clear(self) -> None:
        self._before_clear()
        super().clear()


def test_an_engine_ends_that_is_closed_while_its_ticks_fall_asleep() -> None:
    engine = WasmEngine(num_places=0)

    def end() -> None:
        engine._closed = True
        engine._busy.set()

    idle, engine._busy = engine._busy, _Interleaved(end)
    engine.enter(object())
    engine.leave()
    idle.set()
    engine._ticker.join(60.0)
    assert not engine._ticker.is_alive()


def test_an_engine_is_closed_twice_while_nothing_has_been_called() -> None:
    engine = WasmEngine(num_places=0)
    engine.close()
    engine.close()
    assert not engine._ticker.is_alive()
