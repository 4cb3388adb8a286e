"""The commands and questions of a restartable program with their answers, from which it is resumed.

Owned by the code that launched the program; it outlives the program's incarnations. Holds no page
and no loop. A sandboxed program's clock readings are not recorded, because its host does not see
them: if its commands depend on them, the replay notices the difference and fails.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from quire.core.actions import ReplyValue
from quire.core.commands import Command, Sampled
from quire.core.decoding import DecodeChunk
from quire.core.errors import ErrorRecord, ProgramTerminated
from quire.core.ids import CommandId, QueueId, TokenSlotId
from quire.programs.inferlet import Inferlet
from quire.programs.runtime.arrivals import Arrival, ArrivalOrder, RecordedInput
from quire.programs.services.asked import current_question

LOSSES = frozenset({"engine_lost", "page_lost"})
"""Failures after which a restartable program is run again."""
MAX_ANSWERS = 200_000
MAX_QUESTIONS = 20_000
MAX_ANSWERED_BYTES = 64 << 20
"""Bytes of questions and answers together."""
MAX_RESTARTS = 5


@dataclass(slots=True)
class IssuedCommand:
    """One command: as the program issued it, as it was sent, and its replies so far."""

    queue: QueueId
    asked: Command
    sent: Command
    replies: list[ReplyValue] = field(default_factory=list)
    error: ErrorRecord | None = None
    ended: bool = False

    def tokens(self) -> list[int]:
        """The tokens that the command has sampled."""
        found: list[int] = []
        for reply in self.replies:
            if isinstance(reply, DecodeChunk | Sampled):
                found += reply.token_ids
        return found


@dataclass(frozen=True, slots=True)
class RecordedReply:
    """One answer. ``turn``: answers with the same number reached the program in one turn of its
    loop. ``num_acts``: see ``Arrival``."""

    turn: int
    command: CommandId
    reply: ReplyValue
    error: ErrorRecord | None
    last: bool
    num_acts: int = 0


@dataclass(slots=True)
class RecordedQuestion:
    """A question to a service or another host, in order of asking, and the ``Arrival`` of its
    answer."""

    what: tuple[Any, ...]
    answer: Any = None
    error: Exception | None = None
    answered: bool = False
    rank: int | None = None
    num_heard: int = 0
    num_acts: int = 0


Keep = Callable[[], Awaitable[None]]


async def no_wait() -> None:
    """Return at once: no router keeps the record."""


class ReplayLog:
    """The record of one program. ``on_loss`` is called on the program's loop when pages or commands
    were lost and the program has to be run again."""

    def __init__(self) -> None:
        self.issued: dict[CommandId, IssuedCommand] = {}
        self.in_order: list[IssuedCommand] = []
        """The same commands, in the order in which they were issued first."""
        self.heard: list[RecordedReply] = []
        self.calls: list[RecordedQuestion] = []
        self.requests: list[RecordedQuestion] = []
        self.inputs: list[RecordedInput] = []
        """When each message of its clients has reached the program, and their end."""
        self.readings: list[float] = []
        """Clock readings."""
        self.arrivals = ArrivalOrder()
        """Those of the present incarnation."""
        self.slots: dict[TokenSlotId, int] = {}
        """Tokens that were sampled into token slots."""
        self.num_restarts = 0
        self.stop: Callable[[], object] = lambda: None
        """Ends the present incarnation without another answer to it; ``on_loss`` follows, unless it
        has ended. From any thread."""
        self.keep: Keep = no_wait
        """Waits until a router has the record up to now, if one keeps it. For the program's
        loop."""
        self.on_loss: Callable[[ErrorRecord], object] = lambda error: None

    @property
    def is_full(self) -> bool:
        """Whether the log has reached its bound; the program can then no longer be resumed."""
        return max(len(self.heard), len(self.inputs)) >= MAX_ANSWERS

    def begin(self, on_turn: Callable[[], object]) -> ArrivalOrder:
        """Return the arrivals of the next incarnation, of which this record knows the first."""
        recorded: list[Arrival] = [*self.calls, *self.requests, *self.inputs]
        self.arrivals = ArrivalOrder(recorded, len(self.heard), on_turn)
        return self.arrivals

    def begun(self, entry: IssuedCommand) -> None:
        """Record a command that the program issues for the first time."""
        self.issued[entry.asked.id] = entry
        self.in_order.append(entry)

    def note(
        self,
        turn: int,
        command: CommandId,
        reply: ReplyValue,
        error: ErrorRecord | None,
        last: bool,
        num_acts: int = 0,
    ) -> None:
        """Record an answer that the program receives for the first time."""
        entry = self.issued.get(command)
        if entry is None or self.is_full:
            return
        self.heard.append(RecordedReply(turn, command, reply, error, last, num_acts))
        if error is None:
            entry.replies.append(reply)
        entry.error, entry.ended = error, last
        slots = getattr(entry.asked, "token_slots", None)
        if isinstance(reply, Sampled) and slots is not None:
            self.slots.update(zip(slots, reply.token_ids, strict=True))


def cannot_resume(why: str) -> ProgramTerminated:
    return ProgramTerminated(
        f"the engine of this program was lost, and it could not be resumed: {why}"
    )


def not_repeated(what: str) -> ProgramTerminated:
    return cannot_resume(
        f"it did not repeat itself ({what}); the behaviour of a restartable program must depend on "
        "the API alone"
    )


class Questions:
    """The questions of one kind in one incarnation. Recorded answers are used instead of asking
    again, and arrive in their recorded order (``arrivals``), so that tasks side by side go on as
    they did.

    ``asked`` ends with ``_UNKEPT`` once it has reached its bound: later questions are asked and not
    recorded, and a later incarnation that reaches that point fails.
    """

    def __init__(self, asked: list[RecordedQuestion], name: str, arrivals: ArrivalOrder) -> None:
        self._asked = asked
        self._name = name
        self._arrivals = arrivals
        self._next = 0
        self._num_bytes = sum(_size((entry.what, entry.answer)) for entry in asked)
        self._is_beyond = False
        self._is_over = False

    def end(self) -> None:
        """End the incarnation because another one follows: its questions while it cleans up are
        refused, so that the next one neither receives their answers nor repeats them."""
        self._is_over = True

    @property
    def is_over(self) -> bool:
        return self._is_over

    async def ask(
        self,
        what: tuple[Any, ...],
        carry_out: Callable[[], Any],
        interrupted: Exception | None = None,
    ) -> Any:
        """The recorded answer to the next question, or that of ``carry_out()``. ``interrupted``:
        the answer to a question that an earlier incarnation has asked without getting one, and that
        must not be repeated.

        Raises:
            ProgramTerminated: the recorded question is another one, or was not recorded; or this
                incarnation is over.
        """
        if self._is_over:
            raise ProgramTerminated(
                f"{self._name} {what[0]}: the program begins again, because its engine was lost"
            )
        is_repeated = self._next < len(self._asked)
        entry = self._place(what)
        if entry is None:
            return await carry_out()
        if entry.what != what and plain(entry.what) != plain(what):
            raise not_repeated(f"{self._name} {what[0]}")
        if interrupted is not None and is_repeated and not entry.answered:
            entry.error, entry.answered = interrupted, True
        if not entry.answered:
            before = current_question.set(_AskedNow(entry, self))
            try:
                entry.answer = await carry_out()
            except Exception as exc:
                if self._is_over:  # it was cut off: the next incarnation asks again
                    raise
                entry.error = exc
            finally:
                current_question.reset(before)
            entry.answered = True
            self._num_bytes += _size(entry.answer)
        await self._arrivals.come(entry)
        if entry.error is not None:
            raise entry.error
        return entry.answer

    def _place(self, what: tuple[Any, ...]) -> RecordedQuestion | None:
        """The record for ``what``; None beyond the bound."""
        index, self._next = self._next, self._next + 1
        self._arrivals.acted()
        if self._is_beyond:
            return None
        if index == len(self._asked):
            if index >= MAX_QUESTIONS or self._num_bytes >= MAX_ANSWERED_BYTES:
                self._asked.append(_UNKEPT)
                self._is_beyond = True
                return None
            self._num_bytes += _size(what)
            self._asked.append(RecordedQuestion(what))
        entry = self._asked[index]
        if entry is _UNKEPT:
            raise cannot_resume(f"it had asked more than is recorded ({self._name} {what[0]})")
        return entry


class _AskedNow:
    """The ``AskedNow`` of ``entry``."""

    __slots__ = ("_entry", "_questions")

    def __init__(self, entry: RecordedQuestion, questions: Questions) -> None:
        self._entry = entry
        self._questions = questions

    @property
    def is_over(self) -> bool:
        return self._questions.is_over

    def settle(self, answer: Any) -> None:
        self._entry.answer = answer
        self._entry.answered = True

    def forget(self) -> None:
        self._entry.answer = None
        self._entry.answered = False


_UNKEPT = RecordedQuestion(())


def is_whole(asked: list[RecordedQuestion]) -> bool:
    """Whether all questions were recorded."""
    return not any(entry is _UNKEPT for entry in asked)


def plain(value: Any) -> Any:
    """``value`` of a question as it comes from another node: programs by name, tuples as lists."""
    match value:
        case list() | tuple():
            return [plain(item) for item in value]
        case Mapping():
            return {key: plain(item) for key, item in value.items()}
        case Inferlet():
            return {"program": value.name}
        case _:
            return value


def _size(value: Any) -> int:
    """The approximate number of bytes of ``value``: those of its text and content."""
    match value:
        case str() | bytes():
            return len(value)
        case Mapping():
            return sum(_size(key) + _size(item) for key, item in value.items())
        case list() | tuple():
            return sum(_size(item) for item in value)
        case _:
            return len(getattr(value, "content", b""))  # an HTTP response


def frozen_arguments(arguments: Mapping[str, Any] | None) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted((arguments or {}).items()))
