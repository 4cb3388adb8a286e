"""Makes the replies of commands from the values of a result that belong to them.

Pure functions of the flat arrays of ``quire.core.batch_result``. Must not know what becomes of
commands.
"""

from __future__ import annotations

import math

from quire.control.engines.decode_run import DecodeRun
from quire.control.engines.forward_run import ForwardRun
from quire.control.engines.in_flight import CommandItems, MessageStage
from quire.core.actions import ReplyValue
from quire.core.batch_result import BatchResult, SequenceEnd, SequenceTokens
from quire.core.commands import Dists, Sampled
from quire.core.decoding import Dist, FinishReason, TokenLogprobs

_DISTS, _SAMPLES = MessageStage.DISTS, MessageStage.SAMPLES
"""Bound once: Python 3.11 looks up a member of an enum at each use, which costs more than the
use."""

FINISH_REASONS: dict[SequenceEnd, FinishReason] = {
    SequenceEnd.STOP_TOKEN: "stop",
    SequenceEnd.STOP_STRING: "stop",
    SequenceEnd.GRAMMAR: "stop",
    SequenceEnd.MAX_TOKENS: "length",
    SequenceEnd.NO_ROOM: "length",
}


def reply_of(part: CommandItems, result: BatchResult) -> ReplyValue:
    """The reply to a command of the fine tier, whose last part is ``part``."""
    if part.stage is _SAMPLES:
        return Sampled(token_ids=result.samples[part.start : part.stop].tolist())
    if part.stage is _DISTS:
        starts = result.dist_starts
        return Dists(
            dists=[
                Dist(
                    result.dist_ids[starts[i] : starts[i + 1]].tolist(),
                    result.dist_probs[starts[i] : starts[i + 1]].tolist(),
                )
                for i in range(part.start, part.stop)
            ]
        )
    if part.scored is not None and isinstance(part.entry.run, ForwardRun):
        assert part.entry.run.scores is not None
        return part.entry.run.scores.reply()
    return None


def prompt_logprobs(run: DecodeRun, part: CommandItems, result: BatchResult) -> list[TokenLogprobs]:
    """The log probabilities of the prompt tokens of ``run`` that follow those of ``part``."""
    first = part.first_token
    num_top = run.command.num_prompt_logprobs or 0
    logprobs = []
    for offset in range(part.num_tokens):
        index, row = first + offset + 1, part.token_start + offset
        if index >= run.num_prompt:
            break
        logprobs.append(
            TokenLogprobs(
                run.command.tokens[index],
                float(result.score_logprobs[row]),
                [int(i) for i in result.score_ids[row, :num_top]] if num_top else [],
                [float(p) for p in result.score_top[row, :num_top]] if num_top else [],
            )
        )
    return logprobs


def sampled_logprobs(
    num_top: int, reported: SequenceTokens, index: int, tokens: list[int]
) -> list[TokenLogprobs] | None:
    """The log probabilities of ``tokens``, the first that sequence ``index`` of the message has
    sampled; None if none were requested."""
    if not len(reported.logprobs):
        return None
    start = int(reported.token_starts[index])
    return [
        TokenLogprobs(
            tokens[i],
            float(reported.logprobs[start + i]),
            reported.top_ids[start + i, :num_top].tolist() if num_top else [],
            reported.top_logprobs[start + i, :num_top].tolist() if num_top else [],
        )
        for i in range(len(tokens))
        if not math.isnan(float(reported.logprobs[start + i]))
    ]


def matched_stop(run: DecodeRun, end: SequenceEnd, matched: int) -> int | bytes | None:
    """The stop token, or the stop string with this index, that ended the run."""
    if end is SequenceEnd.STOP_TOKEN:
        return matched
    if end is SequenceEnd.STOP_STRING:
        return run.command.stop.strings[matched]
    return None
