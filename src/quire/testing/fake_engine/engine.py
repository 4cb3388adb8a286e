"""``FakeEngine``: an ``EngineCore`` without a model that records exactly what every token saw.

Executes batch messages as ``quire.core.batch`` documents them, with numpy only. In its model (see
``hashing``) a token's hidden state is a hash of all that the token saw, so a wrong mask, a stale
slot, an aliased block or a missing copy changes every later token. Messages that no correct control
layer sends raise ``ProtocolViolation``; an invalid row fails alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from quire.core.batch import (
    F32,
    U64,
    Batch,
    CloseReceives,
    CloseSequences,
    CopySlots,
    DropTables,
    ExtendSequence,
    OpenReceive,
    OpenSequence,
    Operation,
    ReadDisk,
    RepositionSlots,
    SendSlots,
    SwapIn,
    SwapOut,
    WriteDisk,
    WriteEntries,
    WriteTable,
)
from quire.core.batch_result import BatchResult, EngineReport, RowFailure, TransfersEnded
from quire.core.engine_info import AdapterInfo, EngineInfo, ImageInput, LayerGroup, PoolSpec
from quire.core.errors import EngineFault, InvalidArgument, QuireError
from quire.core.ids import SequenceId
from quire.core.interfaces import Tokenizer
from quire.core.traits import MODEL_TRAITS, Trait
from quire.testing.fake_engine.context import MessageContext
from quire.testing.fake_engine.grammar import FakeGrammarCompiler
from quire.testing.fake_engine.hashing import logits_of
from quire.testing.fake_engine.memory import FakeMemory, Move
from quire.testing.fake_engine.message import run_message
from quire.testing.fake_engine.network import FakeNetwork
from quire.testing.fake_engine.rows import RowResult
from quire.testing.fake_engine.sequences import FakeSequence, open_state
from quire.testing.fake_engine.violations import ProtocolViolation, require
from quire.testing.tokenizer import FakeTokenizer

Script = Callable[[Sequence[int]], int]
"""Maps all tokens that a token saw, itself last, to the token that follows."""

_SCRIPT_BONUS = np.float32(64.0)


def fake_pool(
    *,
    page_size: int = 4,
    num_blocks: int = 64,
    num_host_blocks: int = 64,
    num_disk_blocks: int = 0,
    num_embeds: int = 256,
    num_token_slots: int = 64,
    max_sequences: int = 32,
    max_batch_tokens: int = 128,
) -> PoolSpec:
    """A pool of one full-attention group, sized for tests."""
    group = LayerGroup(
        num_blocks=num_blocks,
        num_host_blocks=num_host_blocks,
        num_disk_blocks=num_disk_blocks,
        bytes_per_block=page_size * 64,
    )
    return PoolSpec(
        page_size=page_size,
        groups=(group,),
        num_embeds=num_embeds,
        num_token_slots=num_token_slots,
        max_sequences=max_sequences,
        max_batch_tokens=max_batch_tokens,
    )


@dataclass(frozen=True, slots=True)
class StepTime:
    """The modelled duration of a message, reported as ``elapsed_s``."""

    base_s: float = 0.001
    per_token_s: float = 0.0001

    def elapsed_s(self, num_tokens: int) -> float:
        return self.base_s + self.per_token_s * num_tokens


class FakeEngine:
    """An ``EngineCore`` without a model; see the module docstring.

    ``script`` makes it generate given tokens (see ``ScriptedModel``); nothing else changes.
    ``transfer_seed``: each ``transfer`` ends a random subset of the transfers in progress, in
    random order; None: all of them. ``disk_fault``: decides for each transfer from or to the disk,
    when it ends, whether it fails. ``disk_block_s``: the reported time of copying a block from or
    to the disk. ``adapters``: the adapters that it pretends to have, by name or in full.
    ``network``: the engines with which it exchanges slots.
    """

    def __init__(
        self,
        pool: PoolSpec | None = None,
        *,
        tokenizer: Tokenizer | None = None,
        model: str = "fake",
        max_model_len: int = 4096,
        script: Script | None = None,
        step_time: StepTime | None = None,
        adapters: Sequence[str | AdapterInfo] = (),
        images: ImageInput | None = None,
        transfer_seed: int | None = None,
        disk_fault: Callable[[Move], bool] | None = None,
        disk_block_s: float = 0.0,
        network: FakeNetwork | None = None,
        content: str = "fake-1",
        num_parameters: int = 0,
    ) -> None:
        self._tokenizer = tokenizer or FakeTokenizer()
        pool = pool or fake_pool()
        traits = set(MODEL_TRAITS)
        if images is None:
            traits.remove(Trait.INPUT_IMAGE)
        self._memory = FakeMemory(pool)
        self.exchange = None if network is None else network.join(self._memory)
        self._info = EngineInfo(
            model=model,
            family="fake",
            content=content,
            layout=f"fake-1 in pages of {pool.page_size}",
            vocab_size=self._tokenizer.vocab_size,
            hidden_size=1,
            num_layers=2,
            max_model_len=max_model_len,
            dtype="float32",
            device="cpu",
            backend="fake",
            num_parameters=num_parameters,
            pool=pool,
            traits=sorted(trait.value for trait in traits if adapters or trait != Trait.ADAPTER),
            adapters=tuple(
                AdapterInfo(name=one, digest=f"fake-{one}", rank=1) if isinstance(one, str) else one
                for one in adapters
            ),
            images=images,
            data_address="" if self.exchange is None else self.exchange.address,
            data_salt=b"fake",
        )
        self._grammars = FakeGrammarCompiler(self._tokenizer)
        self._transfer_order = None if transfer_seed is None else random.Random(transfer_seed)
        self._disk_fault = disk_fault
        self._disk_block_s = disk_block_s
        self._script = script
        self._step_time = step_time or StepTime()
        self._sequences: dict[SequenceId, FakeSequence] = {}
        self._seen: dict[int, tuple[int, ...]] = {}
        self._next_message: int | None = None
        self._fault: EngineFault | None = None
        self._crash_at: int | None = None
        self._begun: list[SendSlots] = []
        self._row_failures: dict[int, dict[tuple[str, int], QuireError]] = {}

    @property
    def info(self) -> EngineInfo:
        return self._info

    @property
    def memory(self) -> FakeMemory:
        """The memory, for white-box assertions."""
        return self._memory

    @property
    def open_sequences(self) -> frozenset[SequenceId]:
        """Sequences opened and not closed, ended or not."""
        return frozenset(self._sequences)

    def crash_at(self, message: int) -> None:
        """Lose the engine when it executes that ``message``."""
        self._crash_at = message

    def fail_row(self, message: int, stage: str, index: int, error: QuireError) -> None:
        """Let one row of a future message fail: ``stage`` is a field of ``Batch``."""
        self._row_failures.setdefault(message, {})[stage, index] = error

    def close(self) -> None:
        if self.exchange is not None:
            self.exchange.leave()
        self._fault = EngineFault("the engine is closed")

    def execute(self, batch: Batch) -> BatchResult:
        """Run one message.

        Raises:
            ProtocolViolation: the message breaks the batch contract.
            EngineFault: an injected crash, or a message after a fault.
        """
        if self._fault is not None:
            raise self._fault
        try:
            return self._execute(batch)
        except EngineFault as exc:
            self._fault = exc
            raise

    @property
    def has_transfers(self) -> bool:
        """Whether ``transfer`` would do or report anything."""
        return bool(self._memory.moves) or (self.exchange is not None and self.exchange.is_busy)

    def transfer(self) -> EngineReport | None:
        if self._fault is None and self.exchange is not None:
            report = self.exchange.next_report()
            if report is not None:
                return report
        moves = self._memory.moves
        under_way = list(moves)
        if self._fault is not None or not under_way:
            return None
        order = self._transfer_order
        if order is not None:
            under_way = order.sample(under_way, order.randint(1, len(under_way)))
        elapsed_s = 0.0
        if self._disk_block_s:  # a time is that of one direction
            way = _way(moves[under_way[0]])
            under_way = [transfer for transfer in under_way if _way(moves[transfer]) == way]
            elapsed_s = self._disk_block_s * len(under_way) if "disk" in way else 0.0
        fault, failed = self._disk_fault, []
        if fault is not None:
            failed = [t for t in under_way if moves[t].uses_disk and fault(moves[t])]
        self._memory.end_moves(under_way, failed)
        return TransfersEnded(
            transfers=np.array(under_way, np.int32),
            elapsed_s=elapsed_s,
            failed=np.array(failed, np.int32),
            problem="an injected fault" if failed else "",
        )

    def wake_by(self, ring: Callable[[], None]) -> None:
        if self.exchange is not None:
            self.exchange.wake_by(ring)

    def _execute(self, batch: Batch) -> BatchResult:
        if batch.serial == self._crash_at:
            raise EngineFault(f"injected crash at message {batch.serial}")
        require(
            self._next_message in (None, batch.serial),
            f"message {batch.serial} arrives where {self._next_message} is due",
        )
        self._next_message = batch.serial + 1
        for state in self._sequences.values():
            state.emitted.clear()
        context = MessageContext(
            info=self._info,
            memory=self._memory,
            tokenizer=self._tokenizer,
            sequences=self._sequences,
            logits_of=self._logits,
            score_logits_of=lambda hidden: logits_of(hidden, self._info.vocab_size),
            observe=self._observe,
            injected=self._row_failures.pop(batch.serial, {}),
        )
        kinds = [
            (type(op), getattr(op, "tier", None))
            for op in batch.operations
            if isinstance(op, SwapOut | SwapIn | WriteDisk | ReadDisk)
        ]
        require(len(set(kinds)) == len(kinds), "two swaps in one direction in one message")
        for index, operation in enumerate(batch.operations):
            self._operate(operation, index, context.failures)
        result = run_message(context, batch)
        result.elapsed_s = self._step_time.elapsed_s(result.num_tokens)
        self._begin_sends()
        return result

    def _operate(self, operation: Operation, index: int, failures: list[RowFailure]) -> None:
        require(getattr(operation, "group", 0) == 0, "the fake engine has one layer group")
        match operation:
            case WriteTable():
                self._memory.write_table(operation)
            case WriteEntries():
                self._memory.write_entries(operation)
            case DropTables(tables=tables):
                in_use = {state.opened.table for state in self._sequences.values()}
                for table in tables:
                    require(table not in in_use, f"table {table} is dropped under its sequence")
                    self._memory.drop_table(table)
            case CopySlots():
                self._memory.copy_slots(operation)
            case RepositionSlots():
                self._memory.reposition_slots(operation)
            case SwapOut() | SwapIn() | WriteDisk() | ReadDisk():
                self._memory.begin(operation)
            case OpenReceive() | CloseReceives() | SendSlots():
                self._exchange_slots(operation)
            case OpenSequence():
                self._open(operation, index, failures)
            case ExtendSequence():
                self._extend(operation)
            case CloseSequences(sequences=sequences):
                for sequence in sequences:
                    require(sequence in self._sequences, f"sequence {sequence} is not open")
                    del self._sequences[sequence]
            case _:
                raise ProtocolViolation(f"unknown operation {type(operation).__name__}")

    def _open(self, operation: OpenSequence, index: int, failures: list[RowFailure]) -> None:
        sequence, limit = operation.sequence, self._info.pool.max_sequences
        require(0 <= sequence < limit, f"sequence {sequence} of at most {limit}")
        require(sequence not in self._sequences, f"sequence {sequence} is opened while open")
        tables = {state.opened.table for state in self._sequences.values()}
        require(operation.table not in tables, f"table {operation.table} has two sequences")
        self._check_limit(operation, operation.limit)
        require(
            0 <= operation.num_generated <= len(operation.history),
            f"sequence {sequence}: {operation.num_generated} of {len(operation.history)} tokens "
            "were generated",
        )
        matcher, failure = None, None
        try:
            if not -1 <= operation.adapter < len(self._info.adapters):
                raise InvalidArgument(f"adapter {operation.adapter} of {len(self._info.adapters)}")
            if operation.grammar is not None:
                matcher = self._grammars.compile(operation.grammar)
            state = open_state(operation, self._tokenizer, matcher)
        except QuireError as exc:
            failures.append(RowFailure(stage="operations", index=index, error=exc.record()))
            failure, state = exc, open_state(operation, self._tokenizer, None)
        state.failure = failure
        self._sequences[sequence] = state

    def _exchange_slots(self, operation: OpenReceive | CloseReceives | SendSlots) -> None:
        exchange = self.exchange
        require(exchange is not None, "this fake engine has no network")
        assert exchange is not None
        if isinstance(operation, OpenReceive):
            exchange.open(operation)
        elif isinstance(operation, CloseReceives):
            exchange.close(operation)
        else:
            self._begun.append(operation)

    def _begin_sends(self) -> None:
        """Begin the sends of this message: they send the slots as they are after the forward."""
        begun, self._begun = self._begun, []
        for operation in begun:
            assert self.exchange is not None
            self.exchange.send(operation)

    def _extend(self, operation: ExtendSequence) -> None:
        state = self._sequences.get(operation.sequence)
        require(state is not None, f"sequence {operation.sequence} is extended but not open")
        assert state is not None
        require(
            operation.limit >= state.limit,
            f"sequence {operation.sequence}: its limit goes back from {state.limit} to "
            f"{operation.limit}",
        )
        self._check_limit(state.opened, operation.limit)
        state.limit = operation.limit

    def _check_limit(self, opened: OpenSequence, limit: int) -> None:
        entries = len(self._memory.table(opened.table).blocks)
        require(
            limit <= entries * self._info.pool.page_size,
            f"sequence {opened.sequence}: limit {limit} is beyond the {entries} entries of table "
            f"{opened.table}",
        )

    def _observe(self, result: RowResult) -> None:
        if self._script is None:
            return
        for index, hidden in enumerate(result.hidden.tolist()):
            self._seen[hidden] = result.seen_tokens(index)

    def _logits(self, hidden: U64) -> F32:
        logits = logits_of(hidden, self._info.vocab_size)
        if self._script is not None:
            for row, value in enumerate(hidden.tolist()):
                logits[row, self._script(self._seen.get(value, ()))] += _SCRIPT_BONUS
        return logits


def _way(move: Move) -> tuple[str, str]:
    return move.source[0], move.target[0]
