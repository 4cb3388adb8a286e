"""Streams that outlive their node: what is told of one beside its events, and how another goes on.

A router that may have to go on elsewhere asks for it (``x-quire-tells``, beside the cluster key).
Behind the events of each chunk, but the last, then stands a comment with the chunk's tokens.
Another node gets the same request with all that was told (``x-quire-generated``): it reads the
tokens as if it had sampled them, tells nothing of them again, and samples what follows. Owns both
forms. Must not know what events look like.
"""

from __future__ import annotations

import secrets
import zlib
from array import array
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import msgspec
from starlette.requests import Request

from quire.core.errors import InvalidArgument
from quire.core.interfaces import ServedModel
from quire.programs.builtin import ChoiceChunk, CompletionRequest
from quire.programs.chat.detokenize import TextStream
from quire.server.frame import Frame, new_frame

TELLS_HEADER = "x-quire-tells"
GENERATED_HEADER = "x-quire-generated"
COMMENT = b": quire "
MAX_HEADER_CHARS = 32 << 10
_MAX_TOKENS = 1 << 20
_SEED_BITS = 62


class Told(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a comment says: ``tokens`` of the chunk before it. The rest is that of the stream;
    ``prompt`` stands in its first comment alone, and not where images are among its tokens."""

    key: str
    created: int
    seed: int
    tokens: list[int]
    prompt: tuple[int, ...] = ()


class Generated(msgspec.Struct, frozen=True, array_like=True):
    """What another node has told of a stream that goes on here."""

    key: str
    created: int
    seed: int
    tokens: bytes


def packed(first: Told, tokens: Sequence[int]) -> str | None:
    """The header by which another node goes on behind ``tokens``; None: they are too many."""
    squeezed = zlib.compress(array("i", tokens).tobytes())
    generated = Generated(first.key, first.created, first.seed, squeezed)
    text = urlsafe_b64encode(msgspec.msgpack.encode(generated)).decode()
    return text if len(text) <= MAX_HEADER_CHARS else None


@dataclass(frozen=True, slots=True)
class Telling:
    """A stream of ``frame`` that can go on elsewhere. ``tokens``: of its answer, those that another
    node has sampled and told. ``prompt``: see ``Told``."""

    frame: Frame
    seed: int
    tokens: tuple[int, ...] = ()
    prompt: tuple[int, ...] = ()

    def comment(self, tokens: Sequence[int], *, is_first: bool = False) -> bytes:
        """What stands behind the events of a chunk of ``tokens``."""
        prompt = self.prompt if is_first else ()
        told = Told(self.frame.key, self.frame.created_unix_s, self.seed, list(tokens), prompt)
        return COMMENT + msgspec.json.encode(told) + b"\n\n"

    def continued(self, asked: CompletionRequest) -> CompletionRequest:
        """``asked``, behind the tokens that were sampled before."""
        num_before = len(self.tokens)
        if num_before >= asked.max_tokens:
            raise InvalidArgument(
                f"{num_before} tokens were generated and at most {asked.max_tokens} may be: "
                "nothing is left to generate"
            )
        return replace(
            asked,
            prompt=(*asked.prompt, *self.tokens),
            num_generated=num_before,
            max_tokens=asked.max_tokens - num_before,
            min_tokens=max(0, asked.min_tokens - num_before),
            sampler=msgspec.structs.replace(asked.sampler, seed=self.seed),
        )

    def before(self, asked: CompletionRequest, model: ServedModel) -> Iterator[ChoiceChunk]:
        """What was told of the tokens before, each as a chunk."""
        text = TextStream(
            model.tokenizer,
            stop=asked.stop,
            include_stop=asked.include_stop,
            skip_special=asked.skip_special,
            shown=asked.shown_special,
        )
        for token in self.tokens:
            yield ChoiceChunk(0, text.add((token,)), (token,))


def telling_of(request: Request, model: ServedModel) -> Telling | None:
    """How ``request``, which comes from a member of the cluster, wants its stream told.

    Raises:
        InvalidArgument: what it says was generated cannot be read.
    """
    text = request.headers.get(GENERATED_HEADER)
    if text is not None:
        return _going_on(text, model)
    if request.headers.get(TELLS_HEADER) is None:
        return None
    return Telling(new_frame(model), secrets.randbits(_SEED_BITS))


def _going_on(text: str, model: ServedModel) -> Telling:
    try:
        generated = msgspec.msgpack.decode(urlsafe_b64decode(text), type=Generated)
        unzip = zlib.decompressobj()
        tokens = array("i", unzip.decompress(generated.tokens, 4 * _MAX_TOKENS))
    except (ValueError, zlib.error, msgspec.MsgspecError) as exc:
        raise InvalidArgument(f"{GENERATED_HEADER} is not what a router sends: {exc}") from exc
    if tokens and not 0 <= min(tokens) <= max(tokens) < model.info.vocab_size:
        raise InvalidArgument(f"{GENERATED_HEADER} has tokens that {model.id!r} does not have")
    frame = replace(new_frame(model), key=generated.key, created_unix_s=generated.created)
    return Telling(frame, generated.seed, tuple(tokens))
