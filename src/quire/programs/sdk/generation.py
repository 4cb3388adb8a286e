"""One generation of a context: its text piece by piece, or the whole result."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator
from dataclasses import dataclass
from typing import Any

from quire.core.decoding import DecodeChunk, FinishReason, TokenLogprobs
from quire.core.errors import ErrorRecord
from quire.programs.api import DecodeStream
from quire.programs.chat.detokenize import TextStream


@dataclass(frozen=True, slots=True)
class Generated:
    """``text`` excludes the stop string or stop token; ``token_ids``: all sampled tokens.

    ``stop``: the stop string or token id that ended the generation, or None. ``num_cached_tokens``:
    prompt tokens that were found in the prefix index and not computed again.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stop: str | int | None
    num_cached_tokens: int
    logprobs: tuple[TokenLogprobs, ...] | None


class Generation:
    """``await generation`` returns the whole result, ``async for text in generation`` its pieces.

    It starts when it is created. Leaving the loop early does not stop it: call ``cancel``, or use
    ``async with``.
    """

    def __init__(
        self,
        stream: DecodeStream,
        text: TextStream,
        on_end: Callable[[list[int], ErrorRecord | None], None],
    ) -> None:
        self._stream = stream
        self._text = text
        self._on_end = on_end
        self._chunks: list[DecodeChunk] = []
        self._parts: list[str] = []
        self._told = 0
        self._ended = False
        stream.listen(self._on_news)

    @property
    def ended(self) -> bool:
        """Whether it has ended, also by a failure or a cancellation."""
        return self._ended

    @property
    def has_failed(self) -> bool:
        """Whether it has ended by a failure or a cancellation."""
        return self._ended and self._stream.failure() is not None

    @property
    def num_tokens(self) -> int:
        """Tokens that have been sampled so far."""
        return sum(len(chunk.token_ids) for chunk in self._chunks)

    def cancel(self) -> None:
        """End it early; the context keeps the generated tokens."""
        self._stream.cancel()

    async def __aenter__(self) -> Generation:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cancel()
        await self._stream.ended()

    def __await__(self) -> Generator[Any, None, Generated]:
        return self._whole().__await__()

    async def __aiter__(self) -> AsyncGenerator[str, None]:
        while True:
            while self._told < len(self._parts):
                part = self._parts[self._told]
                self._told += 1
                if part:
                    yield part
            if self._ended:
                self._stream.raise_failure()
                return
            await self._stream.next_news()

    async def _whole(self) -> Generated:
        await self._stream.ended()
        self._stream.raise_failure()
        tokens = tuple(token for chunk in self._chunks for token in chunk.token_ids)
        last = self._chunks[-1]
        logprobs = [entry for chunk in self._chunks for entry in chunk.logprobs or ()]
        assert last.finish_reason is not None, "the last chunk has no finish reason"
        return Generated(
            text="".join(self._parts),
            token_ids=tokens,
            finish_reason=last.finish_reason,
            stop=self._text.matched or (last.matched if isinstance(last.matched, int) else None),
            num_cached_tokens=self._chunks[0].num_cached_tokens,
            logprobs=tuple(logprobs) if logprobs else None,
        )

    def _on_news(self) -> None:
        """Process what has arrived, so that the context is up to date even if the result is not
        read."""
        for chunk in self._stream.take_all():
            self._chunks.append(chunk)
            tokens = chunk.token_ids
            if isinstance(chunk.matched, int) and tokens and tokens[-1] == chunk.matched:
                tokens = tokens[:-1]  # a stop token is not part of the text
            self._parts.append(self._text.add(tokens))
            if chunk.finish_reason is not None:
                self._parts.append(self._text.finish())
        if self._stream.done() and not self._ended:
            self._ended = True
            tokens = [token for chunk in self._chunks for token in chunk.token_ids]
            self._on_end(tokens, self._stream.failure())
