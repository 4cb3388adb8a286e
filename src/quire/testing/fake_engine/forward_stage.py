"""Stage 3 of a message in the fake engine: checks ragged rows, runs them, keeps their outputs."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from quire.core.batch import I32, ForwardRows
from quire.core.batch_result import BatchResult
from quire.core.errors import InvalidArgument
from quire.core.ids import TableId
from quire.testing.fake_engine.context import MessageContext
from quire.testing.fake_engine.hashing import NUM_LAYERS, embed_tokens
from quire.testing.fake_engine.rows import Bools, FakeRow, RowResult
from quire.testing.fake_engine.sampling import best_first, log_softmax
from quire.testing.fake_engine.violations import require


def run_forward(
    context: MessageContext, forward: ForwardRows, result: BatchResult
) -> dict[int, RowResult]:
    """Run the rows as one pass and fill the scores of ``result``; rows that failed are missing."""
    _check_shapes(forward)
    _check_embed_order(forward)
    built: dict[int, FakeRow] = {}
    for index in range(len(forward.tables)):

        def build(index: int = index) -> None:
            built[index] = _row(context, forward, index)

        if not context.attempt("forward", index, build):
            _leave_undefined(context, forward, index)
    done = dict(zip(built, context.run_rows(list(built.values())), strict=True))
    for index, row_result in done.items():
        _keep_outputs(context, forward.outputs[_span(forward, index)], row_result)
    if len(forward.score_targets):
        _score(context, forward, done, result)
    if len(forward.attention_rows):
        _report_mass(forward, done, result)
    return done


def _span(forward: ForwardRows, index: int) -> slice:
    return slice(int(forward.row_starts[index]), int(forward.row_starts[index + 1]))


def _check_shapes(forward: ForwardRows) -> None:
    starts = forward.row_starts.tolist()
    num_rows, num_tokens = len(starts) - 1, len(forward.tokens)
    require(
        bool(starts) and starts[0] == 0 and starts[-1] == num_tokens,
        f"row_starts {starts} do not span {num_tokens} tokens",
    )
    require(
        all(start < end for start, end in pairwise(starts)), f"a row without tokens in {starts}"
    )
    for name, array, shape in (
        ("tables", forward.tables, (num_rows,)),
        ("sequences", forward.sequences, (num_rows,)),
        ("embeds", forward.embeds, (num_tokens,)),
        ("outputs", forward.outputs, (num_tokens,)),
        ("positions", forward.positions, (1, num_tokens)),
        ("slots", forward.slots, (1, num_tokens)),
    ):
        require(array.shape == shape, f"forward.{name} has shape {array.shape}, not {shape}")
    require(len(forward.score_targets) in (0, num_tokens), "score_targets is neither empty nor [T]")
    require(len(forward.adapters) in (0, num_rows), "adapters is neither empty nor [R]")
    scored = forward.attention_rows
    require(
        bool((np.diff(scored) > 0).all() and ((scored >= 0) & (scored < num_rows)).all()),
        f"attention_rows {scored.tolist()} are not ascending rows of {num_rows}",
    )
    named = [sequence for sequence in forward.sequences.tolist() if sequence >= 0]
    require(len(set(named)) == len(named), "two forward rows name the same sequence")


def _check_embed_order(forward: ForwardRows) -> None:
    """Check that no row reads or writes an embed that an earlier row of the same pass writes."""
    written: set[int] = set()
    for index in range(len(forward.tables)):
        span = _span(forward, index)
        reads = {embed for embed in forward.embeds[span].tolist() if embed >= 0}
        writes = [embed for embed in forward.outputs[span].tolist() if embed >= 0]
        clash = sorted((reads | set(writes)) & written)
        require(
            not clash,
            f"forward row {index} uses embeds {clash} that an earlier row of the same pass writes",
        )
        require(len(set(writes)) == len(writes), f"forward row {index} writes an embed twice")
        written.update(writes)


def _row(context: MessageContext, forward: ForwardRows, index: int) -> FakeRow:
    memory, span = context.memory, _span(forward, index)
    embeds, positions = forward.embeds[span], forward.positions[0, span]
    literal = embeds < 0
    tokens = np.full(len(embeds), -1, np.int32)
    tokens[literal] = memory.token_values(forward.tokens[span][literal])
    context.check_vocabulary(tokens[literal])
    if np.any((positions < 0) | (positions >= context.info.max_model_len)):
        raise InvalidArgument(
            f"positions {positions.min()}..{positions.max()} exceed the model's "
            f"{context.info.max_model_len}"
        )
    contents = embed_tokens(tokens)
    contents[~literal] = memory.read_embeds(embeds[~literal])
    tokens[~literal] = memory.embed_tokens[embeds[~literal]]
    table = int(forward.tables[index])
    adapter = int(forward.adapters[index]) if len(forward.adapters) else -1
    context.check_adapter(adapter)
    return FakeRow(
        name=f"forward row {index}",
        contents=contents,
        tokens=tokens,
        positions=positions.astype(np.int32),
        slots=forward.slots[0, span].astype(np.int32),
        table=None if table < 0 else memory.table(TableId(table)),
        mask=_explicit_mask(forward, index),
        adapter=adapter,
    )


def _leave_undefined(context: MessageContext, forward: ForwardRows, index: int) -> None:
    """Mark what a failed row should have written as undefined: messages already sent may read
    it."""
    span = _span(forward, index)
    slots, outputs = forward.slots[0, span], forward.outputs[span]
    context.memory.leave_undefined(slots[slots >= 0], forward.positions[0, span][slots >= 0])
    outputs = outputs[outputs >= 0]
    nothing = np.zeros(len(outputs), np.uint64)
    context.memory.write_embeds(outputs, nothing, np.full(len(outputs), -1, np.int32))


def _explicit_mask(forward: ForwardRows, index: int) -> Bools | None:
    masks = [mask for mask in forward.masks if mask.row == index]
    require(len(masks) <= 1, f"forward row {index} has {len(masks)} masks")
    if not masks:
        return None
    span = _span(forward, index)
    num_new, num_columns = span.stop - span.start, masks[0].num_columns
    num_bytes = (num_new * num_columns + 7) // 8
    require(
        len(masks[0].bits) == num_bytes,
        f"the mask of row {index} has {len(masks[0].bits)} bytes for {num_new} x {num_columns}",
    )
    flat = np.unpackbits(masks[0].bits, count=num_new * num_columns)
    return flat.astype(bool).reshape(num_new, num_columns)


def _keep_outputs(context: MessageContext, outputs: I32, done: RowResult) -> None:
    kept = outputs >= 0
    no_tokens = np.full(int(kept.sum()), -1, np.int32)
    context.memory.write_embeds(outputs[kept], done.hidden[kept], no_tokens)


def _score(
    context: MessageContext, forward: ForwardRows, done: dict[int, RowResult], result: BatchResult
) -> None:
    num_tokens, width = len(forward.tokens), forward.num_scores
    result.score_logprobs = np.full(num_tokens, np.nan, np.float32)
    result.score_ids = np.full((num_tokens, width), -1, np.int32)
    result.score_top = np.full((num_tokens, width), np.nan, np.float32)
    for index, row_result in done.items():
        start = int(forward.row_starts[index])
        wanted = np.nonzero(forward.score_targets[_span(forward, index)] >= 0)[0]
        for offset in wanted.tolist():
            at = start + offset
            hidden = row_result.hidden[offset : offset + 1]
            logprobs = log_softmax(context.score_logits_of(hidden)[0])
            best = best_first(logprobs, width)
            result.score_logprobs[at] = logprobs[forward.score_targets[at]]
            result.score_ids[at, : len(best)] = best
            result.score_top[at, : len(best)] = logprobs[best]


def _report_mass(forward: ForwardRows, done: dict[int, RowResult], result: BatchResult) -> None:
    masses = [
        done[row].attention_mass() if row in done else np.zeros((NUM_LAYERS, 0), np.float32)
        for row in forward.attention_rows.tolist()
    ]
    widths = [mass.shape[1] for mass in masses]
    result.attention_starts = np.cumsum([0, *widths], dtype=np.int32)
    result.attention_mass = np.concatenate(masses, axis=1)
