"""State shared by the stages of one message: the engine's state, the failures, the token count."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from quire.core.batch import F32, I32, U64
from quire.core.batch_result import RowFailure
from quire.core.engine_info import EngineInfo
from quire.core.errors import EngineFault, InvalidArgument, QuireError
from quire.core.ids import SequenceId
from quire.core.interfaces import Tokenizer
from quire.testing.fake_engine.memory import FakeMemory
from quire.testing.fake_engine.rows import FakeRow, RowResult, run_rows
from quire.testing.fake_engine.sequences import FakeSequence
from quire.testing.fake_engine.violations import ProtocolViolation

LogitsOf = Callable[[U64], F32]
"""Hidden states [N] to logits [N, vocab]."""


@dataclass(slots=True)
class MessageContext:
    """One message in execution. ``injected``: failures that a test asked for.

    ``score_logits_of`` ignores a script, which only defines what follows a whole prompt.
    """

    info: EngineInfo
    memory: FakeMemory
    tokenizer: Tokenizer
    sequences: dict[SequenceId, FakeSequence]
    logits_of: LogitsOf
    score_logits_of: LogitsOf
    observe: Callable[[RowResult], None]
    injected: dict[tuple[str, int], QuireError]
    failures: list[RowFailure] = field(default_factory=list)
    num_tokens: int = 0

    def attempt(self, stage: str, index: int, work: Callable[[], None]) -> bool:
        """Run one row's work; an error in it becomes the row's failure."""
        try:
            if (stage, index) in self.injected:
                raise self.injected[stage, index]
            work()
        except EngineFault:
            raise
        except QuireError as exc:
            self.failures.append(RowFailure(stage=stage, index=index, error=exc.record()))
            return False
        return True

    def run_rows(self, rows: list[FakeRow]) -> list[RowResult]:
        """One pass of the model."""
        results = run_rows(self.memory, rows)
        for result in results:
            self.observe(result)
            self.num_tokens += len(result.hidden)
        return results

    def sequence(self, sequence: int, what: str) -> FakeSequence:
        """An open sequence; naming one that is not open breaks the contract."""
        state = self.sequences.get(SequenceId(sequence))
        if state is None:
            raise ProtocolViolation(f"{what} names sequence {sequence}, which is not open")
        return state

    def check_adapter(self, adapter: int) -> None:
        """Fail the row if the engine does not have its adapter."""
        if not -1 <= adapter < len(self.info.adapters):
            raise InvalidArgument(f"adapter {adapter} of {len(self.info.adapters)}")

    def check_vocabulary(self, tokens: I32) -> None:
        """Fail the row if a token id is outside the vocabulary."""
        if np.any((tokens < 0) | (tokens >= self.info.vocab_size)):
            raise InvalidArgument(
                f"token ids {tokens.tolist()} exceed the vocabulary of {self.info.vocab_size}"
            )
