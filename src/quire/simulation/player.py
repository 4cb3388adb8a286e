"""``Player``: plays one program's plan against control, as the edge plays a chat.

Each call has a queue of its own: pages for prompt and answer, then one decode. The queue is closed
after it, and the pages that it computed stay in the prefix index for the next call. Owns the texts
of the calls and which of them may begin; must not know the other programs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from quire.core.actions import Deliver, ProgramClosed
from quire.core.calls import CloseQueue, CreateQueue, Issue
from quire.core.commands import AllocPages, Decode
from quire.core.decoding import DecodeChunk, SamplerSpec, StopSpec
from quire.core.events import Called, Event, ProgramEnded, ProgramStarted
from quire.core.ids import CommandId, ModelId, PageId, ProgramId, QueueId, TenantId, ThreadId
from quire.simulation.work import Work, WorkTable
from quire.simulation.workloads.plan import ProgramPlan

VOCABULARY = 1 << 30
"""Tokens of the simulated model: enough for texts that never agree by chance."""


class SimulationView(Protocol):
    """The part of the simulation that a player sees."""

    @property
    def now_s(self) -> float: ...

    def post(self, event: Event) -> None:
        """Pass ``event`` to control at this time, after what control does now."""
        ...

    def after(self, duration_s: float, call: Callable[[], None]) -> None: ...

    def call_over(self) -> None:
        """Take note that a call of a program has ended."""
        ...


@dataclass(slots=True)
class Figures:
    """Control's counts for a program with all that it launched."""

    service_s: float = 0.0
    waiting_s: float = 0.0
    num_prefilled_tokens: int = 0
    num_cached_tokens: int = 0
    num_preemptions: int = 0

    def add(self, closed: ProgramClosed) -> None:
        self.service_s += closed.service_s
        self.waiting_s += closed.waiting_s
        self.num_prefilled_tokens += closed.num_prefilled_tokens
        self.num_cached_tokens += closed.num_cached_tokens
        self.num_preemptions += closed.num_preemptions


@dataclass(slots=True)
class _Call:
    """A call under way, or one that has ended and whose text another goes on with."""

    prompt: list[int]
    answer: list[int] = field(default_factory=list)


