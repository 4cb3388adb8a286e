"""Events for a compiled guest's ring, built from replies and failures.

Pure functions; the runner finds room for events.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import msgspec

from quire.core.actions import ReplyValue
from quire.core.calls import AskService
from quire.core.commands import Dists, Imported, Sampled
from quire.core.decoding import DecodeChunk
from quire.core.errors import ErrorRecord
from quire.programs.sandbox.module import abi
from quire.programs.sandbox.module.abi import GuestOp, Status


class RingEvent(msgspec.Struct, frozen=True, gc=False):
    """An event for the guest. ``payload`` is written to its inbox; if it does not fit there,
    ``undo`` puts back what the command has taken."""

    op: int
    command: int
    payload: bytes = b""
    status: int = Status.OK
    a: int = 0
    b: int = 0
    c: int = 0
    last: bool = True
    undo: AskService | None = None


def reply_event(op: int, command: int, reply: ReplyValue, last: bool) -> RingEvent:
    match reply:
        case None:
            return RingEvent(op, command, last=last)
        case DecodeChunk():
            finish = abi.FINISH.get(reply.finish_reason or "", 0)
            tokens = reply.token_ids
            return RingEvent(
                op, command, u32s(tokens),
                a=len(tokens), b=finish, c=reply.num_cached_tokens, last=last,
            )  # fmt: skip
        case Dists():
            (dist,) = reply.dists
            probs = struct.pack(f"<{len(dist.probs)}f", *dist.probs)
            payload = u32s(dist.token_ids) + probs
            return RingEvent(op, command, payload, a=len(dist.token_ids))
        case Sampled():
            return RingEvent(op, command, u32s(reply.token_ids), a=len(reply.token_ids))
        case Imported():
            fills = [page.fill for page in reply.pages]
            tokens = (reply.tokens or []) if op == GuestOp.IMPORT_TEXT else []
            return RingEvent(
                op, command, u32s([*fills, *tokens]),
                a=len(fills), b=reply.num_tokens, c=len(tokens), last=last,
            )  # fmt: skip
        case _:
            return RingEvent(op, command, last=last)


def failed(op: int, command: int, error: ErrorRecord) -> RingEvent:
    message = error.message.encode("utf-8", "replace")[:4096]
    return RingEvent(op, command, message, status=abi.status_of(error))


def u32s(numbers: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(numbers)}I", *numbers)
