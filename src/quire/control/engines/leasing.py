"""What the end of a lease or of a send does to one engine's memory.

Owns the fence: blocks that other engines may still write are free only when this engine has run a
message that closes their leases. Does not decide when a lease ends.
"""

from __future__ import annotations

from collections.abc import Sequence

from quire.control.engines.exchange_runs import SendRun
from quire.control.engines.state import EngineState
from quire.control.memory.content import Content
from quire.control.memory.leases import Lease, LeaseTable


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


def end_send(engine: EngineState, run: SendRun) -> None:
    """Release the contents of ``run``, which the engine no longer reads."""
    engine.memory.unpin_all(run.contents)
    release_all(engine, run.contents)
