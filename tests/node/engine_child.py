"""An engine process with a fake engine: ``python engine_child.py MODE``, for the transport tests.

MODE: ``serve`` · ``old`` (greets with another protocol version) · ``slow`` (waits before each
batch until its model name's file exists) · ``broken`` (fails to load) · ``crash`` (faults on the
second batch) · ``mute`` (never answers heartbeats).
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable

import msgspec

from quire.core.config import EngineConfig
from quire.core.errors import EngineFault, ModelFormatError
from quire.core.interfaces import EngineCore
from quire.node import engine_process
from quire.node.transports.messages import LaunchOrder
from quire.testing import FakeEngine, fake_pool


class CrashingEngine(FakeEngine):
    def execute(self, batch):  # type: ignore[no-untyped-def]
        if batch.step >= 2:
            raise EngineFault("the fake engine was told to crash")
        return super().execute(batch)


def load(config: EngineConfig, on_progress: Callable[[str, float], None]) -> EngineCore:
    on_progress("weights", 0.5)
    print("a library prints on standard output")
    if MODE == "broken":
        raise ModelFormatError("the fake shard is truncated: download it again")
    kind = CrashingEngine if MODE == "crash" else FakeEngine
    pool = fake_pool(page_size=config.page_size, num_blocks=config.num_blocks or 64)
    return kind(pool, model=config.name)


MODE = sys.argv[1]

if __name__ == "__main__":
    engine_process.die_with_parent()
    answers = engine_process.take_stdout()
    lifeline = engine_process.take_stdin()
    order = msgspec.json.decode(lifeline.readline(), type=LaunchOrder)
    if MODE == "old":
        engine_process.PROTOCOL_VERSION = 0  # type: ignore[misc]
        import quire.core.wire

        quire.core.wire.PROTOCOL_VERSION = 0  # type: ignore[misc]
    if MODE == "mute":
        read, _write = os.pipe()  # a life line on which nothing is ever said
        lifeline = io.FileIO(read, "r")
        sys.exit(engine_process.run(order, lifeline, answers, load))
    sys.exit(engine_process.run(order, lifeline, answers, load))
