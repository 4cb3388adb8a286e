"""Real engine processes that exchange K and V: they speak between results, and one that is killed
costs the other a send."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quire.core.batch import Batch, OpenReceive, SendSlots
from quire.core.batch_result import BatchResult, EngineAnswer
from quire.core.config import EngineConfig
from quire.core.engine_info import EngineInfo
from quire.core.exchange import ReceiveEnded, SendEnded, SendTarget
from quire.core.ids import ModelId
from quire.node.transports import ZeroMQTransport

pytestmark = pytest.mark.e2e

KEY = b"0123456789abcdef"
SLOTS = np.arange(5, 45, dtype=np.int32)


class EngineProcess:
    def __init__(self, directory: Path, **cache: Any) -> None:
        self.config = EngineConfig(
            source=str(directory),
            name=ModelId("m"),
            dtype="float32",
            device="cpu",
            kv_cache_bytes=1 << 20,
            host_cache_bytes=0,
            num_threads=1,
            data_address="tcp://127.0.0.1:0",
            **cache,
        )
        self.transport = ZeroMQTransport(self.config)
        self._answers: asyncio.Queue[EngineAnswer] = asyncio.Queue()
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._step = 0
        self.info: EngineInfo

    async def start(self) -> None:
        self.info = await self.transport.start(self._answers.put_nowait, self.lost.set_result)

    async def operate(self, *operations: Any) -> None:
        self.transport.send(Batch(serial=self._step, operations=list(operations)))
        self._step += 1
        result = await self.answer()
        assert isinstance(result, BatchResult)
        assert not result.failures

    async def answer(self) -> EngineAnswer:
        return await self._answers.get()


def receiving(lease: int) -> OpenReceive:
    return OpenReceive(lease=lease, key=KEY, slots=SLOTS)


def sending(receiver: EngineProcess, lease: int) -> SendSlots:
    address = receiver.info.data_address
    target = SendTarget(address=address, lease=lease, key=KEY, first=0)
    return SendSlots(send=lease, slots=SLOTS, target=target)


async def test_engine_processes_exchange_until_one_is_killed(model_directory: Path) -> None:
    sender = EngineProcess(model_directory)
    receiver = EngineProcess(model_directory, backend="torch", page_size=1)
    try:
        await asyncio.gather(sender.start(), receiver.start())
        assert sender.info.content == receiver.info.content
        assert sender.info.data_address != receiver.info.data_address
        await receiver.operate(receiving(1))
        await sender.operate(sending(receiver, 1))
        received, sent = await receiver.answer(), await sender.answer()
        assert isinstance(received, ReceiveEnded)
        assert isinstance(sent, SendEnded)
        assert (received.lease, received.error, received.num_tokens) == (1, None, len(SLOTS))
        assert (sent.send, sent.error, sent.num_bytes) == (1, None, received.num_bytes)
        await receiver.operate(receiving(2))
        os.kill(receiver.transport.pid, signal.SIGKILL)
        await receiver.lost
        await sender.operate(sending(receiver, 2))
        sent = await sender.answer()
        assert isinstance(sent, SendEnded)
        assert sent.error is not None
        assert sent.error.code == "transfer_failed"
        await sender.operate()
        assert not sender.lost.done()
    finally:
        await asyncio.gather(sender.transport.close(), receiver.transport.close())
