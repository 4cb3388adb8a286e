"""What a program asks of its node: one union, from its interface to control and from its guest.

A native program, a guest and a program that begins again say the same messages: ``post`` and
``ask`` of a port take them (``core.interfaces.ProgramPort``), the event ``Called`` carries those
that are for control, a sandbox's process sends them as they are. No call names a program: the port
stamps it on.
Issuers choose the numbers of queues, commands and questions, from the port's ``first_number`` on.
"""

from __future__ import annotations

from typing import Any

import msgspec

from quire.core.commands import Command
from quire.core.ids import CommandId, ModelId, QueueId, ThreadId


class CallBase(msgspec.Struct, frozen=True, tag=True, array_like=True, gc=False):
    """An array that begins with its name. Of the garbage collector see ``CommandBase``."""


class CreateQueue(CallBase, frozen=True):
    """A queue for ``model``; control chooses one of the model's engines when its first command
    comes (``QueuePlaced``).

    ``thread``: the line of calls that it serves, ``parent_thread`` the one that this was forked
    from. ``depth``: the graph depth (Ayo). ``priority``: higher runs first.
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


class ResetQueue(CallBase, frozen=True):
    """Cancel the queue's commands; clear its poison. What it allocated stays."""

    queue: QueueId


class CloseQueue(CallBase, frozen=True):
    """Cancel the queue's commands and free everything that was allocated through it."""

    queue: QueueId


class Issue(CallBase, frozen=True):
    """Commands for one queue, in order."""

    queue: QueueId
    commands: list[Command]


class Cancel(CallBase, frozen=True):
    """Cancel one command. A decode in flight ends after its last message; others likewise."""

    command: CommandId


class AskService(CallBase, frozen=True):
    """Ask a service of the node: messaging, the store, children ...

    ``number`` is the question's; 0 wants no answer. Arguments are what JSON can say, and bytes.
    """

    number: int
    name: str
    arguments: dict[str, Any]


class DropAnswer(CallBase, frozen=True):
    """Nobody waits for the answer of that question any more."""

    number: int


QueueCall = CreateQueue | SetQueuePriority | ResetQueue | CloseQueue | Issue | Cancel
"""What control is asked."""

Call = QueueCall | AskService | DropAnswer
