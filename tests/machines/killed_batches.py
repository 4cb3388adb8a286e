"""A server's batches in processes that are killed at a chosen moment; run as a script.

Each line of the input is a ``Life`` in JSON: a process is forked that opens the directory, does
what its client asks for, and kills itself at the chosen operation on the disk. The answer is the
line ``killed`` or ``ended``.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from quire.core.ids import TenantId
from quire.server.batches import results
from quire.server.batches.calls import AnsweredRequest
from quire.server.batches.results import RequestResult, Results
from quire.server.batches.service import BatchService
from quire.server.files.store import FileLimits, FileStore
from quire.server.schemas.batches import BatchJob, BatchRequest

TENANT = TenantId("tenant")
ENDPOINT = "/v1/chat/completions"
NAMES = ("one", "two", "bad", "late")
BEGINS_S, ENDS_S = 1000.0, 1000.0 + 3600


class Life(msgspec.Struct, frozen=True):
    """``ending``: what the batch becomes. ``kill_at``: the operation on the disk before which the
    process is killed; ``None``: it ends by itself."""

    directory: str
    ending: str
    kill_at: int | None = None

    @property
    def store(self) -> Path:
        return Path(self.directory) / "files"

    @property
    def is_late(self) -> Path:
        """Exists once the batch's time is over."""
        return Path(self.directory) / "late"


class Answers:
    """A request that is *bad* is refused; one that is *late* is answered only when the batch is to
    be completed."""

    def __init__(self, ending: str) -> None:
        self._ending = ending
        self.waits = asyncio.Event()

    async def call(
        self, tenant: TenantId, path: str, body: Mapping[str, Any], program: str
    ) -> AnsweredRequest:
        name = body["messages"][0]["content"]
        if name == "bad":
            return AnsweredRequest(
                400, "req", {"error": {"message": "bad", "code": "invalid_argument"}}
            )
        if name == "late" and self._ending != "completed":
            for _ in range(20):
                await asyncio.sleep(0)  # those beside it have ended
            self.waits.set()
            await asyncio.Event().wait()
        return AnsweredRequest(200, "req", {"name": name})


class Killer:
    """Counts the operations that write in ``directory``, and kills the process before the nth."""

    WRITING = frozenset({"os.rename", "os.remove", "os.truncate", "os.mkdir"})

    def __init__(self, directory: Path, kill_at: int) -> None:
        self._directory = str(directory)
        self._left = kill_at

    def watch(self) -> None:
        sys.addaudithook(self._see)
        plain = Results.add

        def add(results: Results, result: RequestResult) -> None:
            self._step()
            plain(results, result)

        Results.add = add  # type: ignore[method-assign]

    def _see(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            writes = bool(flags & (os.O_WRONLY | os.O_RDWR))
        elif event in self.WRITING:
            path, writes = arguments[0], True
        else:
            return
        if writes and str(path).startswith(self._directory):
            self._step()

    def _step(self) -> None:
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self._left -= 1


async def live(life: Life) -> None:
    """The client asks again for what it has no answer to: the upload, the batch, its end."""
    if life.is_late.exists():
        await serve(life, ENDS_S)
        return
    batch = await serve(life, BEGINS_S)
    if life.ending == "expired" and batch.status != "expired":
        life.is_late.touch()
        await serve(life, ENDS_S)


async def serve(life: Life, now_s: float) -> BatchJob:
    files = FileStore(life.store, FileLimits(), lambda: now_s)
    answers = Answers(life.ending)
    service = BatchService(files, answers, lambda: now_s, 1 << 20)
    await service.start()
    known = service.batches(TENANT)
    batch = known[0] if known else await service.create(TENANT, asked(files))
    ended = asyncio.create_task(service.wait_ended(batch.id))
    if life.ending == "cancelled" or (life.ending == "expired" and now_s == BEGINS_S):
        waits = asyncio.create_task(answers.waits.wait())
        await asyncio.wait([ended, waits], return_when=asyncio.FIRST_COMPLETED)
        if life.ending == "expired":
            await service.close()
            return batch
        await service.cancel(TENANT, batch.id)
    await ended
    return service.get(TENANT, batch.id)


def asked(files: FileStore) -> BatchRequest:
    uploaded = [one for one in files.files(TENANT) if one.purpose == "batch"]
    record = uploaded[0] if uploaded else None
    if record is None:
        incoming = files.begin(TENANT)
        incoming.write(b"\n".join(line(name) for name in NAMES))
        incoming.close()
        record = files.add(incoming.path, TENANT, "in.jsonl", "batch", None)
    return BatchRequest(input_file_id=record.id, endpoint=ENDPOINT, completion_window="1h")


def line(name: str) -> bytes:
    body = {"model": "m", "messages": [{"role": "user", "content": name}]}
    shown = {"custom_id": name, "method": "POST", "url": ENDPOINT, "body": body}
    return json.dumps(shown).encode()


def run(life: Life) -> str:
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.fsync = lambda _: None  # a killed process loses nothing that it has written
            if life.ending == "failed":
                results.MAX_RESULT_BYTES = 300  # the first results fit
            if life.kill_at is not None:
                Killer(life.store, life.kill_at).watch()
            asyncio.run(live(life))
            status = 0
        finally:
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return {0: "ended", -signal.SIGKILL: "killed"}.get(status, f"failed with {status}")


if __name__ == "__main__":
    for text in sys.stdin:
        print(run(msgspec.json.decode(text, type=Life)), flush=True)
