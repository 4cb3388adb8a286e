"""Answers that outlive their node: how their tokens are sent to a router, and how another node
continues them.

A router that may have to continue an answer elsewhere asks for its tokens (``x-quire-tells``, with
the cluster key). After the events of each chunk but the last, the node then sends a comment with
the chunk's tokens and, if the client asked for them, their log probabilities. An answer that is not
streamed has no events: ``told_whole`` describes how it ends. Another node receives the same request
with everything that was sent so far before its body (``x-quire-generated`` has the number of
bytes): it reads the tokens as if it had sampled them, does not send them again, and samples what
follows. Owns what a node does; ``told_tokens`` has the form. Must not know the form of events.
"""

from __future__ import annotations

import secrets
import zlib
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec
from starlette.requests import Request

from quire.core.decoding import FinishReason
from quire.core.errors import InvalidArgument
from quire.core.interfaces import ServedModel
from quire.programs.builtin import ChoiceChunk, CompletionRequest
from quire.programs.chat.detokenize import TextStream
from quire.server.answers.frame import Frame, new_frame
from quire.server.answers.generation import PromptChunk
from quire.server.answers.resuming.told_logprobs import Logprobs, logprobs_of, packed_logprobs
from quire.server.answers.resuming.told_tokens import (
    COMMENT,
    MAX_TOKENS,
    TELLS_HEADER,
    PartialAnswer,
    ToldChoice,
    ToldChunk,
)
from quire.server.requests.strict_json import GENERATED_HEADER, generated_of

_SEED_BITS = 62


@dataclass(frozen=True, slots=True)
class GeneratedChoice:
    """One choice, as far as the former node has generated it. ``logprobs``: empty, or one for each
    token."""

    tokens: tuple[int, ...] = ()
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    logprobs: Logprobs = ()


@dataclass(frozen=True, slots=True)
class ResumableAnswer:
    """An answer of ``frame`` that can go on at another node. ``choices``: what a former node has
    generated, numbered on from prompt to prompt, with ``num_choices`` for each prompt. ``prompt``:
    see ``ToldChunk``. ``running``: for each request that goes on, the number of its choice.
    ``prompt_logprobs``: those of a prompt, if they were sent, by the number of its first choice.
    ``history``: see ``ToldChunk``."""

    frame: Frame
    seed: int
    choices: tuple[GeneratedChoice, ...] = ()
    prompt: tuple[int, ...] = ()
    running: tuple[int, ...] = ()
    prompt_logprobs: Mapping[int, Logprobs] = field(default_factory=dict)
    num_choices: int = 1
    history: bytes = b""

    def comment(self, item: PromptChunk, *, is_first: bool = False) -> bytes:
        """Return the comment that follows the events of ``item``."""
        chunk = item.chunk
        told = ToldChunk(
            self.frame.key,
            self.frame.created_unix_s,
            self.seed,
            list(chunk.token_ids),
            self.prompt if is_first else (),
            item.prompt * self.num_choices + chunk.index,
            chunk.finish_reason,
            chunk.stop_reason,
            packed_logprobs(chunk.logprobs),
            packed_logprobs(chunk.prompt_logprobs),
            self.history if is_first else b"",
        )
        return COMMENT + msgspec.json.encode(told) + b"\n\n"

    def placed(self, item: PromptChunk) -> PromptChunk:
        """Return ``item``, a chunk of a request that goes on, with the prompt and choice that it
        has in the whole answer."""
        if not self.running:
            return item
        chunk, number = item.chunk, self.running[item.prompt]
        prompt, index = divmod(number, self.num_choices)
        is_first = not item.prompt or self.running[item.prompt - 1] // self.num_choices != prompt
        cached = chunk.num_cached_tokens if is_first else 0
        placed = msgspec.structs.replace(chunk, index=index, num_cached_tokens=cached)
        return PromptChunk(prompt, placed)

    def continued(
        self, asked: Sequence[CompletionRequest]
    ) -> tuple[ResumableAnswer, list[CompletionRequest]]:
        """Return the requests for the choices that have not ended, each after the tokens that were
        sampled before; ``asked`` has one request for each prompt. Without earlier tokens the
        requests get a seed, and nothing else changes."""
        telling = replace(self, num_choices=asked[0].num_choices)
        if not self.choices:
            return telling, [
                _seeded(one, telling._seed_of(one, prompt)) for prompt, one in enumerate(asked)
            ]
        num_choices = len(asked) * telling.num_choices
        known = [*self.choices, *[GeneratedChoice()] * (num_choices - len(self.choices))]
        running = [number for number, one in enumerate(known) if one.finish_reason is None]
        if not running or len(known) > num_choices:
            raise InvalidArgument(
                f"{len(known)} choices were generated elsewhere, of which {len(running)} have not "
                f"ended, and {num_choices} are asked for: nothing is left to generate"
            )
        requests = []
        for number in running:
            prompt, index = divmod(number, telling.num_choices)
            seed = telling._seed_of(asked[prompt], prompt) + index
            behind = _behind(asked[prompt], known[number].tokens, seed)
            if index or number in self.prompt_logprobs:  # only choice 0 reports them, once
                behind = replace(behind, num_prompt_logprobs=None)
            requests.append(behind)
        return replace(telling, running=tuple(running)), requests

    def _seed_of(self, asked: CompletionRequest, prompt: int) -> int:
        """Return the seed of the first choice of a prompt: the client's, else a different one for
        each prompt."""
        own = asked.sampler.seed
        return self.seed + prompt * self.num_choices if own is None else own

    def before(
        self, asked: Sequence[CompletionRequest], model: ServedModel
    ) -> Iterator[PromptChunk]:
        """Yield the tokens that were generated before, each as a chunk.

        Raises:
            InvalidArgument: log probabilities are wanted, and their number is not that of tokens.
        """
        for number in range(len(self.choices)):
            prompt, index = divmod(number, self.num_choices)
            for chunk in self._before(number, index, asked[prompt], model):
                yield PromptChunk(prompt, chunk)

    def _before(
        self, number: int, index: int, asked: CompletionRequest, model: ServedModel
    ) -> Iterator[ChoiceChunk]:
        choice = self.choices[number]
        _check_logprobs(number, choice, asked)
        scores = self.prompt_logprobs.get(number) or None
        if scores and not choice.tokens:
            yield ChoiceChunk(index, "", (), prompt_logprobs=scores)
        text = TextStream(
            model.tokenizer,
            stop=asked.stop,
            include_stop=asked.include_stop,
            skip_special=asked.skip_special,
            shown=asked.shown_special,
        )
        for place, token in enumerate(choice.tokens):
            is_end = place == len(choice.tokens) - 1 and choice.stop_reason == token
            yield ChoiceChunk(
                index,
                "" if is_end else text.add((token,)),
                (token,),
                logprobs=choice.logprobs[place : place + 1] or None,
                prompt_logprobs=None if place else scores,
            )
        if choice.finish_reason is not None:
            yield ChoiceChunk(
                index,
                text.finish(),
                (),
                finish_reason=choice.finish_reason,
                stop_reason=choice.stop_reason,
            )


