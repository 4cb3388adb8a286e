"""Log probabilities in OpenAI's two formats.

Owns the spelling of a token in JSON: its text, with U+FFFD for bytes that are not a whole
character, and the bytes themselves.
"""

from __future__ import annotations

import codecs
import math
from collections.abc import Iterable, Sequence

from quire.core.decoding import TokenLogprobs
from quire.core.interfaces import Tokenizer
from quire.server.schemas.chat import ChoiceLogprobs, PromptLogprob, TokenLogprob, TopLogprob
from quire.server.schemas.completions import CompletionLogprobs

LOWEST = -9999.0
"""Replaces minus infinity, which JSON cannot represent."""


def spelled(tokenizer: Tokenizer, token_id: int) -> tuple[str, bytes]:
    """Return text and bytes of one token; for a special token those of its name."""
    raw = tokenizer.token_bytes(token_id)
    if not raw:
        name = tokenizer.decode([token_id])
        return name, name.encode()
    return raw.decode("utf-8", errors="replace"), raw


def finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else LOWEST


def chat_logprobs(
    tokenizer: Tokenizer, tokens: Iterable[TokenLogprobs], num_top: int
) -> ChoiceLogprobs:
    """Return the log probabilities of ``tokens`` in the form of chats, with ``num_top``
    alternatives per token."""
    content = []
    for token in tokens:
        best = zip(token.top_ids[:num_top], token.top_logprobs[:num_top], strict=True)
        chosen = _top(tokenizer, token.token_id, token.logprob)
        content.append(
            TokenLogprob(
                token=chosen.token,
                logprob=chosen.logprob,
                bytes=chosen.bytes,
                top_logprobs=[_top(tokenizer, token_id, logprob) for token_id, logprob in best],
            )
        )
    return ChoiceLogprobs(content=content, refusal=None)


def prompt_logprobs(
    tokenizer: Tokenizer, scores: Sequence[TokenLogprobs]
) -> list[dict[str, PromptLogprob] | None]:
    """Return vLLM's form: null for the first token, then each token and the best ones at its place,
    by id."""
    shown: list[dict[str, PromptLogprob] | None] = [None]
    for score in scores:
        best = zip(score.top_ids, score.top_logprobs, strict=True)
        ranked = {token: (logprob, rank) for rank, (token, logprob) in enumerate(best, 1)}
        figures = {score.token_id: ranked.get(score.token_id, (score.logprob, None)), **ranked}
        shown.append(
            {
                str(token): PromptLogprob(
                    logprob=finite(logprob), rank=rank, decoded_token=spelled(tokenizer, token)[0]
                )
                for token, (logprob, rank) in figures.items()
            }
        )
    return shown


def _top(tokenizer: Tokenizer, token_id: int, logprob: float) -> TopLogprob:
    text, raw = spelled(tokenizer, token_id)
    return TopLogprob(token=text, logprob=finite(logprob), bytes=list(raw))


class CompletionLogprobsWriter:
    """Writes the parallel lists of one choice, part by part; text offsets continue over the parts.

    ``shows_special``: the text of the answer contains the names of special tokens. An echoed prompt
    always contains them, except for the tokens that were put before it.
    """

    def __init__(self, tokenizer: Tokenizer, num_top: int, *, shows_special: bool = False) -> None:
        self._tokenizer = tokenizer
        self._num_top = num_top
        self._shows_special = shows_special
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0

    def prompt(
        self, token_ids: Sequence[int], scores: Sequence[TokenLogprobs], num_added: int = 0
    ) -> CompletionLogprobs:
        """Return the lists of an echoed prompt: ``scores`` has no entry for its first token; its
        text lacks the first ``num_added`` tokens."""
        assert len(scores) == len(token_ids) - 1, "one score per prompt token after the first"
        lists = _empty()
        assert lists.top_logprobs is not None
        self._place(lists, token_ids[0], has_name=not num_added)
        lists.token_logprobs.append(None)
        lists.top_logprobs.append(None)
        for position, token in enumerate(scores, 1):
            self._add(lists, token, has_name=position >= num_added)
        return lists

    def part(self, tokens: Iterable[TokenLogprobs]) -> CompletionLogprobs:
        """Return the lists of the next tokens of the answer."""
        lists = _empty()
        for token in tokens:
            self._add(lists, token, has_name=self._shows_special)
        return lists

    def _add(self, lists: CompletionLogprobs, token: TokenLogprobs, *, has_name: bool) -> None:
        assert lists.top_logprobs is not None
        self._place(lists, token.token_id, has_name=has_name)
        lists.token_logprobs.append(finite(token.logprob))
        lists.top_logprobs.append(self._alternatives(token))

    def _place(self, lists: CompletionLogprobs, token_id: int, *, has_name: bool) -> None:
        """Append the text and offset of a token. ``has_name``: the text contains the token's name,
        if it is a special token."""
        text, raw = spelled(self._tokenizer, token_id)
        lists.tokens.append(text)
        lists.text_offset.append(self._offset)
        if has_name or self._tokenizer.token_bytes(token_id):
            self._offset += len(self._decoder.decode(raw))

    def _alternatives(self, token: TokenLogprobs) -> dict[str, float]:
        """Return the best tokens by text, and the token itself; of equal texts the more likely one
        is kept."""
        best = zip(token.top_ids[: self._num_top], token.top_logprobs[: self._num_top], strict=True)
        found: dict[str, float] = {}
        for token_id, logprob in (*best, (token.token_id, token.logprob)):
            text, _ = spelled(self._tokenizer, token_id)
            found[text] = max(found.get(text, LOWEST), finite(logprob))
        return found


def _empty() -> CompletionLogprobs:
    return CompletionLogprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])


def joined(parts: Sequence[CompletionLogprobs]) -> CompletionLogprobs:
    """Join several parts."""
    whole = _empty()
    for part in parts:
        whole.tokens += part.tokens
        whole.token_logprobs += part.token_logprobs
        whole.top_logprobs = [*(whole.top_logprobs or ()), *(part.top_logprobs or ())]
        whole.text_offset += part.text_offset
    return whole
