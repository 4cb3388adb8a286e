"""One process of a cluster: its specification, and its state.

Owns the two records that pass between ``quire up``, the keepers and the files of a process. They
are JSON, so that another release reads them or refuses them.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from typing import Literal

import msgspec

from quire.cluster.deployment.spec import Listens, Placement
from quire.core.errors import ConfigError

Kind = Literal["node", "router"]
Phase = Literal[
    "starting",  # the process runs and has not been ready
    "ready",
    "unready",  # it has been ready, and takes no work now
    "waiting",  # the process has ended, and is started again after a pause
    "stopping",  # the process has been asked to end
    "stopped",
    "failed",  # the keeper cannot go on
    "unknown",  # the keeper does not answer
]

CLUSTER_KEY_FILE = "cluster.key"
ADMIN_KEY_FILE = "admin.key"


class ProcessSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a process is to be. ``nodes``: a router's nodes, the URL of each by its name. ``keys``:
    contents of key files by name. ``directory``: the folder where it runs. ``state_dir``: the
    cluster's files on its machine. ``is_alone``: it may be removed before the others of its group,
    so its place is given up separately."""

    cluster: str
    name: str
    group: str
    index: int
    kind: Kind
    arguments: tuple[str, ...]
    port: int
    listens: Listens
    directory: str
    state_dir: str
    cpus: float
    gpus: float
    resources: dict[str, float] = {}
    placement: Placement
    is_alone: bool = False
    drain_s: float
    environment: dict[str, str] = {}
    keys: dict[str, str] = {}
    nodes: dict[str, str] = {}

    @property
    def digest(self) -> str:
        """A digest of everything but ``nodes``: a process with an equal digest need not be
        replaced. A router is given other nodes while it runs."""
        lasting = msgspec.structs.replace(self, nodes={})
        return hashlib.sha256(msgspec.json.encode(lasting, order="deterministic")).hexdigest()[:16]

    @property
    def addresses(self) -> list[str]:
        """``nodes`` in the form of ``--node``."""
        return [f"{name}={url}" for name, url in sorted(self.nodes.items())]

    def command(self, host: str, keys_in: str) -> list[str]:
        """Return the command line at the address ``host``, with the key files in the folder
        ``keys_in``."""
        word = "serve" if self.kind == "node" else "router"
        decided = [f"--host={host}", f"--port={self.port}"]
        if CLUSTER_KEY_FILE in self.keys:
            decided.append(f"--cluster-key-file={keys_in}/{CLUSTER_KEY_FILE}")
            if self.kind == "node":
                decided.append(f"--data-host={host}")
        if ADMIN_KEY_FILE in self.keys:
            decided.append(f"--admin-key-file={keys_in}/{ADMIN_KEY_FILE}")
        decided += [f"--node={address}" for address in self.addresses]
        return [sys.executable, "-m", "quire.cli", word, *decided, *self.arguments]


class ProcessState(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a process. ``nodes``: those that a router uses now. ``restarts``: how often
    it was started again since it was placed. ``since_unix_s``: when its process started, ``None``
    if none runs. ``said``: the last lines of its log. ``adopted``: its keeper found it running.
    ``kept``: it has a keeper."""

    name: str
    group: str
    kind: Kind
    digest: str
    phase: Phase
    url: str
    nodes: dict[str, str] = {}
    machine: str = ""
    keeper_pid: int | None = None
    pid: int | None = None
    since_unix_s: float | None = None
    restarts: int = 0
    adopted: bool = False
    kept: bool = True
    detail: str = ""
    said: tuple[str, ...] = ()


def url_of(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def child_environment(inherited: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a process. It does not inherit what Ray set for its keeper, nor the
    options of ``quire`` commands: only the file decides those."""
    dropped = ("RAY_", "QUIRE_")
    kept = {
        name: value
        for name, value in inherited.items()
        if not name.startswith(dropped) and name not in _OF_RAY
    }
    return {**kept, **own}


_OF_RAY = ("OMP_NUM_THREADS", "PYTHONBREAKPOINT", "PYTHONUNBUFFERED")
"""Variables that Ray sets for its workers, for example the threads by their share of the
processors."""


def decoded(raw: bytes, what: str) -> ProcessSpec:
    """Decode a spec. Raises ``ConfigError`` if another release wrote it."""
    try:
        return msgspec.json.decode(raw, type=ProcessSpec)
    except msgspec.MsgspecError as exc:
        raise ConfigError(
            f"{what} was written by another release of Quire ({exc}): run 'quire down' with that "
            "release, or install the same one on every machine"
        ) from exc
