"""The tokens of an answer that may outlive its node, as the node sends them to a router and the
router to another node.

Owns the form of both (``going_on`` describes the way), and what a router keeps meanwhile. Must not
know how tokens are generated: a router has no model.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Sequence

import msgspec

from quire.core.decoding import FinishReason
from quire.server.answers.resuming.told_logprobs import MAX_LOGPROBS_BYTES, joined
from quire.server.requests.strict_json import MAX_GENERATED_BYTES

TELLS_HEADER = "x-quire-tells"
COMMENT = b": quire "
ENGINE_LOST = b': quire-ended "engine_lost"'
"""The comment before the events that tell a client of a lost engine, which another node may go on
without: those of some APIs have no code."""
MAX_TOKENS = 1 << 20
"""The most tokens of all choices of a stream; a longer one cannot continue at another node."""


class ToldChunk(msgspec.Struct, frozen=True, omit_defaults=True):
    """The content of a comment: the ``tokens`` of the chunk before it, of choice ``index``, with
    their packed log probabilities, and how the choice has ended, if it has. The other fields belong
    to the answer. ``prompt`` is in the answer's first comment only; it is left out if there are
    several prompts, or if the tokens of images are among it. Choices are numbered on from prompt to
    prompt. The log probabilities of a prompt are in the first comment of its first choice.
    ``history``: in the first comment, what the request refers to and only its node has, in the form
    of the API."""

    key: str
    created: int
    seed: int
    tokens: list[int]
    prompt: tuple[int, ...] = ()
    index: int = 0
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    logprobs: bytes = b""
    prompt_logprobs: bytes = b""
    history: bytes = b""


class ToldChoice(msgspec.Struct, array_like=True):
    """Everything that was received of one choice. ``tokens``: compressed, four bytes each;
    ``logprobs``: compressed."""

    tokens: bytes
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    logprobs: bytes = b""


class PartialAnswer(msgspec.Struct, frozen=True, array_like=True):
    """An answer as far as its former node has sent it, to be continued here. ``choices``: up to the
    last one of which something was received. ``prompt_logprobs``: compressed, for each prompt, by
    the number of its first choice. ``history``: see ``ToldChunk``."""

    key: str
    created: int
    seed: int
    choices: list[ToldChoice]
    prompt_logprobs: dict[int, bytes] = {}
    history: bytes = b""


class ToldTokens:
    """What was received of an answer so far: its tokens, four bytes each, and their log
    probabilities."""

    def __init__(self) -> None:
        self.first: ToldChunk | None = None
        self._tokens: list[array[int]] = []
        self._logprobs: list[list[bytes]] = []
        self._prompt_logprobs: dict[int, bytes] = {}
        self._num_logprob_bytes = 0
        self._ends: dict[int, ToldChunk] = {}
        self.num_tokens = 0

    def add(self, told: ToldChunk) -> None:
        self.first = self.first or told
        while len(self._tokens) <= told.index:
            self._tokens.append(array("i"))
            self._logprobs.append([])
        self.num_tokens += len(told.tokens)
        self._num_logprob_bytes += len(told.logprobs) + len(told.prompt_logprobs)
        if not self._is_too_much():
            self._tokens[told.index].extend(told.tokens)
            if told.prompt_logprobs:
                self._prompt_logprobs.setdefault(told.index, told.prompt_logprobs)
            if told.logprobs:
                self._logprobs[told.index].append(told.logprobs)
        if told.finish_reason is not None:
            self._ends[told.index] = told

    def _is_too_much(self) -> bool:
        return self.num_tokens > MAX_TOKENS or self._num_logprob_bytes > MAX_LOGPROBS_BYTES

    def running(self) -> list[Sequence[int]]:
        """Return the tokens of each choice that has not ended, up to the last choice of which
        something was received."""
        return [one for index, one in enumerate(self._tokens) if index not in self._ends]

    def packed(self) -> bytes | None:
        """Return what another node needs to go on; None if nothing was received, or too much."""
        first = self.first
        if first is None or self._is_too_much():
            return None
        choices = []
        for index, tokens in enumerate(self._tokens):
            choice = ToldChoice(zlib.compress(tokens.tobytes()))
            choice.logprobs = joined(self._logprobs[index])
            if (end := self._ends.get(index)) is not None:
                choice.finish_reason, choice.stop_reason = end.finish_reason, end.stop_reason
            choices.append(choice)
        prompts = {index: joined([scores]) for index, scores in self._prompt_logprobs.items()}
        generated = msgspec.msgpack.encode(
            PartialAnswer(first.key, first.created, first.seed, choices, prompts, first.history)
        )
        return generated if len(generated) <= MAX_GENERATED_BYTES else None
