"""Some engines compute prompts, the others generate (the paper's figures 3 and 4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quire.cluster.engines.interfaces import Engine
from quire.cluster.requests.answer import RoutedAnswer
from quire.cluster.requests.request import Request
from quire.cluster.strategies.choices import decoder_of, least_used_of
from quire.cluster.strategies.handing_over import handed_over


@dataclass
class Disaggregated:
    """The first ``num_prefill`` engines compute prompts: all but the last token, whose logits the
    generating engine needs. Requests that cannot be divided go whole to a generating engine."""

    num_prefill: int = 1
    routes_sessions = True

    async def __call__(self, request: Request, engines: Sequence[Engine]) -> RoutedAnswer:
        prefill, decode = engines[: self.num_prefill], engines[self.num_prefill :]
        receiver = decoder_of(request, decode or engines)
        if not (decode and request.is_divisible):
            return await receiver.send(request)
        return await handed_over(request, least_used_of(prefill), receiver, end=-1)
