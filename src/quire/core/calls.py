"""A program's calls to its node, as one union: from its interface to control, and from a guest.

Native programs, guests and restarted programs send the same messages: a port's ``post`` and ``ask``
take them (``core.interfaces.ProgramPort``), the event ``Called`` carries those for control, and a
sandbox process sends them unchanged. A call does not name its program; the port adds it. Issuers
choose the numbers of queues, commands and questions, from the port's ``first_number`` on.
"""

from __future__ import annotations

from typing import Any

import msgspec

from quire.core.commands import Command
from quire.core.encoding import Encode
from quire.core.ids import CommandId, ModelId, QueueId, ThreadId

SPARE_PRIORITY = -(1 << 31)
"""The priority of spare queues, whose commands run only while no command of another queue needs
their engine, of whichever tenant: a message carries them alone. A program whose generated tokens
are bounded may not sample on them."""


class CallBase(msgspec.Struct, frozen=True, tag=True, array_like=True, gc=False):
    """Encoded as an array that begins with the call's name. ``gc=False``: see ``CommandBase``."""


class CreateQueue(CallBase, frozen=True):
    """Create a queue for ``model``; control chooses one of the model's engines when the queue's
    first command arrives, and another one if that is lost (``QueuePlaced``).

    ``thread``: the line of calls that it serves; ``parent_thread``: the thread that this one was
    forked from. ``depth``: the graph depth (Ayo). ``priority``: higher runs first; from
    ``SPARE_PRIORITY`` down only in spare time.
    """

    queue: QueueId
    model: ModelId
    thread: ThreadId = ThreadId(0)
    depth: int = 0
    priority: int = 0
    parent_thread: ThreadId | None = None


class SetQueuePriority(CallBase, frozen=True):
    queue: QueueId
    priority: int


class SetQueueDepth(CallBase, frozen=True):
    """Let commands that are issued on the queue from now on serve another step of its program's
    graph: at ``depth``, of the invocation with that number (0: each command is one of its own),
    with ``remaining_us`` microseconds to the graph's result by profile. Earlier commands keep
    theirs."""

    queue: QueueId
    depth: int
    invocation: int = 0
    remaining_us: int = 0


class ResetQueue(CallBase, frozen=True):
    """Cancel the queue's commands and clear its poison. Its allocations stay."""

    queue: QueueId


class CloseQueue(CallBase, frozen=True):
    """Cancel the queue's commands and free everything allocated on it."""

    queue: QueueId


class Issue(CallBase, frozen=True):
    """Issue commands on one queue, in order."""

    queue: QueueId
    commands: list[Command]


class Cancel(CallBase, frozen=True):
    """Cancel one command. If its message is in flight, it ends when that message is answered."""

    command: CommandId


class AskEncoder(CallBase, frozen=True):
    """Compute the rows of sequences with an encoder, ``model``; answered by ``Encoded``.

    The node sends it on behalf of a program, whose texts it has made into sequences. It is in
    no queue; ``Cancel`` cancels it. ``thread``, ``depth`` and ``priority``: as of a queue;
    ``invocation`` and ``remaining_us``: as in ``SetQueueDepth``.
    """

    model: ModelId
    command: Encode
    thread: ThreadId = ThreadId(0)
    depth: int = 0
    priority: int = 0
    invocation: int = 0
    remaining_us: int = 0


class AskService(CallBase, frozen=True):
    """Ask a service of the node: messaging, the store, children ...

    ``number`` identifies the question; 0: no answer is wanted. Arguments are JSON values and bytes.
    """

    number: int
    name: str
    arguments: dict[str, Any]


class DropAnswer(CallBase, frozen=True):
    """Drop the answer to that question, which is not needed any more."""

    number: int


QueueCall = (
    CreateQueue | SetQueuePriority | SetQueueDepth | ResetQueue | CloseQueue | Issue | Cancel
)
"""The calls that concern a program's queues."""

ControlCall = QueueCall | AskEncoder
"""The calls that control handles."""

Call = QueueCall | AskService | DropAnswer
"""The calls that a program itself, or a guest, may send."""
