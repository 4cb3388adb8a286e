"""``quire``: the program whose end costs least goes first, as learned from others of its kind."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, inf, log2

from quire.control.policies.kinds import SHORTEST_TOKENS, KindOfProgram, Kinds
from quire.control.policies.promotions import Promotions, RankedCall
from quire.core.ids import ProgramId
from quire.core.policy import ReadyCommand, ServiceFigures
from quire.core.scheduler_config import LevelsConfig

TURN_TOKENS = 64
"""The length of a promoted call's turn in the first queue."""

IDLE_S = 60.0
"""After this time without a call, a family's service counts from zero again. Otherwise a session
that is used for days would come last for ever."""

URGENT_SHARE = 0.5
"""From this share of the time between a program's start and its deadline on, its calls are due for
promotion. The rest of its work is estimated too roughly to wait for longer."""

LEVELS_PER_OCTAVE = 4
"""A key's level rises by one with each octave of ranks, in so many steps. A rank is the logarithm
of a square root. So of two programs that generate as much, one gives up its seat if the other's end
costs less than about 0.7 of its own, and its memory if it costs less than about a quarter."""

MAX_EMPTY = 1024
"""The number of families kept whose root lives and which have no other living program: the root may
launch more."""


class _Family:
    """The state of one family. ``life``: since its last long idleness; ``life_of_any``: the same,
    among programs of all kinds. ``members``: its programs that have called and have not ended.
    ``is_over``: its root has ended."""

    __slots__ = (
        "any_kind",
        "figures",
        "is_over",
        "kind",
        "life",
        "life_of_any",
        "members",
        "num_calls",
        "served_s",
    )

    def __init__(
        self, kind: KindOfProgram, any_kind: KindOfProgram, figures: ServiceFigures, now_s: float
    ) -> None:
        self.kind = kind
        self.any_kind = any_kind
        self.figures = figures
        self.is_over = False
        self.members: set[ProgramId] = set()
        self.num_calls = 0
        self.served_s = now_s
        self._begin(0)

    def _begin(self, tokens_before: int) -> None:
        self.life = self.kind.begin(self.figures, tokens_before)
        self.life_of_any = self.any_kind.begin(self.figures, tokens_before)

    def begin_anew(self) -> None:
        self.end()
        self._begin(self.figures.service_tokens)

    def end(self) -> None:
        """Count its service until now as one sample of its kind."""
        self.kind.end(self.life)
        self.any_kind.end(self.life_of_any)

    def rank(self) -> float:
        """Return its rank by what is known of its kind, else of all kinds, else by the service that
        programs of its kind have had until now."""
        rank = self.kind.rank(self.life.progress(self.kind.prompt_weight))
        return self._rank_among_all() if rank is None else rank

    def _rank_among_all(self) -> float:
        """Return its rank among programs of all kinds. Where other kinds are known better than its
        own, or nothing is known of any, it is taken to be as long as two of its own kind have been:
        so programs of a kind that has turned out long are equals, and neither displace short ones
        nor one another."""
        attained = self.life.progress(self.any_kind.prompt_weight)
        rank = self.any_kind.rank(attained)
        if rank is None:
            rank = _roughly(attained)
        elif self.kind.num_ended == self.any_kind.num_ended:
            return rank
        length = self.kind.second_longest(self.life, attained)
        return max(rank, _roughly(length))


class _Call(RankedCall):
    """A call with its family at hand, because each message looks the family up."""

    __slots__ = ("family",)

    def __init__(self, command: ReadyCommand, family: _Family) -> None:
        super().__init__(command)
        self.family = family


