"""Constraints on the output: llguidance matchers over the model's own vocabulary.

Owns compilation, its limits, and the allowed-token masks. A matcher can always be rebuilt from its
specification and the tokens generated so far, be forked, and be rolled back over tokens that were
not kept after all.

The time of a mask is limited twice: by llguidance's fuel, which counts work, so that the same
grammar fails at the same token on every machine; and, since fuel does not see how long an ambiguous
grammar's rows take, by the processor time that the mask took.

Shapes: G constrained rows, V vocabulary, W words of 32 tokens.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
from llguidance import LLExecutor, LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from numpy.typing import NDArray

from quire.core.decoding import GrammarSpec
from quire.core.errors import GrammarError
from quire.engine.tokenizer import HuggingFaceTokenizer

MAX_SOURCE_BYTES = 1 << 18
"""Larger schemas exist, but none that a decode should wait for."""

_LEXER_FUEL = 200_000
"""A fifth of llguidance's default: nested repetitions fail in tenths of a second, not seconds."""

STEP_LEXER_FUEL = 200_000
"""Of one mask: about 15 ms of derivatives of regular expressions, at 14 000 per millisecond."""

STEP_MAX_ITEMS = 50_000
"""Of one mask: about 3 ms of parsing, at 20 000 Earley items per millisecond."""


MASK_LIMIT_S = 0.1
"""Of processor time for one mask. Large schemas take a few milliseconds."""

_NAMES = {"json_schema": "JSON schema", "regex": "regular expression", "lark": "Lark grammar"}


class GrammarMatcher:
    """The state of one sequence's constraint."""

    __slots__ = ("_matcher",)

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

    def fork(self) -> GrammarMatcher:
        """Another matcher in the same state; the two go on by themselves."""
        return GrammarMatcher(self._matcher.deep_copy())

    def rollback(self, num_tokens: int) -> None:
        """Take back the last ``num_tokens`` that were consumed.

        Raises:
            GrammarError: that many were not consumed.
        """
        self._matcher.rollback(num_tokens)
        self.check()

    def consume(self, tokens: Sequence[int]) -> None:
        """Advance over sampled tokens.

        Raises:
            GrammarError: a token that the grammar does not allow, or a limit.
        """
        for token in tokens:
            self._matcher.consume_token(int(token))
        self.check()

    @property
    def finished(self) -> bool:
        """Whether nothing can follow the output so far."""
        return bool(self._matcher.is_stopped())

    @property
    def library_matcher(self) -> LLMatcher:
        """What computes masks; for ``GrammarMasks``."""
        return self._matcher

    def check(self) -> None:
        """Raises ``GrammarError`` when a limit was hit or a token was not allowed."""
        if self._matcher.is_error():
            reason = self._matcher.get_error().split("<non-verbose/>")[0].strip()
            raise GrammarError(
                f"the constraint cannot be followed: {reason[:500]}; simplify the schema or grammar"
            )


class GrammarMasks:
    """The masks of several matchers at once, in the library's threads.

    ``cpu_time_s`` reads the processor time of this thread.
    """

    def __init__(
        self,
        vocab_size: int,
        limit_s: float = MASK_LIMIT_S,
        cpu_time_s: Callable[[], float] = time.thread_time,
    ) -> None:
        self._vocab_size = vocab_size
        self._num_words = (vocab_size + 31) // 32
        self._limit_s = limit_s
        self._cpu_time_s = cpu_time_s
        self._executor: LLExecutor | None = None
        self._was_slow = False

    def forbidden(
        self, matchers: Sequence[GrammarMatcher]
    ) -> tuple[NDArray[np.bool_], list[GrammarError | None]]:
        """Tokens that each matcher forbids ``[G, V]``, and why a matcher could not say.

        Tokens beyond the vocabulary that the grammar was compiled for are forbidden.
        """
        masks_GW = np.zeros((len(matchers), self._num_words), np.int32)
        started = time.monotonic()
        if len(matchers) == 1 or self._was_slow:
            # a step that was slow tells to look which matcher it was
            errors = [
                self._timed(one, mask_W) for one, mask_W in zip(matchers, masks_GW, strict=True)
            ]
        else:
            self._together(matchers, masks_GW)
            errors = [_error_of(one) for one in matchers]
        self._was_slow = time.monotonic() - started > self._limit_s
        bits_GV = np.unpackbits(masks_GW.view(np.uint8), axis=1, bitorder="little")
        return bits_GV[:, : self._vocab_size] == 0, errors

    def _together(self, matchers: Sequence[GrammarMatcher], masks_GW: NDArray[np.int32]) -> None:
        if self._executor is None:
            self._executor = LLExecutor()
        self._executor.unsafe_compute_mask_ptr(
            [(one.library_matcher, place) for place, one in enumerate(matchers)],
            masks_GW.ctypes.data,
            masks_GW.strides[0],
            len(matchers),
        )

    def _timed(self, matcher: GrammarMatcher, mask_W: NDArray[np.int32]) -> GrammarError | None:
        started = self._cpu_time_s()
        matcher.library_matcher.unsafe_compute_mask_ptr(mask_W.ctypes.data, mask_W.nbytes)
        took_s = self._cpu_time_s() - started
        if took_s > self._limit_s:
            return GrammarError(
                f"the mask of one token took {1000 * took_s:.0f} ms, the limit is "
                f"{1000 * self._limit_s:.0f} ms: make the grammar less ambiguous"
            )
        return _error_of(matcher)


