"""Blocks: none is lost, aliased or freed twice, whatever the order of retain, release and moves."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from quire.control.memory.blocks import NumberPool
from quire.control.memory.content import Content
from quire.control.memory.memory import Memory
from quire.control.memory.operations import OperationList
from quire.core.batch import CopySlots, SwapIn, SwapOut
from quire.core.engine_info import EngineInfo, LayerGroup
from quire.core.errors import ConfigError
from quire.core.ids import TenantId
from quire.testing import FakeEngine
from quire.testing.fake_engine import fake_pool

TENANT = TenantId("t")


def refuse(num_blocks: int) -> bool:
    return False


def make_memory(num_blocks: int = 4, num_host_blocks: int = 3, page_size: int = 2) -> Memory:
    pool = fake_pool(page_size=page_size, num_blocks=num_blocks, num_host_blocks=num_host_blocks)
    return Memory(FakeEngine(pool).info, OperationList())


def test_a_number_is_free_once() -> None:
    pool = NumberPool(2)
    first, second = pool.take(), pool.take()
    assert {first, second} == {0, 1}
    assert pool.take() is None
    pool.free(0)
    with pytest.raises(AssertionError, match="freed twice"):
        pool.free(0)
    assert pool.take() == 0
    pool.check_invariants()


def test_other_layer_groups_are_refused() -> None:
    info: EngineInfo = FakeEngine().info
    window = LayerGroup(kind="window", num_blocks=4, num_host_blocks=0, bytes_per_block=1, window=8)
    for groups in ((window,), (info.pool.groups[0], window)):
        pool = type(info.pool)(
            **{
                **{name: getattr(info.pool, name) for name in info.pool.__struct_fields__},
                "groups": groups,
            }
        )
        fields = {name: getattr(info, name) for name in info.__struct_fields__} | {"pool": pool}
        with pytest.raises(ConfigError, match="one group of full attention"):
            Memory(EngineInfo(**fields), OperationList())


def test_what_is_only_cached_is_evicted_first_and_least_recently_used_first() -> None:
    memory = make_memory(num_blocks=2)
    contents = []
    for token in (1, 2):
        content = memory.retain(Content(None, canonical=True))
        memory.bind(content)
        content.tokens = [token, token]
        content.node = memory.index.child(TENANT, None, content.tokens)
        memory.add_to_index([content])
        contents.append(content)
    memory.release(contents[1])
    memory.release(contents[0])
    assert memory.statistics().num_cached == 2
    assert memory.make_room(1, refuse)
    assert memory.index.match(TENANT, None, [2, 2], 1) == []
    assert memory.index.match(TENANT, None, [1, 1], 1) == [contents[0]]
    memory.retain(contents[0])
    assert not memory.make_room(2, refuse), "a block that a page means is not evicted"
    memory.check_invariants([contents[0]])


def test_a_full_host_tier_drops_canonical_contents_and_keeps_opaque_ones() -> None:
    memory = make_memory(num_blocks=3, num_host_blocks=1)
    canonical, opaque, other = (memory.retain(Content(None, i == 0)) for i in range(3))
    for content in (canonical, opaque, other):
        memory.bind(content)
    canonical.tokens = [7]
    assert memory.move_out(canonical)
    assert canonical.host_block is not None
    assert memory.move_out(opaque), "the canonical one makes way: its tokens are known"
    assert canonical.is_lost
    assert opaque.host_block is not None
    assert not memory.move_out(other)
    assert other.block is not None


def test_neighbouring_operations_merge_and_dependent_ones_do_not() -> None:
    operations = OperationList()
    operations.swap_out(1, 0)
    operations.swap_out(2, 1)
    operations.swap_in(0, 1)
    operations.copy_slots(4, 8, 2)
    operations.copy_slots(8, 12, 2)
    kinds = [type(operation) for operation in operations.take()]
    assert kinds == [SwapOut, SwapIn, CopySlots, CopySlots]
    assert operations.take() == []


class MemoryMachine(RuleBasedStateMachine):
    """Pages (references) come and go; contents move between tiers; the pool must balance."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = make_memory(num_blocks=5, num_host_blocks=4)
        self.held: list[Content] = []
        self.pinned: list[Content] = []
        self.serial = 0

    @rule(canonical=st.booleans(), index=st.booleans())
    def create(self, canonical: bool, index: bool) -> None:
        if not self.memory.make_room(1, refuse):
            return
        content = self.memory.retain(Content(None, canonical))
        self.memory.bind(content)
        self.serial += 1
        content.tokens = [self.serial, 0]
        if canonical:
            content.node = self.memory.index.child(TENANT, None, content.tokens)
            if index:
                self.memory.add_to_index([content])
        self.held.append(content)

    @precondition(lambda self: self.held)
    @rule(pick=st.integers(0, 99))
    def share(self, pick: int) -> None:
        self.held.append(self.memory.retain(self.held[pick % len(self.held)]))

    @precondition(lambda self: self.held)
    @rule(pick=st.integers(0, 99))
    def release(self, pick: int) -> None:
        self.memory.release(self.held.pop(pick % len(self.held)))

    @rule(number=st.integers(1, 30))
    def hit(self, number: int) -> None:
        for content in self.memory.index.match(TENANT, None, [number, 0], 1):
            self.held.append(self.memory.retain(content))

    @precondition(lambda self: self.held)
    @rule(pick=st.integers(0, 99))
    def pin(self, pick: int) -> None:
        content = self.held[pick % len(self.held)]
        self.memory.pin(content)
        self.pinned.append(content)

    @precondition(lambda self: self.pinned)
    @rule()
    def unpin(self) -> None:
        self.memory.unpin(self.pinned.pop())

    @precondition(lambda self: self.held)
    @rule(pick=st.integers(0, 99))
    def move_out(self, pick: int) -> None:
        content = self.held[pick % len(self.held)]
        if self.memory.can_move_out(content):
            self.memory.move_out(content)

    @precondition(lambda self: self.held)
    @rule(pick=st.integers(0, 99))
    def move_in(self, pick: int) -> None:
        content = self.held[pick % len(self.held)]
        if content.host_block is not None and self.memory.make_room(1, refuse):
            self.memory.swap_in(content)

    @invariant()
    def balances(self) -> None:
        memory = self.memory
        memory.check_invariants([*self.held, *self.pinned])
        known = {id(c): c for c in [*self.held, *self.pinned, *memory.index.contents()]}
        assert memory.device.num_taken == sum(c.block is not None for c in known.values())
        assert memory.host.num_taken == sum(c.host_block is not None for c in known.values())
        lost = [c for c in self.held if c.is_lost]
        assert all(c.canonical for c in lost), "only what can be computed again is dropped"

    def teardown(self) -> None:
        for content in self.pinned:
            self.memory.unpin(content)
        for content in self.held:
            self.memory.release(content)
        assert self.memory.device.num_taken == self.memory.index.num_cached
        assert self.memory.host.num_taken == 0


TestMemory = MemoryMachine.TestCase
TestMemory.settings = settings(
    max_examples=30, stateful_step_count=30, deadline=None, database=None
)
