"""The store: values, blobs, times to live, quotas, restarts; by a node with a fake clock."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from quire.core.errors import (
    CapacityError,
    ConfigError,
    Forbidden,
    InvalidArgument,
    ProgramTerminated,
    QuotaExceeded,
)
from quire.core.ids import ProgramId, TenantId
from quire.programs.api import Api, connect_api
from quire.programs.capabilities import Capabilities
from quire.programs.services.disk_reserve import RESERVE_BYTES
from quire.programs.services.operations import Identity
from quire.programs.services.shared import SharedServices
from quire.programs.services.store import FILE_NAME, Store
from quire.programs.services.store_table import EntryPlace, StoreLimits, StoreTable
from quire.testing import LocalNode, VirtualClock

TENANT, OTHER = TenantId("tenant"), TenantId("other")


@pytest_asyncio.fixture
async def node() -> AsyncIterator[LocalNode]:
    async with LocalNode() as node:
        yield node


def api_of(node: LocalNode, tenant: str = "default") -> Api:
    return connect_api(node.connect(tenant=tenant))


class TestStore:
    async def test_values_come_back_as_they_were(self, node: LocalNode) -> None:
        api = api_of(node)
        for value in ("text \U0001f600", 0, 1.5, False, [], {"a": [1, None, {"b": ""}]}, 2**80):
            await api.store_put("key", value)
            found = await api.store_get("key")
            assert found == value
            assert type(found) is type(value)
        assert await api.store_get("missing") is None
        assert await api.store_get("missing", "default") == "default"
        assert await api.store_delete("key")
        assert not await api.store_delete("key")
        assert await api.store_get("key") is None

    async def test_programs_of_a_tenant_share_it_and_others_do_not(self, node: LocalNode) -> None:
        await api_of(node).store_put("key", "ours")
        assert await api_of(node).store_get("key") == "ours"
        other = api_of(node, "other")
        assert await other.store_get("key") is None
        assert await other.store_list() == []
        assert await api_of(node).store_get("key", store="another") is None

    async def test_a_value_ends_with_its_time(self, node: LocalNode) -> None:
        api = api_of(node)
        await api.store_put("short", 1, ttl_s=5)
        await api.store_put("long", 2, ttl_s=50)
        await api.store_put("ever", 3)
        node.harness.clock.advance(5)
        assert await api.store_list() == ["ever", "long"]
        assert await api.store_get("short") is None
        assert await api.store_compare_and_set("short", None, 4)
        node.harness.clock.advance(1000)
        assert await api.store_list() == ["ever", "short"]

    async def test_lists_go_by_prefix_and_page(self, node: LocalNode) -> None:
        api = api_of(node)
        keys = [f"a/{number:02}" for number in range(5)] + ["a%", "b/0", "\u00e4/0"]
        for key in keys:
            await api.store_put(key, 0)
        assert await api.store_list("a/") == keys[:5]
        assert await api.store_list("a/", limit=2) == keys[:2]
        assert await api.store_list("a/", limit=2, after=keys[1]) == keys[2:4]
        assert await api.store_list() == sorted(keys)
        for limit in (0, 10_001):
            with pytest.raises(InvalidArgument, match="choose 1 to 10000"):
                await api.store_list(limit=limit)

    async def test_compare_and_set(self, node: LocalNode) -> None:
        api = api_of(node)
        assert await api.store_compare_and_set("key", None, {"a": 1, "b": 2})
        assert not await api.store_compare_and_set("key", None, 5)
        assert not await api.store_compare_and_set("key", {"a": 1}, 5)
        assert await api.store_compare_and_set("key", {"b": 2, "a": 1}, 5)
        assert await api.store_compare_and_set("key", 5, None)
        assert await api.store_list() == []

    async def test_blobs_have_keys_of_their_own(self, node: LocalNode) -> None:
        api = api_of(node)
        await api.blob_put("key", b"\x00\xff")
        await api.store_put("key", "value")
        assert await api.blob_get("key") == b"\x00\xff"
        assert await api.blob_list() == ["key"]
        assert await api.blob_delete("key")
        assert await api.blob_get("key") is None
        assert await api.store_get("key") == "value"

    @pytest.mark.parametrize(
        ("value", "words"),
        [
            (None, "null cannot be stored"),
            (object(), "not JSON"),
            (float("nan"), "not JSON"),
            ("x" * (1 << 20), "at most 1048576"),
        ],
    )
    async def test_bad_values_are_refused(self, node: LocalNode, value: Any, words: str) -> None:
        with pytest.raises(InvalidArgument, match=words):
            await api_of(node).store_put("key", value)

    async def test_bad_keys_and_times_are_refused(self, node: LocalNode) -> None:
        api = api_of(node)
        for key in ("", "a\nb", "\ud800", "k" * 513):
            with pytest.raises(InvalidArgument, match="key"):
                await api.store_put(key, 1)
        for ttl_s in (0, -1, float("inf"), float("nan")):
            with pytest.raises(InvalidArgument, match="time to live"):
                await api.store_put("key", 1, ttl_s=ttl_s)
        for name in ("", "a\nb", "s" * 513):
            with pytest.raises(InvalidArgument, match="store"):
                await api.store_list(store=name)
        with pytest.raises(InvalidArgument, match="a blob is bytes"):
            await api.blob_put("key", "text")  # type: ignore[arg-type]

    async def test_a_manifest_names_the_stores(self) -> None:
        shared = SharedServices(VirtualClock(), Store())
        services = shared.of(Identity(ProgramId(1), TENANT, "p", Capabilities(stores=("mine*",))))
        put = {"key": "k", "value": "1", "ttl_s": None}
        await services.ask("store.put", {"store": "mine.too", **put})
        listed = {"kind": "value", "prefix": "", "after": "", "limit": 1}
        for name, arguments in {
            "store.put": put,
            "store.get": {"key": "k"},
            "store.delete": {"key": "k", "kind": "value"},
            "store.list": listed,
            "store.compare_and_set": {"key": "k", "expected": None, "value": "1", "ttl_s": None},
            "blob.put": {"key": "k", "content": b"", "ttl_s": None},
            "blob.get": {"key": "k"},
        }.items():
            with pytest.raises(Forbidden, match="store 'default' is not allowed"):
                await services.ask(name, {"store": "default", **arguments})
        with pytest.raises(InvalidArgument, match="not JSON"):
            await services.ask("store.put", {**put, "store": "mine", "value": "[" * 100_000})
        shared.close()


class TestTable:
    def place(self, key: str, tenant: TenantId = TENANT) -> EntryPlace:
        return EntryPlace(tenant, "value", "store", key)

    def test_a_tenant_has_so_many_bytes_and_keys(self) -> None:
        table = StoreTable(None, StoreLimits(max_bytes=10, max_keys=2))
        table.put(self.place("a"), b"12345", None, 0.0)
        with pytest.raises(QuotaExceeded, match="hold 6 bytes under 1 keys; with 5 more"):
            table.put(self.place("b"), b"1234", None, 0.0)
        table.put(self.place("a"), b"1234567", None, 0.0)  # it takes the place of the other
        table.put(self.place("b"), b"1", 5.0, 0.0)
        with pytest.raises(QuotaExceeded, match="or 2 keys"):
            table.put(self.place("c"), b"", None, 0.0)
        table.put(self.place("c", OTHER), b"123456789", None, 0.0)
        table.put(self.place("c"), b"1", None, 5.0)  # what has expired makes room
        assert table.usage(TENANT) == (10, 2)
        table.delete(self.place("a"), 5.0)
        assert table.usage(TENANT) == (2, 1)

    async def test_it_survives_a_restart(self, tmp_path: Path) -> None:
        folder = tmp_path / "data"
        clock = VirtualClock()
        first = Store(folder, clock.now_s)
        place = self.place("key")
        await first.run(lambda table, now_s: table.put(place, b"kept", 10.0, now_s))
        first.close()
        clock.advance(9)
        second = Store(folder, clock.now_s)
        assert await second.run(lambda table, now_s: table.get(place, now_s)) == b"kept"
        clock.advance(1)
        assert await second.run(lambda table, now_s: table.get(place, now_s)) is None
        second.close()

    async def test_a_closed_store_is_one_file_that_nobody_writes(self, tmp_path: Path) -> None:
        """The log beside it goes into the database when the last connection to it is closed."""
        others = threading.enumerate()  # nodes of other tests have stores, too
        store = Store(tmp_path)
        await store.run(lambda table, now_s: table.put(self.place("key"), b"kept", None, now_s))
        log = tmp_path / f"{FILE_NAME}-wal"
        assert log.exists()
        store.close()
        assert not log.exists()
        threads = [one for one in threading.enumerate() if one not in others]
        assert not [one for one in threads if one.name.startswith("quire-store")]
        store.close()
        with pytest.raises(ProgramTerminated, match="store is closed"):
            await store.run(lambda table, now_s: table.get(self.place("key"), now_s))

    def test_what_is_no_store_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / FILE_NAME).write_bytes(b"no database at all, but long enough to be looked at")
        store = Store(tmp_path)
        with pytest.raises(ConfigError, match="cannot be opened"):
            store.open()
        store.close()
        nowhere = Store(tmp_path / FILE_NAME / "data")
        with pytest.raises(ConfigError, match="cannot be created"):
            nowhere.open()
        nowhere.close()
        newer = tmp_path / "newer.sqlite"
        database = sqlite3.connect(newer)
        database.execute("PRAGMA user_version = 99")
        database.close()
        with pytest.raises(ConfigError, match="format 99, this release reads 1"):
            StoreTable(newer)

    async def test_a_full_disk_refuses_what_is_new_and_keeps_the_rest(self, tmp_path: Path) -> None:
        store = Store(tmp_path)
        first, second = self.place("first"), self.place("second")
        await store.run(lambda table, now_s: table.put(first, b"kept", None, now_s))
        await store.run(lambda table, now_s: _limit_pages(table))
        with pytest.raises(CapacityError, match="database or disk is full"):
            await store.run(lambda table, now_s: table.put(second, bytes(1 << 18), None, now_s))
        assert await store.run(lambda table, now_s: table.get(first, now_s)) == b"kept"
        assert await store.run(lambda table, now_s: table.get(second, now_s)) is None
        store.close()

    def test_a_full_disk_takes_deletions(self, tmp_path: Path) -> None:
        """They are written down before they are made, and so need room themselves."""
        table = StoreTable(tmp_path / "s.sqlite")
        reserve = tmp_path / "s.reserve"
        assert reserve.stat().st_blocks * 512 >= RESERVE_BYTES
        for name in ("first", "second", "third"):
            table.put(self.place(name), b"x", None, 0.0)
        full = FullDisk(table._database, reserve)
        table._database = full  # type: ignore[assignment]
        assert table.delete(self.place("first"), 0.0)
        assert full.num_refused == 1
        assert reserve.exists(), "the room is kept for the next one"
        assert table.delete(self.place("second"), 0.0)
        full.forgets_room = True
        with pytest.raises(sqlite3.OperationalError, match="disk is full"):
            table.delete(self.place("third"), 0.0)
        full.forgets_room = False
        assert table.delete(self.place("third"), 0.0)
        assert table.usage(TENANT) == (0, 0)
        table.close()


class FullDisk:
    """A database on a disk that has no room but what ``reserve`` takes up."""

    def __init__(self, database: sqlite3.Connection, reserve: Path) -> None:
        self._database = database
        self._reserve = reserve
        self.num_refused = 0
        self.forgets_room = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    def __enter__(self) -> None:
        self._database.__enter__()

    def __exit__(self, *exc: Any) -> None:
        self._database.__exit__(*exc)

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        if sql.startswith("DELETE") and (self._reserve.exists() or self.forgets_room):
            self.num_refused += 1
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise error
        return self._database.execute(sql, *values)


def _limit_pages(table: StoreTable) -> None:
    table._database.execute("PRAGMA max_page_count = 16")


def test_a_list_does_not_look_at_the_keys_behind_its_prefix() -> None:
    """All tenants share the store's thread: none may hold it with a list that finds little."""
    table, work = StoreTable(None), 0
    place = EntryPlace(TENANT, "value", "s", "a")
    table.put(place, b"1", None, 0.0)
    for number in range(3000):
        table.put(EntryPlace(TENANT, "value", "s", f"b{number}"), b"1", None, 0.0)

    def count() -> int:
        nonlocal work
        work += 1
        return 0

    table._database.set_progress_handler(count, 1000)  # instructions of SQLite's machine
    assert table.keys(TENANT, "value", "s", "a", "", 10, 0.0) == ["a"]
    assert work == 0
    assert len(table.keys(TENANT, "value", "s", "b", "", 3000, 0.0)) == 3000
    assert work > 0
    table.close()
