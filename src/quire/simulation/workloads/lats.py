"""``lats``: Monte Carlo tree search over a model, many calls side by side."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from quire.simulation.workloads.distributions import LogNormal
from quire.simulation.workloads.plan import CallPlan, ProgramPlan

_WIDTH, _MAX_DEPTH = 5, 7


@dataclass(slots=True)
class _Leaf:
    """A node of the tree that may be expanded: the call that wrote it."""

    call: int
    depth: int


@dataclass(frozen=True)
class TreeSearch:
    """Language agent tree search on HotpotQA. Autellix, Fig. 11: 159.7 calls on average; 467.2
    prefill and 72.6 decode tokens a call.

    The paper does not give the graph. Here an iteration expands one leaf: five calls write its
    children side by side, behind the same prompt, each as a thread; then five calls judge them,
    each as soon as its child is written. The next iteration begins when all are judged and expands
    any leaf, no deeper than seven, the search's limit. The prefill tokens are read as a call's
    whole prompt: instructions and question (common to the program, 150 tokens), the path to the
    leaf, and what the call adds.

    Chosen here: 15.97 iterations on average, sigma 0.5, at most 50, which gives 159.7 calls; sigma
    0.4 for what is added (18.6 tokens, which gives the mean prompt) and for answers, 0.2 for the
    common part.
    """

    name: str = "lats"
    num_iterations: LogNormal = field(default_factory=lambda: LogNormal(15.97, 0.5, most=50))
    common: LogNormal = field(default_factory=lambda: LogNormal(150, 0.2, most=2048))
    added: LogNormal = field(default_factory=lambda: LogNormal(18.6, 0.4, most=1024))
    answer: LogNormal = field(default_factory=lambda: LogNormal(72.6, 0.4, most=1024))

    def draw(self, random: Random) -> ProgramPlan:
        num_common = self.common.draw(random)
        calls: list[CallPlan] = []
        leaves: list[_Leaf] = []
        judged: tuple[int, ...] = ()
        for _ in range(self.num_iterations.draw(random)):
            leaf = random.choice(leaves) if leaves else None
            children = self._expand(calls, leaf, judged, num_common, random)
            judged = self._judge(calls, children, random)
            if leaf is not None:
                leaves.remove(leaf)
            depth = 1 if leaf is None else leaf.depth + 1
            if depth < _MAX_DEPTH:
                leaves += [_Leaf(call, depth) for call in children]
        return ProgramPlan(self.name, tuple(calls))

    def _expand(
        self,
        calls: list[CallPlan],
        leaf: _Leaf | None,
        judged: tuple[int, ...],
        num_common: int,
        random: Random,
    ) -> list[int]:
        num_added = self.added.draw(random)
        first = len(calls)
        after = judged if leaf is None else (*judged, leaf.call)
        calls += [
            CallPlan(
                num_added,
                self.answer.draw(random),
                repeats=first if thread else None,
                extends=None if leaf is None else leaf.call,
                after=after,
                thread=thread,
                num_shared=num_common if leaf is None else 0,
            )
            for thread in range(_WIDTH)
        ]
        return list(range(first, len(calls)))

    def _judge(self, calls: list[CallPlan], children: list[int], random: Random) -> tuple[int, ...]:
        first = len(calls)
        for thread, child in enumerate(children):
            calls.append(
                CallPlan(
                    self.added.draw(random),
                    self.answer.draw(random),
                    extends=child,
                    after=(child,),
                    thread=thread,
                )
            )
        return tuple(range(first, len(calls)))
