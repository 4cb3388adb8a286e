"""The load under which ``quire profile`` measures an engine.

Owns which requests run together: every size of batch with short and long prompts, so that each cost
of a message shows in some of them. Must not know what is measured.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

from quire.cli.configuration import DEFAULT_TENANT
from quire.node import Node
from quire.programs.builtin import CompletionRequest, complete

NUM_OUTPUT = 48
PROMPTS = (16, 128, 512)
MAX_SHARE = 0.75
"""The share of the cache that one round may take: beyond it the scheduler would hold requests
back."""


@dataclass(frozen=True, slots=True)
class Round:
    """Requests that are sent together."""

    num_requests: int
    num_prompt: int


def rounds(max_sequences: int, num_slots: int, max_model_len: int) -> Iterator[Round]:
    """Yield the rounds. Batches double up to ``max_sequences``. ``num_slots``: those of the
    engine's cache."""
    num_requests = 1
    while num_requests <= max_sequences:
        for num_prompt in PROMPTS:
            length = num_prompt + NUM_OUTPUT
            if length < max_model_len and num_requests * length <= MAX_SHARE * num_slots:
                yield Round(num_requests, num_prompt)
        num_requests *= 2


async def play(node: Node, wanted: list[Round], tell: Callable[[int, Round], None]) -> None:
    """Run ``wanted`` one after the other on the node's only model. ``tell`` receives the number of
    each round before it begins. No prompt begins like another one.

    Raises:
        QuireError: a request failed.
    """
    random = Random(0)
    [model] = node.models()
    vocabulary = model.info.vocab_size
    for number, one in enumerate(wanted):
        tell(number, one)
        prompts = [
            tuple(random.randrange(vocabulary) for _ in range(one.num_prompt))
            for _ in range(one.num_requests)
        ]
        await asyncio.gather(*(_ask(node, prompt) for prompt in prompts))


async def _ask(node: Node, prompt: tuple[int, ...]) -> None:
    request = CompletionRequest(prompt=prompt, max_tokens=NUM_OUTPUT, ignore_eos=True)
    call = node.session(DEFAULT_TENANT).call(complete, request)
    try:
        async for _ in call:
            pass
    finally:
        await call.wait_closed()
