"""The store's table against a dictionary: values, times to live, quotas."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from quire.core.errors import QuotaExceeded
from quire.core.ids import TenantId
from quire.programs.services.store_table import EntryPlace, StoreLimits, StoreTable

LIMITS = StoreLimits(max_bytes=40, max_keys=4)
PLACES = st.builds(
    EntryPlace,
    st.sampled_from([TenantId("one"), TenantId("two")]),
    st.sampled_from(["value", "blob"]),
    st.sampled_from(["s", "t"]),
    st.sampled_from(["a", "aa", "b"]),
)
CONTENTS = st.binary(max_size=16)
TTLS = st.sampled_from([None, 1.0, 5.0])


class StoreMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.table = StoreTable(None, LIMITS)
        self.now_s = 0.0
        self.model: dict[EntryPlace, tuple[bytes, float | None]] = {}

    def expire(self) -> None:
        self.model = {
            place: entry
            for place, entry in self.model.items()
            if entry[1] is None or entry[1] > self.now_s
        }

    def fits(self, place: EntryPlace, content: bytes) -> bool:
        self.expire()
        after = {**self.model, place: (content, None)}
        mine = [(p, c) for p, (c, _) in after.items() if p.tenant == place.tenant]
        num_bytes = sum(len(c) + len(p.key) for p, c in mine)
        return num_bytes <= LIMITS.max_bytes and len(mine) <= LIMITS.max_keys

    @rule(place=PLACES, content=CONTENTS, ttl_s=TTLS)
    def put(self, place: EntryPlace, content: bytes, ttl_s: float | None) -> None:
        if self.fits(place, content):
            self.table.put(place, content, ttl_s, self.now_s)
            self.model[place] = content, None if ttl_s is None else self.now_s + ttl_s
        else:
            with pytest.raises(QuotaExceeded):
                self.table.put(place, content, ttl_s, self.now_s)

    @rule(place=PLACES)
    def delete(self, place: EntryPlace) -> None:
        self.expire()
        assert self.table.delete(place, self.now_s) == (self.model.pop(place, None) is not None)

    @rule(place=PLACES, guess=st.one_of(st.none(), CONTENTS), right=st.booleans())
    def compare_and_set(self, place: EntryPlace, guess: bytes | None, right: bool) -> None:
        self.expire()
        held = self.model.get(place, (None, None))[0]
        expected = held if right else guess
        done = self.table.compare_and_set(place, expected, None, None, self.now_s)
        assert done == (expected == held)
        if done:
            self.model.pop(place, None)

    @rule(seconds=st.sampled_from([0.5, 1.0, 5.0]))
    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds

    @rule(place=PLACES, prefix=st.sampled_from(["", "a", "b"]), limit=st.integers(1, 3))
    def list_keys(self, place: EntryPlace, prefix: str, limit: int) -> None:
        self.expire()
        keys = sorted(
            p.key
            for p in self.model
            if (p.tenant, p.kind, p.store) == (place.tenant, place.kind, place.store)
            and p.key.startswith(prefix)
        )
        found = self.table.keys(
            place.tenant, place.kind, place.store, prefix, "", limit, self.now_s
        )
        assert found == keys[:limit]

    @invariant()
    def every_value_is_there(self) -> None:
        self.expire()
        for place, (content, _) in self.model.items():
            assert self.table.get(place, self.now_s) == content

    def teardown(self) -> None:
        self.table.close()


TestStoreMachine = StoreMachine.TestCase
