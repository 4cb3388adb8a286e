"""What is reserved of a Ray, which only pretends."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from small_processes import spec

from quire.cluster.deployment.ray_cluster import RayCluster
from quire.core.errors import PoolExhausted


@dataclass(slots=True)
class Group:
    name: str
    has_room: bool

    def wait(self, timeout_s: float) -> bool:
        return self.has_room


@dataclass(slots=True)
class PretendedRay:
    """Stands for ``ray`` and ``ray.util``. ``num_cpus``: as many bundles of one CPU fit."""

    num_cpus: int
    groups: dict[str, Group] = field(default_factory=dict)

    @property
    def util(self) -> PretendedRay:
        return self

    def placement_group_table(self) -> dict[str, dict[str, str]]:
        return {name: {"name": name, "state": "CREATED"} for name in self.groups}

    def get_placement_group(self, name: str) -> Group:
        return self.groups[name]

    def placement_group(self, bundles: list[Any], *, name: str, **_: Any) -> Group:
        self.num_cpus -= len(bundles)
        self.groups[name] = Group(name, self.num_cpus >= 0)
        return self.groups[name]

    def remove_placement_group(self, group: Group) -> None:
        del self.groups[group.name]

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 2.0}

    available_resources = cluster_resources


def test_what_finds_no_room_keeps_nothing_reserved() -> None:
    ray = PretendedRay(num_cpus=2)
    keepers = RayCluster("small", Path("/nowhere"), None)
    keepers._ray = ray
    keepers.reserve([spec("node-0")])
    there = set(ray.groups)
    with pytest.raises(PoolExhausted, match="no room for 1 of large"):
        keepers.reserve([spec("node-0"), spec("node-1"), spec("large-0")])
    assert set(ray.groups) == there
