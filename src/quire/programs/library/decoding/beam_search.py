"""Beam search: keep the best few texts and continue all of them (Freitag and Al-Onaizan, 2017).

    quire run beam_search -- "Tell me about the sky." 4 32 --compare

Each beam is a context. A step requests the distributions of all of them at once, so they share a
batch; a beam with several continuations is forked, and forks share every full page. Finished texts
are ranked by log probability over length to the power of ``length_penalty``, and the search ends
when no running beam can become better: the rules of transformers' ``generate(num_beams=...)``.
Traits: Decode (the prompt), OutputText, Allocate (copies).

::

    The  ── cat ─┬─ sat  ──          pages   [The cat][sat    ]      the page before the fork
                 └─ was  ──                  [  "    ][was    ]      is held once
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import nlargest

from quire.core.errors import InvalidArgument
from quire.programs.api import Api
from quire.programs.library.answers import Compare, Count, plain
from quire.programs.sdk import Context, inferlet
from quire.programs.sdk.dists import log_probs


@dataclass(frozen=True, slots=True)
class Beam:
    """A running text. ``score``: the sum of its tokens' log probabilities."""

    ctx: Context
    score: float


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A finished text. ``score``: log probability over its length to the power of the penalty."""

    tokens: tuple[int, ...]
    score: float


@dataclass(frozen=True, slots=True)
class Candidate:
    """One more token for a beam."""

    beam: Beam
    token: int
    score: float


async def search_beams(
    ctx: Context, width: int, max_tokens: int, *, length_penalty: float = 1.0
) -> list[Hypothesis]:
    """The ``width`` best continuations of at most ``max_tokens`` tokens, best first. Consumes
    ``ctx``.

    Raises:
        InvalidArgument: less than one beam or token.
    """
    if width < 1 or max_tokens < 1:
        raise InvalidArgument(f"{width} beams of {max_tokens} tokens: choose at least one of each")
    ends = ctx.model.eos_token_ids
    start, num_kept = len(ctx), max(2, 1 + len(ends)) * width
    running, finished = [Beam(ctx, 0.0)], list[Hypothesis]()
    for length in range(1, max_tokens + 1):
        candidates = await best_candidates(running, num_kept)
        is_last = length == max_tokens
        for candidate in candidates[:width]:
            if is_last or candidate.token in ends:
                tokens = (*candidate.beam.ctx.tokens[start:], candidate.token)
                finished.append(Hypothesis(tokens, candidate.score / length**length_penalty))
        finished = nlargest(width, finished, key=lambda one: one.score)
        going_on = [one for one in candidates if one.token not in ends][:width]
        if is_last or is_decided(finished, going_on, width, length**length_penalty):
            break
        running = extend(running, going_on)
    for beam in running:
        beam.ctx.drop()
    return finished


async def best_candidates(running: Sequence[Beam], num: int) -> list[Candidate]:
    dists = await asyncio.gather(*(beam.ctx.next_dist(top_k=num) for beam in running))
    candidates = [
        Candidate(beam, token, beam.score + log_prob)
        for beam, dist in zip(running, dists, strict=True)
        for token, log_prob in log_probs(dist).items()
    ]
    return nlargest(num, candidates, key=lambda one: one.score)


def is_decided(
    finished: Sequence[Hypothesis], running: Sequence[Candidate], width: int, divisor: float
) -> bool:
    """Whether the best running text, at its present length, is no better than the worst finished
    one."""
    if not running:
        return True
    return len(finished) == width and running[0].score / divisor <= finished[-1].score


def extend(running: Sequence[Beam], going_on: Sequence[Candidate]) -> list[Beam]:
    """The next beams. The last child of a beam takes over its context, the others fork it."""
    children = [one.beam for one in going_on]
    extended = []
    for index, one in enumerate(going_on):
        is_last_child = one.beam not in children[index + 1 :]
        ctx = one.beam.ctx if is_last_child else one.beam.ctx.fork()
        extended.append((ctx, one))
    for beam in running:
        if beam not in children:
            beam.ctx.drop()
    return [Beam(ctx.fill([one.token]), one.score) for ctx, one in extended]


@inferlet("beam_search", traits={"Decode": 1, "OutputText": 1, "Tokenize": 1}, restartable=True)
async def beam_search(
    api: Api,
    question: str,
    width: Count = 3,
    max_tokens: int = 64,
    length_penalty: float = 1.0,
    *,
    compare: Compare = False,
) -> dict[str, object]:
    """Answer a question in several ways, the most likely first, and for comparison greedily."""
    ctx = Context(api).fill_chat([{"role": "user", "content": question}])
    compared = {}
    if compare:
        greedy = await plain(ctx, max_tokens)
        num_tokens = len(greedy.tokens)
        score = greedy.mean_logprob * num_tokens / num_tokens**length_penalty
        compared = {"plain": {"text": greedy.text, "score": round(score, 4)}}
    found = await search_beams(ctx, width, max_tokens, length_penalty=length_penalty)
    beams = [
        {"text": api.detokenize(one.tokens, skip_special=True), "score": round(one.score, 4)}
        for one in found
    ]
    return {"text": beams[0]["text"], "beams": beams, **compared}
