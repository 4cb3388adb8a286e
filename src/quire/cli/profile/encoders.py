"""The load under which ``quire profile --encoder`` measures an encoder.

Owns the sequences of one measurement and how often it is repeated. It measures the time for which a
workflow waits: the way to the encoder and back, and its batches.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from statistics import median
from time import perf_counter

from quire.cli.configuration import DEFAULT_TENANT
from quire.engine.encoders.text import EncodedText
from quire.node import Node
from quire.node.encoders.service import EncoderService
from quire.programs.services.encoding import MAX_TEXTS
from quire.programs.workflow.template.profiles import doubled

NUM_TOKENS = 256
"""Tokens of a sequence, unless the model reads fewer: about a chunk of a document."""
NUM_REPEATS = 5


async def encoder_times(
    node: Node, encoder: EncoderService, tell: Callable[[int, float], None]
) -> tuple[int, tuple[tuple[int, float], ...]]:
    """Return the tokens of each sequence, and the seconds of 1, 2, 4 and more of them at once, each
    the median of several. ``tell`` receives the size and its sequences per second after each
    measurement.

    Raises:
        QuireError: the encoder was lost.
    """
    num_tokens = min(NUM_TOKENS, encoder.texts.max_tokens)
    random = Random(0)

    async def seconds(num: int) -> float:
        sequences = [_sequence(random, encoder, num_tokens) for _ in range(num)]
        started_s = perf_counter()
        await node.session(DEFAULT_TENANT).encode(encoder, sequences).result()
        return perf_counter() - started_s

    async def measure(num: int) -> float:
        await seconds(num)  # the first batch of a size may allocate
        time_s = median([await seconds(num) for _ in range(NUM_REPEATS)])
        tell(num, num / time_s)
        return time_s

    return num_tokens, await doubled(measure, min(MAX_TEXTS, encoder.info.max_pending))


def _sequence(random: Random, encoder: EncoderService, num_tokens: int) -> EncodedText:
    """Return random tokens; for a cross-encoder a short question and a long text."""
    info = encoder.info
    tokens = tuple(random.randrange(info.vocab_size) for _ in range(num_tokens))
    is_pair = info.kind == "cross_encoder" and info.num_types > 1
    num_first = num_tokens // 8 if is_pair else num_tokens
    return EncodedText(tokens, (0,) * num_first + (1,) * (num_tokens - num_first))
