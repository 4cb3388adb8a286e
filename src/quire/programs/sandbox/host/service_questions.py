"""A guest's questions to services: each question is a task, each answer an event.

Owns the pending questions and their bound. Belongs to one loop: that of the guest's host for
questions that are answered there (HTTP), that of the node's link for all others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from quire.core.calls import AskService
from quire.core.errors import ProgramCancelled, ProgramError, QuireError, QuotaExceeded
from quire.programs.sandbox import messages as m

logger = logging.getLogger(__name__)

MAX_QUESTIONS = 256
"""The most pending questions of one guest."""


class ServiceQuestions:
    """The questions of guest ``name``. ``ask`` adds its identity (``ProgramPort.ask``); ``tell``
    sends it events."""

    def __init__(
        self,
        name: str,
        ask: Callable[[AskService], Awaitable[Any]],
        tell: Callable[[m.GuestEvents], None],
    ) -> None:
        self._name = name
        self._ask = ask
        self._tell = tell
        self._under_way: dict[int, asyncio.Task[None]] = {}
        self._unanswered: set[asyncio.Task[None]] = set()

    def start(self, question: AskService) -> None:
        num_under_way = len(self._under_way) + len(self._unanswered)
        if num_under_way >= MAX_QUESTIONS or question.number in self._under_way:
            error = QuotaExceeded(
                f"{question.name}: {num_under_way} questions to the node are pending; "
                f"{MAX_QUESTIONS} are allowed at a time: await some of them first"
            )
            self._tell(m.ServiceRefused(question.number, error.record()))
            return
        task = asyncio.get_running_loop().create_task(self._carry_out(question))
        if question.number:
            self._under_way[question.number] = task
            task.add_done_callback(partial(self._ended, question))
        else:
            self._unanswered.add(task)
            task.add_done_callback(self._unanswered.discard)

    def drop(self, number: int) -> None:
        """Cancel a question for which the program no longer waits; do nothing if it is answered."""
        task = self._under_way.get(number)
        if task is not None:
            task.cancel()

    @property
    def num_unanswered(self) -> int:
        """The number of pending questions that need no answer, such as putting a message back."""
        return len(self._unanswered)

    async def settled(self, limit_s: float) -> None:
        """Wait until the questions that need no answer are done, at most ``limit_s``."""
        if self._unanswered:
            await asyncio.wait(self._unanswered, timeout=limit_s)

    def close(self) -> None:
        """Cancel all questions: the guest has ended."""
        for task in (*self._under_way.values(), *self._unanswered):
            task.cancel()

    def _ended(self, question: AskService, task: asyncio.Task[None]) -> None:
        if self._under_way.get(question.number) is task:  # cancelled, perhaps before it started
            del self._under_way[question.number]
            given_up = ProgramCancelled(f"{question.name}: the program no longer waits for it")
            self._tell(m.ServiceRefused(question.number, given_up.record()))

    async def _carry_out(self, question: AskService) -> None:
        """Answer in the step in which the answer has come: what the node records then as its order
        is the order in which the guest gets it."""
        event = await self._answer_to(question)
        if question.number:
            self._under_way.pop(question.number, None)
            self._tell(event)

    async def _answer_to(self, question: AskService) -> m.GuestEvents:
        try:
            return m.ServiceAnswered(question.number, await self._ask(question))
        except QuireError as exc:
            return m.ServiceRefused(question.number, exc.record())
        except Exception as exc:  # an error of the node; the guest's other questions continue
            logger.exception("service %s failed for program %s", question.name, self._name)
            wrong = ProgramError(f"{question.name} failed in the node: {type(exc).__name__}")
            return m.ServiceRefused(question.number, wrong.record())
