"""A trial: programs of a workload, played against one controller until all have ended.

Owns what happens between players and the shell: which player an answer belongs to, arrivals, and
the gathering of what happens at one time into one decision of control. The same trial gives the
same outcomes, always; only ``control_s`` is measured with a real clock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, isinf
from time import perf_counter, process_time

from msgspec.structs import replace

from quire.control import Controller
from quire.core.actions import Action, Deliver, Fail, ProgramClosed, Terminate
from quire.core.events import Event
from quire.core.ids import ModelId, ProgramId
from quire.core.interpreter import collection_paused
from quire.core.policy import Policy
from quire.core.scheduler_config import SchedulerConfig
from quire.core.tracing import TraceListener
from quire.simulation.engines import MODEL, EngineSpec
from quire.simulation.outcomes import ProgramOutcome
from quire.simulation.player import Player, num_text_tokens
from quire.simulation.progress import Progress, RunProgress
from quire.simulation.shell import VirtualShell
from quire.simulation.simulation import Simulation
from quire.simulation.work import WorkTable
from quire.simulation.workloads.plan import ProgramPlan

_SEEDS = 1 << 10
"""Seeds of samplers that each program has."""


@dataclass(frozen=True, slots=True)
class TrialResult:
    """The result of a trial. ``control_s``: processor seconds of control, as measured here;
    everything else is virtual and repeatable. ``num_messages``: sent to engines."""

    outcomes: tuple[ProgramOutcome, ...]
    num_messages: int
    control_s: float


class _TimedControl:
    """A controller, and the time that it takes. Events are many and short: to ask for the
    processor's time with each would take as long as some of them."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self.seconds = 0.0

    def handle(self, event: Event) -> list[Action]:
        began = perf_counter()
        try:
            return self._controller.handle(event)
        finally:
            self.seconds += perf_counter() - began

    def check_invariants(self) -> None:
        self._controller.check_invariants()


