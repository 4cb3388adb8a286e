"""Blocks: none is lost, aliased or freed twice, whatever the order of retain, release and moves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from quire.control.memory.blocks import LendingPool, NumberPool
from quire.control.memory.content import Content
from quire.control.memory.memory import Memory
from quire.control.memory.operations import OperationList
from quire.control.memory.packed_tokens import pack_tokens
from quire.control.memory.promises import NO_RECLAIM, PromisedBlocks, Reclaim
from quire.control.memory.transfers import Location, Tier
from quire.core.batch import CopySlots, SwapIn, SwapOut
from quire.core.engine_info import EngineInfo, LayerGroup
from quire.core.errors import ConfigError, EngineFault
from quire.core.ids import EngineId, HostBlockId, TenantId
from quire.testing import FakeEngine
from quire.testing.fake_engine import fake_pool

TENANT = TenantId("t")


def make_memory(
    num_blocks: int = 4, num_host_blocks: int = 3, page_size: int = 2, num_disk_blocks: int = 0
) -> Memory:
    pool = fake_pool(
        page_size=page_size,
        num_blocks=num_blocks,
        num_host_blocks=num_host_blocks,
        num_disk_blocks=num_disk_blocks,
    )
    return Memory(EngineId("fake"), FakeEngine(pool).info, OperationList())


def end_all(memory: Memory) -> None:
    memory.end_transfers([transfer.id for transfer in memory.transfers])


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


def test_what_is_lent_is_free_when_it_was_freed_and_given_back() -> None:
    pool = LendingPool(2)
    number = pool.take()
    assert number is not None
    pool.lend(number)
    pool.lend(number)
    pool.give_back(number)
    pool.free(number)
    assert (pool.num_free, pool.is_taken(number), pool.has_holder(number)) == (1, True, False)
    with pytest.raises(AssertionError, match="freed twice"):
        pool.free(number)
    with pytest.raises(AssertionError, match="without a holder"):
        pool.lend(number)
    pool.check_invariants()
    pool.give_back(number)
    assert (pool.num_free, pool.num_freed) == (2, 1)
    pool.check_invariants()


def test_what_is_lent_makes_no_way_and_then_may_again() -> None:
    """Until then it is not counted as room."""
    memory = make_memory(num_blocks=1, num_host_blocks=1)
    (content,) = hold(memory, 1)
    content.canonical, content.tokens = True, [7]
    memory.descent.move_out(content)
    end_all(memory)
    host = memory.host_tier
    block = memory.lend(content)
    assert (host.num_available, list(host.in_order()), host.victim()) == (0, [], None)
    memory.give_back(block)
    assert (host.num_available, list(host.in_order())) == (1, [content])
    assert host.victim() is content


def test_a_lent_content_without_a_holder_is_no_room() -> None:
    memory = make_memory(num_blocks=1, num_host_blocks=1)
    (content,) = hold(memory, 1)
    content.canonical, content.tokens = True, [7, 7]
    content.node = memory.index.child(TENANT, None, content.tokens)
    memory.add_to_index([content])
    memory.descent.move_out(content)
    end_all(memory)
    block = memory.lend(content)
    memory.release(content)
    host = memory.host_tier
    assert (host.num_cached, host.num_available, host.first_cached()) == (1, 0, None)
    memory.give_back(block)
    assert (host.num_available, host.first_cached()) == (1, content)


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
            Memory(EngineId("fake"), EngineInfo(**fields), OperationList())


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
    assert memory.make_room(1, NO_RECLAIM)
    assert memory.index.match(TENANT, None, pack_tokens([2, 2]), 1) == []
    assert memory.index.match(TENANT, None, pack_tokens([1, 1]), 1) == [contents[0]]
    memory.retain(contents[0])
    assert not memory.make_room(2, NO_RECLAIM), "a block that a page means is not evicted"
    memory.check_invariants([contents[0]])


def test_a_full_host_tier_drops_canonical_contents_and_keeps_opaque_ones() -> None:
    memory = make_memory(num_blocks=3, num_host_blocks=1)
    canonical, opaque, other = (memory.retain(Content(None, i == 0)) for i in range(3))
    for content in (canonical, opaque, other):
        memory.bind(content)
    canonical.tokens = [7]
    assert memory.descent.move_out(canonical)
    assert canonical.host_block is not None
    assert not memory.descent.move_out(opaque), "what is under way is not dropped"
    end_all(memory)
    assert memory.descent.move_out(opaque), "the canonical one makes way: its tokens are known"
    assert canonical.is_lost
    assert opaque.host_block is not None
    assert not memory.descent.move_out(other)
    assert other.block is not None


def hold(memory: Memory, num_blocks: int) -> list[Content]:
    """Opaque contents on the device."""
    contents = [memory.retain(Content(None, canonical=False)) for _ in range(num_blocks)]
    for content in contents:
        memory.bind(content)
    return contents


def test_a_content_under_way_is_on_no_tier_and_both_of_its_blocks_are_taken() -> None:
    memory = make_memory(num_blocks=2, num_host_blocks=2)
    (content,) = hold(memory, 1)
    block = content.block
    memory.descent.move_out(content)
    assert (content.block, content.is_moving, content.is_lost) == (None, True, False)
    assert not memory.can_move_out(content)
    assert (memory.device.num_free, memory.host.num_free) == (1, 1)
    (transfer,) = memory.transfers
    assert transfer.source == Location(EngineId("fake"), Tier.DEVICE, block)
    assert transfer.target == Location(EngineId("fake"), Tier.HOST, content.host_block)
    assert memory.statistics().num_transfers == 1
    memory.end_transfers([transfer.id])
    assert (memory.device.num_free, content.is_moving) == (2, False)
    memory.bring(content)
    assert (content.block, memory.device.num_free, memory.host.num_free) == (None, 1, 1)
    end_all(memory)
    assert content.block is not None
    assert memory.host.num_free == 2
    assert (memory.statistics().num_swapped_out, memory.statistics().num_swapped_in) == (1, 1)


@pytest.mark.parametrize("gives_up", [Memory.release, Memory.lose])
def test_what_is_given_up_under_way_keeps_its_blocks_until_the_end(
    gives_up: Callable[[Memory, Content], None],
) -> None:
    memory = make_memory(num_blocks=2, num_host_blocks=2)
    (content,) = hold(memory, 1)
    memory.descent.move_out(content)
    gives_up(memory, content)
    memory.check_invariants([])
    assert (memory.device.num_free, memory.host.num_free) == (1, 1)
    end_all(memory)
    assert (memory.device.num_free, memory.host.num_free) == (2, 2)


def test_the_end_of_what_is_not_under_way_is_a_fault() -> None:
    memory = make_memory()
    (content,) = hold(memory, 1)
    memory.descent.move_out(content)
    end_all(memory)
    with pytest.raises(EngineFault, match="transfer 0, which is not under way"):
        memory.end_transfers([0])


def test_a_lost_engine_ends_no_transfer_and_keeps_no_block() -> None:
    memory = make_memory(num_blocks=3, num_host_blocks=3)
    meant, unmeant = hold(memory, 2)
    memory.descent.move_out(meant)
    memory.descent.move_out(unmeant)
    memory.release(unmeant)
    memory.lose_everything([meant])
    assert meant.is_lost
    assert (memory.device.num_free, memory.host.num_free, len(memory.transfers)) == (3, 3, 0)
    memory.check_invariants([meant])


def test_blocks_that_are_to_become_free_are_kept_for_who_made_them_so() -> None:
    memory = make_memory(num_blocks=4, num_host_blocks=4)
    contents = hold(memory, 3)

    def give_up(num_blocks: int) -> bool:
        for content in [c for c in contents if memory.can_move_out(c)][:num_blocks]:
            memory.descent.move_out(content)
        return True

    def nothing(num_blocks: int) -> bool:
        return False

    claimant, junior, senior = (
        Reclaim((2.0,), give_up),
        Reclaim((3.0,), nothing),
        Reclaim((1.0,), nothing),
    )
    assert not memory.make_room(3, claimant), "two of them are under way"
    assert len(memory.transfers) == 2
    assert not memory.make_room(1, junior), "the free one is promised too"
    assert not memory.make_room(1, NO_RECLAIM)
    assert memory.make_room(1, senior)
    memory.promises.renew()
    end_all(memory)
    assert not memory.make_room(1, junior), "it is kept until its owner has had its turn to ask"
    assert memory.make_room(3, claimant)
    assert memory.make_room(1, junior), "who asked has what it asked for"


def test_a_promise_to_somebody_who_asks_no_more_binds_nobody() -> None:
    promises = PromisedBlocks()
    promises.give((1.0,), 3)
    promises.renew()
    assert promises.ahead_of((2.0,)) == 3
    promises.renew()
    assert (promises.ahead_of((2.0,)), bool(promises)) == (0, False)


def cached(memory: Memory, token: int) -> Content:
    """A content that the index alone means."""
    content = memory.retain(Content(None, canonical=True))
    memory.bind(content)
    content.tokens = [token, token]
    content.node = memory.index.child(TENANT, None, content.tokens)
    memory.add_to_index([content])
    memory.release(content)
    return content


def found(memory: Memory, token: int) -> list[Content]:
    return memory.index.match(TENANT, None, pack_tokens([token, token]), 1)


def test_a_cached_content_moves_to_the_host_and_is_found_there() -> None:
    memory = make_memory(num_blocks=2)
    content = cached(memory, 1)
    assert memory.descent.demote(content)
    assert found(memory, 1) == [content]
    assert (content.is_moving, memory.device.num_free) == (True, 1), "its block is still read"
    end_all(memory)
    assert (content.block, memory.device.num_free) == (None, 2)
    assert memory.statistics().num_host_cached == 1
    assert found(memory, 1) == [content]
    assert memory.index.statistics().num_host_hit_tokens == 4
    memory.retain(content)
    memory.bring(content)
    assert content.block is None, "nobody reads it before its transfer has ended"
    end_all(memory)
    assert (content.block is None, content.host_block) == (False, None)
    memory.release(content)
    assert memory.statistics().num_cached == 1
    memory.check_invariants([])


def test_who_finds_a_content_under_way_to_the_host_keeps_it() -> None:
    memory = make_memory(num_blocks=2, num_host_blocks=1)
    content = cached(memory, 1)
    memory.descent.demote(content)
    memory.retain(content)
    end_all(memory)
    assert not memory.descent.demote(cached(memory, 2)), "the host's one block is held"
    assert not content.is_lost
    memory.release(content)
    assert memory.descent.demote(memory.index.least_recent(1)[0])
    assert content.is_lost
    assert found(memory, 1) == []


def test_a_full_host_drops_what_nobody_holds_first() -> None:
    memory = make_memory(num_blocks=4, num_host_blocks=2)
    held, kept = cached(memory, 1), cached(memory, 2)
    memory.retain(held)
    assert memory.descent.move_out(held)
    assert memory.descent.demote(kept)
    end_all(memory)
    other = memory.retain(Content(None, canonical=False))
    memory.bind(other)
    assert memory.descent.move_out(other), "the held one came first, and stays"
    assert (held.is_lost, kept.is_lost) == (False, True)
    assert found(memory, 2) == []


def test_what_is_offered_goes_first_on_the_host_too() -> None:
    memory = make_memory(num_blocks=4, num_host_blocks=2)
    contents = [cached(memory, token) for token in (1, 2)]
    for content in contents:
        assert memory.descent.demote(content)
    end_all(memory)
    assert contents[1].node is not None
    memory.offer(contents[1].node)
    assert memory.descent.demote(cached(memory, 3))
    assert [content.is_lost for content in contents] == [False, True]


def test_what_the_host_keeps_for_the_index_is_room_for_whoever_waits() -> None:
    memory = make_memory(num_blocks=2, num_host_blocks=1)
    content = cached(memory, 1)
    memory.retain(content)
    memory.descent.move_out(content)
    end_all(memory)
    before = memory.num_changes
    memory.release(content)
    assert memory.num_changes > before
    assert memory.host_tier.num_available == 1


def test_neighbouring_operations_merge_and_dependent_ones_do_not() -> None:
    operations = OperationList()
    operations.swap_out(0, 1, 0)
    operations.copy_slots(4, 8, 2)
    operations.swap_in(1, 2, 3)
    operations.copy_slots(8, 12, 2)
    operations.swap_out(2, 4, 1)
    taken = operations.take()
    assert [type(operation) for operation in taken] == [CopySlots, CopySlots, SwapOut, SwapIn]
    out, back = taken[2:]
    assert (out.transfers.tolist(), out.blocks.tolist(), out.host_blocks.tolist()) == (
        [0, 2],
        [1, 4],
        [0, 1],
    )
    assert (back.transfers.tolist(), back.host_blocks.tolist(), back.blocks.tolist()) == (
        [1],
        [2],
        [3],
    )
    assert not operations.cannot_wait
    assert operations.take() == []


def is_below(content: Content) -> bool:
    """Whether it is on a lower tier and may come back."""
    return not (content.is_lost or content.is_moving or content.block is not None)


def num_using(memory: Memory, tier: Tier) -> int:
    """Blocks of ``tier`` that transfers use."""
    return sum((t.source.tier, t.target.tier).count(tier) for t in memory.transfers)


class MemoryMachine(RuleBasedStateMachine):
    """Pages (references) come and go; contents move between tiers; the pool must balance."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = make_memory(num_blocks=5, num_host_blocks=4, num_disk_blocks=3)
        self.held: list[Content] = []
        self.pinned: list[Content] = []
        self.lent: list[HostBlockId] = []
        self.serial = 0
        self.num_unread = 0

    @rule(canonical=st.booleans(), index=st.booleans())
    def create(self, canonical: bool, index: bool) -> None:
        if not self.memory.make_room(1, NO_RECLAIM):
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
        for content in self.memory.index.match(TENANT, None, pack_tokens([number, 0]), 1):
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
            self.memory.descent.move_out(content)

    @precondition(lambda self: self.memory.index.num_cached)
    @rule(num_contents=st.integers(1, 3), tier=st.sampled_from([Tier.HOST, Tier.DISK]))
    def demote(self, num_contents: int, tier: Tier) -> None:
        held = {id(content) for content in self.held if not content.is_lost}
        for content in self.memory.index.least_recent(num_contents):
            self.memory.descent.demote(content, tier)
        assert not any(c.is_lost for c in self.held if id(c) in held), "a held content was dropped"

    @rule(number=st.integers(1, 30))
    def fetch(self, number: int) -> None:
        for content in self.memory.index.match(TENANT, None, pack_tokens([number, 0]), 1):
            if is_below(content) and self.memory.device.num_free:
                self.memory.bring(content)

    @rule(number=st.integers(1, 30))
    def offer(self, number: int) -> None:
        for content in self.memory.index.match(TENANT, None, pack_tokens([number, 0]), 1):
            assert content.node is not None
            self.memory.offer(content.node)

    @precondition(lambda self: self.held)
    @rule(pick=st.integers(0, 99))
    def move_in(self, pick: int) -> None:
        content = self.held[pick % len(self.held)]
        if is_below(content) and self.memory.make_room(1, NO_RECLAIM):
            self.memory.bring(content)

    @rule(num_contents=st.integers(1, 3))
    def spill(self, num_contents: int) -> None:
        for content in list(self.memory.host_tier.in_order())[:num_contents]:
            self.memory.descent.spill(content)

    @precondition(lambda self: any(self.memory.rests_on_host(c) for c in self.held))
    @rule(pick=st.integers(0, 99))
    def lend(self, pick: int) -> None:
        resting = [content for content in self.held if self.memory.rests_on_host(content)]
        self.lent.append(self.memory.lend(resting[pick % len(resting)]))

    @precondition(lambda self: self.lent)
    @rule(pick=st.integers(0, 99))
    def give_back(self, pick: int) -> None:
        self.memory.give_back(self.lent.pop(pick % len(self.lent)))

    @rule(is_open=st.booleans(), is_worth_it=st.booleans())
    def turn_disk(self, is_open: bool, is_worth_it: bool) -> None:
        self.memory.disk_tier.is_open, self.memory.disk_tier.is_worth_it = is_open, is_worth_it

    @precondition(lambda self: bool(len(self.memory.transfers)))
    @rule(pick=st.integers(0, 99), fails=st.booleans())
    def end_transfer(self, pick: int, fails: bool) -> None:
        transfers = list(self.memory.transfers)
        transfer = transfers[pick % len(transfers)]
        content, failed = transfer.content, [transfer.id] if fails and transfer.uses_disk else []
        self.memory.end_transfers([transfer.id], failed)
        if content is not None and failed and transfer.source.tier is Tier.DISK:
            assert content.is_lost
            self.num_unread += not content.canonical

    @precondition(lambda self: self.held)
    @rule(pick=st.integers(0, 99))
    def lose(self, pick: int) -> None:
        content = self.held[pick % len(self.held)]
        if not content.num_pins and content.canonical:
            self.memory.lose(content)

    @invariant()
    def balances(self) -> None:
        memory = self.memory
        memory.check_invariants([*self.held, *self.pinned])
        known = {id(c): c for c in [*self.held, *self.pinned, *memory.index.contents()]}
        on_device = sum(c.block is not None for c in known.values())
        on_host = sum(c.host_block is not None and not c.is_moving for c in known.values())
        on_disk = sum(c.disk_block is not None and not c.is_moving for c in known.values())
        assert memory.device.num_taken == on_device + num_using(memory, Tier.DEVICE)
        num_left = sum(not memory.host.has_holder(block) for block in set(self.lent))
        assert memory.host.num_taken == on_host + num_using(memory, Tier.HOST) + num_left
        assert memory.host.lent == Counter(self.lent)
        assert memory.disk_tier.pool.num_taken == on_disk + num_using(memory, Tier.DISK)
        lost = {id(c) for c in self.held if c.is_lost and not c.canonical}
        assert len(lost) <= self.num_unread, "what cannot be computed again is dropped"

    def teardown(self) -> None:
        for block in self.lent:
            self.memory.give_back(block)
        for content in self.pinned:
            self.memory.unpin(content)
        for content in self.held:
            self.memory.release(content)
        end_all(self.memory)
        assert self.memory.device.num_taken == self.memory.index.num_cached
        assert self.memory.host.num_taken == self.memory.host_tier.num_cached
        disk = self.memory.disk_tier
        assert disk.pool.num_taken == disk.num_cached
        self.memory.lose_everything([])
        assert (self.memory.device.num_taken, self.memory.host.num_taken) == (0, 0)
        assert disk.pool.num_taken == 0


TestMemory = MemoryMachine.TestCase
TestMemory.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, database=None
)
