"""Moves a program to another node together with its children; if one must stay, all stay.

Owns the order: the program stops, then its children, so that it no longer reads their messages.
Belongs to the edge's loop. Must not know how one program is stopped, nor how it is sent.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import structs

from quire.core.errors import InvalidArgument, QuireError
from quire.node.programs.children import LaunchedChild, MovedChild
from quire.node.programs.handle import ProgramHandle
from quire.node.programs.restarting.handing_over import HandedChild, HandedProgram, packed
from quire.programs.services.children import ChildHandle


def running_family(handle: ProgramHandle) -> Iterator[ProgramHandle]:
    """A restartable program and its descendants that run, each before its children."""
    yield handle
    for child in _running(handle):
        yield from running_family(child.handle)


def check_family(handle: ProgramHandle, *, is_alone: bool = True) -> None:
    """Check that the program and its children can go to another node.

    Raises:
        InvalidArgument: one cannot; the message names it and says why.
    """
    handle.life.check_movable(is_alone=is_alone)
    for child in _running(handle):
        try:
            check_family(child.handle, is_alone=False)
        except InvalidArgument as exc:
            why = exc.message.rpartition("another node: ")[2]
            raise InvalidArgument(
                f"program {handle.id} cannot move to another node: its child {child.name!r} "
                f"({child.id}) has to stay: {why}"
            ) from exc


async def hand_over_family(handle: ProgramHandle, *, is_alone: bool = True) -> HandedProgram:
    """Stop the program and its children; ``family_leaves`` or ``family_stays`` follows.

    Raises:
        InvalidArgument: one of them cannot move; all go on here.
    """
    check_family(handle, is_alone=is_alone)
    handed = await handle.life.hand_over(is_alone=is_alone)
    state = handle.life.children
    if not state.children:
        return handed
    try:
        await handle.life.wait_stopped()  # messages that it has received and not read are put back
        children = [await _handed(one) for one in list(state.children.values())]
    except QuireError:
        family_stays(handle)
        raise
    unread = [list(state.unread.get(child.id, ())) for child in children]
    children = [
        structs.replace(child, unread=put_back)
        for child, put_back in zip(children, unread, strict=True)
    ]
    return structs.replace(handed, children=children)


async def packed_family(handle: ProgramHandle) -> bytes:
    """Like ``hand_over_family``; return the programs as another node reads them.

    Raises:
        InvalidArgument: one of them cannot move, or has what no message can hold, such as the
            result of a child that is an integer of more than 64 bits; all go on here.
    """
    handed = await hand_over_family(handle)
    try:
        return packed(handed)
    except (TypeError, ValueError, OverflowError, RecursionError) as exc:
        family_stays(handle)
        raise InvalidArgument(
            f"program {handle.id} cannot move to another node: what it or one of its children has "
            f"said or was told cannot be told to another node ({exc})"
        ) from exc


async def _handed(child: ChildHandle) -> HandedChild:
    if isinstance(child, LaunchedChild) and not child.ended:
        try:
            program = await hand_over_family(child.handle, is_alone=False)
        except InvalidArgument:
            if not child.ended:
                raise
        else:
            return HandedChild(child.id, child.name, child.num_read, [], program, None)
    assert isinstance(child, LaunchedChild | MovedChild)
    return HandedChild(child.id, child.name, 0, [], None, child.left())


def family_leaves(handle: ProgramHandle) -> None:
    """End the family here: another node has taken it. Idempotent."""
    children = _running(handle)
    for child in children:
        family_leaves(child.handle)
    handle.life.leave()


def family_stays(handle: ProgramHandle) -> None:
    """Start again the programs that have stopped: no other node has taken them. Idempotent."""
    for child in _running(handle):
        family_stays(child.handle)
    handle.life.stay()


def family_left_behind(handle: ProgramHandle) -> None:
    """Leave the program and its descendants: this node was taken for lost, and another one goes on
    with them. Idempotent."""
    for child in _running(handle):
        family_left_behind(child.handle)
    handle.life.leave_behind()


def _running(handle: ProgramHandle) -> list[LaunchedChild]:
    return [
        child
        for child in handle.life.children.children.values()
        if isinstance(child, LaunchedChild) and not child.ended
    ]
