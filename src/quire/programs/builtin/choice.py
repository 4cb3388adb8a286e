"""One choice of a completion: converts the engine's chunks to ``ChoiceChunk``s."""

from __future__ import annotations

from quire.core.decoding import DecodeChunk, TokenLogprobs
from quire.programs.api import Model
from quire.programs.builtin.requests import ChoiceChunk, CompletionRequest
from quire.programs.chat.detokenize import TextStream


class Choice:
    """Converts the ``DecodeChunk``s of one decode to ``ChoiceChunk``s, in order."""

    def __init__(self, index: int, request: CompletionRequest, model: Model) -> None:
        self.index = index
        self._text = TextStream(
            model.tokenizer,
            stop=request.stop,
            include_stop=request.include_stop,
            skip_special=request.skip_special,
            shown=request.shown_special,
        )
        self._end_tokens = frozenset(() if request.ignore_eos else model.eos_token_ids)
        self._num_cached_tokens = 0
        self._prompt_logprobs: tuple[TokenLogprobs, ...] | None = None
        self._first = True
        if request.num_generated:  # their text was sent before
            self._text.add(request.prompt[-request.num_generated :])

    def prompt_known(
        self, num_cached_tokens: int, prompt_logprobs: tuple[TokenLogprobs, ...] | None
    ) -> None:
        """Set the results of a separate run over the prompt, for the first chunk."""
        self._num_cached_tokens = num_cached_tokens
        self._prompt_logprobs = prompt_logprobs

    def chunk(self, chunk: DecodeChunk) -> ChoiceChunk:
        if not self._first and chunk.finish_reason is None and chunk.logprobs is None:
            # the usual case: the fields that are sent once have been sent
            tokens = chunk.token_ids
            return ChoiceChunk(self.index, self._text.add(tokens), tuple(tokens))
        first, self._first = self._first and self.index == 0, False
        own = None if chunk.prompt_logprobs is None else tuple(chunk.prompt_logprobs)
        num_cached = self._num_cached_tokens + chunk.num_cached_tokens
        return ChoiceChunk(
            index=self.index,
            text=self._told(chunk),
            token_ids=tuple(chunk.token_ids),
            logprobs=None if chunk.logprobs is None else tuple(chunk.logprobs),
            finish_reason=chunk.finish_reason,
            stop_reason=self._stop_reason(chunk),
            num_cached_tokens=num_cached if first else 0,
            prompt_logprobs=(self._prompt_logprobs or own) if first else None,
            seed=chunk.seed,
        )

    def _told(self, chunk: DecodeChunk) -> str:
        tokens = chunk.token_ids
        if isinstance(chunk.matched, int) and tokens and tokens[-1] == chunk.matched:
            tokens = tokens[:-1]  # a stop token is not part of the text
        text = self._text.add(tokens)
        return text + self._text.finish() if chunk.finish_reason is not None else text

    def _stop_reason(self, chunk: DecodeChunk) -> str | int | None:
        if isinstance(chunk.matched, int):
            return None if chunk.matched in self._end_tokens else chunk.matched
        if isinstance(chunk.matched, bytes):
            return self._text.matched or chunk.matched.decode("utf-8", "replace")
        return None
