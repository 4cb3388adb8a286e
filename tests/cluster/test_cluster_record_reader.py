"""What a router keeps of the records that a node tells, and for how long."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from quire.cluster.nodes.record_reader import ENDED_KEPT_S, NotTold, RecordReader
from quire.core.errors import EngineLost
from quire.core.record_parts import EndedRecord, RecordsWanted, ToldPart, ToldRecords


class Node:
    """Answers each question with the next of ``answers``."""

    name = "node-0"

    def __init__(self) -> None:
        self.answers: deque[Any] = deque()
        self.asked: list[RecordsWanted] = []

    async def ask(self, method: str, path: str, headers: object, body: bytes) -> Any:
        self.asked.append(msgspec.json.decode(body, type=RecordsWanted))
        answer = self.answers.popleft()
        if isinstance(answer, Exception):
            raise answer
        return Exchange(answer)


class Exchange:
    def __init__(self, answer: Any) -> None:
        is_told = isinstance(answer, ToldRecords)
        self._status = 200 if is_told else 409
        self._body = msgspec.msgpack.encode(answer) if is_told else answer

    async def head(self) -> Any:
        return SimpleNamespace(status=self._status)

    async def read_all(self, limit: int) -> bytes:
        return bytes(self._body)

    def __enter__(self) -> Exchange:
        return self

    def __exit__(self, *exc: object) -> None: ...


class World:
    def __init__(self, max_kept_bytes: int = 1000) -> None:
        self.node: Any = Node()
        self.now_s = 0.0
        headers = {"x-quire-cluster-key": "key"}
        self.reader = RecordReader(self.node, headers, "me", lambda: self.now_s, max_kept_bytes)

    async def told(
        self, *parts: ToldPart, feed: str = "f", ended: tuple[EndedRecord, ...] = ()
    ) -> None:
        number = len(self.node.asked) + 1
        self.node.answers.append(ToldRecords(feed, number, list(parts), list(ended)))
        await self.reader.read()

    def kept(self) -> dict[str, list[bytes]]:
        return {id: record.parts for id, record in self.reader.kept.items()}


def part(id: str, text: bytes, *, is_first: bool = False, stays: str | None = None) -> ToldPart:
    return ToldPart(id, text, is_first, stays)


async def test_parts_are_kept_in_order_and_acknowledged() -> None:
    w = World()
    await w.told(part("a", b"1", is_first=True), part("b", b"x", is_first=True))
    await w.told(part("a", b"2"))
    assert w.kept() == {"a": [b"1", b"2"], "b": [b"x"]}
    await w.told(part("a", b"anew", is_first=True))
    assert w.kept() == {"a": [b"anew"], "b": [b"x"]}
    assert [(one.reader, one.feed, one.number) for one in w.node.asked] == [
        ("me", "", 0),
        ("me", "f", 1),
        ("me", "f", 2),
    ]


async def test_what_ended_is_kept_for_a_while_and_what_may_be_lost_is_not() -> None:
    w = World()
    await w.told(*(part(id, b"1", is_first=True) for id in "abc"))
    await w.told(ended=(EndedRecord("a", False), EndedRecord("b", True), EndedRecord("z", True)))
    assert set(w.kept()) == {"a", "c"}
    w.now_s = ENDED_KEPT_S
    await w.told()
    assert set(w.kept()) == {"a", "c"}
    w.now_s += 1
    await w.told()
    assert set(w.kept()) == {"c"}


async def test_a_node_that_begins_a_new_life_leaves_its_programs() -> None:
    w = World()
    await w.told(part("a", b"1", is_first=True))
    await w.told(part("b", b"1", is_first=True), feed="another")
    assert set(w.kept()) == {"b"}
    assert w.reader.orphans["a"].parts == [b"1"]
    w.reader.let_go("a", is_elsewhere=True)
    assert w.reader.orphans == {}
    await w.told(feed="another")
    assert w.node.asked[-1].gone == ["a"]
    await w.told(feed="another")
    assert w.node.asked[-1].gone == [], "it has been told"


async def test_a_node_that_comes_back_has_its_programs() -> None:
    w = World()
    await w.told(part("a", b"1", is_first=True), part("b", b"1", is_first=True))
    w.reader.lose()
    w.reader.lose()
    assert set(w.reader.orphans) == {"a", "b"}
    w.reader.let_go("b", is_elsewhere=True)
    w.node.answers.append(EngineLost("it is silent"))
    with pytest.raises(EngineLost):
        await w.reader.read()
    assert set(w.reader.orphans) == {"a"}
    await w.told(part("a", b"2"))
    assert w.kept() == {"a": [b"1", b"2"]}
    assert w.node.asked[-1].gone == ["b"], "the question that was lost has told nobody"


async def test_what_is_too_much_is_given_up_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    w = World(max_kept_bytes=10)
    await w.told(part("a", b"1234", is_first=True), part("b", b"1234", is_first=True))
    await w.told(part("a", b"567"))
    assert w.kept() == {"a": [], "b": [b"1234"]}
    assert "keeps at most" in (w.reader.kept["a"].stays or "")
    assert "program a is lost if its node node-0 is" in caplog.text
    await w.told(part("a", b"8"), part("b", b"5678"))
    assert w.kept() == {"a": [], "b": [b"1234", b"5678"]}, "its bytes are free"
    await w.told(ended=(EndedRecord("b", True),))
    await w.told(part("c", b"123456789", is_first=True))
    assert w.kept()["c"] == [b"123456789"]


async def test_why_one_stays_takes_the_place_of_its_parts() -> None:
    w = World(max_kept_bytes=4)
    await w.told(part("a", b"1234", is_first=True))
    await w.told(part("a", b"", is_first=True, stays="it has children"))
    assert (w.kept(), w.reader.kept["a"].stays) == ({"a": []}, "it has children")
    await w.told(part("b", b"1234", is_first=True))
    assert w.kept()["b"] == [b"1234"]


async def test_a_node_that_refuses_says_why() -> None:
    w = World()
    await w.told()
    assert w.reader.is_told
    w.node.answers.append(b'{"error": {"message": "another router keeps the records"}}')
    with pytest.raises(NotTold, match="409: another router"):
        await w.reader.read()
    assert not w.reader.is_told
