"""What programs see of a virtual node: a port, a clock and a model.

Owns the form in which calls reach control. Must not know what the programs do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from quire.core.calls import AskService, QueueCall
from quire.core.engine_info import EngineInfo
from quire.core.errors import InvalidArgument
from quire.core.events import Called, Event, ProgramEnded, ProgramStarted
from quire.core.ids import ModelId, ProgramId, TenantId
from quire.core.interfaces import ProgramClock, ServedModel
from quire.core.quotas import Quotas
from quire.simulation.clock import VirtualClock

TENANT = TenantId("default")


class LoopClock:
    """A ``ProgramClock`` whose sleep is that of the running loop."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock

    def now_s(self) -> float:
        return self._clock.now_s()

    def unix_s(self) -> float:
        return self._clock.now_s()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class CodePoints:
    """A ``Tokenizer``: each character is a token, its code point."""

    eos_token_ids: tuple[int, ...] = ()

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        return [ord(character) for character in text]

    def decode(self, token_ids: Sequence[int], *, skip_special: bool = False) -> str:
        return b"".join(map(self.token_bytes, token_ids)).decode()

    def token_bytes(self, token_id: int) -> bytes:
        return chr(token_id % 0xD800).encode()  # sampled tokens mean nothing


def served(info: EngineInfo) -> ServedModel:
    """Return the model of an engine as programs see it."""
    name = ModelId(info.model)
    return ServedModel(id=name, base=name, info=info, tokenizer=CodePoints(info.vocab_size))


class VirtualPort:
    """A ``ProgramPort``: ``post`` gives control an event at its time."""

    quotas = Quotas()
    first_number = 1

    def __init__(
        self,
        program: ProgramId,
        model: ServedModel,
        clock: LoopClock,
        post: Callable[[Event], None],
        on_close: Callable[[ProgramId], None],
    ) -> None:
        self.program = program
        self.clock: ProgramClock = clock
        self._model = model
        self._post = post
        self._on_close = on_close
        self._is_closed = False
        self._post(
            ProgramStarted(
                time_s=clock.now_s(),
                program=program,
                tenant=TENANT,
                form="session",
                name="request",
            )
        )

    @property
    def seed(self) -> int:
        return self.program

    def models(self) -> Sequence[ServedModel]:
        return (self._model,)

    def post(self, call: QueueCall) -> None:
        self._post(Called(time_s=self.clock.now_s(), program=self.program, call=call))

    async def ask(self, question: AskService, undo: str | None = None) -> Any:
        raise InvalidArgument(f"a virtual node has no service {question.name!r}")

    def close(self, reason: str = "finished") -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._post(ProgramEnded(time_s=self.clock.now_s(), program=self.program))
        self._on_close(self.program)
