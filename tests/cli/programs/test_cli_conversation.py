"""The terminal's side of a program: messages, lines, result, interrupts."""

from __future__ import annotations

import asyncio
import gc
import io
import os
import signal
from collections.abc import AsyncIterator
from typing import Any

import pytest

from quire.cli.programs.conversation import converse, read_lines
from quire.core.errors import (
    InvalidArgument,
    MailboxClosed,
    ProgramCancelled,
    ProgramFailed,
    QuireError,
)


class Scripted:
    """A program that answers each line in capitals and ends when its input does, or is cancelled.

    ``stubborn``: it takes no notice of being cancelled.
    """

    def __init__(self, *, stubborn: bool = False, error: QuireError | None = None) -> None:
        self.stubborn = stubborn
        self.error = error
        self.received: list[str] = []
        self.listening = asyncio.Event()
        self.cancel_asked = asyncio.Event()
        self._out: asyncio.Queue[str | None] = asyncio.Queue()

    async def messages(self) -> AsyncIterator[str]:
        self.listening.set()
        while (message := await self._out.get()) is not None:
            yield message

    async def send(self, message: str) -> None:
        if message == "too late":
            raise MailboxClosed("the program has finished; nothing more can be sent")
        self.received.append(message)
        self._out.put_nowait(message.upper())

    async def end_input(self) -> None:
        self._out.put_nowait(None)

    async def cancel(self) -> None:
        self.cancel_asked.set()
        if not self.stubborn:
            self.error = ProgramCancelled("cancelled by its owner")
            self._out.put_nowait(None)

    async def result(self) -> Any:
        if self.error is not None:
            raise self.error
        return {"lines": len(self.received)}


class NeverEnding:
    """Input that never comes."""

    def __aiter__(self) -> AsyncIterator[str]:
        return self

    async def __anext__(self) -> str:
        await asyncio.Event().wait()
        raise AssertionError("unreachable")


async def test_lines_go_in_messages_come_out_and_the_result_is_returned() -> None:
    shown: list[str] = []
    result = await converse(Scripted(), shown.append, read_lines(io.StringIO("one\r\ntwo\n")))
    assert shown == ["ONE", "TWO"]
    assert result == {"lines": 2}


async def test_input_that_is_no_text_ends_the_program_with_an_error_that_says_so() -> None:
    """The reading thread must not die alone: the program would wait for ever."""
    program, binary = Scripted(), io.BytesIO(b"one\n\xff\n")
    lines = read_lines(io.TextIOWrapper(binary, encoding="utf-8"))
    with pytest.raises(InvalidArgument, match="the input cannot be read: 'utf-8' codec"):
        await asyncio.wait_for(converse(program, print, lines), timeout=60)
    assert program.cancel_asked.is_set()


async def test_without_interactive_input_the_program_learns_that_none_will_come() -> None:
    assert await converse(Scripted(), print, None) == {"lines": 0}


async def test_one_who_only_looks_on_does_not_end_the_input_of_others() -> None:
    program, shown = Scripted(), list[str]()
    looking = asyncio.create_task(converse(program, shown.append, None, ends_input=False))
    await program.listening.wait()
    await program.send("one")
    await program.end_input()
    assert await looking == {"lines": 1}
    assert shown == ["ONE"]


async def test_a_failure_of_the_program_is_raised() -> None:
    with pytest.raises(ProgramFailed, match="ZeroDivisionError"):
        await converse(Scripted(error=ProgramFailed("ZeroDivisionError")), print, None)


async def test_a_program_that_ends_before_its_input_is_no_error() -> None:
    program = Scripted()
    conversation = asyncio.create_task(
        converse(program, print, read_lines(io.StringIO("too late\nnever read\n")))
    )
    await program.listening.wait()
    await program.end_input()
    assert await conversation == {"lines": 0}


async def test_one_interrupt_cancels_the_program_and_waits_for_its_end() -> None:
    program = Scripted()
    conversation = asyncio.create_task(converse(program, print, NeverEnding()))
    await program.listening.wait()
    os.kill(os.getpid(), signal.SIGINT)
    with pytest.raises(ProgramCancelled):
        await conversation
    assert program.cancel_asked.is_set()


async def test_an_interrupt_of_a_program_that_has_just_ended_adds_no_error_of_its_own() -> None:
    class Ended(Scripted):
        async def cancel(self) -> None:
            self._out.put_nowait(None)
            raise MailboxClosed("the connection has closed")

    unheard: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context))
    program = Ended()
    conversation = asyncio.create_task(converse(program, print, NeverEnding()))
    await program.listening.wait()
    os.kill(os.getpid(), signal.SIGINT)
    assert await conversation == {"lines": 0}
    gc.collect()  # a task whose exception nobody has heard tells so when it goes
    assert unheard == []


async def test_two_interrupts_give_up_waiting(capsys: pytest.CaptureFixture[str]) -> None:
    program = Scripted(stubborn=True)
    conversation = asyncio.create_task(_outcome(converse(program, print, NeverEnding())))
    await program.listening.wait()
    os.kill(os.getpid(), signal.SIGINT)
    await program.cancel_asked.wait()
    os.kill(os.getpid(), signal.SIGINT)
    assert isinstance(await conversation, KeyboardInterrupt)
    assert capsys.readouterr().err.count("a second Ctrl-C stops waiting") == 1


async def test_an_interrupt_of_one_who_looks_on_leaves_the_program_running() -> None:
    program = Scripted()
    looking = converse(program, print, NeverEnding(), cancels=False)
    conversation = asyncio.create_task(_outcome(looking))
    await program.listening.wait()
    os.kill(os.getpid(), signal.SIGINT)
    assert isinstance(await conversation, KeyboardInterrupt)
    assert not program.cancel_asked.is_set()


async def _outcome(conversation: Any) -> Any:
    """A KeyboardInterrupt that left a task would stop the loop itself."""
    try:
        return await conversation
    except KeyboardInterrupt as exc:
        return exc


async def test_many_lines_arrive_in_order() -> None:
    lines = [f"line {index}" for index in range(1000)]
    read = [line async for line in read_lines(io.StringIO("\n".join(lines)))]
    assert read == lines
