"""Grammar matching over a ``Tokenizer`` through llguidance, one token at a time."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
from numpy.typing import NDArray

from quire.core.decoding import GrammarSpec
from quire.core.errors import GrammarError
from quire.core.interfaces import Tokenizer


class _Vocabulary:
    """A tokenizer in the form that llguidance expects."""

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id = tokenizer.eos_token_ids[0]
        vocabulary = range(tokenizer.vocab_size)
        self.special_token_ids = [i for i in vocabulary if not tokenizer.token_bytes(i)]
        self.tokens = [tokenizer.token_bytes(i) or f"<|{i}|>".encode() for i in vocabulary]

    def __call__(self, text: bytes | str) -> list[int]:
        decoded = text.decode(errors="replace") if isinstance(text, bytes) else text
        return self._tokenizer.encode(decoded, special=False)


class FakeGrammarCompiler:
    """Compiles ``GrammarSpec`` for one tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    @cached_property
    def _ll_tokenizer(self) -> LLTokenizer:
        vocabulary = _Vocabulary(self._tokenizer)
        return LLTokenizer(TokenizerWrapper(vocabulary))

    def compile(self, spec: GrammarSpec) -> FakeGrammarMatcher:
        """A fresh matcher.

        Raises:
            GrammarError: llguidance does not accept the source.
        """
        try:
            match spec.kind:
                case "json_schema":
                    source = LLMatcher.grammar_from_json_schema(spec.source)
                case "regex":
                    source = LLMatcher.grammar_from_regex(spec.source)
                case "lark":
                    source = LLMatcher.grammar_from_lark(spec.source)
        except ValueError as exc:
            raise GrammarError(f"the {spec.kind} is not valid: {exc}") from exc
        matcher = LLMatcher(self._ll_tokenizer, source, log_level=0)
        if matcher.is_error():
            raise GrammarError(f"the {spec.kind} is not valid: {matcher.get_error()}")
        return FakeGrammarMatcher(matcher, self._tokenizer.eos_token_ids)


class FakeGrammarMatcher:
    """The state of one constrained output."""

    def __init__(self, matcher: LLMatcher, eos_token_ids: tuple[int, ...]) -> None:
        self._matcher = matcher
        self._eos_token_ids = eos_token_ids
        self._ended = False

    def allowed(self, vocab_size: int) -> NDArray[np.bool_]:
        """Tokens that may come next. An accepting state also allows the end-of-text tokens."""
        flags = np.zeros(vocab_size, bool)
        if self._ended or self._matcher.is_stopped():
            return flags
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        unpacked = np.unpackbits(bits, bitorder="little")[:vocab_size].astype(bool)
        flags[: len(unpacked)] = unpacked
        flags[list(self._eos_token_ids)] = self._matcher.is_accepting()
        return flags

    def consume(self, token_ids: Sequence[int]) -> None:
        """Advance over tokens. Raises ``GrammarError`` for a token that the grammar forbids."""
        for token_id in token_ids:
            if token_id in self._eos_token_ids and self._matcher.is_accepting():
                self._ended = True
            elif self._ended or not self._matcher.consume_token(token_id):
                raise GrammarError(f"token {token_id} does not continue the grammar")

    @property
    def finished(self) -> bool:
        """Whether only the end of the text may follow."""
        return self._ended or self._matcher.is_stopped()
