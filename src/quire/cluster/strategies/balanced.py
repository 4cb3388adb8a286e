"""Disaggregation in which the generating engine computes the end of each prompt (figure 6)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from quire.cluster.engines.interfaces import Engine
from quire.cluster.requests.answer import RoutedAnswer
from quire.cluster.requests.request import Request
from quire.cluster.strategies.choices import decoder_of, least_used_of
from quire.cluster.strategies.handing_over import handed_over
from quire.cluster.strategies.owed import OwedTokens
from quire.cluster.strategies.sharing import ShareByLoad


@dataclass
class Balanced:
    """``ratio`` is the share of a prompt that the generating engine computes, 0 to 1; if it is
    negative, the load decides (``sharing``), up to ``max_ratio``. The first ``num_prefill`` engines
    compute prompts."""

    ratio: float = 0.2
    num_prefill: int = 1
    max_ratio: float = 0.5
    owed: OwedTokens = field(default_factory=OwedTokens, init=False)
    num_sending: Counter[str] = field(default_factory=Counter, init=False)
    num_awaited: Counter[str] = field(default_factory=Counter, init=False)
    """Requests of each generating engine whose tokens are still to come: they are among its load,
    and nothing of them is computed there."""
    by_load: ShareByLoad = field(init=False)
    routes_sessions = True

    def __post_init__(self) -> None:
        self.by_load = ShareByLoad(self.max_ratio)

    async def __call__(self, request: Request, engines: Sequence[Engine]) -> RoutedAnswer:
        prefill, decode = engines[: self.num_prefill], engines[self.num_prefill :]
        receiver = decoder_of(request, decode or engines)
        if not (decode and request.is_divisible):
            return await receiver.send(request)
        sender = min(prefill, key=lambda engine: self.owed[engine.name])
        num_tokens = len(await least_used_of(prefill).prompt_tokens(request))
        share = self.share(sender, receiver, num_tokens, len(prefill) / len(decode))
        num_own = max(1, int(share * num_tokens))
        end = num_tokens - num_own
        with self.owed.owing(receiver, num_own), ExitStack() as sending:
            sending.enter_context(self.sending(sender, receiver, end))
            return await handed_over(request, sender, receiver, end, lambda _: sending.close())

    def share(
        self, sender: Engine, receiver: Engine, num_tokens: int = 1, num_senders: float = 1.0
    ) -> float:
        """Return the share of a prompt of ``num_tokens`` that ``receiver`` computes.
        ``num_senders``: the number of sending engines for each generating engine."""
        if self.ratio >= 0:
            return min(1.0, self.ratio)
        # pieces of prompts beside decodes look too cheap: the step takes its time anyway
        sends_s, receives_s = sender.prompt_token_s, receiver.prompt_token_s
        cost = max(1.0, receives_s / sends_s) if sends_s and receives_s else 1.0
        num_before = self.num_sending[sender.name]
        num_answers = max(0, receiver.load - self.num_awaited[receiver.name])
        num_more = (self.owed[sender.name] - self.owed[receiver.name]) / max(1, num_tokens)
        return self.by_load.next(
            num_before, num_answers, num_more, cost=cost, num_senders=num_senders
        )

    @contextmanager
    def sending(self, sender: Engine, receiver: Engine, num_tokens: int) -> Iterator[None]:
        """Count a request whose first ``num_tokens`` ``sender`` has to compute for ``receiver``,
        until the context is left."""
        self.num_sending[sender.name] += 1
        self.num_awaited[receiver.name] += 1
        try:
            with self.owed.owing(sender, num_tokens):
                yield
        finally:
            self.num_awaited[receiver.name] -= 1
            self.num_sending[sender.name] -= 1
