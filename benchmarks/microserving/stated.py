"""States the A100 of the figures that no small machine can measure (Microserving, 4.1 and Table 3).

Frozen before the first comparison. From the paper: 500 tokens of Llama 3.1 8B behind 500, 2500 and
4500 others take 1.247, 1.391 and 1.564 ms a layer, and K and V of 1000, 3000 and 5000 tokens 0.197,
0.533 and 0.867 ms; 32 layers. A line through the first gives what a token costs and what each token
does that it attends to; a line through the second the bandwidth and what a layer costs beside it.

Assumed: the least time of a pass is that of reading the weights (16.06 GB in bf16) at the A100 40GB
SXM's 1,555 GB/s, and K and V of what a decode attends to are read as quickly; a decode's row costs
a pass as much as a prompt's token. 128 sequences at once, 17.8 GB for K and V in pages of 64
tokens. 0.5 ms between messages, 1 ms from the router to an engine and back, and 10 us from one
engine to another. A prefill of 3,000 tokens then takes 0.25 s, 100 steps alone 1.03 s: 1 to 4.
"""

from __future__ import annotations

from dataclasses import dataclass

import benchmarks.options  # noqa: F401 - before control is imported, whose form it chooses
from quire.core.scheduler_config import SchedulerConfig
from quire.simulation.engines import EngineSpec
from quire.simulation.exchange import LinkCost
from quire.simulation.step_cost import StepCost

NUM_LAYERS = 32
TOKEN_BYTES = 2 * NUM_LAYERS * 8 * 128 * 2
"""K and V, 8 heads of 128, in bf16."""

NUM_NEW = 500
PREFILL_MS = {1000: 1.247, 3000: 1.391, 5000: 1.564}
"""A layer of the last ``NUM_NEW`` of so many tokens."""

TRANSFER_MS = {1000: 0.197, 3000: 0.533, 5000: 0.867}
MEMORY_BYTES_PER_S = 1.555e12
WEIGHT_BYTES = 16.06e9
KV_BYTES = 17.8e9
CALL_S = 1e-3


def _line(points: dict[float, float]) -> tuple[float, float]:
    """Slope and height of the line through ``points``, by least squares."""
    mean_x = sum(points) / len(points)
    mean_y = sum(points.values()) / len(points)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points.items())
    slope /= sum((x - mean_x) ** 2 for x in points)
    return slope, mean_y - slope * mean_x


@dataclass(frozen=True, slots=True)
class Prefill:
    """How an engine computes prompts: ``max_batch_tokens`` of a message, and as ``SchedulerConfig``
    has it, how long they may keep decodes."""

    max_batch_tokens: int
    chunk_steps: float

    def scheduler(self) -> SchedulerConfig:
        return SchedulerConfig(chunk_steps=self.chunk_steps)


WHOLE = Prefill(8192, 1e9)
"""A prompt is one message, and decodes wait for it, as in the paper's engine."""

PIECES = Prefill(512, 1e9)
"""Prompts in pieces of 512 tokens, as ``remote_send`` asks for them, one step of all decodes with
each."""

CHUNKED = Prefill(512, SchedulerConfig().chunk_steps)
"""Quire's own: beside decodes, pieces take no longer than 0.8 of a step."""


def a100(prefill: Prefill) -> EngineSpec:
    pairs = {
        NUM_NEW * (length - NUM_NEW) + NUM_NEW * (NUM_NEW + 1) / 2: ms / 1e3 * NUM_LAYERS
        for length, ms in PREFILL_MS.items()
    }
    pair_s, tokens_s = _line(pairs)
    token_s = tokens_s / NUM_NEW
    return EngineSpec(
        max_sequences=128,
        page_size=64,
        kv_tokens=int(KV_BYTES / TOKEN_BYTES),
        max_batch_tokens=prefill.max_batch_tokens,
        num_layers=NUM_LAYERS,
        token_bytes=TOKEN_BYTES,
        cost=StepCost(
            message_s=0.0,
            step_s=0.0,
            row_s=token_s,
            context_token_s=TOKEN_BYTES / MEMORY_BYTES_PER_S,
            prompt_token_s=token_s,
            prompt_context_s=pair_s,
            pass_s=WEIGHT_BYTES / MEMORY_BYTES_PER_S,
            gap_s=0.0005,
            behind_s=0.0005,
        ),
    )


def link() -> LinkCost:
    layer_bytes = TOKEN_BYTES / NUM_LAYERS
    byte_ms, layer_ms = _line({length * layer_bytes: ms for length, ms in TRANSFER_MS.items()})
    return LinkCost(bytes_per_s=1e3 / byte_ms, layer_s=layer_ms / 1e3, way_s=1e-5)
