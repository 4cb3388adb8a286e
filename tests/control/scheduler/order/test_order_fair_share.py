"""Who is served next, seen from outside: tenants by share, within a tenant by priority and arrival.

Each piece of work fills one message by itself, so the order of ends is the order of service.
"""

from __future__ import annotations

from collections.abc import Sequence

from control_world import World

from quire.core.config import TenantConfig
from quire.core.ids import TenantId
from quire.testing.harness import CommandOutcome

NUM_TOKENS = 4


def prompt(number: int) -> list[int]:
    """Nobody else's, so that nothing of it is found in the cache."""
    return [number] * NUM_TOKENS


def busy_world(**weights: float) -> World:
    tenants = tuple(TenantConfig(TenantId(name), weight=w) for name, w in weights.items())
    return World(tenants=tenants, max_batch_tokens=NUM_TOKENS, config={"max_steps_per_message": 1})


class Work:
    """Programs that each have one prompt computed. ``order``: of their ends so far."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._pending: dict[int, CommandOutcome] = {}
        self._names: dict[int, str] = {}
        self.order: list[str] = []

    def add(self, names: Sequence[str], **fields: int) -> None:
        """One more for each of ``names``, whose first letter is its tenant."""
        world = self._world
        for name in names:
            program = world.program(len(self._names) + 1, tenant=name[0], **fields)
            self._names[program] = name
            self._pending[program] = world.issue(
                program, world.alloc([0, 1]), world.decode([0, 1], prompt(program), max_tokens=1)
            )[1]

    def step(self, num_steps: int) -> list[str]:
        """The names that end in so many messages."""
        before = len(self.order)
        for _ in range(num_steps):
            self._world.harness.step_engine("fake")
            for program, outcome in list(self._pending.items()):
                if outcome.status == "done":
                    del self._pending[program]
                    self.order.append(self._names[program])
        return self.order[before:]


def test_what_is_served_is_charged() -> None:
    """A tenant with one program is not behind all those of a tenant that came before."""
    work = Work(busy_world())
    work.add(["a1", "a2", "a3", "a4", "b1"])
    assert work.step(5) == ["a1", "b1", "a2", "a3", "a4"]


def test_weights_share_service() -> None:
    work = Work(busy_world(a=3.0, b=1.0))
    work.add(["a"] * 9 + ["b"] * 9)
    served = work.step(8)
    assert (served.count("a"), served.count("b")) == (6, 2)


def test_a_tenant_that_was_away_has_not_saved_up() -> None:
    work = Work(busy_world())
    work.add(["a"] * 12)
    work.step(6)
    work.add(["b"] * 6)
    served = work.step(6)
    assert served.count("a") in (2, 3), served


def test_priority_goes_before_arrival() -> None:
    work = Work(busy_world())
    work.add(["a-first", "a-second"])
    work.add(["a-late"], priority=1)
    work.add(["a-least"], priority=-1)
    assert work.step(4) == ["a-first", "a-late", "a-second", "a-least"]
