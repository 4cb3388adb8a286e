"""Computes the least time that a machine with given limits needs for a step, for prompts, for a
generation.

Owns what must be read and multiplied, by the format of the weights. A figure is a lower bound: it
counts the weights, K and V, and the products with them, and takes the rest as free.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.checkpoints import CheckpointShape
from benchmarks.machine_limits import Limits


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """A format of weights: ``bits`` of a weight that a step reads, scales included; the type of
    ``machine_peak`` whose peak bounds its products; bytes of an element of K and V."""

    bits: float
    product: str
    kv_bytes: int = 2


BF16 = WeightFormat(16, "bf16")
_FORMATS = {
    "vllm-float32": WeightFormat(32, "f32", 4),
    "quire-int8": WeightFormat(8, "int8"),
    "llamacpp-q8_0": WeightFormat(8.5, "int8"),
    "llamacpp-q4_0": WeightFormat(4.5, "int8"),
}


def format_of(contender: str) -> WeightFormat:
    return _FORMATS.get(contender, BF16)


def step_limit_s(
    shape: CheckpointShape,
    num_requests: int,
    context: int,
    limits: Limits,
    weights: WeightFormat = BF16,
) -> float:
    """Return the least seconds of one decode step of ``num_requests``: the larger of reading
    (weights once, K and V of each request) and multiplying."""
    kv_bytes = num_requests * context * shape.kv_bytes_per_token(weights.kv_bytes)
    operations = 2 * num_requests * shape.num_step_weights
    read_s = _read_s(_weight_bytes(shape, weights) + kv_bytes, limits)
    return max(read_s, operations / limits.flops[weights.product])


def prefill_limit_s(
    shape: CheckpointShape,
    num_requests: int,
    prompt: int,
    limits: Limits,
    weights: WeightFormat = BF16,
) -> float:
    """Return the least seconds of ``num_requests`` prompts, with logits for their last tokens only:
    the larger of reading the weights once and multiplying, causal attention included."""
    head = shape.vocab_size * shape.hidden_size
    pairs = prompt * (prompt + 1) // 2
    attention = 4 * pairs * shape.hidden_size * shape.num_hidden_layers
    products = 2 * (prompt * (shape.num_step_weights - head) + head)
    operations = num_requests * (products + attention)
    read_s = _read_s(_weight_bytes(shape, weights), limits)
    return max(read_s, operations / limits.flops[weights.product])


def generation_limit_s(
    shape: CheckpointShape,
    num_requests: int,
    prompt: int,
    output: int,
    limits: Limits,
    weights: WeightFormat = BF16,
) -> float:
    """Return the least seconds of a whole generation: the prompts, which yield the first tokens,
    and a step for each further token."""
    step_s = step_limit_s(shape, num_requests, prompt + output // 2, limits, weights)
    prompts_s = prefill_limit_s(shape, num_requests, prompt, limits, weights)
    return prompts_s + (output - 1) * step_s


def _weight_bytes(shape: CheckpointShape, weights: WeightFormat) -> int:
    return int(shape.num_step_weights * weights.bits / 8)


def _read_s(num_bytes: int, limits: Limits) -> float:
    return num_bytes / limits.bytes_per_s(num_bytes)
