"""Trait Tokenize: text to token ids and back. Served in the program's runtime, without waiting."""

from __future__ import annotations

from collections.abc import Sequence

from quire.core.errors import InvalidArgument
from quire.core.traits import Trait
from quire.programs.api.handles import Queue
from quire.programs.api.queued import TraitFunctions, queued


class TokenizeFunctions(TraitFunctions):
    trait = Trait.TOKENIZE

    @queued
    def tokenize(self, queue: Queue, text: str, *, special: bool = True) -> list[int]:
        """Token ids of ``text`` for the queue's model.

        ``special``: special tokens that occur literally in the text are recognised.

        Raises:
            InvalidArgument: the text has a lone surrogate and is not valid Unicode.
        """
        try:
            text.encode()
        except UnicodeEncodeError as exc:
            raise InvalidArgument(
                f"the text has a lone surrogate at index {exc.start}: it is not valid Unicode"
            ) from exc
        return queue.state.model.tokenizer.encode(text, special=special)

    @queued
    def detokenize(
        self, queue: Queue, token_ids: int | Sequence[int], *, skip_special: bool = False
    ) -> str:
        """The text of one or several token ids."""
        ids = [token_ids] if isinstance(token_ids, int) else list(token_ids)
        return queue.state.model.tokenizer.decode(ids, skip_special=skip_special)

    @queued
    def get_vocabs(self, queue: Queue) -> list[bytes]:
        """The bytes of every token, by id; empty for special tokens."""
        tokenizer = queue.state.model.tokenizer
        return [tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)]
