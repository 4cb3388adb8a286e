"""What a node keeps of queries: by tenant, for a time, within bounds."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from pathlib import Path

import pytest
from kept_api import Clock, KeptApi

from quire.core.errors import (
    CapacityError,
    ConfigError,
    InvalidArgument,
    QuotaExceeded,
    UnknownHandle,
)
from quire.core.ids import TenantId
from quire.core.kept_queries_config import KeptQueriesConfig
from quire.programs.workflow.durable import KeptQueries, QueryPlace, kept_queries
from quire.programs.workflow.durable.query_file import FRAME_BYTES


def place(key: str = "a", tenant: str = "one", workflow: str = "rag") -> QueryPlace:
    return QueryPlace(TenantId(tenant), workflow, key)


def kept(directory: Path, clock: Clock | None = None, **config: float) -> KeptQueries:
    return KeptQueries(directory, KeptQueriesConfig(**config), clock or Clock())  # type: ignore[arg-type]


def ask(queries: KeptQueries, where: QueryPlace, *frames: bytes, finish: bool = False) -> None:
    opened = queries.open(where)
    try:
        for frame in frames:
            opened.append(frame)
        if finish:
            opened.finish([b"results"])
    finally:
        opened.close()


def frames(queries: KeptQueries, where: QueryPlace) -> list[bytes]:
    opened = queries.open(where)
    opened.close()
    return list(opened.frames)


def test_a_query_is_of_its_tenant_and_workflow(tmp_path: Path) -> None:
    queries = kept(tmp_path)
    ask(queries, place(), b"mine")
    assert frames(kept(tmp_path), place()) == [b"mine"]
    for other in (place("b"), place(tenant="two"), place(workflow="rag2")):
        assert frames(queries, other) == []


def test_a_finished_query_keeps_its_results_alone(tmp_path: Path) -> None:
    queries = kept(tmp_path)
    ask(queries, place(), b"x" * 10_000, finish=True)
    assert frames(queries, place()) == [b"results"]
    (path,) = [one for one in tmp_path.rglob("*") if one.is_file()]
    assert path.stat().st_size < 100


def test_a_crash_between_the_results_and_the_end_of_the_values_loses_nothing(
    tmp_path: Path,
) -> None:
    queries = kept(tmp_path)
    ask(queries, place(), b"values", finish=True)
    (path,) = [one for one in tmp_path.rglob("*") if one.is_file()]
    path.with_suffix(".query").write_bytes(b"quire query 1\n")
    assert frames(queries, place()) == [b"results"]
    assert not path.with_suffix(".query").exists()


def test_what_does_nothing_expires(tmp_path: Path) -> None:
    clock = Clock()
    queries = kept(tmp_path, clock, ttl_s=100)
    ask(queries, place("a"), b"frame")
    ask(queries, place("b"), b"frame", finish=True)
    clock.now_s += 60
    ask(queries, place("a"), b"again")
    clock.now_s += 60
    assert frames(queries, place("a")) == [b"frame", b"again"]
    assert frames(queries, place("b")) == []
    clock.now_s += 200
    queries.drop_expired()
    assert not [one for one in tmp_path.rglob("*") if one.is_file()]


def test_a_query_that_is_being_answered_does_not_expire(tmp_path: Path) -> None:
    clock = Clock()
    queries = kept(tmp_path, clock, ttl_s=100)
    opened = queries.open(place())
    opened.append(b"slow")
    clock.now_s += 1000
    queries.drop_expired()
    with pytest.raises(CapacityError, match="is being answered"):
        queries.delete(place())
    opened.append(b"on")
    opened.close()
    assert frames(queries, place()) == [b"slow", b"on"]


def test_results_give_way_the_oldest_first(tmp_path: Path) -> None:
    clock = Clock()
    one = 14 + FRAME_BYTES + 400
    queries = kept(tmp_path, clock, max_bytes=2 * one + 60)
    for key in ("a", "b"):
        ask(queries, place(key), b"x" * 400, finish=True)
        clock.now_s += 1
    ask(queries, place("c"), b"x" * 400)
    ask(queries, place("d"), b"x" * 400)
    assert [frames(queries, place(key)) for key in ("a", "b")] == [[], [b"results"]]
    ask(queries, place(tenant="two"), b"x" * 400)
    with pytest.raises(QuotaExceeded, match="unfinished queries of this tenant would keep"):
        ask(queries, place("d"), b"x" * 400)


def test_one_query_is_bounded(tmp_path: Path) -> None:
    queries = kept(tmp_path, max_query_bytes=200)
    with pytest.raises(QuotaExceeded, match="would keep 244; at most 200 are allowed"):
        ask(queries, place(), b"x" * 100, b"x" * 82)
    assert frames(queries, place()) == [b"x" * 100]


def test_the_number_of_queries_is_bounded(tmp_path: Path) -> None:
    queries = kept(tmp_path, max_queries=2)
    ask(queries, place("a"), b"x", finish=True)
    ask(queries, place("b"), b"x")
    ask(queries, place("c"), b"x")
    with pytest.raises(QuotaExceeded, match="2 unfinished queries of this tenant are kept"):
        queries.open(place("d"))
    queries.delete(place("b"))
    ask(queries, place("d"), b"x")
    assert frames(queries, place("c")) == [b"x"]


def test_what_is_deleted_is_gone(tmp_path: Path) -> None:
    queries = kept(tmp_path)
    ask(queries, place(), b"x", finish=True)
    queries.delete(place())
    for lost in (lambda: queries.delete(place()), lambda: queries.open(place(), must_exist=True)):
        with pytest.raises(UnknownHandle, match="nothing is kept of a query 'a' of rag"):
            lost()


@pytest.mark.parametrize("key", ["", "a\nb", "x" * 600])
def test_an_id_is_a_name(tmp_path: Path, key: str) -> None:
    with pytest.raises(InvalidArgument, match="query id"):
        kept(tmp_path).open(place(key))


def test_without_a_directory_nothing_is_kept() -> None:
    with pytest.raises(InvalidArgument, match="has no data directory: start it with --data-dir"):
        KeptQueries(None, KeptQueriesConfig()).open(place())
    with pytest.raises(ConfigError, match="ttl_s is 0"):
        KeptQueriesConfig(ttl_s=0)
    for name in ("max_bytes", "max_query_bytes", "max_queries"):
        with pytest.raises(ConfigError, match=f"{name} 0"):
            kept(Path(), **{name: 0})


async def test_nobody_waits_on_the_loop_for_a_frame_that_is_being_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A query ends at its deadline while a slow disk writes: other programs go on meanwhile."""
    api = KeptApi(tmp_path)
    number = (await api.ask("queries.open", workflow="w", key="q", must_exist=False))["number"]
    writes, is_let_go, was_let_go = threading.Event(), threading.Event(), list[bool]()

    def fsync(file: int) -> None:
        writes.set()
        was_let_go.append(is_let_go.wait(timeout=5))

    monkeypatch.setattr(os, "fsync", fsync)
    appending = asyncio.create_task(api.ask("queries.append", number=number, frame=b"x"))
    await asyncio.to_thread(writes.wait)
    closing = asyncio.create_task(api.ask("queries.close", number=number))
    await asyncio.sleep(0)
    is_let_go.set()
    await asyncio.gather(appending, closing)
    assert was_let_go == [True]


