"""Executes one batch message for the fake engine, stage by stage, after the memory operations."""

from __future__ import annotations

import numpy as np

from quire.core.batch import Batch, DistRows, EmbedRows, ImageRow, SampleRows
from quire.core.batch_result import BatchResult
from quire.core.errors import InvalidArgument
from quire.testing.fake_engine.advance_stage import AdvanceStage
from quire.testing.fake_engine.context import MessageContext
from quire.testing.fake_engine.forward_stage import run_forward
from quire.testing.fake_engine.hashing import embed_image, embed_tokens
from quire.testing.fake_engine.sampling import best_first, log_softmax, sample_token
from quire.testing.fake_engine.violations import require


def run_message(context: MessageContext, batch: Batch) -> BatchResult:
    """Stages 2 to 5. ``elapsed_s`` is left at 0."""
    result = BatchResult(serial=batch.serial, elapsed_s=0.0, failures=context.failures)
    _check_size(context, batch)
    advance = AdvanceStage(context, batch.num_steps)
    if batch.embeds is not None:
        _embed(context, batch.embeds)
    for index, image in enumerate(batch.images):
        _embed_image(context, index, image)
    done = {} if batch.forward is None else run_forward(context, batch.forward, result)
    if batch.dists is not None:
        _dists(context, batch.dists, result)
    if batch.samples is not None:
        _sample(context, batch.samples, result)
    if batch.forward is not None:
        advance.first_tokens(batch.forward, done)
    advance.advance(batch.advance)
    result.sequences = advance.report()
    result.num_tokens = context.num_tokens
    return result


def _check_size(context: MessageContext, batch: Batch) -> None:
    size = 0 if batch.forward is None else len(batch.forward.tokens)
    size += 0 if batch.advance is None else len(batch.advance.sequences)
    limit = context.info.pool.max_batch_tokens
    require(size <= limit, f"the message has {size} tokens in one pass; the limit is {limit}")
    require(batch.num_steps >= 1, f"num_steps is {batch.num_steps}")


def _embed(context: MessageContext, rows: EmbedRows) -> None:
    require(len(rows.tokens) == len(rows.embeds), "EmbedRows differ in length")
    tokens = context.memory.token_values(rows.tokens)
    for index in range(len(tokens)):

        def write(one: slice = slice(index, index + 1)) -> None:
            context.check_vocabulary(tokens[one])
            context.memory.write_embeds(rows.embeds[one], embed_tokens(tokens[one]), tokens[one])

        if not context.attempt("embeds", index, write):
            nothing = np.zeros(1, np.uint64)
            one = rows.embeds[index : index + 1]
            context.memory.write_embeds(one, nothing, np.full(1, -1, np.int32))


def _embed_image(context: MessageContext, index: int, row: ImageRow) -> None:
    """Embed an image; a file that ends with ``damaged`` cannot be decoded."""
    images, file, count = context.info.images, row.file.tobytes(), len(row.embeds)
    require(images is not None and count == images.num_embeds, f"{count} embeds for an image")

    def write() -> None:
        if file.endswith(b"damaged"):
            raise InvalidArgument("the image cannot be read, it may be damaged")
        no_tokens = np.full(count, -1, np.int32)
        context.memory.write_embeds(row.embeds, embed_image(file, count), no_tokens)

    context.attempt("images", index, write)


def _dists(context: MessageContext, rows: DistRows, result: BatchResult) -> None:
    require(len(rows.embeds) == len(rows.top_k), "DistRows differ in length")
    starts, ids, probs = [0], [], []
    for index, top_k in enumerate(rows.top_k.tolist()):

        def read(index: int = index, top_k: int = top_k) -> None:
            hidden = context.memory.read_embeds(rows.embeds[index : index + 1])
            logprobs = log_softmax(context.logits_of(hidden)[0])
            best = best_first(logprobs, top_k)
            ids.append(best)
            probs.append(np.exp(logprobs[best]))

        done = context.attempt("dists", index, read)
        starts.append(starts[-1] + (len(ids[-1]) if done else 0))
    result.dist_starts = np.array(starts, np.int32)
    result.dist_ids = np.concatenate([np.empty(0), *ids]).astype(np.int32)
    result.dist_probs = np.concatenate([np.empty(0), *probs]).astype(np.float32)


def _sample(context: MessageContext, rows: SampleRows, result: BatchResult) -> None:
    result.samples = np.full(len(rows.embeds), -1, np.int32)
    require(
        len(rows.histories) in (0, len(rows.samplers)),
        "SampleRows.histories is neither empty nor per sampler",
    )
    for index, which in enumerate(rows.sampler_index.tolist()):
        history = rows.histories[which].tolist() if rows.histories else []

        def draw(index: int = index, which: int = which, history: list[int] = history) -> None:
            hidden = context.memory.read_embeds(rows.embeds[index : index + 1])
            logits = context.logits_of(hidden)[0]
            position = int(rows.positions[index])
            token = sample_token(logits, rows.samplers[which], position, history, history)
            result.samples[index] = token
            if rows.token_slots[index] >= 0:
                context.memory.keep_token(int(rows.token_slots[index]), token)

        token_slot = int(rows.token_slots[index])
        if not context.attempt("samples", index, draw) and token_slot >= 0:
            context.memory.keep_token(token_slot, 0)
