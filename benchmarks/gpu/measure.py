"""Measures a decode step, a prompt, the experts' share, and the device's limits.

Times are medians of several rounds on the host's clock, from an idle device to an idle device, so
they include planning and the last copy. The limit of a step is the larger of its bytes divided by
the bandwidth and its operations divided by the rate of products, both measured in the same run.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from models import PAGE_SIZE

from quire.core.batch import no_i32
from quire.core.decoding import SamplerSpec
from quire.engine.attention.backend import AttentionRows
from quire.engine.cuda.graphs import CudaGraphRecorder, DirectRecorder, Work
from quire.engine.cuda.kv_pool import CudaKVPool
from quire.engine.cuda.runner import CudaRunner
from quire.engine.kv_cache.page_tables import PageLists
from quire.engine.layers.experts import Experts
from quire.engine.loading import LoadedModel
from quire.engine.model_runner import FusedRows
from quire.engine.models.decoder import Decoder
from quire.engine.models.decoder_config import DecoderConfig
from quire.engine.sampling.plan import SamplingPlan
from quire.engine.sampling.table import SamplingRow
from quire.engine.sequences import NO_TOKEN


@dataclass(frozen=True)
class Effort:
    """``rounds``, of which the median is taken, and decode ``steps`` per message."""

    rounds: int = 7
    steps: int = 32


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def median_s(work: Callable[[], object], device: torch.device, rounds: int = 7) -> float:
    """Return the median seconds of one call, after a warm-up call."""
    times = []
    for number in range(rounds + 1):
        synchronize(device)
        started = time.perf_counter()
        work()
        synchronize(device)
        if number:
            times.append(time.perf_counter() - started)
    return statistics.median(times)


def bandwidth(device: torch.device, num_bytes: int) -> float:
    """Return the bytes per second of one reading pass."""
    block = torch.zeros(num_bytes // 4, device=device)
    return num_bytes / median_s(lambda: block.sum(), device)


def product_rate(device: torch.device, size: int) -> float:
    """Return the operations per second of a large product, in bfloat16 on a GPU."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    return 2 * size**3 / median_s(lambda: a @ b, device)


def layer_parameters(config: DecoderConfig) -> tuple[int, int]:
    """Return the number of weights of a layer that are used for every token, and that of one
    expert."""
    hidden, head_dim = config.hidden_size, config.head_dim
    shared = hidden * head_dim * (2 * config.num_heads + 2 * config.num_kv_heads)
    if config.experts is None:
        assert config.mlp is not None
        return shared + 3 * hidden * config.mlp.intermediate_size, 0
    return (
        shared + hidden * config.experts.num_experts,
        3 * hidden * config.experts.intermediate_size,
    )


def step_bytes(loaded: LoadedModel, batch: int, context: int) -> float:
    """Return the bytes that a decode step must read: weights once, K and V of every row. It counts
    as many experts as a random choice selects on average."""
    config, size = loaded.config, loaded.dtype.itemsize
    shared, expert = layer_parameters(config)
    touched = 0.0
    if config.experts is not None:
        share = config.experts.top_k / config.experts.num_experts
        touched = config.experts.num_experts * (1 - (1 - share) ** batch)
    weights = config.num_layers * (shared + touched * expert)
    weights += config.vocab_size * config.hidden_size
    kv = batch * context * config.num_layers * 2 * config.num_kv_heads * config.head_dim
    return (weights + kv) * size


def token_operations(config: DecoderConfig, context: float) -> float:
    """Return the operations of one token at this context, without the output projection."""
    shared, expert = layer_parameters(config)
    active = shared + (config.experts.top_k * expert if config.experts else 0)
    attention = 4 * config.num_heads * config.head_dim * context
    return config.num_layers * (2 * active + attention)


def step_limit_s(
    loaded: LoadedModel, batch: int, context: int, bandwidth_: float, rate: float
) -> float:
    operations = batch * token_operations(loaded.config, context)
    operations += 2 * batch * loaded.config.vocab_size * loaded.config.hidden_size
    return max(step_bytes(loaded, batch, context) / bandwidth_, operations / rate)


