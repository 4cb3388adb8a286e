"""Turns texts into sequences for an encoder, for HTTP requests and programs alike.

Owns the order of the steps: texts to sequences in a worker thread, a check of their lengths. Must
not know whose request it is, nor what form the rows take.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np

from quire.core.batch import F32
from quire.core.errors import InvalidArgument, PromptTooLong
from quire.engine.encoders.text import EncodedText, EncoderTexts
from quire.node.encoders.service import EncoderService


def limit_of(encoder: EncoderService, truncate: int | None) -> int | None:
    """The number of tokens to which sequences are cut; ``None``: they are not cut. ``truncate`` of
    -1 stands for the most that the model reads."""
    if truncate is None:
        return None
    longest = encoder.texts.max_tokens
    return longest if truncate == -1 else min(truncate, longest)


async def text_sequences(
    encoder: EncoderService,
    inputs: Sequence[str] | Sequence[Sequence[int]],
    truncate: int | None,
    prompt_name: str | None = None,
) -> list[EncodedText]:
    """Each text, or sequence of token ids, as the model reads it. The model's prompt of the given
    name is put before each text.

    Raises:
        InvalidArgument: there is no such prompt, or token ids are to have one.
        PromptTooLong: one is longer than the model reads.
    """
    limit = limit_of(encoder, truncate)
    sequences = await asyncio.to_thread(_sequences, encoder.texts, inputs, limit, prompt_name)
    _check_lengths(encoder, sequences)
    return sequences


async def pair_sequences(
    encoder: EncoderService,
    first: Sequence[str],
    second: Sequence[str],
    truncate: int | None,
    instruction: str | None = None,
) -> list[EncodedText]:
    """Each pair as a cross-encoder reads it; one ``first`` goes with every ``second``.

    Raises:
        InvalidArgument: an instruction for a model that reads none.
        PromptTooLong: a pair is longer than the model reads. Its details have the pair's ``index``,
            or ``is_first`` if the first text alone is too long.
    """
    limit = limit_of(encoder, truncate)
    sequences = await asyncio.to_thread(_pairs, encoder.texts, first, second, limit, instruction)
    _check_lengths(encoder, sequences)
    return sequences


def check_dimensions(encoder: EncoderService, dimensions: int | None) -> None:
    """Refuse more ``dimensions`` than the model's embeddings have (``InvalidArgument``)."""
    size = encoder.info.dimensions
    if dimensions is not None and dimensions > size:
        raise InvalidArgument(
            f"dimensions is {dimensions}, but embeddings of {encoder.name!r} have {size}",
            param="dimensions",
        )


def shortened(rows: F32, dimensions: int | None) -> F32:
    """The first ``dimensions`` values of each row, scaled to length 1 again."""
    if dimensions is None or dimensions >= rows.shape[1]:
        return rows
    rows = rows[:, :dimensions]
    norms: F32 = np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    return rows / norms


def _sequences(
    texts: EncoderTexts,
    inputs: Sequence[str] | Sequence[Sequence[int]],
    limit: int | None,
    prompt_name: str | None,
) -> list[EncodedText]:
    words = [one for one in inputs if isinstance(one, str)]
    tokens = [one for one in inputs if not isinstance(one, str)]
    if tokens and prompt_name is not None:
        raise InvalidArgument(
            "prompt_name is for texts, and token ids came: put the prompt's tokens in front",
            param="prompt_name",
        )
    if words:
        sequences = texts.encode(words, prompt_name)
    else:
        sequences = [texts.encode_tokens(one) for one in tokens]
    return sequences if limit is None else [texts.cut(one, limit) for one in sequences]


def _pairs(
    texts: EncoderTexts,
    first: Sequence[str],
    second: Sequence[str],
    limit: int | None,
    instruction: str | None,
) -> list[EncodedText]:
    if len(first) == 1:
        return texts.encode_pairs(first[0], second, limit, instruction)
    pairs = zip(first, second, strict=True)
    return [texts.encode_pairs(one, [other], limit, instruction)[0] for one, other in pairs]


def _check_lengths(encoder: EncoderService, sequences: Sequence[EncodedText]) -> None:
    limit = encoder.texts.max_tokens
    for index, one in enumerate(sequences):
        if len(one.tokens) > limit:
            raise PromptTooLong(
                f"sequence {index} has {len(one.tokens)} tokens, but {encoder.name!r} reads "
                f"{limit}: shorten it, or have it cut (truncate, over HTTP truncate_prompt_tokens)",
                num_prompt_tokens=len(one.tokens),
                max_model_len=limit,
                index=index,
            )
