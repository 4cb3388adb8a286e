"""What control keeps for every engine, with memory or without: the queues that are placed on it.

Owns which of these queues may start a command and what the others wait for. ``state`` and
``encoder_pool`` hold what each kind of engine has besides.
"""

from __future__ import annotations

from quire.control.engines.awake import Awake
from quire.control.engines.ready import ReadyQueues
from quire.control.programs.program import CommandQueue, Entry
from quire.core.ids import EngineId, ModelId


class ControlledEngine:
    """The queues and ended commands of one engine. ``number``: how many came up for the first time
    before it; ``awake`` has it while the engine must be examined.

    ``ready``    queues whose next command needs a batch message and may start now.
    ``is_touched``  something has happened to its queues or messages that its scheduler has not
    examined.
    ``ended``    commands that have ended since the last ``take_ended``.
    ``stalled``  queues whose next command waits for neither blocks nor embeds.
    ``num_ended_before``  the number of ended commands when ``stalled`` was last examined.
    ``starved``  queues whose next command waits for free embeds, in the order of arrival.
    """

    def __init__(
        self, engine: EngineId, model: ModelId, number: int = 0, awake: Awake | None = None
    ) -> None:
        self.id = engine
        self.model = model
        self.number = number
        self.awake = awake or Awake()
        self.ready = ReadyQueues()
        self.is_touched = False
        self.ended: list[Entry] = []
        self.stalled: dict[CommandQueue, None] = {}
        self.num_ended_before = -1
        self.starved: dict[CommandQueue, None] = {}

    def wake(self) -> None:
        """Have the next decision examine the engine, if only for its stalled queues."""
        self.awake.add(self.number)

    def touch(self) -> None:
        """Note that something has happened which its scheduler must examine."""
        self.is_touched = True
        self.awake.add(self.number)

    def take_ended(self) -> list[Entry]:
        ended, self.ended = self.ended, []
        return ended

    def abandon(self, entry: Entry) -> None:
        """Forget ``entry``, which was placed here and ends. Each kind of engine implements this."""
        raise NotImplementedError
