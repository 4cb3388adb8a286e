"""Texts to an encoder's sequences: special tokens, types of pairs, limits. Imports no torch.

Owns the text settings of a sentence-transformers directory: the longest sequence and the prompts
that are put before texts.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import tokenizers
from tokenizers import normalizers

from quire.core.errors import InvalidArgument, ModelFormatError, PromptTooLong
from quire.engine.checkpoint.config_accounting import account
from quire.engine.checkpoint.config_reader import ConfigReader
from quire.engine.checkpoint.model_directory import MAX_JSON_BYTES, ModelDirectory, locate
from quire.engine.encoders.config import EncoderShape, read_shape
from quire.engine.encoders.known_keys import SETTINGS, TEXTS
from quire.engine.encoders.modules import kind_of, read_modules
from quire.engine.encoders.pair_template import QWEN3_RERANKER, PairTemplate

logger = logging.getLogger(__name__)

MAX_PAIR_TOKENS = 1 << 22
"""Tokens of all pairs of a request together: the first text is repeated in each pair."""


@dataclass(frozen=True, slots=True)
class EncodedText:
    """One sequence, special tokens included. ``types``: the segment of each token."""

    tokens: tuple[int, ...]
    types: tuple[int, ...]


class EncoderTexts:
    """Thread-safe: each call uses a tokenizer without state of its own.

    ``prompt`` is put before a text unless another of ``prompts`` is chosen by name. ``template``:
    the prompt format of a pair; None: two segments with special tokens.
    """

    def __init__(
        self,
        tokenizer: tokenizers.Tokenizer,
        max_tokens: int,
        prompt: str,
        prompts: Mapping[str, str] | None = None,
        template: PairTemplate | None = None,
    ) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._template = template
        if template is not None:
            self._prefix, self._suffix = (
                tuple(tokenizer.encode(part, add_special_tokens=False).ids)
                for part in (template.prefix, template.suffix)
            )
        tokenizer.encode_special_tokens = True  # in texts they are plain text
        self.tokenizer = tokenizer
        self.max_tokens = max_tokens
        self.prompt = prompt
        self.prompts = dict(prompts or {})
        self.num_special = tokenizer.num_special_tokens_to_add(is_pair=False)
        self._num_special_of_pair = tokenizer.num_special_tokens_to_add(is_pair=True)

    def encode(self, texts: Sequence[str], prompt_name: str | None = None) -> list[EncodedText]:
        """Each text with the prompt of that name, or the model's default, and its special tokens.

        Raises:
            InvalidArgument: there is no prompt of that name.
        """
        prompt = self._prompt(prompt_name)
        return [_encoded(one) for one in self.tokenizer.encode_batch([prompt + t for t in texts])]

    def _prompt(self, name: str | None) -> str:
        if name is None:
            return self.prompt
        if name not in self.prompts:
            raise InvalidArgument(
                f"the model has no prompt {name[:80]!r}; it has "
                f"{', '.join(sorted(self.prompts))[:500] or 'none'}",
                param="prompt_name",
            )
        return self.prompts[name]

    def encode_tokens(self, token_ids: Sequence[int]) -> EncodedText:
        """Token ids from the client, unchanged."""
        return EncodedText(tuple(token_ids), (0,) * len(token_ids))

    def encode_pairs(
        self,
        first: str,
        seconds: Sequence[str],
        max_tokens: int | None = None,
        instruction: str | None = None,
    ) -> list[EncodedText]:
        """Encode ``first`` with each of ``seconds``, in the cross-encoder's format; the second text
        is truncated to ``max_tokens`` for the pair, if possible. ``instruction``: the criterion for
        a match, for models whose prompt has one.

        ``first`` is encoded once and its length checked before pairs are formed, because each pair
        repeats it.

        Raises:
            PromptTooLong: ``first`` alone is longer than the model reads, or all pairs together
                have too many tokens; ``is_first`` in its details.
            InvalidArgument: an instruction for a model that takes none.
        """
        if self._template is not None:
            return self._written_pairs(self._template, first, seconds, max_tokens, instruction)
        refuse_instruction(instruction)
        alone = self.tokenizer.encode(first, add_special_tokens=False)
        num_first = len(alone.ids) + self._num_special_of_pair
        self._check_first(len(alone.ids), num_first, len(seconds))
        others = self.tokenizer.encode_batch(list(seconds), add_special_tokens=False)
        pairs = [_encoded(self.tokenizer.post_process(alone, other)) for other in others]
        if max_tokens is None or max_tokens <= num_first:
            return pairs
        return [_cut_pair(pair, max_tokens) for pair in pairs]

    def _check_first(self, num_own: int, num_first: int, num_pairs: int) -> None:
        limit = min(self.max_tokens, MAX_PAIR_TOKENS // max(1, num_pairs))
        if num_first > limit:
            raise PromptTooLong(
                f"a pair begins with a text of {num_own} tokens, which makes {num_first} "
                f"with the special ones, but the model reads {limit} of each of {num_pairs} pairs: "
                "shorten the query or first text, or send fewer at once",
                num_prompt_tokens=num_first,
                max_model_len=limit,
                is_first=True,
            )

    def _written_pairs(
        self,
        template: PairTemplate,
        first: str,
        seconds: Sequence[str],
        max_tokens: int | None,
        instruction: str | None,
    ) -> list[EncodedText]:
        """Tokenizes query and document together, because a token may span the boundary between
        them."""
        around = len(self._prefix) + len(self._suffix)
        alone = self.tokenizer.encode(
            template.body(first, "", instruction), add_special_tokens=False
        )
        self._check_first(len(alone.ids), len(alone.ids) + around, len(seconds))
        bodies = [template.body(first, second, instruction) for second in seconds]
        room = None
        if max_tokens is not None and max_tokens >= len(alone.ids) + around:
            room = max_tokens - around
        return [
            self.encode_tokens((*self._prefix, *body.ids[:room], *self._suffix))
            for body in self.tokenizer.encode_batch(bodies, add_special_tokens=False)
        ]

    def cut(self, text: EncodedText, max_tokens: int) -> EncodedText:
        """``text`` truncated at its end; the tokenizer's final special tokens are kept."""
        if len(text.tokens) <= max_tokens or max_tokens < self.num_special:
            return text
        tail = 1 if self.num_special else 0
        head = max_tokens - tail
        return EncodedText(
            (*text.tokens[:head], *text.tokens[len(text.tokens) - tail :]),
            (*text.types[:head], *text.types[len(text.types) - tail :]),
        )


