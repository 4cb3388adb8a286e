"""The Protocols between layers. Each has at least two implementations; a fake counts.

Conformance suites for them live in ``quire.testing.conformance``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

from quire.core.actions import ReplyValue
from quire.core.batch import Batch
from quire.core.batch_result import BatchResult, EngineAnswer, EngineReport
from quire.core.calls import AskService, QueueCall
from quire.core.encoding import EncodeBatch, EncodeResult, EncoderInfo
from quire.core.engine_info import EngineInfo
from quire.core.errors import ErrorRecord, PromptTooLong
from quire.core.ids import CommandId, ModelId, ProgramId
from quire.core.quotas import Quotas
from quire.core.traits import NODE_TRAITS


@runtime_checkable
class Clock(Protocol):
    """Monotonic time in seconds. Owned by the shell; the controller never sees it."""

    def now_s(self) -> float: ...


class ProgramClock(Clock, Protocol):
    """The node's clock as programs use it. Thread-safe."""

    def unix_s(self) -> float:
        """Unix time, which may jump."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return when ``seconds`` have passed."""
        ...


@runtime_checkable
class EngineCore(Protocol):
    """The engine as a function: executes batches in order and owns all device memory.

    Not thread-safe; one caller. ``execute`` never raises for a bad row (see
    ``BatchResult.failures``); it raises ``EngineFault`` only when its memory can no longer be
    trusted, after which the engine must be replaced.
    """

    @property
    def info(self) -> EngineInfo: ...

    def execute(self, batch: Batch) -> BatchResult: ...

    def transfer(self) -> EngineReport | None:
        """Continue the transfers of earlier swaps for a few milliseconds; return those that have
        ended, or the end of an exchange with another engine. None: there is nothing to do or to
        report. The caller of ``execute`` calls this once after each message, and repeatedly while
        it has no message to execute."""
        ...

    def wake_by(self, ring: Callable[[], None]) -> None:
        """Call ``ring``, from any thread, whenever ``transfer`` has something to report although no
        message came. Called once, before the first message."""
        ...

    def close(self) -> None:
        """Release memory; idempotent."""
        ...


class EngineTransport(Protocol):
    """The shell's connection to one engine, wherever it runs.

    ``start`` returns when the engine is ready and the protocol versions agree. ``send`` never
    blocks. Results, and the ends of transfers, arrive through ``on_answer`` on the shell's loop, in
    order; ``on_lost`` is called at most once.
    """

    async def start(
        self,
        on_answer: Callable[[EngineAnswer], None],
        on_lost: Callable[[str], None],
    ) -> EngineInfo: ...

    def send(self, batch: Batch) -> None: ...

    def silent_s(self) -> float:
        """Seconds for which an expected sign of life of the engine is missing; 0 while it gives
        them. Callable from any thread."""
        ...

    async def close(self) -> None: ...


class EncoderTransport(Protocol):
    """The shell's connection to one encoder; see ``EngineTransport``."""

    async def start(
        self,
        on_answer: Callable[[EncodeResult], None],
        on_lost: Callable[[str], None],
    ) -> EncoderInfo: ...

    def send(self, batch: EncodeBatch) -> None: ...

    def silent_s(self) -> float: ...

    async def close(self) -> None: ...


