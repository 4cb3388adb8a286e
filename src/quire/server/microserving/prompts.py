"""Prompts of microserving requests as tokens, and positions in them.

Owns the meaning of a negative index, what identifies a prompt, and the checks against the model.
Must not know leases.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from quire.core.errors import InvalidArgument
from quire.core.interfaces import ServedModel
from quire.programs.builtin import PromptImage
from quire.server.chat.images import expand_images, read_image
from quire.server.requests.plain_text import text_tokens


async def prompt_tokens(
    model: ServedModel, prompt: str | list[int], add_special_tokens: bool | None
) -> tuple[int, ...]:
    """Return the tokens of a prompt.

    Raises:
        InvalidArgument: it is empty, or has a token that the model does not have.
        PromptTooLong: it is longer than the model's context.
    """
    if isinstance(prompt, str):
        tokens = tuple(await asyncio.to_thread(text_tokens, model, prompt, add_special_tokens))
    else:
        tokens = tuple(prompt)
    if not tokens:
        raise InvalidArgument("the prompt is empty: send at least one token", param="prompt")
    if max(tokens) >= model.info.vocab_size:
        raise InvalidArgument(
            f"prompt has token {max(tokens)}, but the model has {model.info.vocab_size} tokens",
            param="prompt",
        )
    model.room_behind(len(tokens), least=0)
    return tokens


def place_in(tokens: Sequence[int], index: int, name: str) -> int:
    """Return ``index`` counted from the prompt's beginning.

    Raises:
        InvalidArgument: it lies outside the prompt.
    """
    place = index + len(tokens) if index < 0 else index
    if not 0 <= place <= len(tokens):
        raise InvalidArgument(
            f"{name} is {index} and the prompt has {len(tokens)} tokens: choose "
            f"{-len(tokens)} to {len(tokens)}",
            param=name,
        )
    return place


@dataclass(frozen=True, slots=True)
class ExchangePrompt:
    """A prompt: ``tokens``, with those of ``images`` in their places."""

    tokens: tuple[int, ...]
    images: tuple[PromptImage, ...] = ()

    def digest(self, end: int) -> bytes:
        """Return a digest of the first ``end`` tokens and of the images among them."""
        shown = [
            (one.start, hashlib.sha256(one.file).digest()) for one in self.images if one.start < end
        ]
        return hashlib.sha256(msgspec.msgpack.encode((self.tokens[:end], shown))).digest()

    def num_known(self, end: int) -> int:
        """Return how many of the first ``end`` tokens are before the first image: no prefix cache
        has what follows it."""
        return min([end, *(one.start for one in self.images)])

    def place(self, index: int, name: str) -> int:
        """Return ``index`` counted from the prompt's beginning.

        Raises:
            InvalidArgument: it lies outside the prompt, or within an image.
        """
        place = place_in(self.tokens, index, name)
        for image in self.images:
            last = image.start + image.num_embeds
            if image.start < place < last:
                raise InvalidArgument(
                    f"{name} is {index}, which lies within an image, from token {image.start} to "
                    f"{last}: choose a place before or behind it",
                    param=name,
                )
        return place


def with_images(
    model: ServedModel, tokens: tuple[int, ...], urls: Sequence[str] | None
) -> ExchangePrompt:
    """Return the prompt ``tokens``, which has the model's image token once for each of ``urls``,
    with the images in their places.

    Raises:
        InvalidArgument: their numbers differ, one has no image, or the model sees none.
        PromptTooLong: it is longer than the model's context.
    """
    if not urls:
        return ExchangePrompt(tokens)
    accepted = model.info.images
    if accepted is None:
        raise InvalidArgument(f"model {model.id!r} sees no images: leave them out", param="images")
    files = [
        read_image(url, accepted, f"images[{index}]", f"images[{index}]")
        for index, url in enumerate(urls)
    ]
    found = tokens.count(accepted.token)
    if found != len(files):
        raise InvalidArgument(
            f"the prompt has {found} tokens for images ({accepted.token}) and {len(files)} images "
            "are given: name each image once in the prompt",
            param="images",
        )
    return ExchangePrompt(*expand_images(tokens, files, accepted, model.max_tokens))


def adapter_of(model: ServedModel) -> str | None:
    """Return the digest of the weights of the model's adapter; None without one."""
    if model.adapter is None:
        return None
    return next(one.digest for one in model.info.adapters if one.name == model.adapter)
