"""Programs that a node once served, as plans: read from the events and actions of its log.

Owns what a plan keeps of a recorded call: its time, its lengths, the earlier text that it
continues, and how long tools and people took before it. Texts of different programs have nothing in
common in a plan, even if they had. Must not know where events come from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from quire.core.actions import Action, Deliver, Fail
from quire.core.calls import CreateQueue, Issue
from quire.core.commands import Decode
from quire.core.decoding import DecodeChunk
from quire.core.errors import InvalidArgument
from quire.core.events import Called, Event, ProgramStarted
from quire.core.ids import CommandId, ModelId, ProgramId, QueueId, ThreadId
from quire.simulation.workloads.plan import CallPlan, ProgramPlan

MOST_OTHERWISE = 16
"""The number of tokens at the end of an answer that a chat template may write differently when it
goes on."""


@dataclass(frozen=True, slots=True)
class RecordedLoad:
    """The recorded programs. ``times_s``: when each made its first call, counted from the first of
    all. ``num_left_out``: calls that ended before they had generated anything."""

    plans: tuple[ProgramPlan, ...]
    times_s: tuple[float, ...]
    num_left_out: int


@dataclass(slots=True)
class _Call:
    """One recorded call. ``text``: its prompt, then its answer too. ``before_s``: the latest end of
    another call of its family by then, ``before``: that call."""

    member: int
    thread: int
    begun_s: float
    text: list[int]
    num_prompt: int
    before: _Call | None
    ended_s: float | None = None

    @property
    def num_output(self) -> int:
        return len(self.text) - self.num_prompt


@dataclass(slots=True)
class _Family:
    """A root program with all that it launched. ``members``: their number in the plan."""

    kind: str
    members: dict[ProgramId, int] = field(default_factory=dict)
    threads: dict[tuple[ProgramId, ThreadId], int] = field(default_factory=dict)
    calls: list[_Call] = field(default_factory=list)
    last_ended: _Call | None = None


class RecordedPrograms:
    """Collects the calls. Pass every event with its actions to ``observe``; ``load`` is what was
    served so far."""

    def __init__(self) -> None:
        self._families: dict[ProgramId, _Family] = {}
        self._queues: dict[tuple[ProgramId, QueueId], ThreadId] = {}
        self._under_way: dict[tuple[ProgramId, CommandId], _Call] = {}
        self._models: set[ModelId] = set()

    def observe(self, event: Event, actions: Sequence[Action]) -> None:
        match event:
            case ProgramStarted():
                self._start(event)
            case Called(call=CreateQueue() as call):
                self._queues[event.program, call.queue] = call.thread
                self._models.add(call.model)
            case Called(call=Issue() as call):
                for command in call.commands:
                    if isinstance(command, Decode) and command.stop.max_tokens > 0:
                        self._begin(event, call.queue, command)
        for action in actions:
            if isinstance(action, Deliver | Fail):
                self._answer(action, event.time_s)

    def _start(self, event: ProgramStarted) -> None:
        parent = None if event.parent is None else self._families.get(event.parent)
        family = parent or _Family(event.kind or event.name)
        family.members[event.program] = len(family.members)
        self._families[event.program] = family

    def _begin(self, event: Called, queue: QueueId, command: Decode) -> None:
        family = self._families[event.program]
        place = event.program, self._queues.get((event.program, queue), ThreadId(0))
        thread = family.threads.setdefault(place, len(family.threads))
        before = family.last_ended
        text = list(command.tokens)
        if command.position and before is not None:  # it continues in pages that its program holds
            text = [*before.text[: command.position], *text]
        call = _Call(family.members[event.program], thread, event.time_s, text, len(text), before)
        family.calls.append(call)
        self._under_way[event.program, command.id] = call

    def _answer(self, action: Deliver | Fail, now_s: float) -> None:
        place = action.program, action.command
        call = self._under_way.get(place)
        if call is None:
            return
        if isinstance(action, Deliver) and isinstance(action.reply, DecodeChunk):
            call.text += action.reply.token_ids
        if isinstance(action, Fail) or action.last:
            call.ended_s = now_s
            self._families[action.program].last_ended = call
            del self._under_way[place]

    def load(self) -> RecordedLoad:
        """The programs that were served so far.

        Raises:
            InvalidArgument: cut off, without calls, or of several models.
        """
        families = list(dict.fromkeys(map(id, self._families.values())))
        by_id = {id(family): family for family in self._families.values()}
        num_calls = sum(len(by_id[one].calls) for one in families)
        if self._under_way:
            raise InvalidArgument(
                f"the log is cut off: {len(self._under_way)} of its {num_calls} calls have no end; "
                "record it until the node has stopped"
            )
        if len(self._models) > 1:
            raise InvalidArgument(
                f"the log has calls of the models {sorted(self._models)}: a simulation has engines "
                "of one"
            )
        found = [(by_id[one], [c for c in by_id[one].calls if c.num_output]) for one in families]
        found = [(family, calls) for family, calls in found if calls]
        if not found:
            raise InvalidArgument("the log has no call that generated anything: nothing to play")
        num_played = sum(len(calls) for _, calls in found)
        first_s = min(calls[0].begun_s for _, calls in found)
        return RecordedLoad(
            tuple([_plan(family.kind, calls) for family, calls in found]),
            tuple([calls[0].begun_s - first_s for _, calls in found]),
            num_calls - num_played,
        )


def _plan(kind: str, calls: Sequence[_Call]) -> ProgramPlan:
    numbers = {id(call): number for number, call in enumerate(calls)}
    members: dict[int, int] = {0: 0}  # the program itself is the first, whoever calls first
    plans = []
    for number, call in enumerate(calls):
        member = members.setdefault(call.member, len(members))
        before = None if call.before is None else numbers.get(id(call.before))
        extends = _extended(calls[:number], call)
        after = {one for one in (before, extends) if one is not None}
        num_shared = 0 if extends is not None else _num_shared(calls[0], call)
        num_before = num_shared if extends is None else len(calls[extends].text)
        plans.append(
            CallPlan(
                num_prompt=call.num_prompt - num_before,
                num_output=call.num_output,
                extends=extends,
                after=tuple(sorted(after)),
                wait_s=_wait_s(calls, after, call),
                thread=call.thread,
                member=member,
                num_shared=num_shared,
            )
        )
    return ProgramPlan(kind, tuple(plans))


def _extended(earlier: Sequence[_Call], call: _Call) -> int | None:
    """The latest call whose text ``call`` continues."""
    for number in reversed(range(len(earlier))):
        other = earlier[number]
        num_text = len(other.text)
        is_over = other.ended_s is not None and other.ended_s <= call.begun_s
        if is_over and num_text < call.num_prompt:
            num_alike = max(1, num_text - MOST_OTHERWISE)
            if call.text[:num_alike] == other.text[:num_alike]:
                return number
    return None


def _num_shared(first: _Call, call: _Call) -> int:
    """The number of tokens with which its prompt and the program's first prompt both begin; at
    least one is its own."""
    most = min(first.num_prompt, call.num_prompt) - 1
    pairs = zip(first.text[:most], call.text[:most], strict=True)
    return next((number for number, (one, other) in enumerate(pairs) if one != other), most)


def _wait_s(calls: Sequence[_Call], after: set[int], call: _Call) -> float:
    ends_s = [end_s for one in after if (end_s := calls[one].ended_s) is not None]
    return max(0.0, call.begun_s - max(ends_s, default=calls[0].begun_s))
