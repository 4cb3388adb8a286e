"""A LanceDB store whose files are lost."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import numpy as np
import pytest

from quire.core.errors import CapacityError, QuotaExceeded
from quire.core.ids import TenantId
from quire.node.vectors.choice import vector_store
from quire.programs.vectors import CollectionPlace, VectorRows
from quire.programs.vectors import store as vector_bounds

NOTES = CollectionPlace(TenantId("default"), None, "notes")
ROWS = VectorRows(0, np.eye(2, dtype=np.float32), ["a", "b"])


def _damage(directory: Path, lost: str) -> Path:
    """Remove files of the only table; return its folder."""
    (table,) = directory.rglob("rows.lance")
    shutil.rmtree(table / lost)
    return table


def _num_bytes(directory: Path) -> int:
    return sum(one.stat().st_size for one in directory.rglob("*") if one.is_file())


@pytest.mark.parametrize("lost", ["data", "."])
async def test_the_log_and_not_the_tenant_is_told_which_files_are_lost(
    tmp_path: Path, lost: str, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("lancedb", reason="needs the extra 'workflows'")
    before = vector_store("lance", tmp_path)
    await before.put(NOTES, ROWS)
    await asyncio.to_thread(before.close)
    table = _damage(tmp_path, lost)
    store = vector_store("lance", tmp_path)
    for _ in range(2):
        with pytest.raises(CapacityError, match="drop the collection") as told:
            await store.search(NOTES, ROWS.vectors, 1)
        assert str(tmp_path) not in str(told.value)
    (logged,) = caplog.records
    assert str(table.parent) in logged.getMessage()
    assert await store.drop(NOTES)
    await store.put(NOTES, ROWS)
    assert len((await store.search(NOTES, ROWS.vectors, 1))[0]) == 1
    await asyncio.to_thread(store.close)


async def test_a_folder_that_cannot_be_written_is_named_and_used_again(tmp_path: Path) -> None:
    pytest.importorskip("lancedb", reason="needs the extra 'workflows'")
    store = vector_store("lance", tmp_path)
    await store.put(NOTES, ROWS)
    table = await asyncio.to_thread(lambda: next(tmp_path.rglob("*.lance")))
    folder = table.parents[1]
    shutil.rmtree(folder)
    folder.touch()
    other = CollectionPlace(NOTES.tenant, None, "other")
    with pytest.raises(CapacityError, match=r"LanceDB .* \(Not a directory\): check that its"):
        await store.put(other, ROWS)
    folder.unlink()
    await store.put(other, ROWS)
    assert len((await store.search(other, ROWS.vectors, 1))[0]) == 1
    await asyncio.to_thread(store.close)


async def test_rows_that_are_replaced_leave_no_files(tmp_path: Path) -> None:
    pytest.importorskip("lancedb", reason="needs the extra 'workflows'")
    store = vector_store("lance", tmp_path)
    sizes: list[int] = []
    for number in range(128):
        await store.put(NOTES, VectorRows(0, ROWS.vectors, [f"{number}{'a' * 10_000}", "b"]))
        if number % 64 == 63:
            sizes.append(await asyncio.to_thread(_num_bytes, tmp_path))
    assert sizes[1] < 1.1 * sizes[0] < 100_000
    await asyncio.to_thread(store.close)


async def test_what_is_on_the_disk_when_a_node_starts_counts_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("lancedb", reason="needs the extra 'workflows'")
    monkeypatch.setattr(vector_bounds, "MAX_TENANT_DISK_BYTES", 80_000)
    text = np.random.default_rng(0).bytes(30_000).hex()  # LanceDB packs it by half
    before = vector_store("lance", tmp_path)
    await before.put(NOTES, VectorRows(0, ROWS.vectors, [text, "b"]))
    await asyncio.to_thread(before.close)
    store = vector_store("lance", tmp_path)
    other = CollectionPlace(NOTES.tenant, None, "other")
    with pytest.raises(QuotaExceeded, match="at most 80000 are allowed"):
        await store.put(other, VectorRows(0, ROWS.vectors, [text, "b"]))
    assert await store.drop(NOTES)
    await store.put(other, VectorRows(0, ROWS.vectors, [text, "b"]))
    await asyncio.to_thread(store.close)