def _check_logprobs(index: int, choice: GeneratedChoice, asked: CompletionRequest) -> None:
    num_wanted = 0 if asked.num_logprobs is None else len(choice.tokens)
    if len(choice.logprobs) != num_wanted:
        raise InvalidArgument(
            f"{GENERATED_HEADER} has {len(choice.logprobs)} log probabilities of choice {index}, "
            f"which needs {num_wanted}: its nodes must run one version of Quire"
        )


def _seeded(asked: CompletionRequest, seed: int) -> CompletionRequest:
    return replace(asked, sampler=msgspec.structs.replace(asked.sampler, seed=seed))


def _behind(asked: CompletionRequest, tokens: tuple[int, ...], seed: int) -> CompletionRequest:
    """Return a request for one choice of ``asked``, after its first ``tokens``."""
    num_before = len(tokens)
    if num_before >= asked.max_tokens:
        raise InvalidArgument(
            f"{num_before} tokens were generated and at most {asked.max_tokens} may be: "
            "nothing is left to generate"
        )
    return replace(
        _seeded(asked, seed),
        prompt=(*asked.prompt, *tokens),
        num_choices=1,
        num_generated=num_before,
        max_tokens=asked.max_tokens - num_before,
        min_tokens=max(0, asked.min_tokens - num_before),
    )


def telling_of(request: Request, model: ServedModel) -> ResumableAnswer | None:
    """Return the answer that a router may continue at another node, as ``request`` asks; None if it
    does not. The request must come from the cluster.

    Raises:
        InvalidArgument: what was generated before cannot be read.
    """
    if request.headers.get(GENERATED_HEADER) is not None:
        return _going_on(generated_of(request), model)
    if request.headers.get(TELLS_HEADER) is None:
        return None
    return ResumableAnswer(new_frame(model), secrets.randbits(_SEED_BITS))


def _going_on(packed: bytes, model: ServedModel) -> ResumableAnswer:
    try:
        generated = msgspec.msgpack.decode(packed, type=PartialAnswer)
        choices = tuple(map(_read_choice, generated.choices))
        scores = {index: logprobs_of(packed) for index, packed in generated.prompt_logprobs.items()}
    except (ValueError, zlib.error, msgspec.MsgspecError) as exc:
        raise InvalidArgument(f"{GENERATED_HEADER} is not what a router sends: {exc}") from exc
    for choice in choices:
        tokens = choice.tokens
        if tokens and not 0 <= min(tokens) <= max(tokens) < model.info.vocab_size:
            raise InvalidArgument(f"{GENERATED_HEADER} has tokens that {model.id!r} does not have")
    frame = replace(new_frame(model), key=generated.key, created_unix_s=generated.created)
    return ResumableAnswer(
        frame, generated.seed, choices, prompt_logprobs=scores, history=generated.history
    )


def _read_choice(told: ToldChoice) -> GeneratedChoice:
    tokens = array("i", zlib.decompressobj().decompress(told.tokens, 4 * MAX_TOKENS))
    logprobs = logprobs_of(told.logprobs)
    return GeneratedChoice(tuple(tokens), told.finish_reason, told.stop_reason, logprobs)