class LeastLeft:
    """A call's level is the rank of its program, a logarithm (``kinds``), in quarters of an octave;
    memory goes by whole octaves. Within a level the oldest program goes first, so that equals are
    not served in turns. A call is promoted when its program has waited too long, as under ``plas``,
    or when its program's deadline is near and has not passed."""

    def __init__(self, config: LevelsConfig) -> None:
        self._promotions = Promotions(config.beta, config.promoted_share, counts_a_call=True)
        self._kinds = Kinds()
        self._any_kind = KindOfProgram()
        self._families: dict[ProgramId, _Family] = {}
        self._family_of: dict[ProgramId, ProgramId] = {}
        self._empty: dict[ProgramId, None] = {}
        self._calls: dict[ReadyCommand, _Call] = {}
        self._num_arrived = 0
        self._outgrown: set[KindOfProgram] = set()

    @property
    def name(self) -> str:
        return "quire"

    @property
    def keeps_state(self) -> bool:
        return True

    def key(self, command: ReadyCommand) -> tuple[float, ...]:
        call = self._calls[command]
        return (
            call.level / LEVELS_PER_OCTAVE,
            command.family_figures.arrival_s,
            command.family,
            call.order,
        )

    def on_arrival(self, command: ReadyCommand, now_s: float) -> None:
        family = self._families.get(command.family)
        if family is None:
            kind = self._kinds.get((command.tenant, command.kind))
            family = _Family(kind, self._any_kind, command.family_figures, now_s)
            self._families[command.family] = family
        elif not family.num_calls and now_s - family.served_s > IDLE_S:
            family.begin_anew()
        self._empty.pop(command.family, None)
        family.members.add(command.program)
        self._family_of[command.program] = command.family
        family.num_calls += 1
        self._num_arrived += 1
        call = self._calls[command] = _Call(command, family)
        call.order = self._num_arrived
        call.urgent_s = _urgent_s(command)
        self._rank(call)

    def on_served(
        self, command: ReadyCommand, num_tokens: int, service_s: float, now_s: float
    ) -> None:
        call = self._calls[command]
        self._promotions.served(call, service_s, now_s)
        call.family.served_s = now_s
        call.left -= num_tokens
        if not call.is_promoted or call.left <= 0:
            self._promotions.had_its_turn(call)
            self._rank(call)

    def on_ended(self, command: ReadyCommand, now_s: float) -> None:
        call = self._calls.pop(command)
        self._promotions.ended(call)
        call.family.num_calls -= 1

    def on_program_ended(self, program: ProgramId, now_s: float) -> None:
        root = self._family_of.pop(program, program)
        family = self._families.get(root)
        if family is None:
            return
        family.members.discard(program)
        if program == root:
            family.end()
            family.is_over = True
        if family.members:
            return
        if family.is_over:
            self._forget(root)
        else:
            self._empty[root] = None
            if len(self._empty) > MAX_EMPTY:
                self._forget(next(iter(self._empty)))

    def _forget(self, root: ProgramId) -> None:
        del self._families[root]
        self._empty.pop(root, None)

    def on_capacity(self, num_sequences: int) -> None:
        self._promotions.set_capacity(num_sequences)

    def on_time(self, now_s: float) -> Sequence[ReadyCommand]:
        promoted = self._promotions.take_due(now_s)
        for call in promoted:
            call.level, call.left = 0, float(TURN_TOKENS)
        changed = [call.command for call in promoted]
        return changed + self._rank_anew() if self._outgrown else changed

    def _rank(self, call: _Call) -> None:
        kind = call.family.kind
        second = kind.second
        call.level = LEVELS_PER_OCTAVE + floor(LEVELS_PER_OCTAVE * call.family.rank())
        if kind.second != second and _roughly(kind.second) > _roughly(second):
            self._outgrown.add(kind)
        self._promotions.watch(call)

    def _rank_anew(self) -> list[ReadyCommand]:
        """Rank the calls of kinds that turn out longer than they were taken to be, and return those
        whose levels have changed. Otherwise those that wait would seem shorter than those that run,
        and each would take a place for one message. It looks at all calls, but only when a kind of
        which little is known has reached another level."""
        kinds, self._outgrown = self._outgrown, set()
        changed: list[ReadyCommand] = []
        for call in self._calls.values():
            if call.family.kind in kinds and not call.is_promoted:
                level = call.level
                self._rank(call)
                if call.level != level:
                    changed.append(call.command)
        return changed


def _roughly(length: float) -> float:
    """Return the rank of a program of which only its length so far is known: the last level of its
    octave. So it is another one only when the length has doubled."""
    return floor(log2(max(length, SHORTEST_TOKENS))) + 1 - 1 / LEVELS_PER_OCTAVE


def _urgent_s(command: ReadyCommand) -> float:
    """The time from which ``command`` is due for promotion, whatever the service of its program."""
    figures = command.program_figures
    if figures.deadline_s is None:
        return inf
    return figures.arrival_s + URGENT_SHARE * (figures.deadline_s - figures.arrival_s)
