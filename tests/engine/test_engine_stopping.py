"""Stop strings in a growing output, for any token boundaries."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.engine.stopping import ByteStopMatcher


def pushed(matcher: ByteStopMatcher, tokens: list[bytes]) -> list[int | None]:
    return [matcher.push(token) for token in tokens]


def splits(text: bytes) -> list[list[bytes]]:
    """Every way to cut ``text`` into tokens."""
    found = []
    for count in range(len(text)):
        for cuts in combinations(range(1, len(text)), count):
            places = [0, *cuts, len(text)]
            found.append([text[a:b] for a, b in pairwise(places)])
    return found


@pytest.mark.parametrize("strings", [(b"stop",), (b"XX", b"stop"), (b"stop", b"much longer")])
def test_a_string_over_any_boundaries_is_found_with_its_last_byte(
    strings: tuple[bytes, ...],
) -> None:
    wanted = strings.index(b"stop")
    for tokens in splits(b"a stop"):
        found = pushed(ByteStopMatcher(strings), tokens)
        assert found == [None] * (len(tokens) - 1) + [wanted], tokens


def test_the_string_that_ends_first_counts_and_of_two_the_first_named() -> None:
    assert ByteStopMatcher((b"abcd", b"bc")).push(b"abcd") == 1
    assert ByteStopMatcher((b"cd", b"abcd", b"d")).push(b"abcd") == 0
    assert ByteStopMatcher((b"xyz", b"b", b"a")).push(b"ab") == 2


def test_an_incomplete_stop_string_does_not_end_the_output() -> None:
    matcher = ByteStopMatcher((b"aab", b"b c"))
    assert pushed(matcher, [b"a", b"", b"ab"]) == [None, None, 0]
    assert pushed(ByteStopMatcher((b"aab",)), [b"ab", b"a", b"b"]) == [None, None, None]


def test_one_byte_needs_nothing_kept() -> None:
    matcher = ByteStopMatcher((b"\n",))
    assert pushed(matcher, [b"a line", b" and more", b"", b"end\n"]) == [None, None, None, 0]
    assert matcher._tail == b""


def test_no_more_is_kept_than_the_longest_string_needs() -> None:
    matcher = ByteStopMatcher((b"abc", b"z"))
    matcher.push(b"x" * 1000)
    assert matcher._tail == b"xx"


@given(
    st.lists(st.text("ab", min_size=1, max_size=4).map(str.encode), min_size=1, max_size=3),
    st.lists(st.text("ab", max_size=3).map(str.encode), max_size=8),
)
def test_it_finds_what_a_search_in_the_whole_output_finds(
    strings: list[bytes], tokens: list[bytes]
) -> None:
    matcher, output = ByteStopMatcher(strings), b""
    for token in tokens:
        output += token
        ends = [
            (output.find(string) + len(string), index)
            for index, string in enumerate(strings)
            if string in output
        ]
        found = matcher.push(token)
        assert found == (min(ends)[1] if ends else None)
        if found is not None:
            return


def test_a_string_that_has_ended_before_is_not_found_again() -> None:
    """An output that goes on behind a stop string, of which an earlier command has taken note."""
    matcher = ByteStopMatcher((b"ab", b"a much longer string"))
    assert pushed(matcher, [b"ab", b"c", b"a", b"b"]) == [0, None, None, 0]


@pytest.mark.parametrize("before", [[], [b""], [b"x", b"st"], [b"long before ", b"", b"s", b"t"]])
def test_behind_an_output_it_goes_on_as_if_it_had_seen_it(before: list[bytes]) -> None:
    behind, seen = ByteStopMatcher((b"stop", b"p!")), ByteStopMatcher((b"stop", b"p!"))
    behind.follow(reversed(before))
    pushed(seen, before)
    assert behind._tail == seen._tail
    assert pushed(behind, [b"o", b"p"]) == pushed(seen, [b"o", b"p"])


def test_of_an_output_no_more_is_taken_than_a_string_could_begin_in() -> None:
    taken = 0

    def latest_first() -> Iterator[bytes]:
        nonlocal taken
        while True:
            taken += 1
            yield b"ab"

    matcher = ByteStopMatcher((b"abcdef",))
    matcher.follow(latest_first())
    assert matcher._tail == b"babab"
    assert taken == 4