class Tokenizer(Protocol):
    """Text to token ids and back, for one model. Thread-safe and stateless."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def eos_token_ids(self) -> tuple[int, ...]: ...

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Token ids of ``text``. ``special``: special tokens that are spelled out in it are
        recognised."""
        ...

    def decode(self, token_ids: Sequence[int], *, skip_special: bool = False) -> str: ...

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that the token adds to the output (empty for special tokens)."""
        ...


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One model as programs and the edge see it. ``defaults`` come from generation_config.json.

    ``base``: the model whose engines serve it, which queues name: the model itself, or the base
    model of an adapter. ``adapter``: the adapter that this name stands for, None for the base
    model. Commands on its queues run with the adapter.

    ``special_tokens``: bos_token, eos_token and the like, as chat templates expect them.
    ``text_start``: what its tokenizer puts before a text that was not rendered by a template.
    ``node_traits``: the traits that the node serves besides the model's.
    """

    id: ModelId
    base: ModelId
    info: EngineInfo
    tokenizer: Tokenizer
    chat_template: str | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    adapter: str | None = None
    node_traits: frozenset[str] = NODE_TRAITS
    text_start: tuple[int, ...] = ()

    @property
    def traits(self) -> frozenset[str]:
        """All traits that a program has with this model."""
        return self.node_traits.union(self.info.traits)

    @property
    def max_tokens(self) -> int:
        """The most tokens of one sequence: the model's context, or the pool if that is smaller."""
        pool = self.info.pool
        num_slots = [group.num_blocks * pool.page_size for group in pool.groups if not group.window]
        return min([self.info.max_model_len, *num_slots])

    def room_behind(self, num_tokens: int, *, least: int = 1) -> int:
        """The number of tokens that fit behind ``num_tokens``.

        Raises:
            PromptTooLong: fewer than ``least``.
        """
        limit = self.max_tokens
        room = limit - num_tokens
        if room < least:
            raise PromptTooLong(
                f"the prompt has {num_tokens} tokens, but the context of {self.id!r} holds {limit}:"
                " shorten or truncate it",
                num_prompt_tokens=num_tokens,
                max_model_len=limit,
            )
        return room

    def with_adapters(self) -> list[ServedModel]:
        """This model, followed by one entry for each adapter of its engine."""
        adapted = [
            replace(self, id=ModelId(adapter.name), adapter=adapter.name)
            for adapter in self.info.adapters
            if not adapter.problem
        ]
        return [self, *adapted]


class ReplySink(Protocol):
    """Receives a program's replies. Called on the loop of the program's own runtime."""

    def on_reply(self, command: CommandId, reply: ReplyValue, last: bool) -> None: ...

    def on_failure(self, command: CommandId, error: ErrorRecord) -> None: ...

    def on_terminated(self, error: ErrorRecord) -> None:
        """The node has ended the program; no further reply will come."""
        ...


class ProgramPort(Protocol):
    """One program's connection to its node. The port adds the program's identity to everything.

    Every method may be called from the program's runtime thread and returns at once; what control
    refuses arrives as a failure of the command. Given to a runtime by the node (or by the test
    kit), which keeps it alive until ``close``.
    """

    @property
    def program(self) -> ProgramId: ...

    @property
    def quotas(self) -> Quotas: ...

    @property
    def seed(self) -> int:
        """The seed of the program's randomness; given at its launch, or chosen and recorded
        then."""
        ...

    @property
    def clock(self) -> ProgramClock:
        """The node's clock. A program that reads another clock cannot be tested or replayed
        exactly."""
        ...

    @property
    def first_number(self) -> int:
        """The first number that the user of this port gives to a queue, command, page, embed or
        question. Ports of one program have different ones, so that their numbers differ."""
        ...

    def models(self) -> Sequence[ServedModel]:
        """The models of this node, the default one first."""
        ...

    def post(self, call: QueueCall) -> None:
        """Send a call to control; replies to commands arrive at the sink."""
        ...

    async def ask(self, question: AskService, undo: str | None = None) -> Any:
        """Ask a service of the node and wait for its answer (JSON values and bytes).

        Awaited rather than posted, so that a cancelled wait has withdrawn the question before the
        program continues. ``undo``: the service to ask, with the same arguments and ``answer``, if
        the answer was already on its way; a port that cannot lose an answer ignores it.

        Raises:
            InvalidArgument: no such service here, or arguments that do not fit.
            QuireError: whatever the service refuses it with.
        """
        ...

    def close(self, reason: str = "finished") -> None:
        """Note that the program has ended. Idempotent."""
        ...


class Services(Protocol):
    """A node's services to one program besides the model. ``close`` may come from any thread."""

    async def ask(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """See ``ProgramPort.ask``. Called on any loop, the program's or its link's."""
        ...

    def close(self) -> None:
        """Free what the program holds here, as it has ended. Idempotent."""
        ...
