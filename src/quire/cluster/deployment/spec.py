"""The specification of a cluster, as values: the content of ``cluster.yaml``, checked.

Owns what can be specified. Must not know how a file spells it, nor how it is carried out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Placement = Literal["spread", "pack"]
Listens = Literal["loopback", "machine"]


@dataclass(frozen=True, slots=True)
class Resources:
    """The resources of one process. Ray counts them and never divides a process between machines,
    so the ranks of a tensor-parallel engine are together. ``cpus`` is a figure for placing and
    limits nothing. ``named``: amounts of resources that machines of a running Ray have by name,
    such as a kind of GPU."""

    cpus: float = 1.0
    gpus: float = 0.0
    named: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Scaling:
    """The bounds of a group's number of nodes: from ``least`` to ``most``, so that each node has
    about ``requests`` requests without an answer. Nodes are added when they were needed for
    ``up_after_s`` seconds without a break, and removed when they were not needed for
    ``down_after_s`` seconds."""

    least: int
    most: int
    requests: float = 8.0
    up_after_s: float = 10.0
    down_after_s: float = 300.0

    def bounded(self, count: int) -> int:
        return min(max(count, self.least), self.most)


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """``count`` processes of one kind: NAME-0, NAME-1, ... on ``port``, ``port`` + 1, ...

    With ``scaling``, ``count`` is the initial number. ``arguments`` are those of its command
    (``quire serve`` or ``quire router``), without those that the cluster decides; ``{name}`` in one
    stands for the process's name. ``drain_s``: how long a process that is asked to end may take, in
    seconds.
    """

    name: str
    count: int
    port: int
    arguments: tuple[str, ...] = ()
    resources: Resources = Resources()
    placement: Placement = "spread"
    environment: Mapping[str, str] = field(default_factory=dict)
    drain_s: float = 30.0
    scaling: Scaling | None = None

    @property
    def ports(self) -> range:
        """The ports of all processes that the group may have."""
        most = self.count if self.scaling is None else self.scaling.most
        return range(self.port, self.port + most)


@dataclass(frozen=True, slots=True)
class OwnHead:
    """A Ray of the cluster's own on this machine, reachable from this machine alone. It takes
    ``NUM_HEAD_PORTS`` ports from ``port`` on."""

    port: int = 6500
    cpus: int | None = None
    gpus: int = 0
    object_store_bytes: int = 100 << 20


NUM_HEAD_PORTS = 100


@dataclass(frozen=True, slots=True)
class OtherRay:
    """A Ray that runs already. ``token_file``: its authentication token."""

    address: str
    token_file: Path | None = None


@dataclass(frozen=True, slots=True)
class KeyFiles:
    """The files of the keys: the one that routers and nodes share, and the routers' admin key.
    ``None``: a key is made."""

    cluster: Path | None = None
    admin: Path | None = None


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """``folder``: the folder of the file; processes run in it, so that paths in options mean what
    they mean there. ``listens``: whether processes listen on loopback, or at the address of their
    machine."""

    name: str
    folder: Path
    nodes: tuple[ProcessGroup, ...]
    routers: ProcessGroup
    ray: OwnHead | OtherRay = OwnHead()
    keys: KeyFiles = KeyFiles()
    listens: Listens = "loopback"
    ready_timeout_s: float = 600.0