class SimulationRun:
    """Plays ``plans``, which arrive at ``times_s`` (infinity: when an earlier one ends) on
    ``engines``. ``policy``: makes a policy that reads the programs' work, instead of the one that
    ``scheduler`` names. ``check``: verify control's invariants after every event. ``listener``:
    receives calls and messages that have ended."""

    def __init__(
        self,
        plans: Sequence[ProgramPlan],
        times_s: Sequence[float],
        engines: EngineSpec,
        scheduler: SchedulerConfig,
        *,
        policy: Callable[[WorkTable], Policy] | None = None,
        progress: Progress | None = None,
        check: bool = False,
        listener: TraceListener | None = None,
    ) -> None:
        self._plans, self._times_s = plans, list(times_s)
        self._works = WorkTable(engines.prompt_weight)
        self._reads_work = policy is not None
        own = None if policy is None else policy(self._works)
        self._control = _TimedControl(Controller(scheduler, policy=own, listener=listener))
        self._shell = VirtualShell(
            self._control,
            check=check,
            on_answer=self._answered,
            on_closed=self._closed,
            on_dispatch=lambda _: self._count_message(),
        )
        self._simulation = Simulation(self._shell)
        self._page_size = engines.page_size
        engines.start(self._shell)
        self._progress = progress
        self._players: dict[ProgramId, Player] = {}
        self._begun: list[Player | None] = [None] * len(plans)
        self._texts = _starts([num_text_tokens(plan) for plan in plans])
        self._members = _starts([_num_members(plan) for plan in plans])
        self._events: list[Event] = []
        self._num_over = self._num_calls_over = 0
        self._num_calls = sum(len(plan.calls) for plan in plans)
        self._num_messages = 0
        self._over: set[int] = set()
        self._waiting = [number for number, at_s in enumerate(times_s) if isinf(at_s)][::-1]

    def run(self) -> TrialResult:
        """Run until nothing is left to do."""
        for number, at_s in enumerate(self._times_s):
            if not isinf(at_s):
                self._simulation.at(at_s, lambda number=number: self._begin(number))  # type: ignore[misc]
        began_s, began_processor_s = perf_counter(), process_time()
        with collection_paused():  # control and players make no cycles
            self._simulation.run()
        processor_share = (process_time() - began_processor_s) / (perf_counter() - began_s)
        outcomes = tuple(self._outcome(number) for number in range(len(self._plans)))
        return TrialResult(outcomes, self._num_messages, self._control.seconds * processor_share)

    def _begin(self, number: int) -> None:
        plan = self._plans[number]
        first = self._members[number] + 1
        members = [ProgramId(first + one) for one in range(_num_members(plan))]
        player = Player(
            plan,
            members,
            self,
            self._works,
            model=ModelId(MODEL),
            page_size=self._page_size,
            text=self._texts[number],
            seed=number * _SEEDS,
            stream=self._reads_work,
        )
        self._begun[number] = player
        for member in members:
            self._players[member] = player
        player.begin()

    # -- Stage -----------------------------------------------------------------------------------

    @property
    def now_s(self) -> float:
        return self._simulation.now_s

    def after(self, duration_s: float, call: Callable[[], None]) -> None:
        self._simulation.after(duration_s, call)

    def post(self, event: Event) -> None:
        if not self._events:
            self._simulation.at(self.now_s, self._flush)
        self._events.append(event)

    def _flush(self) -> None:
        """Post the events of programs at this time as one: control decides after the last."""
        events, self._events = self._events, []
        for event in events[:-1]:
            self._shell.post(replace(event, more=True))
        self._shell.post(events[-1])

    def call_over(self) -> None:
        self._num_calls_over += 1
        self._tell()

    # -- answers ---------------------------------------------------------------------------------

    def _answered(self, action: Deliver | Fail | Terminate) -> None:
        player = self._players.get(action.program)
        if player is None:
            return
        if type(action) is Deliver:
            player.delivered(action)
        elif isinstance(action, Fail | Terminate):
            player.fail(action.error.message)

    def _closed(self, action: ProgramClosed) -> None:
        """Note that a program, or a member of it, has left the process table."""
        player = self._players.pop(action.program)
        player.figures.add(action)
        if action.program == player.members[0]:
            self._num_over += 1
            self._tell()
            if self._waiting:
                number = self._waiting.pop()
                self._times_s[number] = self.now_s
                self._simulation.at(self.now_s, lambda: self._begin(number))

    def _tell(self) -> None:
        if self._progress is not None:
            plans, calls = len(self._plans), self._num_calls
            self._progress(
                RunProgress(self.now_s, self._num_over, plans, self._num_calls_over, calls)
            )

    def _count_message(self) -> None:
        self._num_messages += 1

    def _outcome(self, number: int) -> ProgramOutcome:
        plan, player = self._plans[number], self._begun[number]
        assert player is not None, "every program arrives"
        error = player.error
        if error is None and player.ended_s is None:
            error = "it did not end"
        figures = player.figures
        return ProgramOutcome(
            number=number,
            kind=plan.kind,
            arrived_s=self._times_s[number],
            ended_s=inf if player.ended_s is None else player.ended_s,
            num_calls=len(plan.calls),
            num_output_tokens=plan.num_output_tokens,
            service_s=figures.service_s,
            waiting_s=figures.waiting_s,
            num_prefilled_tokens=figures.num_prefilled_tokens,
            num_cached_tokens=figures.num_cached_tokens,
            num_preemptions=figures.num_preemptions,
            error=error,
        )


def _num_members(plan: ProgramPlan) -> int:
    return 1 + max(call.member for call in plan.calls)


def _starts(sizes: Sequence[int]) -> list[int]:
    """The start of each of consecutive ranges."""
    starts, total = [], 0
    for size in sizes:
        starts.append(total)
        total += size
    return starts
