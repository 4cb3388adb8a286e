"""A launched program in the terminal: prints its messages, sends it lines of input, handles Ctrl-C.

Owns everything between launch and end, both for a program in this process and for one behind HTTP.
Must not know which of the two it is.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, Protocol, Self, TextIO

from quire.cli.console import messages
from quire.core.errors import InvalidArgument, MailboxClosed, QuireError

Show = Callable[[str], None]

_MAX_LINES_AHEAD = 64


class LaunchedProgram(Protocol):
    """A launched program, in this process or on a node."""

    def messages(self) -> AsyncIterator[str]:
        """Yield its mailbox messages to the client, until it ends."""
        ...

    async def send(self, message: str) -> None:
        """Send a message. Raises ``MailboxClosed`` when the program has ended."""
        ...

    async def end_input(self) -> None:
        """Announce that the client sends nothing more."""
        ...

    async def cancel(self) -> None:
        """Ask the program to end; ``messages`` then ends too."""
        ...

    async def result(self) -> Any:
        """Return its result; raises the ``QuireError`` with which it ended."""
        ...


async def converse(
    program: LaunchedProgram,
    show: Show,
    lines: AsyncIterator[str] | None,
    *,
    ends_input: bool = True,
    cancels: bool = True,
) -> Any:
    """Print the program's messages as they arrive, send it ``lines``, and return its result.

    ``ends_input``: after the last line tell the program that no more input comes. A client that
    only watches must pass False: other clients may still send.

    A first interrupt cancels the program and waits for its end; a second one stops waiting. Without
    ``cancels`` the first interrupt stops waiting and the program keeps running.

    Raises:
        QuireError: the program's own error; ``ProgramCancelled`` after an interrupt.
        KeyboardInterrupt: interrupted twice, or once without ``cancels``.
    """
    listening = asyncio.create_task(_listen(program, show))
    feeding = asyncio.create_task(_feed(program, lines, ends_input))
    listening.add_done_callback(lambda _: feeding.cancel())
    try:
        with _InterruptHandler(program, listening, cancels) as handler:
            await asyncio.wait({listening, feeding}, return_when=asyncio.FIRST_EXCEPTION)
            if handler.gave_up:
                raise KeyboardInterrupt
            if feeding.done() and not feeding.cancelled():
                feeding.result()
            return await listening
    finally:
        listening.cancel()
        feeding.cancel()
        await asyncio.gather(listening, feeding, return_exceptions=True)


async def _listen(program: LaunchedProgram, show: Show) -> Any:
    async for message in program.messages():
        show(message)
    return await program.result()


async def _feed(
    program: LaunchedProgram, lines: AsyncIterator[str] | None, ends_input: bool
) -> None:
    try:
        if lines is not None:
            async for line in lines:
                await program.send(line)
        if ends_input:
            await program.end_input()
    except MailboxClosed:
        return  # the program has ended; ``result`` shows how
    except InvalidArgument:
        with suppress(QuireError):  # the program may have ended meanwhile
            await program.cancel()  # without this the program would wait for input for ever
        raise


class _InterruptHandler:
    """While entered, the first SIGINT cancels the program (if ``cancels``); the next one cancels
    ``waiting``."""

    def __init__(self, program: LaunchedProgram, waiting: asyncio.Task[Any], cancels: bool) -> None:
        self._cancels = cancels
        self._program = program
        self._waiting = waiting
        self._loop = asyncio.get_running_loop()
        self._cancelling: asyncio.Task[None] | None = None
        self.gave_up = False

    def __enter__(self) -> Self:
        self._loop.add_signal_handler(signal.SIGINT, self._interrupted)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._loop.remove_signal_handler(signal.SIGINT)

    def _interrupted(self) -> None:
        if self._cancels and self._cancelling is None:
            self._cancelling = self._loop.create_task(self._cancel())
            messages().print("the program is cancelled: a second Ctrl-C stops waiting for its end")
        else:
            self.gave_up = True
            self._waiting.cancel()

    async def _cancel(self) -> None:
        with suppress(QuireError):  # the program or its node has ended: ``messages`` shows which
            await self._program.cancel()


async def read_lines(stream: TextIO) -> AsyncIterator[str]:
    """Yield the lines of ``stream``, without line ends, as they arrive.

    A thread reads, because a terminal, a pipe and a file all block in their own way. It is a daemon
    thread, so that a pending read does not keep the process alive. It reads at most a few lines
    ahead.

    Raises:
        InvalidArgument: the stream cannot be read, or is no text in its encoding.
    """
    loop = asyncio.get_running_loop()
    arrived: asyncio.Queue[str | Exception | None] = asyncio.Queue()
    room = threading.Semaphore(_MAX_LINES_AHEAD)

    def read() -> None:
        try:
            for line in stream:
                room.acquire()
                if not _post(loop, arrived, line.rstrip("\r\n")):
                    return
        except (OSError, ValueError) as exc:  # UnicodeDecodeError is a ValueError
            _post(loop, arrived, exc)
        else:
            _post(loop, arrived, None)

    threading.Thread(target=read, name="quire-stdin", daemon=True).start()
    while (line := await arrived.get()) is not None:
        if isinstance(line, Exception):
            raise InvalidArgument(f"the input cannot be read: {line}") from line
        room.release()
        yield line


def _post(
    loop: asyncio.AbstractEventLoop,
    arrived: asyncio.Queue[str | Exception | None],
    line: str | Exception | None,
) -> bool:
    """Hand ``line`` over; return False if the loop is closed."""
    try:
        loop.call_soon_threadsafe(arrived.put_nowait, line)
    except RuntimeError:
        return False
    return True