class Player:
    """Plays one program. ``members``: the ids of itself and of those that it launches; ``text``:
    the number of the first of its own tokens; ``seed``: of its first call's sampler; ``stream``:
    whether ``works`` gets each token."""

    def __init__(
        self,
        plan: ProgramPlan,
        members: list[ProgramId],
        stage: SimulationView,
        works: WorkTable,
        *,
        model: ModelId,
        page_size: int,
        text: int,
        seed: int,
        stream: bool,
    ) -> None:
        self.plan = plan
        self.figures = Figures()
        self.members = members
        self.ended_s: float | None = None
        self.error: str | None = None
        self._stage = stage
        self._works = works
        self._work: Work = works.start(plan)
        self._model = model
        self._page_size = page_size
        self._seed = seed
        self._stream = stream
        self._text = text
        self._texts = _text_starts(plan, text)
        self._num_before = [len(set(call.after)) for call in plan.calls]
        self._behind: list[list[int]] = [[] for _ in plan.calls]
        self._num_extended = [0] * len(plan.calls)
        self._num_left = [0] * len(members)
        self._num_left[0] = len(plan.calls)  # it waits for those that it has launched
        for number, call in enumerate(plan.calls):
            if call.member:
                self._num_left[call.member] += 1
            for before in set(call.after):
                self._behind[before].append(number)
            if call.extends is not None:
                self._num_extended[call.extends] += 1
        self._calls: dict[int, _Call] = {}
        self._contexts: dict[int, _Call] = {}
        self._started: set[int] = set()

    @property
    def is_over(self) -> bool:
        return self.ended_s is not None or self.error is not None

    # -- calls -----------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin the program, which arrives now."""
        for number, num_before in enumerate(self._num_before):
            if not num_before:
                self._make_later(number)

    def _make_later(self, number: int) -> None:
        """Make call ``number``, of which nothing is missing any more, after its wait."""
        wait_s = self.plan.calls[number].wait_s
        if wait_s:
            self._stage.after(wait_s, lambda: self._make(number))
        else:
            self._make(number)

    def _make(self, number: int) -> None:
        """Make call ``number`` now, unless the program has failed meanwhile."""
        if self.is_over:
            return
        call = self.plan.calls[number]
        self._launch(call.member)
        prompt = self._prompt(number)
        self._calls[number] = _Call(prompt)
        num_slots = len(prompt) + call.num_output - 1
        first = number * (1 << 17)  # no call has so many pages
        pages = [PageId(first + one) for one in range(-(-num_slots // self._page_size))]
        queue, thread = QueueId(number), ThreadId(call.thread)
        self._call(call.member, CreateQueue(queue, self._model, thread=thread))
        alloc = AllocPages(id=CommandId(2 * number), pages=pages)
        decode = Decode(
            id=CommandId(2 * number + 1),
            context=[],
            output=pages,
            tokens=prompt,
            position=0,
            sampler=SamplerSpec(seed=self._seed + number),
            stop=StopSpec(call.num_output),
            stream=self._stream,
        )
        self._call(call.member, Issue(queue, [alloc, decode]))

    def _prompt(self, number: int) -> list[int]:
        call = self.plan.calls[number]
        own = self._texts[number]
        tokens = _text(own, call.num_prompt)
        if call.extends is None:
            return _text(self._text, call.num_shared) + tokens
        self._num_extended[call.extends] -= 1
        before = self._contexts[call.extends]
        if self._num_extended[call.extends]:
            prompt = before.prompt.copy()
        else:  # it is long, and its command has ended: nobody reads it any more
            del self._contexts[call.extends]
            prompt = before.prompt
        prompt += before.answer
        prompt += tokens
        return prompt

    def _launch(self, member: int) -> None:
        if member in self._started:
            return
        if member:
            self._launch(0)
        self._started.add(member)
        program = self.members[member]
        self._works.join(program, self._work)
        self._stage.post(
            ProgramStarted(
                time_s=self._stage.now_s,
                program=program,
                tenant=TenantId("default"),
                form="inferlet" if member else "session",
                name=self.plan.kind,
                kind=self.plan.kind,
                parent=self.members[0] if member else None,
                shares_quotas=bool(member),
            )
        )

    def _call(self, member: int, call: CreateQueue | Issue | CloseQueue) -> None:
        event = Called(time_s=self._stage.now_s, program=self.members[member], call=call)
        self._stage.post(event)

    # -- answers ---------------------------------------------------------------------------------

    def delivered(self, action: Deliver) -> None:
        """Take a part of an answer."""
        number, reply = action.command // 2, action.reply
        call = self._calls.get(number)
        if call is None or type(reply) is not DecodeChunk:
            return
        if not call.answer:
            self._works.prompt_done(self._work, self.plan.calls[number])
        tokens = reply.token_ids
        call.answer += tokens
        self._work.done += len(tokens)
        if action.last:
            self._finish(number)

    def _finish(self, number: int) -> None:
        plan, call = self.plan.calls[number], self._calls.pop(number)
        if len(call.answer) != plan.num_output:
            self.fail(f"{len(call.answer)} of {plan.num_output} tokens were generated")
            return
        self._stage.call_over()
        if self._num_extended[number]:
            self._contexts[number] = call
        self._call(plan.member, CloseQueue(QueueId(number)))
        for member in sorted({plan.member, 0}, reverse=True):
            self._num_left[member] -= 1
            if not self._num_left[member]:
                self._end(member)
        for behind in self._behind[number]:
            self._num_before[behind] -= 1
            if not self._num_before[behind]:
                self._make_later(behind)

    def fail(self, error: str) -> None:
        """End the program as failed, as a call of it has failed, and all that still runs of it."""
        if self.is_over:
            return
        self.error = error
        for member in sorted(self._started, reverse=True):
            if self._works.of(self.members[member]) is not None:
                self._end(member)

    def _end(self, member: int) -> None:
        program = self.members[member]
        self._works.leave(program)
        self._stage.post(ProgramEnded(time_s=self._stage.now_s, program=program))
        if not member and self.error is None:
            self.ended_s = self._stage.now_s


def num_text_tokens(plan: ProgramPlan) -> int:
    """The number of tokens of its own in a program's prompts."""
    shared = max(call.num_shared for call in plan.calls)
    return shared + sum(call.num_prompt for call in plan.calls)


def _text_starts(plan: ProgramPlan, start: int) -> list[int]:
    """The start of the text that each call adds, after the text with which all calls may begin."""
    start += max(call.num_shared for call in plan.calls)
    starts: list[int] = []
    for call in plan.calls:
        starts.append(start if call.repeats is None else starts[call.repeats])
        start += call.num_prompt
    return starts


def _text(start: int, num_tokens: int) -> list[int]:
    """Tokens that no other text has."""
    first = start % VOCABULARY
    if first + num_tokens <= VOCABULARY:
        return list(range(first, first + num_tokens))
    return [one % VOCABULARY for one in range(first, first + num_tokens)]
