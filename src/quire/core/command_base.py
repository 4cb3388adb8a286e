"""The fields that every command has, whatever it does."""

from __future__ import annotations

import msgspec

from quire.core.ids import CommandId


class CommandBase(msgspec.Struct, frozen=True, kw_only=True, tag=True, gc=False):
    """Fields of every command. ``gc=False``: messages are plain data without cycles, so the garbage
    collector need not scan them."""

    id: CommandId
    after: tuple[CommandId, ...] = ()
