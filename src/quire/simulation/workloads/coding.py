"""``coding``: agents that write software, with long texts, tools, and agents below them."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from quire.simulation.workloads.distributions import LogNormal, seconds
from quire.simulation.workloads.plan import CallPlan, ProgramPlan

_SUBAGENT_SHARE = 0.44


@dataclass(frozen=True)
class Coding:
    """Coding agents: 43 turns, 142,000 input tokens and 444 output tokens a turn, agents below them
    in 44 % of the programs; turns, inputs and outputs are means over the main agent's calls.

    Chosen here: 43 turns with sigma 0.6, at most 200. The text grows evenly from a first prompt of
    30,000 tokens (sigma 0.3) to 254,000 (sigma 0.3) at the last turn, however many turns there are.
    Tools take 3 s in the median, sigma 1.2, at most 120 s. A program with agents below it launches
    one to three side by side, once, at a turn drawn evenly: each has eight turns on average (sigma
    0.4, at most 40), begins with 8,000 tokens and reads 2,000 more with each turn, and the main
    agent goes on when all have ended.
    """

    name: str = "coding"
    num_turns: LogNormal = field(default_factory=lambda: LogNormal(43, 0.6, least=2, most=200))
    first: LogNormal = field(default_factory=lambda: LogNormal(30_000, 0.3, most=100_000))
    last: LogNormal = field(default_factory=lambda: LogNormal(254_000, 0.3, most=600_000))
    answer: LogNormal = field(default_factory=lambda: LogNormal(444, 0.9, most=8192))
    num_turns_below: LogNormal = field(default_factory=lambda: LogNormal(8, 0.4, most=40))
    first_below: LogNormal = field(default_factory=lambda: LogNormal(8_000, 0.3, most=32_000))
    added_below: LogNormal = field(default_factory=lambda: LogNormal(2_000, 0.8, most=16_000))

    def draw(self, random: Random) -> ProgramPlan:
        num_turns = self.num_turns.draw(random)
        first = self.first.draw(random)
        growth = max(num_turns, self.last.draw(random) - first) // max(1, num_turns - 1)
        has_agents = random.random() < _SUBAGENT_SHARE
        launches_at = random.randrange(num_turns - 1) if has_agents else None
        calls: list[CallPlan] = []
        own: int | None = None
        for turn in range(num_turns):
            after: tuple[int, ...] = () if own is None else (own,)
            if launches_at is not None and turn == launches_at + 1 and own is not None:
                after += self._launch(calls, own, random)
            answer = self.answer.draw(random)
            added = first if own is None else max(1, growth - calls[own].num_output)
            wait_s = 0.0 if own is None else seconds(random, 3.0, 1.2, 120.0)
            calls.append(CallPlan(added, answer, extends=own, after=after, wait_s=wait_s))
            own = len(calls) - 1
        return ProgramPlan(self.name, tuple(calls))

    def _launch(self, calls: list[CallPlan], parent: int, random: Random) -> tuple[int, ...]:
        """Agents below the main one, launched by call ``parent``; their last calls."""
        ends = []
        for member in range(1, random.randint(1, 3) + 1):
            extends, before = None, parent
            for _ in range(self.num_turns_below.draw(random)):
                added = self.first_below if extends is None else self.added_below
                calls.append(
                    CallPlan(
                        added.draw(random),
                        self.answer.draw(random),
                        extends=extends,
                        after=(before,),
                        wait_s=0.0 if extends is None else seconds(random, 3.0, 1.2, 120.0),
                        thread=member,
                        member=member,
                    )
                )
                extends = before = len(calls) - 1
            ends.append(before)
        return tuple(ends)
