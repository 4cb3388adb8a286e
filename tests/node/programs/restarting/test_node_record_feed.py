"""What a node tells of its programs' records, and what waits until a reader has it."""

from __future__ import annotations

import asyncio

import pytest

from quire.core.errors import AlreadyExists
from quire.core.record_parts import EndedRecord, RecordsWanted, ToldPart, ToldRecords
from quire.node.programs.restarting import record_feed
from quire.node.programs.restarting.record_feed import RecordFeed
from quire.node.programs.restarting.told_family import ToldFamily


class Record(ToldFamily):
    """Tells ``news`` one after another."""

    def __init__(self, id: str) -> None:
        self.id = id
        self.news: list[bytes] = [b"begin"]
        self.stays = None
        self._num_told = 0

    def anew(self) -> None:
        self._num_told = 0

    @property
    def is_first(self) -> bool:  # type: ignore[override]
        return self._num_told == 0

    def part(self) -> ToldPart | None:
        if self.stays is not None:
            return ToldPart(self.id, b"", is_first=True, stays=self.stays)
        if self._num_told == len(self.news):
            return None
        told = ToldPart(self.id, b" ".join(self.news[self._num_told :]), self.is_first)
        self._num_told = len(self.news)
        return told


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Reader:
    def __init__(self, feed: RecordFeed, name: str = "router") -> None:
        self.feed, self.name = feed, name
        self.last = ToldRecords("", 0, [], [])

    async def read(self) -> dict[str, bytes]:
        """The parts of the next answer."""
        asked = RecordsWanted(self.name, self.last.feed, self.last.number)
        self.last = await self.feed.read(asked)
        return {one.id: one.part for one in self.last.parts}


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def feed(clock: Clock) -> RecordFeed:
    """It looks at everything with each question, and answers at once."""
    return RecordFeed(clock, silent_s=10.0, poll_s=0.0, interval_s=0.0)


async def waiting(feed: RecordFeed, record: Record) -> asyncio.Task[None]:
    task = asyncio.create_task(feed.kept(record))
    await asyncio.sleep(0)
    return task


async def is_done(task: asyncio.Task[None]) -> bool:
    for _ in range(10):
        await asyncio.sleep(0)
    return task.done()


async def test_what_was_told_waits_for_the_next_question(feed: RecordFeed) -> None:
    reader, record = Reader(feed), Record("a")
    feed.add(record)
    assert await reader.read() == {"a": b"begin"}
    record.news.append(b"more")
    task = await waiting(feed, record)
    assert await reader.read() == {"a": b"more"}
    assert not await is_done(task), "the reader may not have it yet"
    assert await reader.read() == {}
    assert await is_done(task)


async def test_what_the_reader_has_waits_for_nothing_more(feed: RecordFeed) -> None:
    reader, record = Reader(feed), Record("a")
    feed.add(record)
    await reader.read()
    await reader.read()
    task = await waiting(feed, record)
    await reader.read()
    assert await is_done(task)


async def test_an_answer_that_was_lost_is_told_again(feed: RecordFeed) -> None:
    reader, record = Reader(feed), Record("a")
    feed.add(record)
    await reader.read()
    record.news.append(b"more")
    task = await waiting(feed, record)
    before = reader.last
    await reader.read()
    reader.last = before
    assert await reader.read() == {"a": b"begin more"}
    assert reader.last.parts[0].is_first
    assert not await is_done(task)
    await reader.read()
    assert await is_done(task)


async def test_there_is_one_reader_until_it_is_silent(feed: RecordFeed, clock: Clock) -> None:
    reader, other, record = Reader(feed), Reader(feed, "another"), Record("a")
    feed.add(record)
    await reader.read()
    with pytest.raises(AlreadyExists, match="another router"):
        await other.read()
    task = await waiting(feed, record)
    clock.now_s = 10.0
    assert await other.read() == {"a": b"begin"}
    assert not await is_done(task), "the other one keeps it now"
    await other.read()
    assert await is_done(task)
    with pytest.raises(AlreadyExists):
        await reader.read()


async def test_without_a_reader_nothing_waits(feed: RecordFeed, clock: Clock) -> None:
    record = Record("a")
    feed.add(record)
    assert await is_done(await waiting(feed, record))
    reader = Reader(feed)
    await reader.read()
    assert not await is_done(task := await waiting(feed, record))
    feed.close()
    assert await is_done(task)


