"""The order of eviction against an ordered dict, which it stands in for."""

from __future__ import annotations

from collections import OrderedDict

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from quire.control.memory.content import Content
from quire.control.memory.eviction_order import EvictionOrder


class OrderMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.order = EvictionOrder()
        self.model: OrderedDict[int, Content] = OrderedDict()
        self.out: list[Content] = []
        self.kept: list[Content] = []

    def _new(self, num: int) -> list[Content]:
        made = [Content(None, canonical=True) for _ in range(num)]
        self.kept += made
        return made

    @rule(num=st.integers(1, 60))
    def add(self, num: int) -> None:
        for content in self._new(num):
            self.order.add(content)
            self.model[id(content)] = content

    @rule(num=st.integers(1, 20))
    def put_first(self, num: int) -> None:
        for content in self._new(num):
            self.order.put_first(content)
            self.model[id(content)] = content
            self.model.move_to_end(id(content), last=False)

    @precondition(lambda self: self.model)
    @rule(pick=st.integers(0, 999), num=st.integers(1, 60))
    def remove(self, pick: int, num: int) -> None:
        for content in list(self.model.values())[pick % len(self.model) :][:num]:
            self.order.remove(content)
            del self.model[id(content)]
            assert not content.turn
            self.out.append(content)

    @precondition(lambda self: self.out)
    @rule()
    def add_again(self) -> None:
        content = self.out.pop()
        self.order.add(content)
        self.model[id(content)] = content

    @precondition(lambda self: self.model)
    @rule(pick=st.integers(0, 999))
    def pin(self, pick: int) -> None:
        list(self.model.values())[pick % len(self.model)].num_pins += 1

    @rule()
    def evict(self) -> None:
        first = next((one for one in self.model.values() if not one.num_pins), None)
        assert self.order.first_free() is first
        if first is not None:
            self.order.remove(first)
            del self.model[id(first)]

    @rule()
    def clear(self) -> None:
        assert self.order.clear() == list(self.model.values())
        assert not any(content.turn for content in self.model.values())
        self.model.clear()

    @invariant()
    def they_agree(self) -> None:
        self.order.check_invariants()
        assert list(self.order.contents()) == list(self.model.values())
        assert len(self.order) == len(self.model)


TestOrder = pytest.mark.filterwarnings("error")(OrderMachine.TestCase)
TestOrder.settings = settings(max_examples=40, stateful_step_count=30, deadline=None, database=None)


def test_gaps_are_closed_so_that_it_is_no_longer_than_twice_what_it_holds() -> None:
    order = EvictionOrder()
    contents = [Content(None, canonical=True) for _ in range(10)]
    for _ in range(1000):
        for content in contents:
            order.add(content)
        for content in contents:
            order.remove(content)
    assert len(order._line) < 100


def test_the_order_stays_when_gaps_are_closed() -> None:
    order = EvictionOrder()
    contents = [Content(None, canonical=True) for _ in range(300)]
    for content in contents[:150]:
        order.put_first(content)
    for content in contents[150:]:
        order.add(content)
    wanted = [*contents[149::-1], *contents[150:]]
    for content in contents:
        if contents.index(content) % 7:
            order.remove(content)
            wanted.remove(content)
    order.check_invariants()
    assert len(order._line) + len(order._first) < 200, "gaps were closed"
    assert list(order.contents()) == wanted


@pytest.mark.parametrize("again", ["add", "put_first"])
def test_a_content_has_one_turn(again: str) -> None:
    order, content = EvictionOrder(), Content(None, canonical=True)
    order.add(content)
    with pytest.raises(AssertionError, match="one turn"):
        getattr(order, again)(content)
