"""Constraints on the output: llguidance matchers over a model's own vocabulary.

Owns compilation and the library's limits. Runs only in the processes of ``grammar_process``,
because some grammars take minutes and gigabytes in a single call, which can be stopped only by
ending the process. The library's fuel counts the work of regular expressions and the items of a
parse, so that a grammar fails at the same token on every machine. It covers neither compilation nor
the time in which an ambiguous grammar's items are computed.
"""

from __future__ import annotations

from collections.abc import Sequence

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from quire.core.decoding import GrammarSpec
from quire.core.errors import GrammarError
from quire.engine.sampling.grammar_limits import MAX_SOURCE_BYTES
from quire.engine.sampling.json_schema import read_schema, read_schemas_in_lark
from quire.engine.tokenizer import HuggingFaceTokenizer

_LEXER_FUEL = 200_000
"""A fifth of llguidance's default: nested repetitions fail in tenths of a second, not seconds."""

STEP_LEXER_FUEL = 200_000
"""Per mask: about 15 ms of derivatives of regular expressions, at 14 000 per millisecond."""

STEP_MAX_ITEMS = 50_000
"""Per mask: about 3 ms of parsing, at 20 000 Earley items per millisecond."""

_NAMES = {"json_schema": "JSON schema", "regex": "regular expression", "lark": "Lark grammar"}


class GrammarMatcher:
    """The state of one sequence's constraint."""

    __slots__ = ("_matcher",)

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

    def fork(self) -> GrammarMatcher:
        """Another matcher in the same state, independent from now on."""
        return GrammarMatcher(self._matcher.deep_copy())

    def consume(self, token: int) -> None:
        """Advance over a sampled token.

        Raises:
            GrammarError: the grammar does not allow it, or a limit was hit.
        """
        self._matcher.consume_token(token)
        self._check()

    def mask(self) -> bytes:
        """The tokens that may come next as a bit mask, token 0 in the lowest bit.

        Raises:
            GrammarError: a limit was exceeded.
        """
        allowed: bytes = self._matcher.compute_bitmask()
        self._check()
        return allowed

    @property
    def finished(self) -> bool:
        """Whether nothing can follow the output so far."""
        return bool(self._matcher.is_stopped())

    def _check(self) -> None:
        if self._matcher.is_error():
            reason = self._matcher.get_error().split("<non-verbose/>")[0].strip()
            raise GrammarError(
                f"the constraint cannot be followed: {reason[:500]}; simplify the schema or grammar"
            )


class Vocabulary:
    """The ``vocab_size`` ids of a model, of which its tokenizer may know fewer; without a tokenizer
    one id for each byte."""

    def __init__(self, tokenizer: HuggingFaceTokenizer | None = None, vocab_size: int = 0) -> None:
        if tokenizer is None:
            self.library_tokenizer = LLTokenizer("byte")
            return
        ends = _chosen_ends(tokenizer, vocab_size)
        wrapper = TokenizerWrapper(_TokenizerView(tokenizer, vocab_size))
        self.library_tokenizer = LLTokenizer(wrapper, eos_token=ends or None)


class _TokenizerView:
    """A tokenizer in the form that llguidance expects.

    Does not use llguidance's own reader of tokenizer.json: it treats every added token in angle
    brackets as special, and then a grammar cannot contain ``<tool_call>``, which models write as
    text.
    """

    bos_token_id = None

    def __init__(self, tokenizer: HuggingFaceTokenizer, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        ids = range(vocab_size)
        self.eos_token_id = next(iter(_chosen_ends(tokenizer, vocab_size)), ids.stop - 1)
        self.special_token_ids = [i for i in ids if not tokenizer.token_bytes(i)]
        self.tokens = [tokenizer.token_bytes(i) or f"<|{i}|>".encode() for i in ids]

    def __call__(self, text: str) -> Sequence[int]:
        return self._tokenizer.encode(text, special=False)


def _chosen_ends(tokenizer: HuggingFaceTokenizer, vocab_size: int) -> list[int]:
    """The end-of-text ids that a model can sample: some files name ids outside of its
    vocabulary."""
    return [token for token in tokenizer.eos_token_ids if token < vocab_size]


class GrammarCompiler:
    """Compiles ``GrammarSpec`` for one vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    def compile(self, spec: GrammarSpec) -> GrammarMatcher:
        """A matcher at the start of the output.

        Raises:
            GrammarError: a source that is too large, malformed or over llguidance's limits.
        """
        matcher = LLMatcher(
            self._vocabulary.library_tokenizer,
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


def _source(spec: GrammarSpec) -> str:
    _check_text(spec)
    match spec.kind:
        case "json_schema":
            return str(LLMatcher.grammar_from_json_schema(read_schema(spec.source)))
        case "regex":
            return str(LLMatcher.grammar_from_regex(spec.source))
        case "lark":
            return str(LLMatcher.grammar_from_lark(read_schemas_in_lark(spec.source)))


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
