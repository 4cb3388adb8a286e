"""Commands that come after others: what ``after`` may name, and who waits for whom.

Owns no state. ``flow`` fails what comes after a failed command, and wakes what waits for others.
"""

from __future__ import annotations

from quire.control.programs.failures import MAX_KEPT
from quire.control.programs.program import Entry, Program
from quire.core.commands import Command
from quire.core.errors import ProgramCancelled, QueuePoisoned, UnknownHandle
from quire.core.ids import CommandId


def check_after(command: Command, program: Program) -> None:
    """Check the commands that ``command`` names in ``after``.

    Raises:
        QueuePoisoned: one has failed.
        UnknownHandle: one was never issued, or ended too long ago to know how.
    """
    for dependency in command.after:
        if dependency in program.failed:
            raise poisoned(dependency)
        has_ended = dependency in program.ended
        if dependency not in program.entries and not has_ended:
            raise UnknownHandle(
                f"after names command {dependency}, which was never issued: issue it first"
            )
        if has_ended and program.failed.may_have_forgotten(dependency):
            raise UnknownHandle(
                f"after names command {dependency}, which ended before {MAX_KEPT} others of "
                "this program failed: whether it did is forgotten, so name later ones only"
            )


def watch_dependencies(entry: Entry) -> None:
    """Let ``entry`` wait for the commands of other queues that it comes after."""
    for dependency in set(entry.command.after):
        other = entry.program.entries.get(dependency)
        if other is not None and other.queue is not entry.queue:
            other.dependents += (entry,)
            entry.num_blockers += 1


def poisoned(failed: CommandId) -> QueuePoisoned:
    return QueuePoisoned(
        f"command {failed} failed or was cancelled, and this one comes after it: reset the queue "
        "to go on",
        failed=failed,
    )


def cancelled(command: CommandId, reason: str) -> ProgramCancelled:
    return ProgramCancelled(f"command {command} was cancelled: {reason}", reason=reason)