def refuse_instruction(instruction: str | None) -> None:
    """Refuse an instruction.

    Raises:
        InvalidArgument: there is one, and the model's pairs have no place for it.
    """
    if instruction is not None:
        raise InvalidArgument(
            "instruction is for models whose pairs carry one, as Qwen3-Reranker's: leave it out",
            param="instruction",
        )


def load_texts(source: str) -> EncoderTexts:
    """Read the small files of a directory or hub id.

    Raises:
        ModelError: a file that is missing, or cannot be read.
    """
    directory = locate(source)
    shape = read_shape(ConfigReader(directory.read_config(), str(directory.path / "config.json")))
    texts = _reader(directory, "sentence_bert_config.json")
    max_tokens = _max_tokens(directory, texts, shape)
    tokenizer = _tokenizer(directory)
    if texts.flag("do_lower_case", False):
        own = [] if tokenizer.normalizer is None else [tokenizer.normalizer]
        tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), *own])
    settings = _reader(directory, "config_sentence_transformers.json")
    prompts, default = _prompts(settings)
    settings.raw("activation_fn")  # the encoder itself reads it
    for warning in (*account(texts, TEXTS), *account(settings, SETTINGS)):
        logger.warning("%s", warning)
    is_written = shape.body is None and kind_of(shape, read_modules(directory)) == "cross_encoder"
    template = QWEN3_RERANKER if is_written else None
    return EncoderTexts(tokenizer, max_tokens, default, prompts, template)


def _reader(directory: ModelDirectory, name: str) -> ConfigReader:
    return ConfigReader(directory.read_json_if_present(name), str(directory.path / name))


def _max_tokens(directory: ModelDirectory, texts: ConfigReader, shape: EncoderShape) -> int:
    """The longest sequence according to the directory, else to its tokenizer; at most the model's
    number of positions."""
    longest = texts.raw("max_seq_length")
    if longest is None:
        tokenizer = directory.read_json_if_present("tokenizer_config.json")
        longest = texts.raw("model_max_length") or tokenizer.get("model_max_length")
    if isinstance(longest, int | float) and 2 < longest < shape.max_tokens:
        return int(longest)
    return shape.max_tokens


def _tokenizer(directory: ModelDirectory) -> tokenizers.Tokenizer:
    try:
        text = directory.read_text("tokenizer.json", MAX_JSON_BYTES)
        return tokenizers.Tokenizer.from_str(text)
    except ModelFormatError:
        raise
    except Exception as exc:  # the Rust library raises plain Exception
        raise ModelFormatError(
            f"{directory.path / 'tokenizer.json'} is not a tokenizer ({exc}): export it again"
        ) from exc


def _prompts(settings: ConfigReader) -> tuple[dict[str, str], str]:
    """All prompts by name, and the default one."""
    given = settings.raw("prompts")
    prompts = {
        name: text
        for name, text in (given.items() if isinstance(given, dict) else ())
        if isinstance(text, str)
    }
    default = settings.raw("default_prompt_name")
    return prompts, prompts.get(default, "") if isinstance(default, str) else ""


def _cut_pair(pair: EncodedText, max_tokens: int) -> EncodedText:
    """Truncates a pair; its last special token is kept."""
    if len(pair.tokens) <= max_tokens:
        return pair
    room = max_tokens - 1
    return EncodedText((*pair.tokens[:room], pair.tokens[-1]), (*pair.types[:room], pair.types[-1]))


def _encoded(one: tokenizers.Encoding) -> EncodedText:
    return EncodedText(tuple(one.ids), tuple(one.type_ids))
