"""Shows how other frameworks run modules (Ayo's section 7, "Baseline").

*LlamaDist*: a chain, each module begins when the one before it has ended. *LlamaDistPC*: a module
begins when those that it needs have ended, and instructions are found in the prefix cache.
*LangGraph*: like LlamaDistPC, but in supersteps: what has become ready begins when all modules of
the step before have ended. *AutoGen*: agents, each with one or more modules, hand a message from
one to the next. An agent answers one message at a time; there are ``NUM_COPIES`` of each, and a
hand-over takes its stated time. What the paper does not say of AutoGen is chosen in its favour.

Per-invocation scheduling (PO) is a way of asking: each engine takes the requests of one invocation
at a time, and the next invocation begins when all of them have ended. Two instances of a model take
two invocations. How one is shared out is control's choice, as the paper does not say it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby

from benchmarks.ayo.asking import Done, Program
from benchmarks.ayo.engines import Server
from benchmarks.ayo.modules import Asked, Module, Request, Texts
from benchmarks.ayo.texts import tokens_of
from benchmarks.ayo.world import NUM_MODEL_INSTANCES, World

NUM_COPIES = 2
"""Of each agent: as many as there are instances of a model."""


class ChainQuery(Program):
    """A query of LlamaDist, one module after another. ``times``: seconds from the beginning to the
    end of each module. ``bundled``: an engine takes one invocation at a time."""

    def __init__(
        self,
        number: int,
        world: World,
        modules: Sequence[Module],
        *,
        searches: bool = True,
        cached: bool = False,
        bundled: bool = False,
    ) -> None:
        super().__init__(number, world, cached=cached)
        self._bundled = bundled
        left_out = [] if searches else [one for one in modules if one.if_searched]
        self.modules = _without(modules, left_out)
        self.times: dict[str, float] = {}
        self.ended_s_of: dict[str, float] = {}
        """Since it began, by module."""
        self._num_rounds = 0

    def begin(self) -> None:
        super().begin()
        self._follow(self.modules, self.end)

    def _follow(self, modules: Sequence[Module], done: Done) -> None:
        """``modules`` one after the other."""
        if not modules:
            done()
            return
        self.carry_out(modules[0], lambda: self._follow(modules[1:], done))

    def carry_out(self, module: Module, done: Done) -> None:
        began_s = self.world.simulation.now_s

        def next_round(number: int) -> None:
            if number == len(module.rounds):
                now_s = self.world.simulation.now_s
                self.times[module.name] = now_s - began_s
                self.ended_s_of[module.name] = now_s - (self.begun_s or 0.0)
                done()
            else:
                self._round(module.rounds[number], lambda: next_round(number + 1))

        next_round(0)

    def _round(self, requests: Sequence[Request], done: Done) -> None:
        """All at once: an invocation."""
        self._num_rounds += 1
        num_left, number = len(requests), self._num_rounds
        engine = self._bundles_of(requests[0]) if self._bundled else None

        def one_less() -> None:
            nonlocal num_left
            num_left -= 1
            if not num_left:
                if engine is not None:
                    engine.leave()
                done()

        def begin() -> None:
            for request in requests:
                self._request(request, number, one_less)

        if engine is None:
            begin()
        else:
            engine.enter(begin)

    def _bundles_of(self, request: Request) -> Server | None:
        """Return the server that admits invocations to the engine of ``request``; None if that
        engine takes one request at a time."""
        if isinstance(request, Texts):
            return self.world.server(f"invocations of {request.model}")
        if isinstance(request, Asked):
            return self.world.server(f"invocations of {request.role}", NUM_MODEL_INSTANCES)
        return None

    def _request(self, request: Request, number: int, done: Done) -> None:
        world = self.world
        if isinstance(request, Texts):
            begin = partial(self.encode, request.model, request.num, (0, number, 0), done)
            if world.stated.timeout_s:
                world.gathering(request.model).enter(request.num, begin)
            else:
                begin()
        elif isinstance(request, Asked):
            call = self.open_call(request.role, (0, number, 0))
            for part in request.prompt:
                call.add(tokens_of(part, f"{self.id}/{part.name}"))
            call.write(request.num_tokens, request.num_tokens, done)
        elif request.where == "web":
            world.simulation.after(request.seconds, done)
        else:
            world.server(request.where).ask(request.seconds, done)


class ParallelQuery(ChainQuery):
    """A query of LlamaDistPC: modules run as soon as their inputs are there; ``cached`` is to be
    set."""

    def begin(self) -> None:
        Program.begin(self)
        self._left = list(self.modules)
        self._begin_ready()

    def _begin_ready(self) -> None:
        ready = [one for one in self._left if set(one.needs) <= self.times.keys()]
        self._left = [one for one in self._left if one not in ready]
        for module in ready:
            self.carry_out(module, self._one_has_ended)

    def _one_has_ended(self) -> None:
        if len(self.times) == len(self.modules):
            self.end()
        else:
            self._begin_ready()


class StepsQuery(ParallelQuery):
    """A query of LangGraph; ``cached`` is to be set. ``steps``: the modules of each superstep, by
    name."""

    def begin(self) -> None:
        self.steps: list[list[str]] = []
        super().begin()

    def carry_out(self, module: Module, done: Done) -> None:
        if self._step_has_ended():
            self.steps.append([])
        self.steps[-1].append(module.name)
        super().carry_out(module, done)

    def _begin_ready(self) -> None:
        if self._step_has_ended():
            super()._begin_ready()

    def _step_has_ended(self) -> bool:
        return not self.steps or self.times.keys() >= set(self.steps[-1])


class AgentsQuery(ChainQuery):
    """A query of AutoGen."""

    def begin(self) -> None:
        Program.begin(self)
        turns = [(name, list(own)) for name, own in groupby(self._in_order(), lambda m: m.agent)]
        self._turn(turns)

    def _in_order(self) -> list[Module]:
        """An agent is asked once: expansion comes before retrieval."""
        first = [one for one in self.modules if one.agent == "expander"]
        return first + [one for one in self.modules if one not in first]

    def _turn(self, turns: Sequence[tuple[str, list[Module]]]) -> None:
        if not turns:
            self.end()
            return
        name, modules = turns[0]
        agent = self.world.server(f"agent {name}", NUM_COPIES)

        def done() -> None:
            agent.leave()
            self._turn(turns[1:])

        def begin() -> None:
            self.world.simulation.after(
                self.world.stated.hand_over_s, lambda: self._follow(modules, done)
            )

        agent.enter(begin)


def _without(modules: Sequence[Module], left_out: Sequence[Module]) -> list[Module]:
    """Return ``modules`` without ``left_out``; what needed one of these needs what that one
    needs."""
    instead = {one.name: one.needs for one in left_out}
    return [
        replace(one, needs=tuple(n for need in one.needs for n in instead.get(need, (need,))))
        for one in modules
        if one not in left_out
    ]
