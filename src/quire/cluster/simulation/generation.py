"""The answer to one prompt on a virtual node: the commands of a completion with one choice.

Issues the commands of ``programs.builtin.completion``, without text: tokens of a modelled engine
have none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quire.cluster.simulation.virtual_node import VirtualNode
from quire.core.decoding import SamplerSpec, StopSpec
from quire.core.lease_commands import LeaseName
from quire.programs.api import Api, DecodeStream, KvPage, Model, Queue
from quire.programs.builtin.leases import take_lease


@dataclass(frozen=True, slots=True)
class LeasedPrefix:
    """The first ``num_tokens`` tokens of the prompt come from ``lease``."""

    lease: LeaseName
    num_tokens: int


class VirtualGeneration:
    """An answer that has begun. ``num_tokens``: generated tokens that were awaited so far."""

    def __init__(self, api: Api, stream: DecodeStream) -> None:
        self._api = api
        self._stream = stream
        self.num_tokens = 0

    async def first(self) -> None:
        """Wait for the first token.

        Raises:
            QuireError: what ended the decode.
        """
        chunk = await anext(self._stream)
        self.num_tokens = len(chunk.token_ids)

    async def whole(self) -> None:
        """Wait for all tokens.

        Raises:
            QuireError: what ended the decode.
        """
        self.num_tokens = len((await self._stream).token_ids)
        self.close()

    def close(self) -> None:
        """Free everything and end the decode. Idempotent."""
        self._api.close()


async def generate(
    node: VirtualNode, prompt: Sequence[int], max_tokens: int, taken: LeasedPrefix | None
) -> VirtualGeneration:
    """Generate ``max_tokens`` after ``prompt`` on ``node``; returns with the first token.

    Raises:
        QuireError: what ended it.
    """
    api = node.api()
    try:
        issuer = api.issuer
        queue = api.create_queue(Model(issuer, issuer.model(node.model_id)))
        context: list[KvPage] = []
        if taken is not None:
            context = await _take(api, queue, taken)
        generation = VirtualGeneration(api, _decode(api, queue, context, prompt, max_tokens, taken))
        await generation.first()
    except BaseException:
        api.close()
        raise
    return generation


async def _take(api: Api, queue: Queue, taken: LeasedPrefix) -> list[KvPage]:
    pages, done = take_lease(api, queue, taken.lease, taken.num_tokens)
    await done
    return pages


def _decode(
    api: Api,
    queue: Queue,
    context: list[KvPage],
    prompt: Sequence[int],
    max_tokens: int,
    taken: LeasedPrefix | None,
) -> DecodeStream:
    """Decode after the prompt, in the last page of the lease if that page is not full."""
    size = queue.page_size
    position = 0 if taken is None else taken.num_tokens
    output = context[-1:] if position % size else []
    num_slots = len(prompt) - position + max_tokens - 1 - (-position % size if output else 0)
    output = [*output, *api.alloc_kvpage(queue, -(-max(num_slots, 0) // size))]
    return api.decode(
        queue,
        context,
        prompt[position:],
        output,
        position=position,
        sampler=SamplerSpec(seed=api.program),
        stop=StopSpec(max_tokens),
        history=prompt[:position] or None,
    )
