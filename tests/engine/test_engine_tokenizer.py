"""Tokens as bytes, special tokens as text, and the edge's modules without torch."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from quire.core.errors import InvalidArgument
from quire.engine.tokenizer import HuggingFaceTokenizer, load_tokenizer

TEXTS = ["plain", " two  spaces", "naïve café", "日本語", "🙂 smile", "tab\tnew\nline", "", "\x00"]


@pytest.mark.parametrize("text", TEXTS)
def test_bytes_of_tokens_make_the_text(text: str, checkpoint: Callable[[str], Path]) -> None:
    tokenizer = load_tokenizer(str(checkpoint("llama")))
    ids = tokenizer.encode(text)
    assert b"".join(tokenizer.token_bytes(token) for token in ids).decode() == text
    assert tokenizer.decode(ids) == text


def test_special_tokens_are_recognised_or_not(checkpoint: Callable[[str], Path]) -> None:
    tokenizer = load_tokenizer(str(checkpoint("llama")))
    assert tokenizer.encode("<s>a</s>")[0] == 0
    literal = tokenizer.encode("<s>a</s>", special=False)
    assert 0 not in literal
    assert 1 not in literal
    assert tokenizer.decode(literal) == "<s>a</s>"
    assert tokenizer.token_bytes(0) == b""
    assert tokenizer.token_bytes(10**6) == b""
    assert tokenizer.decode([0, *literal, 1], skip_special=True) == "<s>a</s>"
    assert tokenizer.eos_token_ids == (1,)


def test_a_rule_that_gives_up_is_an_error_of_the_text() -> None:
    """The library panics then with an exception outside of ``Exception``, which no error handler
    catches."""
    tokenizer = Tokenizer(models.BPE({"a": 0, "b": 1}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("(a|aa)+$"), "isolated")
    loaded = HuggingFaceTokenizer(tokenizer.to_str(), ())
    assert loaded.encode("aab") == [0, 0, 1]
    with pytest.raises(InvalidArgument, match=r"cannot take a text of 61 characters: .*retry"):
        loaded.encode("a" * 60 + "b")


def test_sentencepiece_bytes() -> None:
    vocabulary = {"<unk>": 0, "<s>": 1, "<0x0A>": 2, "<0xE2>": 3, "▁the": 4, "▁": 5, "é": 6}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokenizer.add_special_tokens(["<s>"])
    tokenizer.add_tokens([AddedToken("<tool>", special=False)])
    loaded = HuggingFaceTokenizer(tokenizer.to_str(), (1,))
    assert [loaded.token_bytes(i) for i in range(1, 8)] == [
        b"",
        b"\n",
        b"\xe2",
        b" the",
        b" ",
        "é".encode(),
        b"<tool>",
    ]


@pytest.mark.parametrize(("template", "start"), [("<s> $A", (0,)), ("<s> $A </s>", (0,)), ("", ())])
def test_the_tokenizer_file_defines_the_tokens_before_a_text(
    template: str, start: tuple[int, ...], checkpoint: Callable[[str], Path]
) -> None:
    """Tokens after the text are not included, because an answer follows."""
    plain = Tokenizer.from_file(str(checkpoint("llama") / "tokenizer.json"))
    plain.post_processor = processors.TemplateProcessing(
        single=template or "$A", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    assert HuggingFaceTokenizer(plain.to_str(), (1,)).text_start == start


def test_truncation_and_padding_of_the_file_are_ignored(
    checkpoint: Callable[[str], Path],
) -> None:
    text = (checkpoint("llama") / "tokenizer.json").read_text()
    plain = HuggingFaceTokenizer(text, ())
    values = json.loads(text)
    values["truncation"] = {
        "direction": "Right",
        "max_length": 3,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    cut = HuggingFaceTokenizer(json.dumps(values), ())
    assert cut.encode("the quick brown fox jumps") == plain.encode("the quick brown fox jumps")


@pytest.mark.parametrize(
    "module", ["quire.engine", "quire.engine.tokenizer", "quire.engine.checkpoint.model_card"]
)
def test_the_edge_needs_no_torch(module: str) -> None:
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