def _error_of(matcher: GrammarMatcher) -> GrammarError | None:
    try:
        matcher.check()
    except GrammarError as exc:
        return exc
    return None


class _Vocabulary:
    """What llguidance wants to know of a tokenizer, over the ``vocab_size`` ids of the model.

    Not its own reading of tokenizer.json: that takes every added token in angle brackets for a
    special one, and then a grammar cannot say ``<tool_call>``, which models write as text.
    """

    bos_token_id = None

    def __init__(self, tokenizer: HuggingFaceTokenizer, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        ids = range(vocab_size)
        self.eos_token_id = next(iter(_chosen_ends(tokenizer, vocab_size)), ids.stop - 1)
        self.special_token_ids = [i for i in ids if not tokenizer.token_bytes(i)]
        self.tokens = [tokenizer.token_bytes(i) or f"<|{i}|>".encode() for i in ids]

    def __call__(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, special=False)


def _chosen_ends(tokenizer: HuggingFaceTokenizer, vocab_size: int) -> list[int]:
    """The ends that a model can choose: some files name ids that its vocabulary does not have."""
    return [token for token in tokenizer.eos_token_ids if token < vocab_size]


class GrammarCompiler:
    """Compiles ``GrammarSpec`` for one tokenizer and model vocabulary."""

    def __init__(self, tokenizer: HuggingFaceTokenizer, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size

    def compile(self, spec: GrammarSpec) -> GrammarMatcher:
        """A matcher at the start of the output.

        Raises:
            GrammarError: a source that is too large, malformed or over llguidance's limits.
        """
        matcher = LLMatcher(
            self._ll_tokenizer,
            _source(spec),
            log_level=0,
            limits=LLParserLimits(
                initial_lexer_fuel=_LEXER_FUEL,
                step_lexer_fuel=STEP_LEXER_FUEL,
                step_max_items=STEP_MAX_ITEMS,
                verbose_errors=False,
            ),
        )
        if matcher.is_error():
            raise GrammarError(
                f"the {_NAMES[spec.kind]} cannot be compiled: "
                f"{matcher.get_error()[:500]}; correct it"
            )
        return GrammarMatcher(matcher)

    @cached_property
    def _ll_tokenizer(self) -> LLTokenizer:
        eos = _chosen_ends(self._tokenizer, self._vocab_size)
        vocabulary = TokenizerWrapper(_Vocabulary(self._tokenizer, self._vocab_size))
        return LLTokenizer(vocabulary, eos_token=eos or None)


def _source(spec: GrammarSpec) -> str:
    _check_text(spec)
    match spec.kind:
        case "json_schema":
            _check_json(spec.source)
            return str(LLMatcher.grammar_from_json_schema(spec.source))
        case "regex":
            return str(LLMatcher.grammar_from_regex(spec.source))
        case "lark":
            return str(LLMatcher.grammar_from_lark(spec.source))


def _check_json(source: str) -> None:
    """The library pastes the source into a text of its own: what is no JSON by itself could be some
    there, of another meaning."""
    try:
        json.loads(source)
    except (ValueError, RecursionError) as exc:
        raise GrammarError(f"the JSON schema is not valid JSON: {exc}; correct it") from exc


def _check_text(spec: GrammarSpec) -> None:
    try:
        size = len(spec.source.encode())
    except UnicodeEncodeError as exc:
        raise GrammarError(
            f"the {_NAMES[spec.kind]} is not valid Unicode ({exc}): correct it"
        ) from exc
    if size > MAX_SOURCE_BYTES:
        raise GrammarError(
            f"the {_NAMES[spec.kind]} has {size} bytes; at most {MAX_SOURCE_BYTES} are compiled: "
            "split or simplify it"
        )
