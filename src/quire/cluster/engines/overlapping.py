"""A transfer and the generation that waits for it, in flight together.

``start_generate`` with a lease waits at the receiver until all of the lease has arrived. So the
router makes that call without the end of ``remote_send``: the receiver begins as soon as its own
control knows of the arrival. The report of the sender comes a way to the router later, and, if the
sender is busy, only when the message that carried the send has run.

Owns which of the two ends decides. Must not know any strategy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from msgspec.structs import replace

from quire.cluster.engines.interfaces import RemoteSendResult
from quire.cluster.requests.answer import RoutedAnswer
from quire.cluster.requests.request import BegunWork

OnSent = Callable[[RemoteSendResult], None]


async def answered_while_sending(
    sending: Coroutine[Any, Any, RemoteSendResult],
    answering: Coroutine[Any, Any, RoutedAnswer],
    work: BegunWork,
    on_sent: OnSent,
) -> RoutedAnswer:
    """Run ``remote_send`` and the ``start_generate`` that waits for what it sends at once; return
    the answer. ``on_sent`` receives the result of the transfer. If the answer begins before the
    sender's report, everything has arrived: ``work`` keeps the call until the report comes, whose
    ``call_s`` is then the time until the answer began.

    Raises:
        QuireError: the error of the call that failed first; the other one is then cancelled, and
            has ended.
    """
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    send, answer = asyncio.create_task(sending), asyncio.create_task(answering)
    try:
        await asyncio.wait((send, answer), return_when=asyncio.FIRST_COMPLETED)
        has_begun = answer.done() and not answer.cancelled() and answer.exception() is None
        if send.done() and not (has_begun and send.exception() is not None):
            on_sent(send.result())  # its error counts while there is no answer
        answered = await answer
    except BaseException:
        send.cancel()
        answer.cancel()
        await asyncio.gather(send, answer, return_exceptions=True)
        raise
    if not send.done():
        most_s = loop.time() - began_s
        work.keep(send, lambda sent: on_sent(replace(sent, call_s=min(sent.call_s, most_s))))
    return answered
