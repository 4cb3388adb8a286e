"""Disaggregation in which the generating engine computes the end of each prompt (figure 6)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from quire.cluster.engines.interfaces import Engine
from quire.cluster.requests.answer import Answer
from quire.cluster.requests.request import Request
from quire.cluster.strategies.choices import decoder_of, least_used_of
from quire.cluster.strategies.handing_over import handed_over

_GAIN = 0.2


@dataclass
class Balanced:
    """``ratio`` is the share of a prompt that the generating engine computes, 0 to 1; a negative
    one lets the load decide, up to ``max_ratio``.

    By load: the share grows while the computing engine owes more (tokens of prompts that are under
    way) than the generating one (its shares, and ``decode_tokens`` for each unfinished answer), and
    shrinks while it owes less. A change shows only when the requests that are under way have ended,
    so a step is small in proportion to their number: a larger one would swing around the balance.
    """

    ratio: float = 0.2
    num_prefill: int = 1
    max_ratio: float = 0.5
    decode_tokens: int = 64
    by_load: float = field(default=0.0, init=False)
    owed: Counter[str] = field(default_factory=Counter, init=False)
    num_under_way: int = field(default=0, init=False)
    routes_sessions = True

    async def __call__(self, request: Request, engines: Sequence[Engine]) -> Answer:
        prefill, decode = engines[: self.num_prefill], engines[self.num_prefill :]
        receiver = decoder_of(request, decode or engines)
        if not (decode and request.is_divisible):
            return await receiver.send(request)
        sender = min(prefill, key=lambda engine: self.owed[engine.name])
        num_tokens = len(await least_used_of(prefill).prompt_tokens(request))
        end = num_tokens - max(1, self.share(num_tokens, sender, receiver))
        with self.owing(sender, end), self.owing(receiver, num_tokens - end):
            return await handed_over(request, sender, receiver, end)

    def share(self, num_tokens: int, sender: Engine, receiver: Engine) -> int:
        """How many tokens of the prompt's end ``receiver`` computes."""
        if self.ratio >= 0:
            return int(min(1.0, self.ratio) * num_tokens)
        sends = self.owed[sender.name]
        computes = self.owed[receiver.name] + self.decode_tokens * receiver.load
        if total := sends + computes:
            step = _GAIN / max(1, self.num_under_way) * (sends - computes) / total
            self.by_load = min(max(0.0, self.by_load + step), self.max_ratio)
        return int(self.by_load * num_tokens)

    @contextmanager
    def owing(self, engine: Engine, num_tokens: int) -> Iterator[None]:
        """While ``engine`` has ``num_tokens`` of a prompt to compute."""
        self.owed[engine.name] += num_tokens
        self.num_under_way += 1
        try:
            yield
        finally:
            self.num_under_way -= 1
            self.owed[engine.name] -= num_tokens