def decode_step_s(
    runner: CudaRunner,
    loaded: LoadedModel,
    batch: int,
    context: int,
    sampler: SamplerSpec,
    effort: Effort,
) -> float:
    """Return the seconds per decode step of a message with several steps."""
    rows = _decode_rows(runner, loaded, batch, context, sampler, effort.steps)

    def message() -> None:
        done = runner.decode_fused(rows)
        assert done is not None, "the rows do not fit the memory of the decode loop"
        assert bool((done.counts_R == effort.steps).all()), "a row ended early"

    return median_s(message, loaded.device, effort.rounds) / effort.steps


def prefill_s(runner: CudaRunner, loaded: LoadedModel, length: int, effort: Effort) -> float:
    """Return the seconds of a prompt from the first token to the logits of the last."""
    slots = np.arange(length)
    num_pages = -(-length // PAGE_SIZE)
    tokens = np.random.default_rng(0).integers(0, loaded.config.vocab_size, length)
    rows = AttentionRows(
        row_starts=np.array([0, length]),
        positions=slots.astype(np.int32),
        slots=slots,
        pages=PageLists(
            np.array([0, num_pages]),
            np.arange(num_pages, dtype=np.int32),
            np.zeros(num_pages, np.uint64),
        ),
        slot_positions=runner.pool.positions_AS[0],
        page_size=PAGE_SIZE,
    )
    no_embeds = np.full(length, -1, np.int32)

    def prompt() -> None:
        runner.logits(runner.run_rows(rows, tokens, no_embeds)[-1:])

    return median_s(prompt, loaded.device, effort.rounds)


def experts_s(loaded: LoadedModel, batch: int) -> float | None:
    """Return the seconds that the experts of all layers take for a batch, recorded alone; None
    without experts."""
    model = loaded.model
    assert isinstance(model, Decoder)
    experts = [layer.mlp for layer in model.layers if isinstance(layer.mlp, Experts)]
    if not experts:
        return None
    shape = (batch, loaded.config.hidden_size)
    x_BH = torch.randn(shape, device=loaded.device, dtype=loaded.dtype)

    def all_layers() -> None:
        for one in experts:
            one(x_BH)

    on_gpu = loaded.device.type == "cuda"
    recorder = CudaGraphRecorder(loaded.device) if on_gpu else DirectRecorder()
    replay: Work = recorder.record(all_layers)
    return median_s(replay, loaded.device)


def _decode_rows(
    runner: CudaRunner,
    loaded: LoadedModel,
    batch: int,
    context: int,
    sampler: SamplerSpec,
    steps: int,
) -> FusedRows:
    """Rows of ``context`` tokens in pages of their own."""
    num_pages = -(-(context + steps) // PAGE_SIZE)
    blocks_RP = np.arange(batch * num_pages, dtype=np.int32).reshape(batch, num_pages)
    slots = (blocks_RP[:, :, None].astype(np.int64) * PAGE_SIZE + np.arange(PAGE_SIZE)).reshape(
        batch, -1
    )
    pool = runner.pool
    assert isinstance(pool, CudaKVPool)
    pool.positions_AS[0][slots] = np.arange(slots.shape[1])
    pool.slot_positions_S.copy_(torch.from_numpy(pool.positions_AS[0]))
    shown = (np.arange(num_pages * PAGE_SIZE) < context).reshape(num_pages, PAGE_SIZE)
    bits = shown.astype(np.uint64) << np.arange(PAGE_SIZE, dtype=np.uint64)
    rows = AttentionRows(
        row_starts=np.arange(batch + 1),
        positions=np.full(batch, context, np.int32),
        slots=slots[:, context],
        pages=PageLists(
            np.arange(batch + 1) * num_pages,
            blocks_RP.reshape(-1),
            np.tile(bits.sum(axis=1, dtype=np.uint64), batch),
        ),
        slot_positions=runner.pool.positions_AS[0],
        page_size=PAGE_SIZE,
    )
    samplers = [SamplingRow(sampler, no_i32(), no_i32())] * batch
    return FusedRows(
        rows=rows,
        tokens_R=np.arange(batch) % loaded.config.vocab_size,
        cursors_R=np.full(batch, context),
        slots_RS=slots[:, context : context + steps],
        steps_R=np.full(batch, steps),
        stop_tokens_RW=np.full((batch, 1), NO_TOKEN),
        min_steps_R=np.zeros(batch, np.int64),
        sampling=SamplingPlan(samplers, loaded.config.vocab_size, loaded.device),
    )
