"""Offers the SDK's ``Context`` as a client can have it: a list of tokens, sent with every request.

The operations that the library's techniques need, over an OpenAI-compatible server at a distance. A
fork is a copy of the list; the server must find shared parts in its prefix cache. A distribution is
one token with its log probabilities, so it has at most 20 candidates. Knows the server's HTTP
interface and a tokenizer, but not the node.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import httpx

from quire.core.decoding import Dist, SamplerSpec
from quire.core.interfaces import Tokenizer
from quire.programs.library.answers import GREEDY


@dataclass(frozen=True, slots=True)
class Scored:
    """A token with its log probability."""

    logprob: float


@dataclass(frozen=True, slots=True)
class Written:
    """The output of one request. ``stop``: the stop string that ended it."""

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[Scored, ...]
    finish_reason: str
    stop: str | None


class RemoteModel:
    """A model behind HTTP, ``distance_s`` away. Use ``async with``."""

    def __init__(self, url: str, name: str, tokenizer: Tokenizer, distance_s: float) -> None:
        self.tokenizer = tokenizer
        self.eos_token_ids = tokenizer.eos_token_ids
        self._url, self._name, self._distance_s = url, name, distance_s
        self._http = httpx.AsyncClient(timeout=300)
        self.ids = {tokenizer.decode([token]): token for token in range(tokenizer.vocab_size)}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._http.aclose()

    async def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        await asyncio.sleep(self._distance_s)
        answer = await self._http.post(f"{self._url}{path}", json={"model": self._name, **body})
        if answer.is_error:
            raise SystemExit(f"{path}: {answer.status_code} {answer.text}")
        made: dict[str, Any] = answer.json()
        return made

    async def complete(self, prompt: Sequence[int], **options: Any) -> dict[str, Any]:
        """Return the first choice after ``prompt``."""
        body = {"prompt": list(prompt), "return_token_ids": True, **options}
        choice: dict[str, Any] = (await self.post("/v1/completions", body))["choices"][0]
        return choice

    async def ask(
        self,
        question: str,
        *,
        system: str = "",
        sampler: SamplerSpec = GREEDY,
        max_tokens: int = 256,
        **options: Any,
    ) -> str:
        """Return the reply to one question, as the library's ``ask`` does."""
        messages = [{"role": "user", "content": question}]
        if system:
            messages = [{"role": "system", "content": system}, *messages]
        body = {"messages": messages, "max_tokens": max_tokens, **_sampling(sampler), **options}
        answer = await self.post("/v1/chat/completions", body)
        return answer["choices"][0]["message"]["content"] or ""


class RemoteContext:
    """A text that grows; see the module docstring."""

    def __init__(self, model: RemoteModel, tokens: Sequence[int]) -> None:
        self.model = model
        self.tokens = tuple(tokens)

    def __len__(self) -> int:
        return len(self.tokens)

    def fill(self, text: str | Sequence[int]) -> Self:
        self.tokens += tuple(self.model.tokenizer.encode(text) if isinstance(text, str) else text)
        return self

    def fork(self) -> RemoteContext:
        return RemoteContext(self.model, self.tokens)

    def drop(self) -> None:
        """Do nothing: there is nothing to free."""

    async def generate(
        self,
        *,
        max_tokens: int,
        stop: str = "",
        sampler: SamplerSpec = GREEDY,
        num_logprobs: int | None = None,
    ) -> Written:
        options: dict[str, Any] = {"max_tokens": max_tokens, **_sampling(sampler)}
        if stop:
            options["stop"] = [stop]
        if num_logprobs is not None:
            options["logprobs"] = num_logprobs
        choice = await self.model.complete(self.tokens, **options)
        self.tokens += tuple(choice["token_ids"])
        scores = (choice["logprobs"] or {}).get("token_logprobs", ())
        return Written(
            choice["text"],
            tuple(choice["token_ids"]),
            tuple(Scored(score) for score in scores),
            choice["finish_reason"],
            choice.get("stop_reason"),
        )

    async def next_dist(self, *, top_k: int) -> Dist:
        """Return the best ``top_k`` of the next token's distribution."""
        options = {"max_tokens": 1, "temperature": 0, "logprobs": top_k}
        choice = await self.model.complete(self.tokens, **options)
        best = choice["logprobs"]["top_logprobs"][0]
        ranked = sorted(best.items(), key=lambda entry: -entry[1])[:top_k]
        return Dist(
            [self.model.ids[text] for text, _ in ranked],
            [math.exp(logprob) for _, logprob in ranked],
        )


def _sampling(sampler: SamplerSpec) -> dict[str, Any]:
    if sampler.greedy:
        return {"temperature": 0}
    shaping = {name: value for one in sampler.processors for name, value in one.params.items()}
    return {"top_p": 1, "top_k": 0, "seed": sampler.seed, **shaping}
