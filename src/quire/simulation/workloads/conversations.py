"""Programs of one thread whose calls extend one text: chats, function calling, light agents."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from quire.simulation.workloads.distributions import LogNormal, seconds
from quire.simulation.workloads.plan import CallPlan, ProgramPlan

Draw = Callable[[Random], int]


def _no_wait(random: Random) -> float:
    return 0.0


@dataclass(frozen=True)
class SimulatedConversation:
    """A program whose every call continues the one before it.

    ``first``: tokens of the first prompt. ``added``: tokens that each later prompt adds to the text
    so far. ``wait``: seconds between a call's end and the next call.
    """

    name: str
    num_calls: Draw
    first: Draw
    added: Draw
    answer: Draw
    wait: Callable[[Random], float] = _no_wait

    def draw(self, random: Random) -> ProgramPlan:
        calls = [CallPlan(self.first(random), self.answer(random))]
        num_calls = self.num_calls(random)
        calls += [
            CallPlan(
                self.added(random),
                self.answer(random),
                extends=before,
                after=(before,),
                wait_s=self.wait(random),
            )
            for before in range(num_calls - 1)
        ]
        return ProgramPlan(self.name, tuple(calls))


def sharegpt() -> SimulatedConversation:
    """Chats. Autellix, Fig. 11: 6.66 calls on average, at most 80; 256 prefill and 277 decode
    tokens a call, which are taken as the tokens that a turn adds.

    Chosen here: sigma 1.0 for the calls (one program in a thousand reaches 80), 1.2 for prompts and
    0.9 for answers, at most 8,192 and 2,048 tokens; the next turn comes at once, as in the paper's
    replay.
    """
    prompt = LogNormal(256, 1.2, most=8192).draw
    return SimulatedConversation(
        "sharegpt",
        num_calls=LogNormal(6.66, 1.0, most=80).draw,
        first=prompt,
        added=prompt,
        answer=LogNormal(277, 0.9, most=2048).draw,
    )


def bfcl() -> SimulatedConversation:
    """Function calling. Autellix, Fig. 11: 10.75 calls on average, at most 70; 735.06 prefill and
    34.14 decode tokens a call.

    The prefill tokens are read as a call's whole prompt, of which the prefix cache has all but the
    last turn. Chosen here: a first prompt (system and signatures of tools) of 400 tokens with sigma
    0.4 and at most 4,096; sigma 0.6 for the calls, for what tools and users add (12 tokens, which
    gives the mean prompt) and for answers. Tools answer at once, as in the paper's replay.
    """
    return SimulatedConversation(
        "bfcl",
        num_calls=LogNormal(10.75, 0.6, most=70).draw,
        first=LogNormal(400, 0.4, most=4096).draw,
        added=LogNormal(12.0, 0.6, most=512).draw,
        answer=LogNormal(34.14, 0.6, most=512).draw,
    )


def agents() -> SimulatedConversation:
    """Agents with light tails: 10.9 turns with a standard deviation of 2.1, as reported for agents
    that solve tasks of one kind.

    Chosen here: a normal distribution, 5 to 17 turns; a first prompt of 1,000 tokens, 300 more with
    each turn and answers of 150, each with sigma 0.3; tools that take 1 s in the median, sigma 0.5,
    at most 10 s.
    """

    def turns(random: Random) -> int:
        return min(17, max(5, round(random.gauss(10.9, 2.1))))

    return SimulatedConversation(
        "agents",
        num_calls=turns,
        first=LogNormal(1000, 0.3, most=4096).draw,
        added=LogNormal(300, 0.3, most=4096).draw,
        answer=LogNormal(150, 0.3, most=1024).draw,
        wait=lambda random: seconds(random, 1.0, 0.5, 10.0),
    )
