"""Running answers move to an engine that has less to do, so that none decodes among many.

An answer that has been returned can still be moved: what is computed of it goes to the other engine
while it decodes, then its stream goes on there, and its client notices a pause of some steps. The
router needs ``--resume``, it and the nodes the same ``--cluster-key-file``.

    quire router --node http://127.0.0.1:8001 --node http://127.0.0.1:8002 --resume \
        --cluster-key-file cluster.key --strategy examples/cluster/decodes_move.py:Levelled
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from weakref import WeakSet

from quire.cluster import Engine, Request, RoutedAnswer


@dataclass
class Levelled:
    """A new request goes to the engine with the least to do. Where another one has more than
    ``max_extra`` unfinished requests above it, an answer of that one moves there, too."""

    max_extra: int = 2
    answers: WeakSet[RoutedAnswer] = field(default_factory=WeakSet, init=False)
    moves: set[asyncio.Task[bool]] = field(default_factory=set, init=False)

    async def __call__(self, request: Request, engines: Sequence[Engine]) -> RoutedAnswer:
        *_, fullest = by_load = sorted(engines, key=lambda engine: engine.load)
        least = by_load[0]
        movable = next((one for one in self.answers if one.engine == fullest.name), None)
        if movable is not None and fullest.load - least.load > self.max_extra:
            self.answers.discard(movable)
            move = asyncio.create_task(fullest.move(movable, to=least))
            self.moves.add(move)
            move.add_done_callback(self.moves.discard)
        answer = await least.send(request)
        self.answers.add(answer)
        return answer
