"""Children of one program: launch, communication, end with their parent; bounded for the whole
family.

Owns a program's children and the number of descendants in a family. The node finds, restricts and
starts a child (``Spawn``). Belongs to one loop; ``ChildService`` may be called from others.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Protocol

from quire.core.errors import (
    InvalidArgument,
    ProgramTerminated,
    QuotaExceeded,
    UnknownHandle,
)
from quire.core.ids import ThreadId
from quire.core.quotas import Quotas
from quire.programs.services.asked import AskedNow, check_goes_on, current_question
from quire.programs.services.operations import Identity, ProgramService, operation

MAX_KEPT = 256
"""The most ended children whose results the parent may still read."""
MAX_KEPT_BYTES = 64 << 20
"""The most bytes of these results together; the latest is kept whatever its size."""
MAX_UNREAD = 256
"""The most messages of one child that its parent may put back: a sandboxed parent may claim to have
received any."""


class ChildHandle(Protocol):
    """A launched child, as its parent's node holds it."""

    @property
    def id(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def ended(self) -> bool: ...

    @property
    def num_bytes(self) -> int:
        """The bytes that are kept after its end."""
        ...

    async def result(self) -> Any:
        """Its return value; raises the error that ended it."""
        ...

    def cancel(self, reason: str) -> None: ...

    def send(self, message: str) -> Awaitable[None]:
        """Send ``message``, which the child has once this has returned; awaiting the result waits
        for room."""
        ...

    async def receive(self) -> str:
        """Its next message; ``MailboxClosed`` after the last."""
        ...

    def logs(self) -> list[dict[str, Any]]: ...

    def when_ended(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` once on the node's loop when it has ended."""
        ...


@dataclass(slots=True)
class ChildState:
    """A program's children by id, and the messages of each that it has put back. That of a
    restartable program outlives its incarnations. Belongs to the node's loop; ``num_launched`` to
    the program's."""

    children: dict[str, ChildHandle] = field(default_factory=dict)
    unread: dict[str, deque[str]] = field(default_factory=dict)
    num_launched: int = 0


class Family:
    """A program that a client launched, and all its descendants: how many are alive, and how many
    may be.

    ``max_cpu_ms``: the processor time that its sandboxed programs may use together, if quotas limit
    it; ``home``: the sandbox's state for the family. Belongs to the node's loop.
    """

    def __init__(self, limit: int | None, max_cpu_ms: int | None = None) -> None:
        self.limit = limit
        self.max_cpu_ms = max_cpu_ms
        self.home: object = None
        self.num_descendants = 0

    def enter(self) -> None:
        """Count another descendant; raise ``QuotaExceeded`` if the family has reached its limit."""
        if self.limit is not None and self.num_descendants >= self.limit:
            raise QuotaExceeded(
                f"{self.num_descendants} descendants of one launched program are alive; "
                f"{self.limit} are allowed: wait for some to end",
                max_children=self.limit,
            )
        self.num_descendants += 1

    def leave(self) -> None:
        self.num_descendants -= 1


@dataclass(frozen=True, slots=True)
class ChildWanted:
    """The request of a parent's ``thread``: ``program`` (a name, or natively an ``Inferlet``) or
    ``source``."""

    parent: Identity
    family: Family
    program: Any
    source: str | None
    args: Sequence[str]
    quotas: Quotas
    seed: int
    named: Mapping[str, str] = field(default_factory=dict)
    thread: ThreadId = ThreadId(0)  # noqa: RUF009 - free at run time


Spawn = Callable[[ChildWanted], Awaitable[ChildHandle]]
"""Starts a child on the node's loop."""
OnNode = Callable[[Coroutine[Any, Any, Any]], Awaitable[Any]]
"""Runs work on the node's loop and waits for it, from any loop."""


class _Receipt:
    """The state of one wait for a message: the text, once it is taken, and whether the wait was
    cancelled."""

    __slots__ = ("is_given_up", "question", "text")

    def __init__(self, question: AskedNow | None) -> None:
        self.question = question
        self.text: str | None = None
        self.is_given_up = False

    @property
    def is_unwanted(self) -> bool:
        return self.is_given_up or (self.question is not None and self.question.is_over)


class ChildService(ProgramService):
    """The children of one program. Their seeds are derived from ``seed``, the program's own.

    ``on_node`` runs work on the family's loop; ``soon`` schedules a callback there from any thread.
    ``lasting``: the service is of a restartable program, whose children outlive its incarnations:
    ``close`` ends one incarnation, ``end`` the program. ``identity``: that of the present
    incarnation. ``state``: where its children are kept. A change to a child is recorded as answered
    in the turn of the node's loop that makes it, so that it is made once, even if the program
    begins again.
    """

    def __init__(
        self,
        identity: Identity,
        family: Family,
        seed: int,
        spawn: Spawn,
        on_node: OnNode,
        soon: Callable[[Callable[[], None]], object],
        *,
        lasting: bool = False,
        state: ChildState | None = None,
    ) -> None:
        self.identity = identity
        self._lasting = lasting
        self._family = family
        self._seed = seed
        self._spawn = spawn
        self._on_node = on_node
        self._soon = soon
        self._state = state = ChildState() if state is None else state
        self._children, self._unread = state.children, state.unread
        self._ended: deque[ChildHandle] = deque()
        self._kept_bytes = 0
        self._closed = False

    def close(self) -> None:
        """Cancel the children, unless the service is ``lasting``: the parent has ended."""
        if not self._lasting:
            self.end()

    def end(self) -> None:
        """Cancel the children in any case."""
        self._soon(self._end_children)

    def _end_children(self) -> None:
        self._closed = True
        for child in list(self._children.values()):
            if not child.ended:
                child.cancel("its parent has ended")

    @operation("child.launch")
    async def launch(
        self,
        program: Any,
        source: str | None,
        args: list[str],
        quotas: dict[str, int | None],
        seed: int | None,
        named: dict[str, str] | None = None,
        thread: int = 0,
    ) -> dict[str, str]:
        self._state.num_launched += 1
        if seed is None:
            seed = _seed_of(self._seed, self._state.num_launched)
        wanted = ChildWanted(
            self.identity,
            self._family,
            program,
            source,
            tuple(args),
            _quotas(quotas),
            seed,
            named or {},
            ThreadId(thread),
        )
        launched: dict[str, str] = await self._on_node(self._launch(wanted, current_question.get()))
        return launched

    async def _launch(self, wanted: ChildWanted, question: AskedNow | None) -> dict[str, str]:
        check_goes_on(question)
        self._family.enter()
        try:
            child = await self._spawn(wanted)
        except BaseException:
            self._family.leave()
            raise
        if question is not None and question.is_over:  # the next incarnation launches another
            child.when_ended(self._family.leave)
            child.cancel("its parent begins again, and launches another in its place")
            check_goes_on(question)
        self._children[child.id] = child
        child.when_ended(lambda: self._on_ended(child))
        if self._closed:
            child.cancel("its parent has ended")
            raise ProgramTerminated("the program has ended; its child ends too")
        launched = {"id": child.id, "name": child.name}
        if question is not None:
            question.settle(launched)
        return launched

    def _on_ended(self, child: ChildHandle) -> None:
        self._family.leave()
        self._ended.append(child)
        self._kept_bytes += child.num_bytes
        while self._keeps_too_much():
            forgotten = self._ended.popleft()
            self._kept_bytes -= forgotten.num_bytes
            self._children.pop(forgotten.id, None)
            self._unread.pop(forgotten.id, None)

    def _keeps_too_much(self) -> bool:
        num = len(self._ended)
        return num > MAX_KEPT or (num > 1 and self._kept_bytes > MAX_KEPT_BYTES)

    @operation("child.join")
    async def join(self, child: str) -> Any:
        async def wait() -> Any:
            return await self._find(child).result()

        return await self._on_node(wait())

    @operation("child.cancel")
    async def cancel(self, child: str, reason: str) -> None:
        async def ask() -> None:
            self._find(child).cancel(reason)

        await self._on_node(ask())

    @operation("child.send")
    async def send(self, child: str, message: str) -> None:
        question = current_question.get()

        async def send() -> None:
            check_goes_on(question)
            sent = self._find(child).send(message)
            if question is not None:
                question.settle(None)
            await sent

        await self._on_node(send())

    @operation("child.receive")
    async def receive(self, child: str) -> str:
        receipt = _Receipt(current_question.get())
        try:
            await self._on_node(self._receive(child, receipt))
        except asyncio.CancelledError:
            # what a program that begins again has received is in its record
            if receipt.question is None or not receipt.question.is_over:
                self._soon(lambda: self._give_up(child, receipt))
            raise
        assert receipt.text is not None
        return receipt.text

    async def _receive(self, child: str, receipt: _Receipt) -> None:
        check_goes_on(receipt.question)
        unread = self._unread.get(child)
        text = unread.popleft() if unread else await self._find(child).receive()
        if receipt.is_unwanted:  # cancelled before this coroutine started, or has begun again
            self._put_first(child, text)
            check_goes_on(receipt.question)
        elif receipt.question is not None:
            receipt.question.settle(text)
        receipt.text = text

    def _give_up(self, child: str, receipt: _Receipt) -> None:
        """Put back a message that was already taken, as the program no longer waits. Called on the
        node's loop."""
        receipt.is_given_up = True
        if receipt.text is not None:
            if receipt.question is not None:
                receipt.question.forget()
            self._put_first(child, receipt.text)

    def _put_first(self, child: str, text: str) -> None:
        if child in self._children:
            self._unread.setdefault(child, deque()).appendleft(text)

    @operation("child.receive.undo")
    async def put_back(self, child: str, answer: str) -> None:
        question = current_question.get()

        async def put() -> None:
            check_goes_on(question)
            self._find(child)
            unread = self._unread.setdefault(child, deque())
            if len(unread) >= MAX_UNREAD:
                raise QuotaExceeded(
                    f"{len(unread)} messages of child {child!r} were put back, which is the limit: "
                    "receive them first"
                )
            unread.appendleft(answer)
            if question is not None:
                question.settle(None)

        await self._on_node(put())

    @operation("child.logs")
    async def logs(self, child: str) -> list[dict[str, Any]]:
        async def read() -> list[dict[str, Any]]:
            return self._find(child).logs()

        lines: list[dict[str, Any]] = await self._on_node(read())
        return lines

    def _find(self, child: str) -> ChildHandle:
        found = self._children.get(child)
        if found is None:
            raise UnknownHandle(
                f"no child {child!r}: this program has not launched it, or it ended long ago (the "
                f"last {MAX_KEPT} are kept, up to {MAX_KEPT_BYTES >> 20} MiB): join children soon"
            )
        return found


def _seed_of(parent: int, number: int) -> int:
    """The seed of the ``number``-th launched child, 63 bits."""
    return int.from_bytes(sha256(f"{parent}/child/{number}".encode()).digest()[:8]) >> 1


def _quotas(given: Mapping[str, int | None]) -> Quotas:
    """The quotas that a parent requests for its child."""
    unknown = sorted(set(given) - set(Quotas.__struct_fields__))
    if unknown:
        raise InvalidArgument(
            f"no quota is called {', '.join(unknown)}: use {', '.join(Quotas.__struct_fields__)}"
        )
    return Quotas(**given)  # type: ignore[arg-type]
