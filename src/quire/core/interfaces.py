"""The Protocols between layers. Each has at least two implementations; a fake counts.

Conformance suites for them live in ``quire.testing.conformance``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import msgspec

from quire.core.actions import Reply
from quire.core.batch import Batch, BatchResult, EngineAnswer, TransfersEnded
from quire.core.calls import AskService, QueueCall
from quire.core.encoding import EncodeBatch, EncodeResult, EncoderInfo
from quire.core.engine_info import EngineInfo
from quire.core.errors import ErrorRecord, PromptTooLong
from quire.core.events import Quotas
from quire.core.ids import CommandId, ModelId, ProgramId, QueueId, TenantId, ThreadId
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
        """Returns when ``seconds`` have passed."""
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

    def transfer(self) -> TransfersEnded | None:
        """Continue the transfers of earlier swaps for a few milliseconds and return those that have
        ended. None: no transfer is in progress. The caller of ``execute`` calls this once after
        each message, and repeatedly while it has no message to execute."""
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
        """Seconds since the engine should have given a sign of life; 0 while it does. Callable from
        any thread."""
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


@dataclass(slots=True)
class ServiceFigures:
    """The figures of one program, of one of its threads, or of a family, as policies read them.

    Control alone writes them. ``service_s`` and ``service_tokens``: engine time and tokens, prompts
    and recomputation included. ``path_s`` and ``path_tokens``: the longest critical path so far,
    which is the most service that stood one call behind the other (Autellix 4.2.1; kept for
    programs and families, not for threads). ``waiting_s``: time in which it could have run and did
    not. ``arrival_s``: when it began, for a thread when its first queue was created.
    ``completion_s``: when its last call ended. ``parent``: the program that launched it, or the
    thread that it was forked from; ``parent_thread``: the thread of that program that launched it.
    ``deadline_s``: the time by which its caller wants it done.
    """

    arrival_s: float = 0.0
    service_s: float = 0.0
    service_tokens: int = 0
    path_s: float = 0.0
    path_tokens: int = 0
    waiting_s: float = 0.0
    completion_s: float | None = None
    parent: int | None = None
    parent_thread: int | None = None
    deadline_s: float | None = None


class ReadyCommand(msgspec.Struct, kw_only=True, gc=False):
    """What a policy may know of a command (or running decode) that could be scheduled now.

    One object for the command's whole life: control keeps it up to date, a policy only reads it and
    may keep it. ``family_figures``, ``program_figures`` and ``thread_figures`` are live too, and
    shared by all commands of the family, the program and the thread. A family is a root program
    with all programs below it, those that have ended included; ``family`` is the root, ``kind``
    the name of its program (empty for sessions, whose names tell nothing about what they do).
    ``arrival_s``: when it was issued.
    ``ready_s``: when it became schedulable, or was last served. ``service_tokens`` and
    ``service_s`` count what the engine has done for it so far; ``path_tokens`` and ``path_s``: its
    program's critical path when it arrived, which it continues.
    """

    program: ProgramId
    tenant: TenantId
    thread: ThreadId = ThreadId(0)
    queue: QueueId
    command: CommandId
    priority: int
    depth: int
    arrival_s: float
    ready_s: float
    service_tokens: int
    num_tokens_next: int
    service_s: float = 0.0
    path_tokens: int = 0
    path_s: float = 0.0
    family: ProgramId
    kind: str = ""
    family_figures: ServiceFigures
    program_figures: ServiceFigures
    thread_figures: ServiceFigures


@runtime_checkable
class Policy(Protocol):
    """Decides who runs and who yields, within one tenant and one priority. Pure bookkeeping: no
    I/O, no clock.

    ``key`` sorts ascending: the smallest runs first, the largest yields first. Its first number is
    the command's *level*: a waiting command displaces a running one only if its level is smaller.
    The numbers after the level order the commands of one level, which never displace one another.
    The priorities of a tenant's programs and the tenants' fair shares take precedence over the key.

    Control keeps commands sorted, so a key may change only in a notification that concerns its
    command: ``on_arrival``, ``on_served``, or an ``on_time`` that returns the command. It must not
    change because of other commands, even those of the same program. A command whose rank depends
    on its program gets the rank on arrival (as in Autellix's queues), or is returned by
    ``on_time``.
    """

    @property
    def name(self) -> str: ...

    @property
    def keeps_state(self) -> bool:
        """Whether the policy wants the notifications. Constant: control asks once, and saves the
        calls for each row of each message if not."""
        ...

    def key(self, command: ReadyCommand) -> tuple[float, ...]:
        """The sort key; all keys have one length. Changes no state."""
        ...

    def on_arrival(self, command: ReadyCommand, now_s: float) -> None:
        """The command can be scheduled from now on. Called once, before its first ``key``."""
        ...

    def on_served(
        self, command: ReadyCommand, num_tokens: int, service_s: float, now_s: float
    ) -> None:
        """The engine has computed ``num_tokens`` for the command in ``service_s`` seconds."""
        ...

    def on_ended(self, command: ReadyCommand, now_s: float) -> None:
        """The command has ended, in whatever way. Its key is not asked for again."""
        ...

    def on_program_ended(self, program: ProgramId, now_s: float) -> None:
        """The program and all of its commands have ended."""
        ...

    def on_capacity(self, num_sequences: int) -> None:
        """The engines that are up run so many sequences at once, all together."""
        ...

    def on_time(self, now_s: float) -> Sequence[ReadyCommand]:
        """Called before every decision. Returns the commands whose keys have changed."""
        ...


@runtime_checkable
class DispatchPolicy(Protocol):
    """Decides *when* a batch is sent (Pie 5.2, Table 5); the policy decides *what* is in it."""

    @property
    def name(self) -> str: ...

    @property
    def max_commands(self) -> int | None:
        """The most commands in one message (``eager``: 1)."""
        ...

    @property
    def is_adaptive(self) -> bool:
        """Whether the scheduler may wait for programs that are likely to continue soon."""
        ...

    def ready_at_s(
        self, num_ready: int, oldest_ready_s: float, num_in_flight: int, now_s: float
    ) -> float | None:
        """When to dispatch: ``now_s`` or earlier means at once, later sets a timer, None waits."""
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
        """Most tokens of one sequence: the model's context, or the pool if that is smaller."""
        pool = self.info.pool
        num_slots = [group.num_blocks * pool.page_size for group in pool.groups if not group.window]
        return min([self.info.max_model_len, *num_slots])

    def room_behind(self, num_tokens: int, *, least: int = 1) -> int:
        """How many tokens fit behind ``num_tokens``.

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

    def on_reply(self, command: CommandId, reply: Reply, last: bool) -> None: ...

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
        """The program has ended. Idempotent."""
        ...


class Services(Protocol):
    """What a node offers to one program besides the model. ``close`` may come from any thread."""

    async def call(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """See ``ProgramPort.ask``. Called on any loop, the program's or its link's."""
        ...

    def close(self) -> None:
        """The program has ended: free what it holds here. Idempotent."""
        ...
