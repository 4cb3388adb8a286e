"""Pairs of texts for late interaction: a query and a document that are encoded apart.

Imports no torch. A pair is one sequence, the query's tokens before the document's, each with their
special tokens; types distinguish them.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import tokenizers

from quire.core.errors import InvalidArgument, PromptTooLong
from quire.engine.encoders.text import (
    MAX_PAIR_TOKENS,
    EncodedText,
    EncoderTexts,
    refuse_instruction,
)


class PairToken(IntEnum):
    """The type of a token in a pair: of which text it is, and whether it is compared. Special
    tokens are read, as the model expects them, and not compared."""

    QUERY = 0
    DOCUMENT = 1
    QUERY_SPECIAL = 2
    DOCUMENT_SPECIAL = 3


NUM_TYPES = len(PairToken)

_QUERY_PROMPTS, _DOCUMENT_PROMPTS = ("query",), ("document", "passage")
"""Names under which models have prompts for the two."""


class LateInteractionTexts(EncoderTexts):
    """Encodes texts and pairs. ``own``: the texts of the embedding model. A pair may have twice its
    ``max_tokens``, each of its texts once."""

    def __init__(self, own: EncoderTexts) -> None:
        super().__init__(own.tokenizer, own.max_tokens * 2, own.prompt, own.prompts)
        self._longest = own.max_tokens
        self._query_prompt = self._named(_QUERY_PROMPTS)
        self._document_prompt = self._named(_DOCUMENT_PROMPTS)

    def encode_pairs(
        self,
        first: str,
        seconds: Sequence[str],
        max_tokens: int | None = None,
        instruction: str | None = None,
    ) -> list[EncodedText]:
        """Encode ``first``, the query, with each of ``seconds``. A document that is too long for
        the model or for ``max_tokens`` is truncated if ``max_tokens`` is given.

        Raises:
            PromptTooLong: a text is longer than the model reads, or all pairs together have too
                many tokens.
            InvalidArgument: an instruction, which these models do not take, or a text without a
                token.
        """
        refuse_instruction(instruction)
        query = _typed(self.tokenizer.encode(self._query_prompt + first), PairToken.QUERY)
        num_query = len(query.tokens)
        self._check("the query", num_query, min(self._longest, MAX_PAIR_TOKENS // len(seconds)))
        room = self._longest
        if max_tokens is not None and max_tokens - num_query > self.num_special:
            room = min(room, max_tokens - num_query)
        texts = [self._document_prompt + one for one in seconds]
        pairs = []
        for index, encoding in enumerate(self.tokenizer.encode_batch(texts)):
            document = _typed(encoding, PairToken.DOCUMENT)
            if max_tokens is not None:
                document = self.cut(document, room)
            self._check(f"document {index}", len(document.tokens), self._longest)
            pairs.append(EncodedText(query.tokens + document.tokens, query.types + document.types))
        return pairs

    def _named(self, names: Sequence[str]) -> str:
        return next((self.prompts[name] for name in names if name in self.prompts), self.prompt)

    def _check(self, what: str, num_tokens: int, limit: int) -> None:
        if not num_tokens:  # the encoder could not tell the two texts of its pair apart
            raise InvalidArgument(f"{what} has no token: leave it out, or give it a text")
        if num_tokens > limit:
            raise PromptTooLong(
                f"{what} has {num_tokens} tokens, but the model reads {limit} of each text: "
                "shorten it, or have documents cut (truncate, over HTTP truncate_prompt_tokens)",
                num_prompt_tokens=num_tokens,
                max_model_len=limit,
            )


def _typed(encoding: tokenizers.Encoding, side: PairToken) -> EncodedText:
    types = (side + 2 * is_special for is_special in encoding.special_tokens_mask)
    return EncodedText(tuple(encoding.ids), tuple(map(int, types)))