async def test_a_reader_that_is_gone_is_waited_for_no_longer(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    feed = RecordFeed(clock, silent_s=0.01, poll_s=0.0, interval_s=0.0)
    record = Record("a")
    feed.add(record)
    await Reader(feed).read()
    await asyncio.wait_for(feed.kept(record), 100)
    assert "program a goes on" in caplog.text


async def test_the_end_of_what_was_told_is_told_until_it_is_acknowledged(feed: RecordFeed) -> None:
    reader, record, unheard = Reader(feed), Record("a"), Record("b")
    feed.add(record)
    await reader.read()
    feed.add(unheard)
    task = await waiting(feed, record)
    feed.end(unheard, may_be_lost=False)
    feed.end(record, may_be_lost=True)
    feed.end(record, may_be_lost=False)
    assert await is_done(task)
    before = reader.last
    for _ in range(2):
        reader.last = before  # the answer to the first question does not arrive
        await reader.read()
        assert reader.last.ended == [EndedRecord("a", may_be_lost=True)]
    await reader.read()
    assert reader.last.ended == []


async def test_why_a_program_stays_is_told_once(feed: RecordFeed) -> None:
    reader, record = Reader(feed), Record("a")
    record.stays = "it has children"
    await reader.read()
    feed.add(record)
    task = await waiting(feed, record)
    assert not await is_done(task), "its launch is answered when the reader can say why"
    await reader.read()
    assert [(one.id, one.stays) for one in reader.last.parts] == [("a", "it has children")]
    assert await is_done(task)
    assert await is_done(await waiting(feed, record)), "it is lost anyway"
    assert await reader.read() == {}
    other = Reader(feed, "another")
    feed._heard_s = -100.0
    assert list(await other.read()) == ["a"]


async def test_one_that_stayed_for_a_while_is_kept_again(feed: RecordFeed) -> None:
    reader, record = Reader(feed), Record("a")
    await reader.read()
    feed.add(record)
    record.stays = "a child of it stays"
    await reader.read()
    assert await is_done(await waiting(feed, record))
    record.stays = None  # the child has ended
    task = await waiting(feed, record)
    assert await reader.read() == {"a": b"begin"}
    assert not await is_done(task)
    await reader.read()
    assert await is_done(task)
    record.stays = "another child stays"
    await reader.read()
    assert [one.stays for one in reader.last.parts] == ["another child stays"]


async def test_much_comes_in_several_answers(
    feed: RecordFeed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_feed, "_MAX_ANSWER_BYTES", 4)
    reader = Reader(feed)
    records = [Record("a"), Record("b")]
    for record in records:
        feed.add(record)
    await reader.read()
    await reader.read()
    tasks = []
    for record in records:
        record.news.append(b"more")
        tasks.append(await waiting(feed, record))
    assert await reader.read() == {"a": b"more"}
    assert await reader.read() == {"b": b"more"}
    assert [await is_done(task) for task in tasks] == [True, False]
    await reader.read()
    assert await is_done(tasks[1])


async def test_those_that_wait_are_told_between_two_looks_at_all(clock: Clock) -> None:
    feed = RecordFeed(clock, silent_s=10.0, poll_s=0.0, interval_s=1.0)
    reader, quick, slow = Reader(feed), Record("quick"), Record("slow")
    feed.add(quick)
    feed.add(slow)
    await reader.read()
    for record in (quick, slow):
        record.news.append(b"more")
    task = await waiting(feed, quick)
    assert await reader.read() == {"quick": b"more"}
    clock.now_s = 1.0
    assert await reader.read() == {"slow": b"more"}
    assert await is_done(task)


async def test_a_question_waits_for_news(clock: Clock) -> None:
    feed = RecordFeed(clock, silent_s=10.0, poll_s=1000.0, interval_s=1000.0)
    reader, record = Reader(feed), Record("a")
    feed.add(record)
    await reader.read()
    asking = asyncio.create_task(reader.read())
    await asyncio.sleep(0)
    record.news.append(b"more")
    await waiting(feed, record)
    assert await asyncio.wait_for(asking, 100) == {"a": b"more"}
    asking = asyncio.create_task(reader.read())
    await asyncio.sleep(0)
    feed.end(record, may_be_lost=False)
    await asyncio.wait_for(asking, 100)
    assert reader.last.ended == [EndedRecord("a", may_be_lost=False)]


async def test_who_asks_again_does_not_wait_for_its_earlier_question(clock: Clock) -> None:
    feed = RecordFeed(clock, silent_s=10.0, poll_s=1000.0, interval_s=1000.0)
    reader = Reader(feed)
    first = asyncio.create_task(reader.read())
    await asyncio.sleep(0)
    again = Reader(feed)
    second = asyncio.create_task(again.read())
    await asyncio.sleep(0)
    record = Record("a")
    feed.add(record)
    await waiting(feed, record)
    with pytest.raises(AlreadyExists, match="asked again"):
        await asyncio.wait_for(first, 100)
    assert await asyncio.wait_for(second, 100) == {"a": b"begin"}


async def test_after_a_reader_that_has_left_another_one_may_follow_at_once(
    feed: RecordFeed,
) -> None:
    reader, other, record = Reader(feed), Reader(feed, "another"), Record("a")
    feed.add(record)
    await reader.read()
    feed.leave("another")
    with pytest.raises(AlreadyExists):
        await other.read()
    feed.leave("router")
    assert not await is_done(task := await waiting(feed, record)), "it may come back"
    assert await other.read() == {"a": b"begin"}
    with pytest.raises(AlreadyExists):
        await reader.read()
    await other.read()
    assert await is_done(task)


class SlowRecord(Record):
    """To look at it takes 1 ms of the clock."""

    def __init__(self, id: str, clock: Clock) -> None:
        super().__init__(id)
        self.clock, self.num_looks = clock, 0

    def part(self) -> ToldPart | None:
        self.num_looks += 1
        self.clock.now_s += 0.001
        return super().part()


@pytest.mark.parametrize(("num_records", "pause_s"), [(10, 0.25), (100, 2.0)])
async def test_looks_at_many_programs_are_rarer(num_records: int, pause_s: float) -> None:
    """They take a twentieth of the time at most."""
    clock = Clock()
    feed = RecordFeed(clock, silent_s=1000.0, poll_s=0.0, interval_s=0.25)
    records = [SlowRecord(str(number), clock) for number in range(num_records)]
    for record in records:
        feed.add(record)
    reader = Reader(feed)
    assert len(await reader.read()) == num_records
    begun_s = clock.now_s - num_records / 1000
    for after_s, num_looks in ((0.99, 1), (1.01, 2)):
        clock.now_s = begun_s + after_s * pause_s
        await reader.read()
        assert {record.num_looks for record in records} == {num_looks}
