"""The process of every rank except rank 0: ``python -m quire.engine.parallel.rank_process``.

Rank 0, its parent, passes the file descriptors of two sockets, the rank, the number of ranks and
its own process id. The process ends with its parent: when the first socket closes, and on Linux by
a signal even while stuck in native code. An exception also ends it, which the other ranks notice.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys

import torch

from quire.core.parent_process import die_with_parent
from quire.engine.parallel.channel import PeerGone, RankChannel
from quire.engine.parallel.collectives import Collectives, join_store
from quire.engine.parallel.follower import FollowingRank
from quire.engine.parallel.messages import Join, Joined, answer_codec, call_codec
from quire.engine.parallel.shard import Shard
from quire.engine.parallel.token_service import TokenService

logger = logging.getLogger(__name__)


def run(channel: RankChannel, tokens: RankChannel, shard: Shard) -> None:
    """Join the group and execute calls until the channel closes. Rank 0's data plane asks over
    ``tokens``."""
    calls, answers = call_codec(), answer_codec()
    join = calls.decode(channel.receive())
    assert isinstance(join, Join), f"expected Join, got {type(join).__name__}"
    device = torch.device(join.device)
    collectives = Collectives(shard, device, join_store(join.port, shard.size))
    channel.send(answers.encode(Joined()))
    rank = FollowingRank(collectives, device)
    service = TokenService(tokens, lambda: rank.pool)
    service.start()
    with torch.inference_mode():
        while True:
            answer = rank.execute(calls.decode(channel.receive()))
            service.call_ended()
            if answer is not None:
                channel.send(answers.encode(answer))


def main() -> None:
    number, tokens, rank, size, parent = map(int, sys.argv[1:6])
    die_with_parent(parent)  # it may have ended while torch was imported
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # rank 0 decides when its ranks end
    logging.basicConfig(
        level=logging.INFO, format=f"%(levelname)s rank {rank} %(name)s: %(message)s"
    )
    try:
        calls, asked = (RankChannel(socket.socket(fileno=one)) for one in (number, tokens))
        run(calls, asked, Shard(rank, size))
    except PeerGone:
        os._exit(0)  # no clean-up: rank 0 waits for the exit, and memory is freed with the process
    except Exception:
        logger.exception("the rank failed, and with it the group")
        os._exit(1)


if __name__ == "__main__":
    main()
