"""Runs one batch from its input to its output files, also from the middle after a restart.

Owns the order of its states and the number of requests in flight. Must not know HTTP: a
``BatchCalls`` answers the requests, and the disk is used in threads.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from quire.core.errors import NeverWithinQuota, QuireError
from quire.server.batches.calls import AnsweredRequest, BatchCalls
from quire.server.batches.lines import BatchLine, check_lines, read_line
from quire.server.batches.record import BatchRecord
from quire.server.batches.results import RequestResult, Results, open_results
from quire.server.files.store import FileRecord, FileStore
from quire.server.schemas.batches import BatchError, BatchErrors, BatchStatus

logger = logging.getLogger(__name__)

NUM_AT_ONCE = 16
"""The most requests of one batch in flight."""

LOWEST_PRIORITY = 1 << 30
"""Lowest priority, in the sign of request bodies: all other work of the tenant runs first."""

_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 30.0
_MAX_CANCELLED = 3
"""How often a request is tried whose program was ended from elsewhere."""

_NO_STREAM = "a batch's answers are whole: leave stream and background out"


Pause = Callable[[float], Awaitable[None]]


class BatchRun:
    """One batch that runs once ``start`` is called. ``directory`` holds the record, and the results
    until they become files; ``now_s`` is the time of day, ``pause`` waits for a number of
    seconds."""

    def __init__(
        self,
        record: BatchRecord,
        directory: Path,
        files: FileStore,
        calls: BatchCalls,
        now_s: Callable[[], float],
        max_line_bytes: int,
        turn: asyncio.Semaphore,
        pause: Pause,
    ) -> None:
        self.record = record
        self._directory = directory
        self._files = files
        self._calls = calls
        self._now_s = now_s
        self._max_line_bytes = max_line_bytes
        self._turn = turn
        self._pause = pause
        self._task: asyncio.Task[None] | None = None
        self._work: asyncio.Task[None] | None = None
        # a thread whose task was cancelled goes on: the next one waits until it has ended
        self._record_in_use = threading.Lock()
        self._results_in_use = threading.Lock()

    def start(self) -> None:
        """Run the batch. Its input is kept beyond its time until the batch is over."""
        input_id = self.record.batch.input_file_id
        self._files.hold(input_id)
        self._task = asyncio.create_task(self._run(), name=f"batch {self.record.batch.id}")
        self._task.add_done_callback(lambda _: self._ended(input_id))

    def _ended(self, input_id: str) -> None:
        if self.record.is_over:
            self._files.release(input_id)

    async def cancel(self) -> None:
        """Cancel the batch; existing answers are kept. Idempotent, and without effect once its
        results become files."""
        is_running = self.record.batch.status in ("validating", "in_progress")
        if is_running and self.record.ending is None:
            self.record.advance("cancelling", self._now_s())
            if self._work is not None:
                self._work.cancel()  # before anything is awaited: the work may end meanwhile
            await self.save()

    async def close(self) -> None:
        """Stop, because the server stops; the batch continues at the next start."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def save(self) -> None:
        """Write the record as it is when its turn has come."""
        await asyncio.to_thread(self._save)

    def _save(self) -> None:
        with self._record_in_use:
            self.record.save(self._directory)

    async def wait_ended(self) -> None:
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            self._work = asyncio.create_task(self._worked_off())
            try:
                await self._work
            except asyncio.CancelledError:
                self._work.cancel()
                await asyncio.wait([self._work])
                if self.record.batch.status != "cancelling":
                    raise
                await self.save()  # before any result says so: a later process reads both
                await self._end("batch_cancelled", "cancelled")
        except QuireError as error:
            await self._fail(error.code, error.message)
        except OSError:
            logger.exception(
                "batch %s is paused until the node starts again: its results cannot be written",
                self.record.batch.id,
            )
        except Exception:
            logger.exception("batch %s has failed unexpectedly", self.record.batch.id)
            await self._fail("internal_error", "an unexpected error; see the server's log")

    async def _worked_off(self) -> None:
        """Run the batch until it is completed, failed, expired or cancelled."""
        batch = self.record.batch
        if self.record.ending is not None:
            await self._finish(self.record.ending)
            return
        if batch.status == "cancelling":
            raise asyncio.CancelledError
        left_s = batch.expires_at - self._now_s()
        try:
            async with asyncio.timeout(max(left_s, 0)), self._turn:
                lines = await self._checked_lines()
                if lines is None:
                    return
                await self._answer(lines)
        except TimeoutError:
            await self._end("batch_expired", "expired")
            return
        await self._end(None, "completed")

    # -- its requests ------------------------------------------------------------------------------

    async def _checked_lines(self) -> list[BatchLine] | None:
        """Return the lines of the input; ``None`` if it is invalid, and the batch has failed."""
        record = self.record
        source = self._files.get(record.tenant, record.batch.input_file_id)
        path = self._files.path(source)
        checked = await asyncio.to_thread(
            check_lines, path, record.batch.endpoint, self._max_line_bytes
        )
        if checked.errors:
            record.batch.errors = BatchErrors(data=checked.errors)
            await self._advance("failed")
            return None
        record.batch.request_counts.total = len(checked.lines)
        if record.batch.status == "validating":
            await self._advance("in_progress")
        return checked.lines

    async def _answer(self, lines: list[BatchLine]) -> None:
        record = self.record
        path = self._files.path(self._files.get(record.tenant, record.batch.input_file_id))
        results = await self._opened()
        self._count(results)
        left = iter([line for line in lines if line.custom_id not in results.done])
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(NUM_AT_ONCE):
                    group.create_task(self._take_lines(left, path, results))
        except* (NeverWithinQuota, OSError) as several:
            raise several.exceptions[0] from None
        finally:
            results.close()

    async def _opened(self) -> Results:
        """Open the results. A thread that reads them cannot be stopped: a batch that is cancelled
        meanwhile waits for it, and closes them."""
        opening = asyncio.create_task(asyncio.to_thread(self._open))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            (await opening).close()
            raise

    def _open(self) -> Results:
        with self._results_in_use:
            return open_results(self._directory, self.record.batch.id)

    async def _take_lines(self, left: Iterator[BatchLine], path: Path, results: Results) -> None:
        for line in left:
            body = await asyncio.to_thread(read_line, path, line)
            result = await self._result(line, body)
            results.add(result)  # on the loop: for one line a thread would cost more than the write
            self._count(results)

    def _count(self, results: Results) -> None:
        counts = self.record.batch.request_counts
        counts.completed = results.outputs.num_lines
        counts.failed = results.errors.num_lines

    async def _result(self, line: BatchLine, body: dict[str, Any]) -> RequestResult:
        """Return the final result of a request: temporary errors are retried."""
        if body.get("stream") or body.get("background"):
            error = {"message": _NO_STREAM, "type": "invalid_request_error", "param": "stream"}
            return RequestResult(
                line.custom_id, 400, "", {"error": {**error, "code": "invalid_argument"}}
            )
        if self.record.batch.endpoint != "/v1/embeddings":
            body = {**body, "priority": LOWEST_PRIORITY}
            body.pop("nvext", None)  # this field would override the priority
        pause_s, num_cancelled = _FIRST_PAUSE_S, 0
        while True:
            answered = await self._calls.call(
                self.record.tenant, self.record.batch.endpoint, body, self.record.batch.id
            )
            num_cancelled += answered.code == "program_cancelled"
            if not _is_transient(answered) or num_cancelled >= _MAX_CANCELLED:
                return RequestResult(
                    line.custom_id, answered.status, answered.request_id, answered.body
                )
            await self._pause(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    # -- its end -----------------------------------------------------------------------------------

    async def _end(self, reason: str | None, status: BatchStatus) -> None:
        """End the batch. ``reason``: why the requests without a result have not run."""
        batch = self.record.batch
        if reason is not None and batch.request_counts.total:
            await asyncio.to_thread(self._give_reasons, reason)
        await self._finish(status)

    async def _finish(self, status: BatchStatus) -> None:
        """Turn the results into files, also if an earlier process was killed while it did so. How
        the batch ends is written first: once some of the results are gone from here, a later
        process could not determine which requests have one."""
        record = self.record
        if record.ending is None:
            record.ending = status
            if status == "completed":
                record.advance("finalizing", self._now_s())
            await self.save()
        await asyncio.to_thread(self._make_files)
        await self._advance(status)

    def _give_reasons(self, reason: str) -> None:
        batch = self.record.batch
        path = self._files.path(self._files.get(self.record.tenant, batch.input_file_id))
        with self._results_in_use:
            results = open_results(self._directory, batch.id)
            try:
                for line in check_lines(path, batch.endpoint, self._max_line_bytes).lines:
                    if line.custom_id not in results.done:
                        results.add(RequestResult(line.custom_id, reason=reason))
                self._count(results)
            finally:
                results.close()

    def _make_files(self) -> None:
        """Turn the results that have lines into files of the tenant."""
        batch = self.record.batch
        with self._results_in_use:
            batch.output_file_id = self._made_file("outputs")
            batch.error_file_id = self._made_file("errors")

    def _made_file(self, kind: str) -> str | None:
        """Make the file of one kind of results; return its id. The id follows from the batch's, so
        that an interruption here loses nothing."""
        batch, tenant = self.record.batch, self.record.tenant
        file_id = f"file-{kind}-{batch.id.removeprefix('batch_')}"
        path = self._directory / f"{batch.id}.{kind}"
        if not path.exists():
            is_made = any(one.id == file_id for one in self._files.files(tenant))
            return file_id if is_made else None
        if not path.stat().st_size:
            path.unlink()
            return None
        now_s = int(self._now_s())
        record = FileRecord(
            id=file_id,
            tenant=tenant,
            filename=f"{batch.id}_{kind}.jsonl",
            purpose="batch_output",
            num_bytes=path.stat().st_size,
            created_s=now_s,
            expires_s=self._files.expiry_s(now_s, self.record.output_ttl_s),
        )
        self._files.take(path, record)
        return file_id

    async def _fail(self, code: str, message: str) -> None:
        """Mark the batch as failed; answers that exist stay readable."""
        self.record.batch.errors = BatchErrors(data=[BatchError(code=code, message=message)])
        await self._finish("failed")

    async def _advance(self, status: BatchStatus) -> None:
        self.record.advance(status, self._now_s())
        await self.save()


def _is_transient(answered: AnsweredRequest) -> bool:
    """Return whether the error is temporary: the node is full, loads, drains or has lost an engine,
    or it has ended the program."""
    return answered.status in (429, 503) or answered.code == "program_cancelled"
