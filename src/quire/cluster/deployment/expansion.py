"""Expands a cluster's description into its single processes, and the keys that they share.

Owns the names of processes and the cluster's own folder on this machine.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from quire.cluster.deployment.folder import write_private
from quire.cluster.deployment.process import (
    ADMIN_KEY_FILE,
    CLUSTER_KEY_FILE,
    Kind,
    ProcessSpec,
)
from quire.cluster.deployment.spec import ClusterSpec, ProcessGroup
from quire.cluster.key_files import read_key

_NAME = "{name}"


@dataclass(frozen=True, slots=True)
class KeyFileContents:
    """The contents of the key files."""

    cluster: str
    admin: str


@dataclass(frozen=True, slots=True)
class Expansion:
    """The processes of ``cluster``. ``counts``: the numbers of processes of those groups that are
    scaled."""

    cluster: ClusterSpec
    state_dir: Path
    keys: KeyFileContents
    counts: Mapping[str, int] = field(default_factory=dict)

    def nodes(self) -> tuple[ProcessSpec, ...]:
        return tuple(
            self._process(group, index, "node", {CLUSTER_KEY_FILE: self.keys.cluster}, {})
            for group in self.cluster.nodes
            for index in range(self.counts.get(group.name, group.count))
        )

    def routers(self, nodes: Mapping[str, str]) -> tuple[ProcessSpec, ...]:
        """Return the routers. ``nodes``: the URL of each node by its name."""
        keys = {CLUSTER_KEY_FILE: self.keys.cluster, ADMIN_KEY_FILE: self.keys.admin}
        group = self.cluster.routers
        return tuple(
            self._process(group, index, "router", keys, nodes) for index in range(group.count)
        )

    def _process(
        self,
        group: ProcessGroup,
        index: int,
        kind: Kind,
        keys: Mapping[str, str],
        nodes: Mapping[str, str],
    ) -> ProcessSpec:
        name = f"{group.name}-{index}"
        return ProcessSpec(
            cluster=self.cluster.name,
            name=name,
            group=group.name,
            index=index,
            kind=kind,
            arguments=tuple(one.replace(_NAME, name) for one in group.arguments),
            port=group.port + index,
            listens=self.cluster.listens,
            directory=str(self.cluster.folder),
            state_dir=str(self.state_dir),
            cpus=group.resources.cpus,
            gpus=group.resources.gpus,
            resources=dict(group.resources.named),
            placement=group.placement,
            is_alone=group.scaling is not None and index >= group.scaling.least,
            drain_s=group.drain_s,
            environment=dict(group.environment),
            keys=dict(keys),
            nodes=dict(nodes),
        )


def read_keys(cluster: ClusterSpec, state_dir: Path) -> KeyFileContents:
    """Return the keys of the cluster's files. Where no file is named, the key made in
    ``state_dir``; empty if none was made yet.

    Raises:
        ConfigError: a file cannot be read, or has no key.
    """
    made = (state_dir / CLUSTER_KEY_FILE, state_dir / ADMIN_KEY_FILE)
    return KeyFileContents(
        read_key(cluster.keys.cluster, "keys.cluster") or _former(made[0]),
        read_key(cluster.keys.admin, "keys.admin") or _former(made[1]),
    )


def make_keys(cluster: ClusterSpec, state_dir: Path) -> KeyFileContents:
    """Return the keys as ``read_keys`` does; make those that are missing."""
    keys = read_keys(cluster, state_dir)
    return KeyFileContents(
        keys.cluster or _made(state_dir / CLUSTER_KEY_FILE),
        keys.admin or _made(state_dir / ADMIN_KEY_FILE),
    )


def make_state_dir(state_dir: Path) -> None:
    """Make the cluster's own folder, which only this user can access."""
    state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)


def _former(path: Path) -> str:
    try:
        return path.read_text("utf-8").strip()
    except FileNotFoundError:
        return ""


def _made(path: Path) -> str:
    key = secrets.token_hex(32)
    write_private(path, key.encode() + b"\n")
    return key
