"""The record of one batch on disk: its state, and the legal transitions between states."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel

from quire.core.ids import TenantId
from quire.server.files.store import write_whole
from quire.server.schemas.batches import BatchJob, BatchStatus

_NEXT: Mapping[BatchStatus, frozenset[BatchStatus]] = {
    "validating": frozenset({"in_progress", "failed", "cancelling", "expired"}),
    "in_progress": frozenset({"finalizing", "failed", "cancelling", "expired"}),
    "finalizing": frozenset({"completed", "failed"}),
    "cancelling": frozenset({"cancelled", "failed"}),
    "completed": frozenset(),
    "failed": frozenset(),
    "cancelled": frozenset(),
    "expired": frozenset(),
}


class BatchRecord(BaseModel):
    """The record of a batch. ``output_ttl_s``: lifetime of the output files in seconds; ``None``:
    the longest that files may have. ``ending``: the state of the batch once its results are files;
    with it no request is run any more."""

    tenant: TenantId
    batch: BatchJob
    output_ttl_s: int | None = None
    ending: BatchStatus | None = None

    @property
    def is_over(self) -> bool:
        return not _NEXT[self.batch.status]

    def advance(self, status: BatchStatus, now_s: float) -> None:
        """Change the state. Nothing else changes it."""
        batch = self.batch
        assert status in _NEXT[batch.status], f"{batch.status} batches do not become {status}"
        batch.status = status
        if status != "validating":
            setattr(batch, f"{status}_at", int(now_s))

    def save(self, directory: Path) -> None:
        write_whole(directory / f"{self.batch.id}.json", self.model_dump_json().encode())
