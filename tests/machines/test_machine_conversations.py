"""Stored conversations against a list in the order of use: bounds, ages and late answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from quire.core.errors import NeverWithinQuota, UnknownHandle
from quire.core.ids import TenantId
from quire.server.responses.conversations import (
    ConversationLimits,
    ConversationStore,
    StoredConversation,
)

TENANTS = st.sampled_from([TenantId("one"), TenantId("two")])
PICKS = st.integers(0, 1 << 8)
NUM_ITEMS = st.integers(0, 3)
ITEM_BYTES = 1024 + len(b'{"id":"item-000"}')
TTL_S = 10.0
MAX_CONVERSATIONS, MAX_ITEMS, MAX_STORED = 3, 4, 7
LIMITS = ConversationLimits(TTL_S, MAX_CONVERSATIONS, MAX_ITEMS, MAX_STORED * ITEM_BYTES)


@dataclass(eq=False)
class Known:
    """A conversation as it must be; ``is_stored`` until it is deleted, dropped or too old."""

    entry: StoredConversation
    used_s: float
    items: list[dict[str, Any]] = field(default_factory=list)
    is_stored: bool = True


class ConversationsMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.store = ConversationStore(LIMITS, lambda: self.now_s, lambda: 1e9)
        self.known: list[Known] = []
        """The least recently used first."""
        self.num_items = 0

    def made(self, count: int) -> list[dict[str, Any]]:
        self.num_items += count
        return [{"id": f"item-{self.num_items - one:03}"} for one in range(count)]

    def stored(self, tenant: TenantId) -> list[Known]:
        return [one for one in self.known if one.is_stored and one.entry.tenant == tenant]

    def grown(self, one: Known, items: list[dict[str, Any]]) -> None:
        one.items += items
        one.used_s = self.now_s
        self.known.remove(one)
        self.known.append(one)
        for other in self.stored(one.entry.tenant)[:-1]:
            own = self.stored(one.entry.tenant)
            num_items = sum(len(each.items) for each in own)
            other.is_stored = len(own) <= MAX_CONVERSATIONS and num_items <= MAX_STORED

    def got(self, pick: int) -> Known | None:
        """As a request for it does: what is too old goes, of every tenant."""
        if not self.known:
            return None
        for one in self.known:
            one.is_stored = one.is_stored and one.used_s > self.now_s - TTL_S
        one = self.known[pick % len(self.known)]
        if not one.is_stored:
            with pytest.raises(UnknownHandle):
                self.store.get(one.entry.tenant, one.entry.id)
            return None
        assert self.store.get(one.entry.tenant, one.entry.id) is one.entry
        one.used_s = self.now_s
        self.known.remove(one)
        self.known.append(one)
        return one

    @rule(tenant=TENANTS, count=NUM_ITEMS)
    def create(self, tenant: TenantId, count: int) -> None:
        items = self.made(count)
        one = Known(self.store.create(tenant, {}, items), self.now_s)
        self.known.append(one)
        self.grown(one, items)

    @rule(pick=PICKS, count=NUM_ITEMS)
    def add(self, pick: int, count: int) -> None:
        if one := self.got(pick):
            items = self.made(count)
            if len(one.items) + count > MAX_ITEMS:
                with pytest.raises(NeverWithinQuota):
                    self.store.add(one.entry, items)
            else:
                self.store.add(one.entry, items)
                self.grown(one, items)

    @precondition(lambda self: self.known)
    @rule(pick=PICKS, count=NUM_ITEMS)
    def answer(self, pick: int, count: int) -> None:
        """A response ends that began when the conversation was there."""
        one, items = self.known[pick % len(self.known)], self.made(count)
        self.store.grow(one.entry, items)
        if one.is_stored:
            self.grown(one, items)

    @rule(pick=PICKS, which=PICKS)
    def remove(self, pick: int, which: int) -> None:
        one = self.got(pick)
        if one and one.items:
            item = one.items.pop(which % len(one.items))
            self.store.remove(one.entry, item["id"])
            with pytest.raises(UnknownHandle):
                self.store.remove(one.entry, item["id"])

    @rule(pick=PICKS)
    def delete(self, pick: int) -> None:
        if one := self.got(pick):
            self.store.delete(one.entry)
            one.is_stored = False

    @rule(pick=PICKS)
    def ask_as_another(self, pick: int) -> None:
        if one := self.got(pick):
            for tenant in {TenantId("one"), TenantId("two")} - {one.entry.tenant}:
                with pytest.raises(UnknownHandle):
                    self.store.get(tenant, one.entry.id)

    @rule(seconds=st.sampled_from([0.5, 4.0, 10.0]))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    @invariant()
    def what_is_stored_is_what_was_said(self) -> None:
        for one in self.known:
            if one.is_stored:
                assert one.entry.items == one.items
                assert one.entry.num_bytes == len(one.items) * ITEM_BYTES


TestConversationsMachine = ConversationsMachine.TestCase
