"""What is kept for tenants stays within its bytes, and no tenant empties another's."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from quire.core.fair_cache import FairCache


def test_what_was_used_last_stays() -> None:
    cache = FairCache[str, int](20)
    cache.put("ann", b"1", 1, 10)
    cache.put("ann", b"2", 2, 10)
    assert cache.get("ann", b"1") == 1
    cache.put("ann", b"3", 3, 10)
    assert [cache.get("ann", key) for key in (b"1", b"2", b"3")] == [1, None, 3]


def test_whoever_has_most_gives_way() -> None:
    cache = FairCache[str, int](30)
    cache.put("bob", b"1", 1, 10)
    for number in range(5):
        cache.put("ann", bytes([number]), number, 10)
    assert cache.get("bob", b"1") == 1
    assert cache.get("ann", b"\4") == 4


def test_owners_do_not_see_each_other() -> None:
    cache = FairCache[str, int](30)
    cache.put("ann", b"1", 1, 10)
    assert cache.get("bob", b"1") is None


def test_a_value_that_fits_nowhere_is_not_kept_and_empties_nothing() -> None:
    cache = FairCache[str, int](30)
    cache.put("ann", b"1", 1, 10)
    cache.put("ann", b"2", 2, 31)
    assert (cache.get("ann", b"1"), cache.get("ann", b"2"), cache.num_bytes) == (1, None, 10)


STEPS = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(0, 4), st.integers(0, 40), st.booleans()),
    max_size=40,
)


@given(STEPS, st.integers(0, 60))
def test_the_sums_are_right_whatever_comes(
    steps: list[tuple[str, int, int, bool]], limit: int
) -> None:
    cache = FairCache[str, int](limit)
    for owner, number, size, is_put in steps:
        key = bytes([number])
        if is_put:
            cache.put(owner, key, size, size)
            assert cache.get(owner, key) in ((size, None) if size <= limit else (None,))
        else:
            cache.drop(owner, key)
            assert cache.get(owner, key) is None
        cache.check_invariants()
        assert cache.num_bytes <= limit
