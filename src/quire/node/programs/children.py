"""Child programs on this node: which program to run, its limits, and its handle.

A child is launched like any program, within the tenant, capabilities and quotas of its parent.
Belongs to the edge's loop.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol

import msgspec

from quire.core.errors import (
    InvalidArgument,
    MailboxClosed,
    ProgramCancelled,
    UnknownHandle,
    from_record,
)
from quire.core.ids import TenantId
from quire.core.quotas import Quotas
from quire.node.encoders.programs import EncodedTokens
from quire.node.programs.handle import ProgramHandle
from quire.node.programs.message_log import MessageReader
from quire.node.programs.restarting.handing_over import EndedChild
from quire.node.programs.restarting.told_record import ToldRecord
from quire.node.programs.uploads import UploadTable
from quire.node.quotas import tightest
from quire.programs.inferlet import Inferlet
from quire.programs.library import LIBRARY, suggestion
from quire.programs.sandbox.program import GuestProgram
from quire.programs.services.children import ChildWanted, Family


class Ancestry(msgspec.Struct, frozen=True):
    """The data of a launched program for the services: its code, limits, family and seed, and the
    number of tokens that it and its descendants have encoded."""

    program: Inferlet | GuestProgram
    quotas: Quotas
    family: Family
    encoded: EncodedTokens
    seed: int
    priority: int


class LaunchChild(Protocol):
    """The part of ``ProgramLauncher.launch`` that children need."""

    def __call__(
        self,
        program: Inferlet | GuestProgram,
        args: tuple[str, ...],
        wanted: ChildWanted,
        quotas: Quotas,
        parent: Ancestry,
    ) -> ProgramHandle: ...


class ChildLauncher:
    """Launches the children of programs. ``inspect`` makes a sandboxed program from code."""

    def __init__(
        self,
        launch: LaunchChild,
        inspect: Callable[[bytes], Awaitable[GuestProgram]],
        uploads: UploadTable,
    ) -> None:
        self._launch = launch
        self._inspect = inspect
        self._uploads = uploads

    async def spawn(self, parent: Ancestry, wanted: ChildWanted) -> LaunchedChild:
        """Launch ``wanted`` as a child of ``parent``. See ``Core.launch`` for the errors."""
        program = await self._find(parent.program, wanted)
        if isinstance(program, GuestProgram):
            program = program.narrowed(wanted.parent.capabilities)
        quotas = tightest(parent.quotas, wanted.quotas)
        handle = self._launch(program, tuple(wanted.args), wanted, quotas, parent)
        return LaunchedChild(handle)

    async def _find(
        self, parent: Inferlet | GuestProgram, wanted: ChildWanted
    ) -> Inferlet | GuestProgram:
        if wanted.source is not None:
            return await self._inspect(wanted.source.encode("utf-8", "surrogatepass"))
        program = wanted.program
        if isinstance(program, Inferlet):
            return program
        if not isinstance(program, str):
            raise InvalidArgument(
                f"launch: a program is a name or an @inferlet, not {type(program).__name__}"
            )
        sandboxed = isinstance(parent, GuestProgram)
        if sandboxed and program == parent.name:
            return parent
        if program not in LIBRARY:
            return await self._uploaded(program, wanted.parent.tenant)
        shipped = LIBRARY[program]
        if not sandboxed:
            return shipped
        assert shipped.source is not None, "a shipped program has a file"
        return await self._inspect(await asyncio.to_thread(Path(shipped.source).read_bytes))

    async def _uploaded(self, name: str, tenant: TenantId) -> GuestProgram:
        try:
            upload = await asyncio.to_thread(self._uploads.find, name, tenant)
        except UnknownHandle as exc:
            raise UnknownHandle(
                f"launch: no program {name!r} in the library{suggestion(name)}, and the tenant has "
                "uploaded no such program"
            ) from exc
        return upload.program


class LaunchedChild:
    """The ``Child`` of a program that this node runs. ``num_read``: how many of its messages the
    parent had read on another node."""

    def __init__(self, handle: ProgramHandle, num_read: int = 0) -> None:
        self.handle = handle
        self._num_read = num_read
        self._reader: MessageReader | None = None
        if num_read:  # it waits for its parent, as it did there
            self._reader = handle.attach(num_read)

    @property
    def id(self) -> str:
        return self.handle.id

    @property
    def name(self) -> str:
        return self.handle.name

    @property
    def ended(self) -> bool:
        return self.handle.ended

    @property
    def num_bytes(self) -> int:
        return self.handle.life.num_bytes

    @property
    def num_read(self) -> int:
        """The number of the last message that its parent has received."""
        return self._num_read if self._reader is None else self._reader.position

    @property
    def is_over(self) -> bool:
        return self.handle.life.end.is_due

    @property
    def told(self) -> ToldRecord | None:
        return None if self.is_over else self.handle.life.keeping.told

    def left(self) -> EndedChild:
        """Return what its parent may still ask for; of a child that was asked to end, as if it had
        ended."""
        record, messages = self.handle.record(), self.handle.messages_after(self.num_read)
        error = record.error
        if error is None and not self.ended:
            error = ProgramCancelled(f"program {self.name!r} was cancelled").record()
        return EndedChild(record.result, error, messages, self.logs())

    async def result(self) -> Any:
        return await self.handle.result()

    def cancel(self, reason: str) -> None:
        self.handle.terminate(reason)

    def send(self, message: str) -> Awaitable[None]:
        return self.handle.send(message)

    async def receive(self) -> str:
        """Wait for the next message, from the first one on. Once the parent has begun to read, a
        full log makes the child wait for it."""
        if self._reader is None:
            self._reader = self.handle.attach(self._num_read)
        try:
            return (await anext(self._reader)).text
        except StopAsyncIteration as exc:
            raise MailboxClosed(f"child {self.name!r} has ended; no more messages come") from exc

    def logs(self) -> list[dict[str, Any]]:
        return [
            {"time": line.time_s, "level": line.level, "text": line.text, "fields": line.fields}
            for line in self.handle.logs()
        ]

    def when_ended(self, callback: Callable[[], None]) -> None:
        self.handle.when_ended(callback)


class MovedChild:
    """The ``Child`` of a program that had ended before its parent came from another node."""

    ended = is_over = True
    told: ToldRecord | None = None

    def __init__(self, id: str, name: str, ended: EndedChild) -> None:
        self.id = id
        self.name = name
        self._ended = ended
        self._messages = deque(ended.messages)
        self.num_read = 0
        self.num_bytes = len(json.dumps(ended.result)) + sum(map(len, ended.messages))

    def left(self) -> EndedChild:
        """Return what its parent may still ask for."""
        return msgspec.structs.replace(self._ended, messages=list(self._messages))

    async def result(self) -> Any:
        if self._ended.error is not None:
            raise from_record(self._ended.error)
        return self._ended.result

    def cancel(self, reason: str) -> None:
        """Do nothing: nothing is left to cancel."""

    def send(self, message: str) -> Awaitable[None]:
        raise MailboxClosed(f"child {self.name!r} has ended; nothing more can be sent")

    async def receive(self) -> str:
        if not self._messages:
            raise MailboxClosed(f"child {self.name!r} has ended; no more messages come")
        self.num_read += 1
        return self._messages.popleft()

    def logs(self) -> list[dict[str, Any]]:
        return self._ended.logs

    def when_ended(self, callback: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(callback)
