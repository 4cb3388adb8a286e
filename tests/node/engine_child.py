"""An engine process with a fake engine: ``python engine_child.py MODE``, for the transport tests.

MODE: ``serve`` · ``old`` (greets with another protocol version) · ``slow`` (waits before each
batch until its model name's file exists) · ``broken`` (fails to load) · ``unforeseen`` (so, with an
error that nobody foresaw) · ``stubborn`` (as broken, and does not end by SIGTERM) · ``crash``
(faults on the second batch) · ``mute`` (never answers heartbeats) · ``talk`` (a ``TalkingEngine``).
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

from quire.core.batch_result import EngineReport
from quire.core.config import EngineConfig
from quire.core.errors import EngineFault, ModelFormatError
from quire.core.exchange import SendEnded
from quire.core.interfaces import EngineCore
from quire.node.engines import engine_process
from quire.node.transports.child_process import LifeLine
from quire.testing import FakeEngine, fake_pool


class TalkingEngine(FakeEngine):
    """Tells the end of a send on its own thread, without any message."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._reports: list[EngineReport] = [SendEnded(send=7, num_bytes=3)]

    def wake_by(self, ring: Callable[[], None]) -> None:
        threading.Thread(target=ring).start()

    def transfer(self) -> EngineReport | None:
        return self._reports.pop() if self._reports else super().transfer()


class CrashingEngine(FakeEngine):
    def execute(self, batch):  # type: ignore[no-untyped-def]
        if batch.serial >= 2:
            raise EngineFault("the fake engine was told to crash")
        return super().execute(batch)


def load(config: EngineConfig, on_progress: Callable[[str, float], None]) -> EngineCore:
    on_progress("weights", 0.5)
    print("a library prints on standard output")
    if MODE == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise ModelFormatError("the fake shard is truncated: download it again")
    if MODE == "broken":
        atexit.register(os.kill, os.getpid(), signal.SIGTERM)  # its node ends it while it ends
        raise ModelFormatError("the fake shard is truncated: download it again")
    if MODE == "unforeseen":
        raise KeyError("embeddings")
    pool = fake_pool(page_size=config.page_size, num_blocks=config.num_blocks or 64)
    return _KINDS.get(MODE, FakeEngine)(pool, model=config.name)


class Mute(LifeLine):
    def answer(self, busy_s: Callable[[], float]) -> None:
        """Nothing is ever said."""


_KINDS: dict[str, type[FakeEngine]] = {"crash": CrashingEngine, "talk": TalkingEngine}
MODE = sys.argv[1] if __name__ == "__main__" else "serve"

if __name__ == "__main__":
    if MODE == "old":
        import quire.core.wire
        from quire.node.transports import child_link

        child_link.PROTOCOL_VERSION = 0  # type: ignore[misc]
        quire.core.wire.PROTOCOL_VERSION = 0  # type: ignore[misc]
    sys.exit(engine_process.main(load, Mute() if MODE == "mute" else LifeLine()))
