"""Grammars over a real tokenizer: the tokens that may be sampled match the grammar's text."""

from __future__ import annotations

from importlib.resources import files

import numpy as np
import pytest

from quire.core.decoding import GrammarSpec
from quire.core.errors import GrammarError
from quire.engine.sampling.grammar import GrammarCompiler, GrammarMatcher, Vocabulary
from quire.engine.tokenizer import HuggingFaceTokenizer, load_tokenizer

PADDING = 50
"""Rows of the embedding after the tokenizer's last token, as in padded checkpoints."""


@pytest.fixture(scope="module")
def tokenizer() -> HuggingFaceTokenizer:
    return load_tokenizer(str(files("quire") / "assets" / "quire-mini"))


@pytest.fixture(scope="module")
def compiler(tokenizer: HuggingFaceTokenizer) -> GrammarCompiler:
    return GrammarCompiler(Vocabulary(tokenizer, tokenizer.vocab_size + PADDING))


def allowed(matcher: GrammarMatcher, vocab_size: int) -> list[int]:
    bits = np.unpackbits(np.frombuffer(matcher.mask(), np.uint8), bitorder="little")
    return np.flatnonzero(bits[:vocab_size]).tolist()


def follow(matcher: GrammarMatcher, tokenizer: HuggingFaceTokenizer, pick: int) -> str:
    """The output from always taking the allowed token with index ``pick`` (or the last one)."""
    output: list[int] = []
    while not matcher.finished:
        choices = allowed(matcher, tokenizer.vocab_size + PADDING)
        token = choices[min(pick, len(choices) - 1)]
        if token in tokenizer.eos_token_ids:
            break
        assert tokenizer.token_bytes(token), "a special or padding token is allowed"
        output.append(token)
        matcher.consume(token)
    return tokenizer.decode(output)


@pytest.mark.parametrize("pick", [0, 1, 1000])
def test_text_in_angle_brackets_that_is_one_added_token_can_be_said(
    tokenizer: HuggingFaceTokenizer, compiler: GrammarCompiler, pick: int
) -> None:
    source = 'start: "<tool_call>" ("get" | "put") "</tool_call>"'
    text = follow(compiler.compile(GrammarSpec("lark", source)), tokenizer, pick)
    assert text in ("<tool_call>get</tool_call>", "<tool_call>put</tool_call>")


def test_a_special_token_is_never_allowed_as_text(
    tokenizer: HuggingFaceTokenizer, compiler: GrammarCompiler
) -> None:
    matcher = compiler.compile(GrammarSpec("regex", r"<\|user\|>"))
    assert follow(matcher, tokenizer, 0) == "<|user|>"


def test_a_token_that_the_grammar_forbids_is_an_error(compiler: GrammarCompiler) -> None:
    matcher = compiler.compile(GrammarSpec("regex", "[0-9]+"))
    with pytest.raises(GrammarError, match="cannot be followed"):
        matcher.consume(0)


def test_an_end_that_the_vocabulary_does_not_have_is_left_out(
    tokenizer: HuggingFaceTokenizer,
) -> None:
    """Some files name such ids; a request with a grammar must not stop the engine."""
    ends = (10_000_000, *tokenizer.eos_token_ids)
    known = HuggingFaceTokenizer(tokenizer.to_json(), ends)
    compiler = GrammarCompiler(Vocabulary(known, tokenizer.vocab_size))
    matcher = compiler.compile(GrammarSpec("regex", "a?"))
    assert tokenizer.eos_token_ids[0] in allowed(matcher, tokenizer.vocab_size)
