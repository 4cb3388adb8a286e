"""What control answers, in order: ends with nothing to say ride on the next reply."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from quire.control.outbox import Outbox
from quire.core.actions import Action, Deliver, Fail, SetTimer, Terminate
from quire.core.commands import Sampled
from quire.core.decoding import DecodeChunk
from quire.core.encoding import Encoded
from quire.core.errors import ErrorRecord
from quire.core.ids import CommandId, ProgramId

ONE, TWO = ProgramId(1), ProgramId(2)
ERROR = ErrorRecord("engine_lost", "gone")
SAMPLED = Sampled([7])


def told(outbox: Outbox) -> list[tuple[int, int, object, bool]]:
    """Program, command, reply and ``last`` of each reply, in the order in which they are told."""
    replies: list[tuple[int, int, object, bool]] = []
    for action in outbox.take():
        assert isinstance(action, Deliver)
        replies += [(action.program, command, None, True) for command in action.done_before]
        replies.append((action.program, action.command, action.reply, action.last))
    return replies


def test_the_next_reply_tells_what_is_done_before_it() -> None:
    outbox = Outbox()
    for command in (1, 2):
        outbox.deliver(ONE, CommandId(command))
    outbox.deliver(ONE, CommandId(3), SAMPLED)
    before = (CommandId(1), CommandId(2))
    told = Deliver(program=ONE, command=CommandId(3), reply=SAMPLED, done_before=before)
    assert outbox.take() == [told]
    assert outbox.take() == []


def test_without_a_reply_the_last_one_tells_the_others() -> None:
    outbox = Outbox()
    outbox.deliver(ONE, CommandId(1))
    outbox.deliver(ONE, CommandId(2))
    told = Deliver(program=ONE, command=CommandId(2), done_before=(CommandId(1),))
    assert outbox.take() == [told]


def test_programs_and_parts_of_a_decode_keep_their_order() -> None:
    outbox, chunk = Outbox(), DecodeChunk([5])
    outbox.deliver(ONE, CommandId(1))
    outbox.deliver(TWO, CommandId(1))
    outbox.deliver(TWO, CommandId(2), chunk, last=False)
    outbox.deliver(TWO, CommandId(2), chunk)
    outbox.deliver(ONE, CommandId(2))
    assert told(outbox) == [
        (1, 1, None, True),
        (2, 1, None, True),
        (2, 2, chunk, False),
        (2, 2, chunk, True),
        (1, 2, None, True),
    ]


@pytest.mark.parametrize(
    ("add", "action"),
    [
        (
            lambda outbox: outbox.fail(ONE, CommandId(2), ERROR),
            Fail(program=ONE, command=CommandId(2), error=ERROR),
        ),
        (lambda outbox: outbox.terminate(ONE, ERROR), Terminate(program=ONE, error=ERROR)),
        (lambda outbox: outbox.set_timer(1.0), SetTimer(at_s=1.0)),
    ],
    ids=["fail", "terminate", "timer"],
)
def test_nothing_overtakes_an_end(add: Callable[[Outbox], None], action: Action) -> None:
    outbox = Outbox()
    outbox.deliver(ONE, CommandId(1))
    add(outbox)
    outbox.deliver(ONE, CommandId(3), SAMPLED)
    end = Deliver(program=ONE, command=CommandId(1))
    assert outbox.take() == [
        end,
        action,
        Deliver(program=ONE, command=CommandId(3), reply=SAMPLED),
    ]


def test_rows_tell_of_nothing_else() -> None:
    """They go to the node, and what was done before them to the program."""
    outbox = Outbox()
    rows = Encoded(first=0, rows=np.zeros((1, 2), np.float32))
    outbox.deliver(ONE, CommandId(1))
    outbox.deliver(ONE, CommandId(9), rows, last=False)
    outbox.deliver(ONE, CommandId(2))
    assert [len(one.done_before) for one in outbox.take() if isinstance(one, Deliver)] == [0, 0, 0]
