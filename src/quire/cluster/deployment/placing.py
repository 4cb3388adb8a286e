"""Which place of which placement group a process has.

Owns the names of placement groups, which tell what they hold, so that nothing else needs to be
remembered. Pure. Processes of a group that are placed together share a placement group; one that is
added later, needs other resources, or may go before the others, gets another one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from quire.cluster.deployment.process import ProcessSpec


@dataclass(frozen=True, slots=True)
class Places:
    """A placement group: a bundle, amounts by Ray's names, for each of ``indexes``. A bundle lies
    on one machine, and so do the ranks of its process."""

    group: str
    strategy: str
    bundle: Mapping[str, float]
    indexes: tuple[int, ...]

    @property
    def name(self) -> str:
        bundle = ",".join(f"{key}={amount!r}" for key, amount in sorted(self.bundle.items()))
        indexes = ".".join(map(str, self.indexes))
        return f"{self.group}/{self.strategy}/{bundle}/{indexes}"

    def holds(self, spec: ProcessSpec) -> bool:
        return (
            spec.index in self.indexes
            and (spec.group, spec.placement) == (self.group, self.strategy)
            and _bundle(spec) == self.bundle
        )


def parse_places(name: str) -> Places | None:
    """``None``: the placement group is not one of a cluster's."""
    try:
        group, strategy, bundle, indexes = name.split("/")
        amounts = dict(one.split("=") for one in bundle.split(","))
        return Places(
            group,
            strategy,
            {key: float(amount) for key, amount in amounts.items()},
            tuple(map(int, indexes.split("."))),
        )
    except ValueError:
        return None


def missing_places(specs: Sequence[ProcessSpec], present: Iterable[Places]) -> list[Places]:
    """The placement groups that ``specs`` need beside those that are there."""
    together: dict[str, Places] = {}
    alone: list[Places] = []
    there = list(present)
    for spec in specs:
        if any(places.holds(spec) for places in there):
            continue
        if spec.is_alone:
            alone.append(_places(spec, (spec.index,)))
            continue
        kind = _places(spec, ()).name
        before = together.get(kind, _places(spec, ()))
        together[kind] = replace(before, indexes=tuple(sorted((*before.indexes, spec.index))))
    return [*together.values(), *alone]


def place_of(spec: ProcessSpec, present: Iterable[Places]) -> tuple[Places, int]:
    """The placement group and the bundle of a process that has one."""
    places = next(one for one in present if one.holds(spec))
    return places, places.indexes.index(spec.index)


def _places(spec: ProcessSpec, indexes: tuple[int, ...]) -> Places:
    return Places(spec.group, spec.placement, _bundle(spec), indexes)


def _bundle(spec: ProcessSpec) -> dict[str, float]:
    gpus = {"GPU": spec.gpus} if spec.gpus else {}
    return {"CPU": spec.cpus, **gpus, **spec.resources}
