"""Assigns each process a bundle of a placement group.

Owns the names of placement groups, which describe their content, so that nothing else has to be
stored. Pure. Processes of a group that are placed together share a placement group; a process that
is added later, needs other resources, or may be removed before the others gets another one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from quire.cluster.deployment.process import ProcessSpec


@dataclass(frozen=True, slots=True)
class Places:
    """A placement group: for each of ``indexes`` one ``bundle`` of amounts by Ray's names. A bundle
    lies on one machine, and so do the ranks of its process."""

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
    """Return the placement group called ``name``; ``None`` if it is not one of a cluster."""
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
    """Return the placement groups that ``specs`` need beside those that are ``present``."""
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
    """Return the placement group of a process, and the index of its bundle."""
    places = next(one for one in present if one.holds(spec))
    return places, places.indexes.index(spec.index)


def _places(spec: ProcessSpec, indexes: tuple[int, ...]) -> Places:
    return Places(spec.group, spec.placement, _bundle(spec), indexes)


def _bundle(spec: ProcessSpec) -> dict[str, float]:
    gpus = {"GPU": spec.gpus} if spec.gpus else {}
    return {"CPU": spec.cpus, **gpus, **spec.resources}
