"""What every engine has in control, with memory or without: queues that are placed on it.

Owns which of these queues may go on, and which wait for what. What an engine keeps besides is known
to ``state`` and ``encoder_pool``.
"""

from __future__ import annotations

from quire.control.engines.ready import ReadyQueues
from quire.control.programs.program import CommandQueue, Entry
from quire.core.ids import EngineId, ModelId


class Engine:
    """``ready``   queues whose next command needs a message and may start now.
    ``ended``      commands that have ended since the scheduler looked last.
    ``stalled``    queues whose next command waits for something else than blocks and embeds;
    ``num_ended_before``: how many commands had ended when they were last looked at.
    ``starved``    queues whose next command waits for embeds of others, in the order of arrival.
    """

    def __init__(self, engine: EngineId, model: ModelId) -> None:
        self.id = engine
        self.model = model
        self.ready = ReadyQueues()
        self.ended: list[Entry] = []
        self.stalled: dict[CommandQueue, None] = {}
        self.num_ended_before = -1
        self.starved: dict[CommandQueue, None] = {}

    def take_ended(self) -> list[Entry]:
        ended, self.ended = self.ended, []
        return ended

    def abandon(self, entry: Entry) -> None:
        """Forget ``entry``, which was placed here and ends. Each kind of engine has its own way."""
        raise NotImplementedError
