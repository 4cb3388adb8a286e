"""The collectives of a model's ranks; the only module that uses ``torch.distributed``.

gloo on CPUs, NCCL on CUDA. torch keeps one group per process, so a process holds one
tensor-parallel engine at a time.
"""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import TCPStore

from quire.core.errors import ConfigError
from quire.engine.parallel.shard import Shard

HOST = "127.0.0.1"
_JOIN_S = 120.0
_COLLECTIVE_S = 600.0
"""gloo notices a dead peer at once; NCCL's watchdog needs a limit."""


class Collectives:
    """The group, as seen by one rank. Every rank calls the same functions in the same order."""

    def __init__(self, shard: Shard, device: torch.device, store: TCPStore) -> None:
        self.shard = shard
        self.device = device
        self._sums_in_float32 = device.type == "cpu"
        dist.init_process_group(
            backend="gloo" if device.type == "cpu" else "nccl",
            store=store,
            rank=shard.rank,
            world_size=shard.size,
            timeout=timedelta(seconds=_COLLECTIVE_S),
        )

    def sum(self, partial: Tensor) -> Tensor:
        """The sum over all ranks, bit-identical on each; may reuse ``partial``."""
        if self._sums_in_float32 and partial.dtype != torch.float32:
            whole = partial.float()
            dist.all_reduce(whole)
            return whole.to(partial.dtype)
        partial = partial.contiguous()
        dist.all_reduce(partial)
        return partial

    def gather(self, part: Tensor) -> list[Tensor]:
        """Return every rank's ``part`` (of one shape), in order, on rank 0; elsewhere an empty
        list."""
        part = part.contiguous()
        if self.shard.rank:
            dist.gather(part, None, dst=0)
            return []
        parts = [torch.empty_like(part) for _ in range(self.shard.size)]
        dist.gather(part, parts, dst=0)
        return parts

    def share(self, values: Tensor) -> Tensor:
        """Broadcasts rank 0's ``values``; on other ranks they are overwritten."""
        values = values.contiguous()
        dist.broadcast(values, src=0)
        return values

    def close(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()


def host_store(size: int) -> TCPStore:
    """Rank 0's rendezvous store, on a free port of this host.

    Raises:
        ConfigError: this process already has a group.
    """
    if dist.is_initialized():
        raise ConfigError(
            "this process holds a tensor-parallel engine already (or a torch.distributed group of "
            "its own): close it first, or run each engine in a process of its own"
        )
    return TCPStore(
        HOST, 0, size, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=_JOIN_S)
    )


def join_store(port: int, size: int) -> TCPStore:
    """Another rank's connection to the store."""
    return TCPStore(HOST, port, size, is_master=False, timeout=timedelta(seconds=_JOIN_S))
