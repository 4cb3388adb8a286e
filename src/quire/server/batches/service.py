"""All batches of a node: creates, lists and cancels them, and continues them after a restart.

Owns the limits on their number. Must not know how a batch runs (``BatchRun``).
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from quire.core.errors import CapacityError, InvalidArgument, QuotaExceeded, UnknownHandle
from quire.core.ids import TenantId
from quire.server.batches.calls import BatchCalls
from quire.server.batches.record import BatchRecord
from quire.server.batches.run import BatchRun, Pause
from quire.server.files.store import FileStore, delete_unfinished
from quire.server.schemas.batches import BatchJob, BatchRequest

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Limits for each tenant. ``max_waiting``: unfinished batches, of which ``num_at_once`` run;
    ``max_batches``: all batches, of which the oldest finished ones are dropped."""

    max_waiting: int = 64
    num_at_once: int = 2
    max_batches: int = 1024


class BatchService:
    """The batches of a node. ``now_s`` is the time of day. Every method belongs to the loop that
    calls ``start``."""

    def __init__(
        self,
        files: FileStore,
        calls: BatchCalls,
        now_s: Callable[[], float],
        max_line_bytes: int,
        limits: BatchLimits | None = None,
        pause: Pause = asyncio.sleep,
    ) -> None:
        self._files = files
        self._calls = calls
        self._now_s = now_s
        self._max_line_bytes = max_line_bytes
        self._limits = limits or BatchLimits()
        self._pause = pause
        self._runs: dict[str, BatchRun] = {}
        self._turns: dict[TenantId, asyncio.Semaphore] = {}

    async def start(self) -> None:
        """Continue the unfinished batches of an earlier run. Raises ``ConfigError`` if the
        directory cannot be used."""
        if not self._files.is_kept:
            return
        for record in await asyncio.to_thread(self._read_records):
            run = self._known(record)
            if not record.is_over:
                run.start()

    def _read_records(self) -> list[BatchRecord]:
        records = []
        delete_unfinished(self._directory())
        for path in self._directory().glob("*.json"):
            try:
                records.append(BatchRecord.model_validate_json(path.read_bytes()))
            except (OSError, ValidationError) as exc:
                logger.warning("%s is not the record of a batch and is ignored: %s", path, exc)
        return sorted(records, key=lambda record: (record.batch.created_at, record.batch.id))

    def _directory(self) -> Path:
        directory = self._files.directory / "batches"
        directory.mkdir(exist_ok=True)
        return directory

    async def close(self) -> None:
        """Stop the running batches; they continue at the next start."""
        await asyncio.gather(*(run.close() for run in self._runs.values()))

    async def create(self, tenant: TenantId, request: BatchRequest) -> BatchJob:
        """Create a batch and start it, or let it wait.

        Raises:
            UnknownHandle, InvalidArgument: no such file, or not a file of requests.
            QuotaExceeded: the tenant has too many waiting batches.
            CapacityError: the disk is full or cannot be written.
        """
        source = await asyncio.to_thread(self._files.get, tenant, request.input_file_id)
        if source.purpose != "batch":
            raise InvalidArgument(
                f"file {source.id} has purpose {source.purpose!r}: upload the requests with "
                "purpose 'batch'",
                param="input_file_id",
            )
        self._check_room(tenant)
        now_s = int(self._now_s())
        window_s = 3600 * int(request.completion_window.removesuffix("h"))
        expiry = request.output_expires_after
        record = BatchRecord(
            tenant=tenant,
            batch=BatchJob(
                id=f"batch_{secrets.token_hex(16)}",
                endpoint=request.endpoint,
                input_file_id=source.id,
                completion_window=request.completion_window,
                created_at=now_s,
                expires_at=now_s + window_s,
                metadata=request.metadata,
            ),
            output_ttl_s=None if expiry is None else expiry.seconds,
        )
        run = self._known(record)
        try:
            await run.save()
        except OSError as exc:
            del self._runs[record.batch.id]
            raise CapacityError(
                f"the batch cannot be written: {exc.strerror}; try again later"
            ) from exc
        run.start()
        return record.batch

    def _known(self, record: BatchRecord) -> BatchRun:
        turn = self._turns.setdefault(record.tenant, asyncio.Semaphore(self._limits.num_at_once))
        run = BatchRun(
            record,
            self._directory(),
            self._files,
            self._calls,
            self._now_s,
            self._max_line_bytes,
            turn,
            self._pause,
        )
        self._runs[record.batch.id] = run
        return run

    def _check_room(self, tenant: TenantId) -> None:
        own = [run.record for run in self._runs.values() if run.record.tenant == tenant]
        num_waiting = sum(not record.is_over for record in own)
        if num_waiting >= self._limits.max_waiting:
            raise QuotaExceeded(
                f"{num_waiting} batches are not over, the most that one tenant may have: wait for "
                "one, or cancel one"
            )
        over = [record for record in own if record.is_over]
        num_beyond = max(0, len(own) + 1 - self._limits.max_batches)
        for record in over[:num_beyond]:
            del self._runs[record.batch.id]
            (self._directory() / f"{record.batch.id}.json").unlink(missing_ok=True)

    def batches(self, tenant: TenantId) -> list[BatchJob]:
        """Return the tenant's batches, newest first."""
        own = [run.record.batch for run in self._runs.values() if run.record.tenant == tenant]
        return own[::-1]

    def get(self, tenant: TenantId, batch_id: str) -> BatchJob:
        """Return a batch. Raises ``UnknownHandle`` if it does not exist, or is another tenant's."""
        return self._find(tenant, batch_id).record.batch

    async def cancel(self, tenant: TenantId, batch_id: str) -> BatchJob:
        """Cancel a batch; a finished one stays as it is. Raises ``UnknownHandle`` as ``get``
        does."""
        run = self._find(tenant, batch_id)
        await run.cancel()
        return run.record.batch

    async def wait_ended(self, batch_id: str) -> None:
        await self._runs[batch_id].wait_ended()

    def check_unused(self, tenant: TenantId, file_id: str) -> None:
        """Raise ``InvalidArgument`` if an unfinished batch reads the file."""
        for run in self._runs.values():
            record = run.record
            is_used = record.batch.input_file_id == file_id and not record.is_over
            if is_used and record.tenant == tenant:
                raise InvalidArgument(
                    f"file {file_id} is the input of batch {record.batch.id}, which is not over: "
                    "cancel that first",
                    param="file",
                )

    def _find(self, tenant: TenantId, batch_id: str) -> BatchRun:
        run = self._runs.get(batch_id)
        if run is None or run.record.tenant != tenant:
            raise UnknownHandle(f"no batch {batch_id[:100]!r}: see GET /v1/batches")
        return run
