"""Texts to an encoder's sequences: special tokens, types of pairs, limits. Imports no torch.

Owns what a sentence-transformers directory says about its texts: the longest sequence and the
prompt that stands before each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tokenizers

from quire.core.errors import ModelFormatError, PromptTooLong
from quire.engine.encoders.config import read_shape
from quire.engine.model_directory import MAX_JSON_BYTES, locate


@dataclass(frozen=True, slots=True)
class EncodedText:
    """One sequence, special tokens included. ``types``: the segment of each token."""

    tokens: tuple[int, ...]
    types: tuple[int, ...]


class EncoderTexts:
    """Thread-safe: each call uses a tokenizer without state of its own."""

    def __init__(self, tokenizer: tokenizers.Tokenizer, max_tokens: int, prompt: str) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.encode_special_tokens = True  # a text cannot contain the marks around it
        self._tokenizer = tokenizer
        self.max_tokens = max_tokens
        self.prompt = prompt
        self.num_special = tokenizer.num_special_tokens_to_add(is_pair=False)
        self._num_special_of_pair = tokenizer.num_special_tokens_to_add(is_pair=True)

    def encode(self, texts: Sequence[str]) -> list[EncodedText]:
        """Each text behind the model's own prompt, between its special tokens."""
        prompted = [self.prompt + text for text in texts]
        return [_encoded(one) for one in self._tokenizer.encode_batch(prompted)]

    def encode_tokens(self, token_ids: Sequence[int]) -> EncodedText:
        """Tokens that the client has made, as they are."""
        return EncodedText(tuple(token_ids), (0,) * len(token_ids))

    def encode_pairs(
        self, first: str, seconds: Sequence[str], max_tokens: int | None = None
    ) -> list[EncodedText]:
        """``first`` with each of ``seconds``, as a cross-encoder reads them; the second text is cut
        so that the pair has ``max_tokens``, if that can be.

        ``first`` is read once and checked before it is joined with each of the others: a long one
        would otherwise take its own size for each of them.

        Raises:
            PromptTooLong: ``first`` alone is longer than the model reads.
        """
        alone = self._tokenizer.encode(first, add_special_tokens=False)
        num_first = len(alone.ids) + self._num_special_of_pair
        if num_first > self.max_tokens:
            raise PromptTooLong(
                f"a pair begins with a text of {len(alone.ids)} tokens, which makes {num_first} "
                f"with the special ones, but the model reads {self.max_tokens}: shorten the query "
                "or first text",
                num_prompt_tokens=num_first,
                max_model_len=self.max_tokens,
            )
        others = self._tokenizer.encode_batch(list(seconds), add_special_tokens=False)
        pairs = [_encoded(self._tokenizer.post_process(alone, other)) for other in others]
        if max_tokens is None or max_tokens <= num_first:
            return pairs
        return [_cut_pair(pair, max_tokens) for pair in pairs]

    def cut(self, text: EncodedText, max_tokens: int) -> EncodedText:
        """``text`` with its end cut off; what the tokenizer puts last stays last."""
        if len(text.tokens) <= max_tokens or max_tokens < self.num_special:
            return text
        tail = 1 if self.num_special else 0
        head = max_tokens - tail
        return EncodedText(
            (*text.tokens[:head], *text.tokens[len(text.tokens) - tail :]),
            (*text.types[:head], *text.types[len(text.types) - tail :]),
        )


def load_texts(source: str) -> EncoderTexts:
    """Read the small files of a directory or hub id.

    Raises:
        ModelError: a file that is missing, or cannot be read.
    """
    directory = locate(source)
    shape = read_shape(directory.read_config(), str(directory.path / "config.json"))
    limits = directory.read_json_if_present("sentence_bert_config.json")
    longest = limits.get("max_seq_length")
    max_tokens = shape.max_tokens
    if isinstance(longest, int) and 2 < longest < max_tokens:
        max_tokens = longest
    try:
        text = directory.read_text("tokenizer.json", MAX_JSON_BYTES)
        tokenizer = tokenizers.Tokenizer.from_str(text)
    except ModelFormatError:
        raise
    except Exception as exc:  # the Rust library raises plain Exception
        raise ModelFormatError(
            f"{directory.path / 'tokenizer.json'} is not a tokenizer ({exc}): export it again"
        ) from exc
    settings = directory.read_json_if_present("config_sentence_transformers.json")
    prompts, default = settings.get("prompts"), settings.get("default_prompt_name")
    prompt = prompts.get(default, "") if isinstance(prompts, dict) and default else ""
    return EncoderTexts(tokenizer, max_tokens, str(prompt))


def _cut_pair(pair: EncodedText, max_tokens: int) -> EncodedText:
    """The last special token stays last."""
    if len(pair.tokens) <= max_tokens:
        return pair
    room = max_tokens - 1
    return EncodedText((*pair.tokens[:room], pair.tokens[-1]), (*pair.types[:room], pair.types[-1]))


def _encoded(one: tokenizers.Encoding) -> EncodedText:
    return EncodedText(tuple(one.ids), tuple(one.type_ids))


__all__ = ["EncodedText", "EncoderTexts", "load_texts"]
