"""What the paced engines are stated to take: the points of Ayo's figures, and what is assumed.

Points of the paper: an embedding batch of 4 chunks takes 0.15 s and one of 16 takes 0.45 s (Fig.
4a); a prefill takes 30 ms and 0.23 ms for each token (a line through Table 3, whose split prefills
it meets within 3 %). Everything else is assumed. The assumed lengths of texts were chosen once, so
that a query without any pass takes the 4.1 s of Fig. 3, and are frozen; ``scaled`` varies what is
assumed of engines by half and double.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from quire.core.encoding import EncodeBatch, EncodeResult, EncoderInfo, EncoderKind
from quire.programs.workflow import App, Profile
from quire.simulation.step_cost import StepCost

LLM_7B = StepCost(message_s=0.03, step_s=0.01, row_s=0.0005, prompt_token_s=0.00023)


@dataclass(frozen=True, slots=True)
class Stated:
    """``llm``: of one of the two engines of the core model. ``encode_s`` and ``encode_one_s``: of a
    batch, and of each text in it (paper); ``rank_s`` and ``rank_one_s``: of the cross-encoder
    (assumed). ``chunk_s``: of a document, ``ingest_s`` of a chunk, ``search_s`` of a query
    (assumed)."""

    llm: StepCost = LLM_7B
    encode_s: float = 0.05
    encode_one_s: float = 0.025
    rank_s: float = 0.03
    rank_one_s: float = 0.0065
    chunk_s: float = 0.03
    ingest_s: float = 0.003
    search_s: float = 0.03

    def scaled(self, factor: float) -> Stated:
        """With ``factor`` times what is assumed of engines."""
        names = ("rank_s", "rank_one_s", "chunk_s", "ingest_s", "search_s")
        llm = replace(self.llm, step_s=self.llm.step_s * factor, row_s=self.llm.row_s * factor)
        return replace(self, llm=llm, **{name: getattr(self, name) * factor for name in names})


MAX_BATCH = 16
"""Texts of one batch of an encoder: beyond it throughput hardly rises (Fig. 4a)."""
MAX_PROMPT_TOKENS = 1024
"""Of one message of the core model (Fig. 7)."""
INSTRUCTION_TOKENS = 60
"""Of a prompt (section 7.1)."""
QUESTION_TOKENS = 24
CHUNK_TOKENS = 256
QUERY_TOKENS = 6
"""Of each expanded query."""
ANSWER_TOKENS = 8
"""Of each step of a refined answer."""


def profiled(app: App, stated: Stated) -> App:
    """``app`` with the stated times as its engines' profiles."""
    llm, sizes = stated.llm, (1, MAX_BATCH)
    token_s = llm.message_s + llm.step_s + llm.row_s
    prompts = tuple((num, llm.message_s + llm.prompt_token_s * num) for num in (1, 4096))
    profiles = {
        "chunker": Profile(times=((1, stated.chunk_s),)),
        "embedding": Profile(
            MAX_BATCH, tuple((num, stated.encode_s + stated.encode_one_s * num) for num in sizes)
        ),
        "rerank": Profile(
            times=tuple((num, stated.rank_s + stated.rank_one_s * num) for num in sizes)
        ),
        "vectors": Profile(times=((1, stated.search_s),)),
        "llm": Profile(times=prompts, token_s=token_s),
    }
    made = App(app.name, [replace(one, profile=profiles[one.name]) for one in app.engines.values()])
    made.update_template(list(app.nodes))
    return made


class PacedEncoder:
    """``EncoderCore`` that computes nothing: a batch takes ``batch_s``, and ``one_s`` for each of
    its texts, which count as one token each."""

    def __init__(self, kind: EncoderKind, batch_s: float, one_s: float) -> None:
        self._kind = kind
        self._batch_s, self._one_s = batch_s, one_s
        self.num_batches = 0
        self.num_texts = 0

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
            max_batch_tokens=MAX_BATCH,
            max_pending=1 << 20,
        )

    def encode(self, batch: EncodeBatch) -> EncodeResult:
        num = len(batch.lengths)
        self.num_batches += 1
        self.num_texts += num
        rows = np.zeros((num, 1), np.float32)
        elapsed_s = self._batch_s + self._one_s * num
        return EncodeResult(number=batch.number, rows=rows, elapsed_s=elapsed_s)
