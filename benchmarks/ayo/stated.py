"""States what the paced engines take: the points of Ayo's figures, and what is assumed.

Points of the paper: an embedding batch of 4 chunks takes 0.15 s and one of 16 takes 0.45 s (Fig.
4a); a prefill by Llama-2-7B takes 30 ms and 0.23 ms for each token (a line through Table 3, whose
split prefills it meets within 6 %). Everything else is assumed, most of it by the data sheets of
the paper's cards: a decode step reads the weights once (936 GB/s of an RTX 3090, 2,039 GB/s of an
A800) and takes 5 ms beside that; a token of a prompt costs its arithmetic, at the share of the
card's peak that Table 3 shows for the 7B. ``scaled`` varies what is assumed by half and double.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from quire.programs.workflow import App, Profile


@dataclass(frozen=True, slots=True)
class ModelTimes:
    """``prefill_s``: of a message with tokens of prompts, beside ``prompt_token_s`` for each of
    them; decodes stand in such a message for ``row_s`` each. ``step_s``: of a message of decodes
    alone. ``stated``: prefills are points of the paper, so that ``scaled`` leaves them."""

    prefill_s: float
    prompt_token_s: float
    step_s: float
    row_s: float = 0.0003
    stated: bool = False

    def scaled(self, factor: float) -> ModelTimes:
        assumed = replace(self, step_s=self.step_s * factor, row_s=self.row_s * factor)
        if self.stated:
            return assumed
        return replace(
            assumed,
            prefill_s=self.prefill_s * factor,
            prompt_token_s=self.prompt_token_s * factor,
        )


MODELS: Mapping[str, ModelTimes] = MappingProxyType(
    {
        "gemma-2-2b": ModelTimes(0.012, 0.00009, 0.011),
        "llama-2-7b": ModelTimes(0.030, 0.00023, 0.020, stated=True),
        "llama-2-13b": ModelTimes(0.035, 0.00032, 0.023),
        "llama-30b": ModelTimes(0.035, 0.00018, 0.024),
    }
)
"""The 13B stands on two RTX 3090 (0.7 of twice one card, they are joined by PCIe), the 30B on two
A800, the others on one RTX 3090 each."""
CORES = ("llama-2-7b", "llama-2-13b", "llama-30b")
MAX_BATCH = 16
"""Texts of one batch of an encoder: beyond it throughput hardly rises (Fig. 4a)."""
MAX_SEQUENCES = 64
"""Of one message of a model, with answers that are being written."""
MAX_PROMPT_TOKENS = 1024
"""Of one message of a model (Fig. 7)."""


@dataclass(frozen=True, slots=True)
class Stated:
    """``encode_s`` and ``encode_one_s``: of an embedding batch, and of each text in it (paper);
    ``rank_s`` and ``rank_one_s``: of the cross-encoder (assumed: the arithmetic of its layers at 40
    % of the card's peak). ``chunk_s``: of a document, ``ingest_s`` of a chunk and ``search_s`` of a
    query vector in the database, ``web_s`` of a search engine's answer. ``hand_over_s``: of a
    message between two agents. ``max_batch``: texts of an encoder's batch; ``max_sequences``: of a
    model's message. ``timeout_s``: for so long the baselines' encoders wait for a full batch."""

    models: Mapping[str, ModelTimes] = field(default_factory=lambda: MODELS)
    encode_s: float = 0.05
    encode_one_s: float = 0.025
    rank_s: float = 0.03
    rank_one_s: float = 0.0065
    chunk_s: float = 0.03
    ingest_s: float = 0.003
    search_s: float = 0.03
    web_s: float = 0.3
    hand_over_s: float = 0.01
    max_batch: int = MAX_BATCH
    max_sequences: int = MAX_SEQUENCES
    timeout_s: float = 0.0

    def scaled(self, factor: float) -> Stated:
        """Return the figures with the assumed times of engines multiplied by ``factor``."""
        names = (
            "rank_s", "rank_one_s", "chunk_s", "ingest_s", "search_s", "web_s", "hand_over_s"
        )  # fmt: skip
        models = {name: one.scaled(factor) for name, one in self.models.items()}
        assumed = {name: getattr(self, name) * factor for name in names}
        return replace(self, models=MappingProxyType(models), **assumed)


def profiled(app: App, stated: Stated, models: Mapping[str, str]) -> App:
    """Return ``app`` with the stated times as its engines' profiles. ``models``: what serves each
    of its engines of kind llm."""
    sizes = (1, MAX_BATCH)
    profiles = {
        "chunker": Profile(times=((1, stated.chunk_s),)),
        "embedding": Profile(
            MAX_BATCH, tuple((num, stated.encode_s + stated.encode_one_s * num) for num in sizes)
        ),
        "rerank": Profile(
            times=tuple((num, stated.rank_s + stated.rank_one_s * num) for num in sizes)
        ),
        "vectors": Profile(times=((1, stated.search_s),)),
        "search": Profile(times=((1, stated.web_s),)),
    }
    for engine, model in models.items():
        times = stated.models[model]
        prompts = tuple((n, times.prefill_s + times.prompt_token_s * n) for n in (1, 4096))
        profiles[engine] = Profile(times=prompts, token_s=times.step_s + times.row_s)
    engines = [
        replace(one, profile=profiles[one.name]) if one.name in profiles else one
        for one in app.engines.values()
    ]
    made = App(app.name, engines)
    made.update_template(list(app.nodes))
    return made
