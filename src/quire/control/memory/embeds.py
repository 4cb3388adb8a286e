"""Virtual embed slots of programs over the engine's physical ones.

Owns the binding from a program's ids to physical numbers, and what control knows about each value.
"""

from __future__ import annotations

from quire.core.ids import EmbedId, EngineId, QueueId


class HeldEmbed:
    """One embed slot that a program holds.

    ``owner``        the queue of its program on which it was allocated.
    ``slot``         physical slot, bound when its ``AllocEmbeds`` is executed.
    ``position``     position of a token sampled from it or embedded in it: that of its
                     ``EmbedText``, or the one after the token whose hidden state it is.
    ``token``        the token that was embedded, if control knows it.
    ``is_written``   a value was (or is being) written to it.
    ``num_pins``     number of unfinished commands that name it.
    ``is_counted``   it counts against the quotas of its program and that program's ancestors.
    ``orphan_of``    the queue on which its dealloc failed; it is freed when that queue is reset or
                     closed.
    """

    __slots__ = (
        "engine",
        "id",
        "is_counted",
        "is_freed",
        "is_lost",
        "is_released",
        "is_written",
        "num_pins",
        "orphan_of",
        "owner",
        "position",
        "slot",
        "token",
    )

    def __init__(self, embed_id: EmbedId, engine: EngineId, owner: QueueId) -> None:
        self.id = embed_id
        self.engine = engine
        self.owner = owner
        self.slot: int | None = None
        self.position = 0
        self.token: int | None = None
        self.is_written = False
        self.is_lost = False
        self.is_counted = False
        self.is_released = False
        self.is_freed = False
        self.num_pins = 0
        self.orphan_of: QueueId | None = None

    def write(self, position: int, token: int | None) -> None:
        self.position = position
        self.token = token
        self.is_written = True
        self.is_lost = False
