"""Engines that compute nothing and take their stated times: models, encoders, and what is asked one
request after the other."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np

from benchmarks.ayo.stated import MAX_PROMPT_TOKENS, ModelTimes
from quire.core.batch import Batch
from quire.core.batch_result import BatchResult, TransfersEnded
from quire.core.encoding import EncodeBatch, EncodeResult, EncoderInfo, EncoderKind
from quire.core.engine_info import EngineInfo
from quire.simulation import LightEngine, Simulation, light_pool

PAGE_SIZE = 16
NUM_BLOCKS = 1 << 16


class PacedModel:
    """``EngineCore``: ``LightEngine``'s progress in the time of ``times``."""

    def __init__(self, model: str, times: ModelTimes, max_sequences: int) -> None:
        pool = light_pool(
            num_blocks=NUM_BLOCKS,
            page_size=PAGE_SIZE,
            max_sequences=max_sequences,
            max_batch_tokens=MAX_PROMPT_TOKENS,
        )
        self._inner, self._times = LightEngine(pool, model=model), times
        self.busy_s = 0.0

    @property
    def info(self) -> EngineInfo:
        return self._inner.info

    def execute(self, batch: Batch) -> BatchResult:
        result, times = self._inner.execute(batch), self._times
        num_prompt = 0 if batch.forward is None else len(batch.forward.tokens)
        counts = list[int]()
        if result.sequences is not None:
            counts = np.diff(result.sequences.token_starts).tolist()
        elapsed_s = times.row_s * sum(counts)
        if num_prompt:
            elapsed_s += times.prefill_s + times.prompt_token_s * num_prompt
        num_steps = max(counts, default=0)
        if num_steps > bool(num_prompt):  # a prefill's message is the first step as well
            elapsed_s += times.step_s * (num_steps - bool(num_prompt))
        result.elapsed_s = elapsed_s
        self.busy_s += elapsed_s
        return result

    def transfer(self) -> TransfersEnded | None:
        return self._inner.transfer()

    def wake_by(self, ring: Callable[[], None]) -> None:
        self._inner.wake_by(ring)

    def close(self) -> None:
        self._inner.close()


class PacedEncoder:
    """``EncoderCore``: a batch takes ``batch_s``, and ``one_s`` for each of its texts, which count
    as one token each."""

    def __init__(self, kind: EncoderKind, batch_s: float, one_s: float, max_batch: int) -> None:
        self._kind, self._max_batch = kind, max_batch
        self._batch_s, self._one_s = batch_s, one_s
        self.busy_s = 0.0

    @property
    def info(self) -> EncoderInfo:
        return EncoderInfo(
            model=self._kind,
            family="paced",
            kind=self._kind,
            dimensions=1,
            max_tokens=1,
            vocab_size=2,
            num_types=1,
            num_parameters=0,
            max_batch_tokens=self._max_batch,
            max_pending=1 << 20,
        )

    def encode(self, batch: EncodeBatch) -> EncodeResult:
        num = len(batch.lengths)
        rows = np.zeros((num, 1), np.float32)
        elapsed_s = self._batch_s + self._one_s * num
        self.busy_s += elapsed_s
        return EncodeResult(number=batch.number, rows=rows, elapsed_s=elapsed_s)


class Server:
    """Does ``num_at_once`` things at a time, in the order of asking: a database, a copy of an
    agent."""

    def __init__(self, simulation: Simulation, num_at_once: int = 1) -> None:
        self._simulation = simulation
        self._num_free = num_at_once
        self._waiting: deque[Callable[[], None]] = deque()

    def ask(self, duration_s: float, done: Callable[[], None]) -> None:
        """Call ``done`` after ``duration_s`` of work, once it is this one's turn."""

        def ended() -> None:
            self.leave()
            done()

        self.enter(lambda: self._simulation.after(duration_s, ended))

    def enter(self, begin: Callable[[], None]) -> None:
        """Call ``begin`` when there is room; who has begun calls ``leave``."""
        if self._num_free:
            self._num_free -= 1
            begin()
        else:
            self._waiting.append(begin)

    def leave(self) -> None:
        if self._waiting:
            self._waiting.popleft()()
        else:
            self._num_free += 1


class Gathering:
    """Dynamic batching with a timeout: requests are let in when there are ``enough`` texts of them,
    or when the first of them has waited for ``timeout_s``."""

    def __init__(self, simulation: Simulation, enough: int, timeout_s: float) -> None:
        self._simulation = simulation
        self._enough, self._timeout_s = enough, timeout_s
        self._waiting: list[Callable[[], None]] = []
        self._num_texts = self._num_rounds = 0

    def enter(self, num_texts: int, begin: Callable[[], None]) -> None:
        """Call ``begin`` when they are let in."""
        self._waiting.append(begin)
        self._num_texts += num_texts
        if self._num_texts >= self._enough:
            self._let_in(self._num_rounds)
        elif len(self._waiting) == 1:
            number = self._num_rounds
            self._simulation.after(self._timeout_s, lambda: self._let_in(number))

    def _let_in(self, number: int) -> None:
        if number != self._num_rounds:
            return  # they were enough before
        waiting, self._waiting = self._waiting, []
        self._num_texts, self._num_rounds = 0, number + 1
        for begin in waiting:
            begin()