@pytest.mark.parametrize("refused", ["open and unlink", "unlink", "mkdir"])
def test_a_disk_that_refuses_is_named_with_a_remedy_and_no_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    """Also where the node could not clean up behind the first refusal."""
    queries = kept(tmp_path)
    opened = queries.open(place())

    def refuse(*given: object, **named: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system", "/secret")

    def act() -> None:
        if refused == "mkdir":
            queries.open(place(tenant="another"))
        else:
            opened.finish([b"results"])

    if "open" in refused:
        monkeypatch.setattr("builtins.open", refuse)
    monkeypatch.setattr(Path, refused.split()[-1], refuse)
    message = "the node cannot keep the query: Read-only file system: check that its data directory"
    with pytest.raises(CapacityError, match=message):
        act()
    monkeypatch.undo()
    opened.close()


def test_a_frame_does_not_look_at_all_files_of_its_tenant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tenant may have a thousand of them."""
    looks, look = list[Path](), kept_queries._files

    def noted(folder: Path) -> list[tuple[float, int, Path]]:
        looks.append(folder)
        return look(folder)

    queries = kept(tmp_path, max_bytes=100_000)
    opened = queries.open(place())
    monkeypatch.setattr(kept_queries, "_files", noted)

    def fill(num: int) -> None:
        for _ in range(num):
            opened.append(b"x" * 100)

    fill(100)
    assert len(looks) < 5
    with pytest.raises(QuotaExceeded):
        fill(1000)
    assert 100_000 - 200 < opened.num_bytes <= 100_000
    opened.close()
