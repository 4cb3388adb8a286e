"""What a send and the end of a lease or send do to one engine's memory.

Owns the fence: blocks that other engines may still write are free only when this engine has run a
message that closes their leases. Owns also what a send holds until its end: contents on the device
cannot move nor be written in place, and a host block is not reused. Does not decide when a lease
ends.
"""

from __future__ import annotations

from collections.abc import Sequence

from quire.control.engines.exchange_runs import SendRun
from quire.control.engines.state import EngineState
from quire.control.memory.content import Content
from quire.control.memory.leases import Lease, LeaseTable
from quire.control.memory.promises import Reclaim
from quire.control.memory.residency import secure
from quire.control.programs.program import Entry


def end_lease(engine: EngineState, leases: LeaseTable, lease: Lease, why: str) -> None:
    """End ``lease``. What it waits for is fenced first: its blocks stay taken until the engine has
    closed the lease."""
    leases.remove(lease, why)
    if not lease.is_complete:
        engine.operations.close_receive(lease.name.number)
        engine.fenced += lease.received
        engine.touch()
    release_all(engine, lease.contents)


def forget_lease(engine: EngineState, leases: LeaseTable, lease: Lease) -> None:
    """End ``lease`` with its engine, which writes nothing any more."""
    leases.remove(lease, "was lost with its engine")
    if not lease.is_complete:
        engine.memory.unpin_all(lease.received)
    release_all(engine, lease.contents)


def complete_lease(engine: EngineState, leases: LeaseTable, lease: Lease) -> None:
    """Note that all K and V of ``lease`` have arrived: its contents may be read, and the prefix
    index gets its full pages of known tokens."""
    leases.complete(lease)
    memory, size = engine.memory, engine.page_size
    parent = lease.matched[-1].node if lease.matched else None
    start = len(lease.matched) * size
    known = lease.received[: len(lease.received) - len(lease.opaque)]
    for content in known:
        content.tokens = lease.tokens[start : start + size]
        content.parent, content.adapter, content.canonical = parent, lease.adapter, True
        if len(content.tokens) == size:
            parent = content.node = memory.index.child(
                lease.tenant, parent, content.tokens, lease.adapter
            )
        start += size
    memory.add_to_index(known)
    memory.unpin_all(lease.received)


def release_all(engine: EngineState, contents: Sequence[Content]) -> None:
    """Release ``contents``, later pages first: the beginning of a prefix is the most likely to be
    used again."""
    for content in reversed(contents):
        engine.memory.release(content)


def hold_for_send(
    engine: EngineState,
    entry: Entry,
    contents: Sequence[Content],
    num_tokens: int,
    reclaim: Reclaim,
) -> SendRun | None:
    """Hold ``contents`` where they are, on the device or the host, until ``end_send``; those in
    transfer or on the disk come to the device first. None, with nothing held, as long as they are
    not there."""
    memory = engine.memory
    resting = [content for content in contents if memory.rests_on_host(content)]
    others = [content for content in contents if not memory.rests_on_host(content)]
    memory.pin_all(resting)  # room for the others is not made of them
    pinned = secure(memory, others, 0, reclaim)
    memory.unpin_all(resting)
    if pinned is None:
        return None
    for content in pinned:
        memory.retain(content)  # so that no holder writes to it in place
    return SendRun(entry, pinned, [memory.lend(content) for content in resting], num_tokens)


def end_send(engine: EngineState, run: SendRun) -> None:
    """Let go of what ``run`` holds: the engine no longer reads it."""
    engine.memory.unpin_all(run.contents)
    release_all(engine, run.contents)
    for host_block in run.host_blocks:
        engine.memory.give_back(host_block)
