"""``ControlHarness``: the controller, fake engines and a fake clock, moved by hand.

A thin layer over ``quire.simulation``'s shell: events go in through ``post``; dispatched messages
wait until ``step_engine`` lets the engine run one, so that a test decides what is in flight when
something happens. Owns every command's outcome, and fails at once when a command is answered twice
or an engine receives a message that breaks its contract. Knows no asyncio.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from quire.core.actions import Action, Deliver, Dispatch, Fail, ReplyValue, Terminate
from quire.core.calls import AskEncoder, ControlCall, Issue
from quire.core.commands import Command
from quire.core.decoding import DecodeChunk
from quire.core.encoding import Encode, EncoderCore
from quire.core.errors import EngineFault, ErrorRecord
from quire.core.events import Called, Event
from quire.core.ids import CommandId, EngineId, ModelId, ProgramId, QueueId
from quire.simulation import ControlCore, VirtualShell
from quire.simulation.clock import VirtualClock
from quire.testing.fake_engine import FakeEngine, ProtocolViolation

Status = Literal["pending", "done", "failed", "cancelled"]


@dataclass(slots=True)
class CommandOutcome:
    """The replies to one command and its end."""

    command: Command | Encode
    replies: list[ReplyValue] = field(default_factory=list)
    status: Status = "pending"
    error: ErrorRecord | None = None

    @property
    def reply(self) -> ReplyValue:
        """The reply of a command that has exactly one."""
        assert self.status == "done", self
        assert len(self.replies) == 1, self
        return self.replies[0]

    @property
    def chunks(self) -> list[DecodeChunk]:
        return [reply for reply in self.replies if isinstance(reply, DecodeChunk)]

    @property
    def tokens(self) -> list[int]:
        """All tokens of a decode so far."""
        return [token for chunk in self.chunks for token in chunk.token_ids]


class NoProgress(AssertionError):
    """Work is left but nothing can advance it, or it took more steps than the test allows."""


class ControlHarness:
    """See the module docstring.

    ``check``: verify the controller's invariants after every event. ``on_answer`` receives the
    actions for programs. ``late_transfers``: transfers continue only when nothing else can be done
    or the test calls ``step_transfers``; otherwise after every message.
    """

    def __init__(
        self,
        controller: ControlCore,
        engines: Mapping[EngineId, FakeEngine] | None = None,
        *,
        clock: VirtualClock | None = None,
        check: bool = True,
        late_transfers: bool = False,
        on_answer: Callable[[Deliver | Fail | Terminate], None] | None = None,
    ) -> None:
        self.controller = controller
        self.shell = VirtualShell(
            controller,
            clock=clock or VirtualClock(),
            check=check,
            on_answer=self._answered,
            on_dispatch=self._dispatched,
            on_fault=self._faulted,
        )
        self.clock = self.shell.clock
        self.engines: dict[EngineId, FakeEngine] = {}
        self.encoders: dict[EngineId, EncoderCore] = {}
        self.outcomes: dict[tuple[ProgramId, CommandId], CommandOutcome] = {}
        self.terminated: dict[ProgramId, ErrorRecord] = {}
        self.dispatched: list[Dispatch] = []
        self._late_transfers = late_transfers
        self._on_answer = on_answer
        self._num_pending = 0
        for engine_id, engine in (engines or {EngineId("fake"): FakeEngine()}).items():
            self.start_engine(engine_id, engine)

    # -- events in ---------------------------------------------------------------------------------

    @property
    def now_s(self) -> float:
        return self.clock.now_s()

    def post(self, event: Event) -> list[Action]:
        """Hand ``event`` to the controller, carry out its actions and return them."""
        if isinstance(event, Called) and isinstance(event.call, Issue):
            self._expect(event.program, event.call.commands)
        elif isinstance(event, Called) and isinstance(event.call, AskEncoder):
            self._expect(event.program, [event.call.command])
        return self.shell.post(event)

    def call(self, program: ProgramId, call: ControlCall) -> list[Action]:
        """Post a call of ``program`` at the present time."""
        return self.post(Called(time_s=self.now_s, program=program, call=call))

    def issue(self, program: ProgramId, queue: QueueId, *commands: Command) -> list[CommandOutcome]:
        """Issue commands on a queue; returns their outcomes, which fill in as the test proceeds."""
        self.call(program, Issue(queue, list(commands)))
        return [self.outcomes[program, command.id] for command in commands]

    def start_engine(self, engine_id: EngineId, engine: FakeEngine) -> None:
        """Bring an engine up, for the first time or again after ``lose_engine``."""
        self.engines[engine_id] = engine
        self.shell.start_engine(engine_id, engine)

    def start_encoder(self, engine_id: EngineId, encoder: EncoderCore, model: ModelId) -> None:
        """Bring one instance of an encoder up, for the first time or again."""
        self.encoders[engine_id] = encoder
        self.shell.start_engine(engine_id, encoder, model)

    def lose_engine(self, engine_id: EngineId, reason: str = "lost by the test") -> None:
        """Lose the engine with its memory and everything in flight on it."""
        self.engines.pop(engine_id, None)
        self.encoders.pop(engine_id, None)
        self.shell.lose_engine(engine_id, reason)

    # -- engines -----------------------------------------------------------------------------------

    def num_in_flight(self, engine_id: EngineId) -> int:
        return self.shell.num_in_flight(engine_id)

    def step_engine(self, engine_id: EngineId) -> bool:
        """Let the engine run its oldest message and post the result; False if there is none.

        Raises:
            ProtocolViolation: control sent a message that breaks the batch contract.
        """
        if not self.num_in_flight(engine_id):
            return False
        if self.shell.finish_message(engine_id) and not self._late_transfers:
            self.step_transfers(engine_id)
        return True

    def _faulted(self, engine_id: EngineId, fault: EngineFault) -> None:
        if isinstance(fault, ProtocolViolation):
            raise fault
        self.lose_engine(engine_id, fault.message)

    def step_transfers(self, engine_id: EngineId) -> bool:
        """Let the engine continue its transfers and post those that end; False if there are
        none."""
        return self.shell.go_on_with_transfers(engine_id)

    @property
    def can_step(self) -> bool:
        """Whether ``step`` would do anything."""
        moves = any(engine.has_transfers for engine in self.engines.values())
        return self.shell.is_busy or moves or self._timer_is_due

    @property
    def _timer_is_due(self) -> bool:
        # without pending commands only idle TTLs are left, which a test fires itself
        return self.shell.timer_s is not None and self._num_pending > 0

    def step(self) -> bool:
        """Do one thing: the engine whose message has waited longest runs it, or else an engine
        continues its transfers, or else the timer fires while commands are pending. False if none
        can."""
        everyone = [*self.engines, *self.encoders]
        for engine_id in sorted(everyone, key=self.num_in_flight, reverse=True):
            if self.step_engine(engine_id):
                return True
        if any(self.step_transfers(engine_id) for engine_id in list(self.engines)):
            return True
        if not self._timer_is_due:
            return False
        self.fire_timer()
        return True

    def fire_timer(self) -> None:
        """Advance time to the timer and post its tick."""
        self.shell.fire_timer()

    def run_until_idle(self, max_steps: int = 10_000) -> int:
        """Step until nothing can be done; returns the number of steps.

        Raises:
            NoProgress: more than ``max_steps``.
        """
        for num_steps in range(max_steps):
            if not self.step():
                return num_steps
        raise NoProgress(f"still busy after {max_steps} steps; pending: {self.pending()}")

    def pending(self) -> list[CommandOutcome]:
        """Commands that have not ended."""
        return [outcome for outcome in self.outcomes.values() if outcome.status == "pending"]

    # -- actions out -------------------------------------------------------------------------------

    def _expect(self, program: ProgramId, commands: Sequence[Command | Encode]) -> None:
        for command in commands:
            key = (program, command.id)
            assert key not in self.outcomes, f"the test reuses command id {key}"
            self.outcomes[key] = CommandOutcome(command)
            self._num_pending += 1

    def _dispatched(self, dispatch: Dispatch) -> None:
        self.dispatched.append(dispatch)

    def _answered(self, action: Deliver | Fail | Terminate) -> None:
        self._account(action)
        if self._on_answer is not None:
            self._on_answer(action)

    def _account(self, action: Deliver | Fail | Terminate) -> None:
        match action:
            case Deliver(program=program, command=command, reply=reply, last=last):
                for earlier in action.done_before:
                    outcome = self._open_outcome(program, earlier)
                    outcome.replies.append(None)
                    self._end(outcome, "done")
                outcome = self._open_outcome(program, command)
                outcome.replies.append(reply)
                if last:
                    self._end(outcome, "done")
            case Fail(program=program, command=command, error=error):
                outcome = self._open_outcome(program, command)
                outcome.error = error
                cancelled = error.code == "program_cancelled"
                self._end(outcome, "cancelled" if cancelled else "failed")
            case Terminate(program=program, error=error):
                assert program not in self.terminated, f"program {program} terminated twice"
                self.terminated[program] = error
                left = [
                    outcome
                    for (owner, _), outcome in self.outcomes.items()
                    if owner == program and outcome.status == "pending"
                ]
                assert not left, f"program {program} is terminated before {left} were answered"

    def _open_outcome(self, program: ProgramId, command: CommandId) -> CommandOutcome:
        outcome = self.outcomes.get((program, command))
        assert outcome is not None, f"an answer to command {command} of {program}, never issued"
        assert outcome.status == "pending", f"an answer to {outcome}, which has ended"
        return outcome

    def _end(self, outcome: CommandOutcome, status: Status) -> None:
        outcome.status = status
        self._num_pending -= 1


def statuses(outcomes: Sequence[CommandOutcome]) -> list[Status]:
    """The statuses in order, for assertions."""
    return [outcome.status for outcome in outcomes]
