"""What a decode's numbers become in a message: each can be sent, however large it is."""

from __future__ import annotations

import pytest
from control_world import World

from quire.core.batch import Batch, OpenSequence
from quire.core.decoding import StopSpec
from quire.core.wire import Codec


@pytest.mark.parametrize("min_tokens", [3, 2**64 - 1])
def test_the_least_and_the_most_tokens_that_can_be_named(min_tokens: int) -> None:
    world, codec = World(), Codec[Batch](Batch)
    world.program(1)
    stop = StopSpec(max_tokens=2**64 - 1, min_tokens=min_tokens)
    decode = world.decode([0], [1, 2], num_generated=1, stop=stop)
    outcome = world.do(1, world.alloc([0]), decode)[1]
    assert outcome.status == "done"
    batches = [codec.decode(codec.encode(one.batch)) for one in world.harness.dispatched]
    operations = [op for batch in batches for op in batch.operations]
    (opened,) = [op for op in operations if isinstance(op, OpenSequence)]
    room = world.engine.info.pool.page_size - 2 + 1
    assert opened.stop.max_tokens == room + 1, "counted with the token before"
    assert opened.stop.min_tokens == min(min_tokens, room) + 1
