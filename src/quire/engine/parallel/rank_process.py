"""What runs in every rank but the first: ``python -m quire.engine.parallel.rank_process``.

Given a socket's number, its rank and the number of ranks by rank 0, which is its parent. Ends with
its parent: by the end of the socket, and on Linux by a signal even while stuck in native code. An
exception ends it too, which the others see.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import socket
import sys

import torch

from quire.engine.parallel.channel import Gone, RankChannel
from quire.engine.parallel.collectives import Collectives, join_store
from quire.engine.parallel.follower import FollowingRank
from quire.engine.parallel.messages import Join, Joined, answer_codec, call_codec
from quire.engine.parallel.shard import Shard

logger = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1


def run(channel: RankChannel, shard: Shard) -> None:
    """Join the group and follow until the channel ends."""
    calls, answers = call_codec(), answer_codec()
    join = calls.decode(channel.receive())
    assert isinstance(join, Join), f"expected Join, got {type(join).__name__}"
    device = torch.device(join.device)
    collectives = Collectives(shard, device, join_store(join.port, shard.size))
    channel.send(answers.encode(Joined()))
    rank = FollowingRank(collectives, device)
    with torch.inference_mode():
        while True:
            answer = rank.execute(calls.decode(channel.receive()))
            if answer is not None:
                channel.send(answers.encode(answer))


def main() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # rank 0 decides when its ranks end
    number, rank, size = map(int, sys.argv[1:4])
    logging.basicConfig(
        level=logging.INFO, format=f"%(levelname)s rank {rank} %(name)s: %(message)s"
    )
    try:
        run(RankChannel(socket.socket(fileno=number)), Shard(rank, size))
    except Gone:
        os._exit(0)  # no clean-up: rank 0 waits for the end, and memory goes with us
    except Exception:
        logger.exception("the rank failed, and with it the group")
        os._exit(1)


if __name__ == "__main__":
    main()
