"""The trait Search: bounds, errors, and what a program sees of an engine."""

from __future__ import annotations

from typing import Any

import pytest

from quire.core.errors import ProgramFailed, TraitMissing
from quire.programs.search import SearchResult, service
from quire.testing import LocalNode


class Echo:
    """Finds each query itself, ``top_k`` times."""

    name, at_once = "echo", 1

    async def search(self, query: str, top_k: int) -> list[SearchResult]:
        return [SearchResult(f"T{n}", f"a/{n}", query, 1 / (n + 1)) for n in range(top_k)]

    async def close(self) -> None:
        """Nothing is held."""


async def test_a_program_searches_for_several_queries_at_once() -> None:
    async def main(api: Any) -> Any:
        assert await api.available_search() == "echo"
        one, two = await api.search(["a b", "c"], 2)
        default = await api.search(["d"])
        return [
            [(hit.title, hit.address, hit.text, hit.score) for hit in (*one, *two)],
            len(default[0]),
        ]

    async with LocalNode(search=Echo()) as local:
        assert await local.run(main) == [
            [
                ("T0", "a/0", "a b", 1.0), ("T1", "a/1", "a b", 0.5),
                ("T0", "a/0", "c", 1.0), ("T1", "a/1", "c", 0.5),
            ],
            4,
        ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([],), "0 queries; give 1 to 2 in one call"),
        ((["a"] * 3,), "3 queries; give 1 to 2 in one call"),
        ((["a", " \t"],), r"queries\[1\] is empty: give words to search for"),
        ((["four."],), r"queries\[0\] has 5 characters; at most 4 are searched for: shorten"),
        ((["a"], 0), "top_k is 0: give 1 to 64"),
        ((["a"], 65), "top_k is 65: give 1 to 64"),
        ((["a"], "3"), r"top_k is '3': give int\('3'\)"),
        (("a",), "queries must be a list of texts, not one text"),
        (([1],), "Expected `str`, got `int`"),
    ],
)
async def test_what_cannot_be_searched_for_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, arguments: tuple[Any, ...], message: str
) -> None:
    for name, most in [("MAX_QUERIES", 2), ("MAX_QUERY_CHARS", 4)]:
        monkeypatch.setattr(service, name, most)

    async def main(api: Any) -> None:
        await api.search(*arguments)

    async with LocalNode(search=Echo()) as local:
        with pytest.raises(ProgramFailed, match=f"raised InvalidArgument: .*{message}"):
            await local.run(main)


async def test_without_an_engine_a_program_is_told_so() -> None:
    async def main(api: Any) -> None:
        assert await api.available_search() is None
        with pytest.raises(TraitMissing, match="this node has no search engine"):
            await api.search(["a"])

    async with LocalNode() as local:
        await local.run(main)
