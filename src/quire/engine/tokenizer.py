"""Text to tokens and back for one model directory. Imports no torch, so that the edge can use it.

Owns the mapping from token ids to the bytes they add, for byte-level and SentencePiece-style
vocabularies. Does not know chat templates.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import takewhile
from operator import itemgetter
from typing import Any

import tokenizers

from quire.core.errors import InvalidArgument, ModelFormatError
from quire.engine.checkpoint.model_card import eos_token_ids
from quire.engine.checkpoint.model_directory import MAX_JSON_BYTES, locate

_PANIC = "PanicException"
"""The name of the library's exception for panics, which cannot be imported and is a
``BaseException``."""

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def load_tokenizer(source: str) -> HuggingFaceTokenizer:
    """The tokenizer of a directory or hub id.

    Raises:
        ModelNotFound: no such directory or repository.
        ModelFormatError: no tokenizer.json, or one that cannot be read.
    """
    directory = locate(source)
    if not directory.has("tokenizer.json"):
        raise ModelFormatError(
            f"{directory.path} has no tokenizer.json: save a fast tokenizer into it "
            "(transformers.AutoTokenizer.from_pretrained(...).save_pretrained(...))"
        )
    text = directory.read_text("tokenizer.json", MAX_JSON_BYTES)
    try:
        return HuggingFaceTokenizer(text, eos_token_ids(directory))
    except ModelFormatError:
        raise
    except Exception as exc:  # the Rust library raises plain Exception
        raise ModelFormatError(
            f"{directory.path / 'tokenizer.json'} is not a tokenizer ({exc}): export it again"
        ) from exc


class HuggingFaceTokenizer:
    """``quire.core.interfaces.Tokenizer`` over the ``tokenizers`` library."""

    def __init__(self, tokenizer_json: str, eos_token_ids: tuple[int, ...]) -> None:
        self._recognising = tokenizers.Tokenizer.from_str(tokenizer_json)
        self._recognising.no_truncation()
        self._recognising.no_padding()
        self._vocab_size = self._recognising.get_vocab_size(with_added_tokens=True)
        self._eos_token_ids = eos_token_ids
        self._bytes = _bytes_by_id(json.loads(tokenizer_json), self._recognising)

    @cached_property
    def _literal(self) -> tokenizers.Tokenizer:
        """Created on demand: only an edge encodes users' text, and creating it doubles the loading
        time."""
        tokenizer = tokenizers.Tokenizer.from_str(self._recognising.to_str())
        tokenizer.encode_special_tokens = True
        return tokenizer

    @property
    def vocab_size(self) -> int:
        return self._vocab_size

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        return self._eos_token_ids

    @cached_property
    def text_start(self) -> tuple[int, ...]:
        """The tokens that the tokenizer's post-processor puts before a text: a BOS, or none."""
        encoded = self._recognising.encode("a", add_special_tokens=True)
        marked = zip(encoded.ids, encoded.special_tokens_mask, strict=True)
        return tuple(token_id for token_id, _ in takewhile(itemgetter(1), marked))

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Token ids of ``text``; nothing (no BOS) is added to it.

        ``special``: special tokens spelled out in it are recognised; otherwise they are ordinary
        text.

        Raises:
            InvalidArgument: the model's own rules cannot split it.
        """
        tokenizer = self._recognising if special else self._literal
        with _translated(f"a text of {len(text)} characters"):
            ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, token_ids: Sequence[int], *, skip_special: bool = False) -> str:
        """The text of ``token_ids``. Raises ``InvalidArgument``: the model's own rules cannot join
        them."""
        with _translated(f"{len(token_ids)} tokens"):
            text: str = self._recognising.decode(list(token_ids), skip_special_tokens=skip_special)
        return text

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that the token adds to the output; empty for special and unknown tokens."""
        return self._bytes.get(token_id, b"")

    def to_json(self) -> str:
        """The tokenizer in the form of tokenizer.json, without truncation or padding."""
        text: str = self._recognising.to_str()
        return text


@contextmanager
def _translated(what: str) -> Iterator[None]:
    """Turn the library's panics into errors. It panics where a rule of the model fails, such as a
    regular expression that gives up, and its exception is not an ``Exception``, so that error
    handlers would miss it."""
    try:
        yield
    except BaseException as exc:
        if type(exc).__name__ != _PANIC:
            raise
        raise InvalidArgument(
            f"the model's tokenizer cannot take {what}: {str(exc)[:200]}; change the text, or send "
            "it in shorter parts"
        ) from exc


def _bytes_by_id(values: dict[str, Any], tokenizer: tokenizers.Tokenizer) -> dict[int, bytes]:
    added = {token["id"]: token for token in values.get("added_tokens", [])}
    to_bytes = _byte_level_bytes if _is_byte_level(values) else _sentencepiece_bytes
    table = {}
    for text, token_id in tokenizer.get_vocab(with_added_tokens=True).items():
        if token_id not in added:
            table[token_id] = to_bytes(text)
        elif not added[token_id].get("special", False):
            table[token_id] = text.encode()
    return table


def _is_byte_level(values: dict[str, Any]) -> bool:
    return any(_names_byte_level(values.get(part)) for part in ("decoder", "pre_tokenizer"))


def _names_byte_level(component: Any) -> bool:
    if isinstance(component, dict):
        if component.get("type") == "ByteLevel":
            return True
        return any(_names_byte_level(value) for value in component.values())
    if isinstance(component, list):
        return any(_names_byte_level(value) for value in component)
    return False


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable substitutes for bytes: visible Latin-1 characters, then code points from
    256 on."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in set(visible)]
    alphabet = {chr(byte): byte for byte in visible}
    alphabet.update({chr(256 + index): byte for index, byte in enumerate(hidden)})
    return alphabet


class _ToLatin1(dict[int, int]):
    """For ``str.translate``: maps a substitute to the character with its byte's number, any other
    character to one outside of Latin-1."""

    def __missing__(self, character: int) -> int:
        return 0x100


_TO_LATIN_1 = _ToLatin1({ord(text): byte for text, byte in _byte_alphabet().items()})


def _byte_level_bytes(text: str) -> bytes:
    try:
        return text.translate(_TO_LATIN_1).encode("latin-1")
    except UnicodeEncodeError:
        return text.encode()


def _sentencepiece_bytes(text: str) -> bytes:
    if (match := _BYTE_TOKEN.fullmatch(text)) is not None:
        return bytes([int(match[1], 16)])
    return text.replace("▁", " ").encode()
