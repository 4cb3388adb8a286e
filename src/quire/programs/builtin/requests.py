"""Requests and results of the completion program, as frozen values.

HTTP routes convert their formats to these requests; nothing here knows HTTP.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from quire.core.decoding import (
    FinishReason,
    GrammarSpec,
    SamplerSpec,
    TokenLogprobs,
)
from quire.core.errors import InvalidArgument
from quire.core.ids import ModelId
from quire.core.lease_commands import LeaseName

GREEDY = SamplerSpec()


@dataclass(frozen=True, slots=True)
class PromptImage:
    """An image in a prompt: its embeddings replace the tokens ``start`` to
    ``start + num_embeds - 1``. ``file``: the bytes of a PNG or JPEG file."""

    start: int
    num_embeds: int
    file: bytes


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """``num_choices`` continuations of one prompt.

    ``prompt``             token ids, at least one.
    ``model``              ``None``: the node's default model.
    ``max_tokens``         0 computes the prompt only (with ``num_prompt_logprobs``: scoring).
    ``stop``               strings that end a choice; removed from its text unless ``include_stop``.
    ``stop_token_ids``     tokens that end a choice, in addition to the model's end tokens (which
                           ``ignore_eos`` disables); their text is never part of the output.
    ``num_logprobs``       alternatives reported with each token; ``None``: no log probabilities.
    ``num_prompt_logprobs`` the same for each prompt token after the first.
    ``sampler.seed``       choice ``i`` uses ``seed + i``; ``None``: control chooses a seed.
    ``skip_special``       special tokens add nothing to the text, except ``shown_special``.
    ``priority``           of the queues; higher runs first.
    ``images``             sorted by their start; text must follow the last one.
    ``num_generated``      how many of the last tokens of ``prompt`` were sampled before: stop
                           strings, grammar, penalties and text continue after them.
                           ``max_tokens`` and ``min_tokens`` count from here on.
    ``lease``              holds K and V of the first ``num_leased`` tokens of ``prompt``.
    ``stream``             chunks come while a choice runs; otherwise each choice is one chunk.
    """

    prompt: tuple[int, ...]
    max_tokens: int
    model: ModelId | None = None
    num_choices: int = 1
    sampler: SamplerSpec = GREEDY
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    include_stop: bool = False
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    grammar: GrammarSpec | None = None
    num_logprobs: int | None = None
    num_prompt_logprobs: int | None = None
    skip_special: bool = True
    shown_special: frozenset[int] = frozenset()
    cache: bool = True
    priority: int = 0
    images: tuple[PromptImage, ...] = ()
    num_generated: int = 0
    lease: LeaseName | None = None
    num_leased: int = 0
    stream: bool = True

    def __post_init__(self) -> None:
        if not self.prompt:
            raise InvalidArgument("the prompt is empty: a completion needs at least one token")
        if self.num_choices < 1:
            raise InvalidArgument(f"num_choices is {self.num_choices}: ask for at least 1")
        if self.max_tokens < 0 or not 0 <= self.min_tokens <= max(self.max_tokens, 0):
            raise InvalidArgument(
                f"max_tokens {self.max_tokens}, min_tokens {self.min_tokens}: "
                "choose 0 <= min_tokens <= max_tokens"
            )
        self._check_images()
        self._check_lease()
        if any(not text for text in self.stop):
            raise InvalidArgument("a stop string is empty: it would end every choice at once")

    def _check_lease(self) -> None:
        num_prompt = len(self.prompt)
        if not 0 <= self.num_generated < num_prompt:
            raise InvalidArgument(
                f"num_generated is {self.num_generated} of a prompt of {num_prompt} tokens: at "
                "least the first one was given"
            )
        if self.lease is None:
            return
        if not 0 <= self.num_leased < num_prompt:
            raise InvalidArgument(
                f"{self.num_leased} of {num_prompt} prompt tokens are taken from a lease: at "
                "least the last one is computed here"
            )
        if self.num_prompt_logprobs is not None:
            raise InvalidArgument(
                "a prompt whose K and V come from a lease has no log probabilities: leave them "
                "out, or the lease"
            )

    def _check_images(self) -> None:
        end = 0
        for image in self.images:
            if image.start < end:
                raise InvalidArgument("images overlap, or are not in the order of the prompt")
            end = image.start + image.num_embeds
        if self.images and end >= len(self.prompt):
            raise InvalidArgument("the prompt ends with an image: text must follow the last one")
        if self.images and self.num_prompt_logprobs is not None:
            raise InvalidArgument(
                "a prompt with images has no log probabilities: leave prompt_logprobs out"
            )


class ChoiceChunk(msgspec.Struct, frozen=True):
    """A part of one choice, in the order in which its tokens were sampled.

    ``text`` is complete UTF-8 and never contains (a part of) a stop string, so it may lag behind
    ``token_ids``; the concatenation over all chunks is the choice's text. The last chunk of a
    choice has ``finish_reason`` (``stop``, ``length`` or ``cancelled``) and ``stop_reason``: the
    stop string or stop token id that ended it (``None``: an end token of the model).
    ``num_cached_tokens`` and ``prompt_logprobs`` are only in the first chunk of choice 0.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    num_cached_tokens: int = 0
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None
    seed: int | None = None
