"""A transfer and the generation that waits for it: which end decides, and what is left of the
other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from quire.cluster.engines.interfaces import RemoteSendResult
from quire.cluster.engines.overlapping import answered_while_sending
from quire.cluster.engines.trial import TrialAnswer
from quire.cluster.requests.answer import RoutedAnswer
from quire.cluster.requests.request import BegunWork
from quire.core.errors import EngineLost, TransferFailed


class Call:
    """A call that waits until it is given a result or an error. One that is cancelled takes a
    turn to end."""

    def __init__(self) -> None:
        self.result: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self.has_begun = asyncio.Event()
        self.was_cancelled = False
        """It has ended for that reason."""

    async def __call__(self) -> object:
        self.has_begun.set()
        try:
            return await self.result
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            self.was_cancelled = True
            raise


class Both:
    def __init__(self) -> None:
        self.send, self.answer = Call(), Call()
        self.sent: list[RemoteSendResult] = []
        self.work = BegunWork()
        self.task: asyncio.Task[RoutedAnswer] = asyncio.create_task(
            answered_while_sending(
                self.send(),  # type: ignore[arg-type]
                self.answer(),  # type: ignore[arg-type]
                self.work,
                self.sent.append,
            )
        )

    async def begun(self) -> None:
        for call in (self.send, self.answer):
            await call.has_begun.wait()


async def turns(num: int = 5) -> None:
    for _ in range(num):
        await asyncio.sleep(0)


SENT = RemoteSendResult(7, num_bytes=70, elapsed_s=0.1, call_s=50.0)


async def test_both_calls_are_under_way_together() -> None:
    both = Both()
    await both.begun()
    both.send.result.set_result(SENT)
    await turns()
    assert both.sent == [SENT]
    assert not both.task.done()
    answer = TrialAnswer("receiver")
    both.answer.result.set_result(answer)
    assert await both.task is answer


async def test_a_report_that_comes_after_the_answer_is_not_waited_for() -> None:
    both = Both()
    await both.begun()
    answer = TrialAnswer("receiver")
    both.answer.result.set_result(answer)
    assert await both.task is answer
    assert not both.sent
    both.send.result.set_result(SENT)
    await turns()
    (told,) = both.sent
    assert (told.num_tokens, told.num_bytes, told.elapsed_s) == (7, 70, 0.1)
    assert told.call_s < 50.0, "the request has not waited for the report"


async def test_a_report_that_fails_behind_the_answer_harms_nothing() -> None:
    both = Both()
    await both.begun()
    both.answer.result.set_result(TrialAnswer("receiver"))
    await both.task
    both.send.result.set_exception(EngineLost("killed"))
    await turns()
    assert not both.sent


async def test_an_answer_that_has_begun_counts_more_than_a_sender_that_is_lost() -> None:
    both = Both()
    await both.begun()
    answer = TrialAnswer("receiver")
    both.answer.result.set_result(answer)
    both.send.result.set_exception(EngineLost("killed"))  # both are known in the same turn
    assert await both.task is answer
    assert not both.sent


@pytest.mark.parametrize("fails", ["send", "answer"])
@pytest.mark.parametrize("error", [EngineLost("killed"), TransferFailed("cut off")])
async def test_the_first_failure_ends_both(fails: str, error: Exception) -> None:
    both = Both()
    await both.begun()
    failed, other = both.send, both.answer
    if fails == "answer":
        failed, other = other, failed
    failed.result.set_exception(error)
    with pytest.raises(type(error)):
        await both.task
    assert other.was_cancelled
    assert not both.sent


async def test_of_two_failures_in_one_turn_the_senders_is_the_reason() -> None:
    """The receiver's is what follows from it."""
    both = Both()
    await both.begun()
    both.answer.result.set_exception(TransferFailed("the lease has ended"))
    both.send.result.set_exception(EngineLost("killed"))
    with pytest.raises(EngineLost):
        await both.task


async def test_a_client_that_leaves_ends_both() -> None:
    both = Both()
    await both.begun()
    both.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await both.task
    assert both.send.was_cancelled
    assert both.answer.was_cancelled


async def test_what_the_listener_raises_ends_the_call_that_waits() -> None:
    def refuses(sent: RemoteSendResult) -> None:
        raise ValueError("not this one")

    send, answer = Call(), Call()
    refusing: Callable[[RemoteSendResult], None] = refuses
    task = asyncio.create_task(
        answered_while_sending(send(), answer(), BegunWork(), refusing)  # type: ignore[arg-type]
    )
    await turns()
    send.result.set_result(SENT)
    with pytest.raises(ValueError, match="not this one"):
        await task
    assert answer.was_cancelled
