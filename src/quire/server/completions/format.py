"""Formats chunks as ``/v1/completions`` bodies, whole or as events.

Owns the format of text completions: echoed prompts, parallel lists of log probabilities, choices
numbered over several prompts. Must not know how chunks are produced or sent.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from quire.core.decoding import TokenLogprobs
from quire.core.errors import ProgramCancelled
from quire.core.interfaces import Tokenizer
from quire.programs.builtin import ChoiceChunk
from quire.server.answers.frame import Frame
from quire.server.answers.generation import PromptChunk
from quire.server.answers.logprobs import CompletionLogprobsWriter, joined
from quire.server.answers.text_event import TextEvent
from quire.server.answers.usage import UsageCounter
from quire.server.schemas.completions import Completion, CompletionChoice, CompletionLogprobs


@dataclass(frozen=True, slots=True)
class CompletionsOptions:
    """The output options of the client. ``num_logprobs``: ``None`` for no log probabilities."""

    num_choices: int = 1
    echo: bool = False
    num_logprobs: int | None = None
    shows_special: bool = False
    return_token_ids: bool = False
    include_usage: bool = False
    continuous_usage: bool = False


@dataclass(frozen=True, slots=True)
class EchoedPrompt:
    """One prompt; ``text`` is its echo, without the first ``num_added`` tokens."""

    text: str
    token_ids: tuple[int, ...]
    num_added: int = 0


@dataclass(slots=True)
class _Choice:
    writer: CompletionLogprobsWriter | None
    started: bool = False
    texts: list[str] = field(default_factory=list)
    logprobs: list[CompletionLogprobs] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    last: CompletionChoice | None = None
    text_event: TextEvent | None = None


class CompletionsFormatter:
    """One request's formatter. Choice ``i`` of prompt ``p`` has index ``p * n + i``."""

    def __init__(
        self,
        frame: Frame,
        tokenizer: Tokenizer,
        prompts: Sequence[EchoedPrompt],
        options: CompletionsOptions,
    ) -> None:
        self._frame = frame
        self._prompts = prompts
        self._options = options
        self._usage = UsageCounter(sum(len(prompt.token_ids) for prompt in prompts))
        num_top = options.num_logprobs
        self._choices = [
            _Choice(
                None
                if num_top is None
                else CompletionLogprobsWriter(
                    tokenizer, num_top, shows_special=options.shows_special
                )
            )
            for _ in range(len(prompts) * options.num_choices)
        ]
        self._is_plain = not (
            options.echo
            or num_top is not None
            or options.return_token_ids
            or (options.include_usage and options.continuous_usage)
        )
        self._scores: dict[int, tuple[TokenLogprobs, ...]] = {}
        self._waiting: dict[int, list[ChoiceChunk]] = defaultdict(list)

    def feed(self, item: PromptChunk) -> list[bytes]:
        self._usage.add(item.chunk)
        if self._is_plain and item.chunk.finish_reason is None:
            return [self._text_event(item.prompt, item.chunk)]
        return [
            self._event(choice)
            for chunk in self._in_order(item.prompt, item.chunk)
            for choice in self._choice_parts(item.prompt, chunk)
        ]

    def _text_event(self, prompt: int, chunk: ChoiceChunk) -> bytes:
        """Return the event of a chunk with nothing but text; almost every chunk is one."""
        index = prompt * self._options.num_choices + chunk.index
        choice = self._choices[index]
        choice.texts.append(chunk.text)
        choice.token_ids += chunk.token_ids
        if choice.text_event is None:
            choice.text_event = TextEvent(
                lambda text: self._event(
                    CompletionChoice(index=index, text=text, logprobs=None, finish_reason=None)
                )
            )
        return choice.text_event.fill(chunk.text)

    def last_events(self) -> list[bytes]:
        if not self._options.include_usage:
            return []
        body = self._body([])
        body.usage = self._usage.usage()
        return [body.to_json()]

    def whole(self) -> bytes:
        body = self._body([self._whole_choice(i, c) for i, c in enumerate(self._choices)])
        body.usage = self._usage.usage()
        return body.to_json()

    def _in_order(self, prompt: int, chunk: ChoiceChunk) -> list[ChoiceChunk]:
        """Return the chunks that may be sent now: the figures of an echo come with choice 0, and
        the other choices wait for it."""
        if not self._options.echo or self._options.num_logprobs is None:
            return [chunk]
        if prompt in self._scores:
            return [chunk]
        if chunk.index != 0:
            self._waiting[prompt].append(chunk)
            return []
        self._scores[prompt] = chunk.prompt_logprobs or ()
        return [chunk, *self._waiting.pop(prompt, ())]

    def _choice_parts(self, prompt: int, chunk: ChoiceChunk) -> list[CompletionChoice]:
        index = prompt * self._options.num_choices + chunk.index
        choice = self._choices[index]
        parts = []
        if not choice.started:
            choice.started = True
            if self._options.echo:
                parts.append(self._echo(index, choice, prompt))
        if chunk.finish_reason == "cancelled":
            raise ProgramCancelled("the completion was cancelled before its end")
        parts.append(self._part(index, choice, prompt, chunk))
        return parts

    def _echo(self, index: int, choice: _Choice, prompt: int) -> CompletionChoice:
        text = self._prompts[prompt]
        logprobs = None
        if choice.writer is not None:
            logprobs = choice.writer.prompt(text.token_ids, self._scores[prompt], text.num_added)
            choice.logprobs.append(logprobs)
        choice.texts.append(text.text)
        return CompletionChoice(index=index, text=text.text, logprobs=logprobs, finish_reason=None)

    def _part(
        self, index: int, choice: _Choice, prompt: int, chunk: ChoiceChunk
    ) -> CompletionChoice:
        logprobs = None
        if choice.writer is not None:
            logprobs = choice.writer.part(chunk.logprobs or ())
            choice.logprobs.append(logprobs)
        reason = None if chunk.finish_reason == "cancelled" else chunk.finish_reason
        part = CompletionChoice(
            index=index, text=chunk.text, logprobs=logprobs, finish_reason=reason
        )
        if reason is not None:
            part.stop_reason = chunk.stop_reason
        if self._options.return_token_ids:
            part.token_ids = list(chunk.token_ids)
            if not choice.token_ids:
                part.prompt_token_ids = list(self._prompts[prompt].token_ids)
        choice.texts.append(chunk.text)
        choice.token_ids += chunk.token_ids
        choice.last = part
        return part

    def _whole_choice(self, index: int, choice: _Choice) -> CompletionChoice:
        assert choice.last is not None, "every choice has a last chunk"
        whole = CompletionChoice(
            index=index,
            text="".join(choice.texts),
            logprobs=None if choice.writer is None else joined(choice.logprobs),
            finish_reason=choice.last.finish_reason,
            stop_reason=choice.last.stop_reason,
        )
        if self._options.return_token_ids:
            whole.token_ids = choice.token_ids
            prompt = self._prompts[index // self._options.num_choices]
            whole.prompt_token_ids = list(prompt.token_ids)
        return whole

    def _event(self, choice: CompletionChoice) -> bytes:
        body = self._body([choice])
        if self._options.include_usage:
            body.usage = self._usage.usage() if self._options.continuous_usage else None
        return body.to_json()

    def _body(self, choices: list[CompletionChoice]) -> Completion:
        return Completion(
            id=f"cmpl-{self._frame.key}",
            object="text_completion",
            created=self._frame.created_unix_s,
            model=self._frame.model,
            choices=choices,
            system_fingerprint=self._frame.fingerprint,
        )
