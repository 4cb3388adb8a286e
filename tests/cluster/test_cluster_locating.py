"""Which node a stored thing or a program is found at."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from quire.cluster.requests.locating import Locator
from quire.core.errors import EngineLost

PATH = "/v1/programs/prog-1"


class Node:
    """Answers every request with ``status``."""

    def __init__(self, name: str, status: int = 200) -> None:
        self.name, self.status, self.num_asked = name, status, 0
        self.liveness = SimpleNamespace(is_gone=False, is_alive=True)

    async def ask(self, *asked: object) -> Node:
        self.num_asked += 1
        return self

    async def head(self) -> Any:
        return SimpleNamespace(status=self.status)

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


async def test_a_node_that_does_not_answer_the_question_may_have_it() -> None:
    nodes: Any = [Node("without", 404), Node("loading", 503)]
    locator = Locator(lambda: nodes)
    with pytest.raises(EngineLost, match=r"no node that answers has 'prog-1', and loading cannot"):
        await locator.find([PATH], [])
    nodes[1].status = 404
    assert await locator.find([PATH], []) is None


class SilentNode(Node):
    """Answers nothing. ``left``: it was asked, and nobody waits for its answer any more."""

    left = False

    async def ask(self, *asked: object) -> Node:
        await super().ask()
        try:
            await asyncio.Event().wait()
        finally:
            self.left = True
        return self


async def test_what_one_node_has_is_found_before_a_silent_node_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("quire.cluster.requests.locating._TIMEOUT_S", 3600.0)
    silent = SilentNode("silent")
    nodes: Any = [silent, Node("without", 404), Node("with")]
    assert await Locator(lambda: nodes).find([PATH], []) is nodes[2]
    assert (silent.num_asked, silent.left) == (1, True)
