"""A scripted port: records what a program asks for and answers as a test says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from quire.core.actions import ReplyValue
from quire.core.calls import AskService, Cancel, Issue, QueueCall, ResetQueue
from quire.core.commands import Command
from quire.core.engine_info import EngineInfo, LayerGroup, PoolSpec
from quire.core.errors import ErrorRecord, InvalidArgument, QueuePoisoned
from quire.core.ids import CommandId, ModelId, ProgramId, QueueId
from quire.core.interfaces import ReplySink, ServedModel
from quire.core.quotas import Quotas
from quire.core.traits import Trait
from quire.programs.api import Api
from quire.programs.services.network import Network
from quire.simulation.clock import VirtualClock
from quire.testing.local_clock import LocalClock
from quire.testing.tokenizer import CHAT_TEMPLATE, FakeTokenizer


def engine_info(page_size: int = 4, traits: Sequence[str] = tuple(Trait)) -> EngineInfo:
    group = LayerGroup(num_blocks=64, num_host_blocks=0, bytes_per_block=64)
    pool = PoolSpec(
        page_size=page_size,
        groups=(group,),
        num_embeds=64,
        num_token_slots=16,
        max_sequences=16,
        max_batch_tokens=64,
    )
    return EngineInfo(
        model="scripted",
        family="none",
        content="0",
        layout="0",
        vocab_size=263,
        hidden_size=8,
        num_layers=1,
        max_model_len=256,
        dtype="float32",
        device="cpu",
        backend="none",
        num_parameters=0,
        pool=pool,
        traits=list(traits),
    )


class ScriptedPort:
    """Answers each command with ``answer(command)``: a reply, an error, or nothing for ``HOLD``."""

    HOLD = object()

    def __init__(self, sink: ReplySink, loop: asyncio.AbstractEventLoop, program: int) -> None:
        self.program = ProgramId(program)
        self.quotas = Quotas()
        self.seed = program
        self.first_number = 1
        self.clock = LocalClock(VirtualClock())
        self.sink = sink
        self.loop = loop
        self.model = ServedModel(
            ModelId("scripted"), ModelId("scripted"), engine_info(), FakeTokenizer(), CHAT_TEMPLATE
        )
        self.answer: Callable[[Command], object] = lambda command: None
        self.called: list[QueueCall] = []
        self.poisoned: set[QueueId] = set()
        self.closed: str | None = None
        self.was_closed = asyncio.Event()

    @property
    def issued(self) -> list[Issue]:
        return [call for call in self.called if isinstance(call, Issue)]

    @property
    def commands(self) -> list[Command]:
        return [command for issue in self.issued for command in issue.commands]

    def models(self) -> Sequence[ServedModel]:
        return [self.model]

    def post(self, call: QueueCall) -> None:
        self.called.append(call)
        match call:
            case Issue():
                for command in call.commands:
                    self._answer(call.queue, command)
            case ResetQueue():
                self.poisoned.discard(call.queue)
            case Cancel():
                self.fail(call.command, ErrorRecord("program_cancelled", "it was cancelled"))

    def _answer(self, queue: QueueId, command: Command) -> None:
        answer = self.answer(command)
        if queue in self.poisoned and answer is not self.HOLD:
            answer = QueuePoisoned(f"queue {queue} is poisoned").record()
        if isinstance(answer, ErrorRecord):
            self.poisoned.add(queue)
            self.fail(command.id, answer)
        elif isinstance(answer, list):
            for index, chunk in enumerate(answer):
                self.reply(command.id, chunk, last=index == len(answer) - 1)
        elif answer is not self.HOLD:
            self.reply(command.id, answer)  # type: ignore[arg-type]

    def reply(self, command: CommandId, reply: ReplyValue, last: bool = True) -> None:
        self.loop.call_soon_threadsafe(self.sink.on_reply, command, reply, last)

    def fail(self, command: CommandId, error: ErrorRecord | None = None) -> None:
        record = error or InvalidArgument("refused by the test").record()
        self.loop.call_soon_threadsafe(self.sink.on_failure, command, record)

    async def ask(self, question: AskService, undo: str | None = None) -> Any:
        raise InvalidArgument(f"the test offers no service {question.name}")

    def close(self, reason: str = "finished") -> None:
        self.closed = self.closed or reason
        self.was_closed.set()


Connected = Callable[[Network], Api]
"""The API of a program over a network."""


class Ports:
    """``connect`` for runtimes and ``connect_api``; remembers the ports it made."""

    def __init__(self) -> None:
        self.made: list[ScriptedPort] = []
        self.answer: Callable[[Command], object] = lambda command: None
        self.configure: Callable[[ScriptedPort], None] = lambda port: None

    def connect(self, sink: ReplySink, loop: asyncio.AbstractEventLoop) -> ScriptedPort:
        port = ScriptedPort(sink, loop, len(self.made) + 1)
        port.answer = self.answer
        self.configure(port)
        self.made.append(port)
        return port

    @property
    def port(self) -> ScriptedPort:
        return self.made[-1]
