"""A LanceDB store whose files are lost."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import numpy as np
import pytest

from quire.core.errors import CapacityError
from quire.core.ids import TenantId
from quire.node.vectors.choice import vector_store
from quire.programs.vectors import CollectionPlace, VectorRows

NOTES = CollectionPlace(TenantId("default"), None, "notes")
ROWS = VectorRows(0, np.eye(2, dtype=np.float32), ["a", "b"])


def _damage(directory: Path, lost: str) -> Path:
    """Remove files of the only table; return its folder."""
    (table,) = directory.rglob("rows.lance")
    shutil.rmtree(table / lost)
    return table


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
