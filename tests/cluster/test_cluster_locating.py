"""Which node a stored thing or a program is found at."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from quire.cluster.requests.locating import Locator

PATH = "/v1/programs/prog-1"


class Node:
    """Has everything that it is asked for."""

    def __init__(self, name: str) -> None:
        self.name, self.num_asked = name, 0
        self.liveness = SimpleNamespace(is_gone=False, is_alive=True)

    async def ask(self, *asked: object) -> Node:
        self.num_asked += 1
        return self

    async def head(self) -> Any:
        return SimpleNamespace(status=200)

    def __enter__(self) -> Node:
        return self

    def __exit__(self, *exc: object) -> None: ...


async def test_what_was_found_is_remembered_until_it_is_out_of_date_there() -> None:
    old, new = Node("old"), Node("new")
    nodes: Any = [old, new]
    stale = set[str]()
    locator = Locator(lambda: nodes, lambda path: stale if path == PATH else ())
    for _ in range(2):
        assert await locator.find([PATH], []) is nodes[0]
    assert (old.num_asked, new.num_asked) == (1, 1)
    stale.add("old")
    assert await locator.find([PATH], []) is nodes[1]
    assert old.num_asked == 1
    assert await locator.find(["/v1/programs/another"], []) is nodes[0]
