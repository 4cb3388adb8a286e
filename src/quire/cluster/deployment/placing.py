"""Which place of which placement group a process has.

Owns the names of placement groups, which tell what they hold, so that nothing else needs to be
remembered. Pure. Processes of a group that are placed together share a placement group; one that is
added later, needs other resources, or may go before the others, gets another one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from quire.cluster.deployment.process import ProcessSpec


@dataclass(frozen=True, slots=True)
class Places:
    """A placement group: a bundle for each of ``indexes``. A bundle lies on one machine, and so do
    the ranks of its process."""

    group: str
    strategy: str
    cpus: float
    gpus: float
    indexes: tuple[int, ...]

    @property
    def name(self) -> str:
        indexes = ".".join(map(str, self.indexes))
        return f"{self.group}/{self.strategy}/{self.cpus!r}/{self.gpus!r}/{indexes}"

    @property
    def bundle(self) -> dict[str, float]:
        return {"CPU": self.cpus, **({"GPU": self.gpus} if self.gpus else {})}

    def holds(self, spec: ProcessSpec) -> bool:
        return spec.index in self.indexes and _kind(spec) == (
            self.group,
            self.strategy,
            self.cpus,
            self.gpus,
        )


def parse_places(name: str) -> Places | None:
    """``None``: the placement group is not one of a cluster's."""
    try:
        group, strategy, cpus, gpus, indexes = name.split("/")
        return Places(
            group, strategy, float(cpus), float(gpus), tuple(map(int, indexes.split(".")))
        )
    except ValueError:
        return None


def missing_places(specs: Sequence[ProcessSpec], present: Iterable[Places]) -> list[Places]:
    """The placement groups that ``specs`` need beside those that are there."""
    together: dict[tuple[str, str, float, float], list[int]] = {}
    alone: list[Places] = []
    there = list(present)
    for spec in specs:
        if any(places.holds(spec) for places in there):
            continue
        if spec.is_alone:
            alone.append(Places(*_kind(spec), (spec.index,)))
        else:
            together.setdefault(_kind(spec), []).append(spec.index)
    return [
        *(Places(*kind, tuple(sorted(indexes))) for kind, indexes in together.items()),
        *alone,
    ]


def place_of(spec: ProcessSpec, present: Iterable[Places]) -> tuple[Places, int]:
    """The placement group and the bundle of a process that has one."""
    places = next(one for one in present if one.holds(spec))
    return places, places.indexes.index(spec.index)


def _kind(spec: ProcessSpec) -> tuple[str, str, float, float]:
    return spec.group, spec.placement, spec.cpus, spec.gpus
