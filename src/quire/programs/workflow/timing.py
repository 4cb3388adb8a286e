"""``Timing``: the times of a graph's primitives, predicted or measured, and its critical path.

Must not know how it is shown.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from quire.programs.workflow.engines.durations import seconds_alone
from quire.programs.workflow.engines.engine import NO_PROFILE, Engine, Profile
from quire.programs.workflow.execution.watching import PrimitiveStep
from quire.programs.workflow.graphs.graph import PrimitiveGraph


@dataclass(frozen=True, slots=True)
class Timing:
    """``seconds``: by primitive, as far as they are known. ``way``: the primitives of the critical
    path, from its beginning; ``total_s``: its length in time."""

    seconds: Mapping[str, float]
    way: tuple[str, ...]
    total_s: float


def predicted(graph: PrimitiveGraph, engines: Mapping[str, Engine]) -> Timing | None:
    """Predict the times by the engines' profiles, or return None if none of them has times.

    Primitives whose engine has no times take no time. An encoder runs one primitive at a time, in
    the order in which they are ready; any number of all others run side by side. So a primitive
    waits for its parents or for the one before it at its encoder, and the critical path goes back
    through those.
    """
    profiles = {name: engine.profile for name, engine in engines.items()}
    seconds = {
        one.id: seconds_alone(one, profiles)
        for one in graph.primitives.values()
        if _has_times(profiles.get(one.engine or "", NO_PROFILE))
    }
    if not seconds:
        return None
    waiting = {one.id: len(one.parents) for one in graph.primitives.values()}
    places = {one: place for place, one in enumerate(graph.order)}
    ready = [(0.0, places[one], one) for one in graph.order if not waiting[one]]
    heapify(ready)
    ends_s: dict[str, float] = {}
    before: dict[str, str | None] = {}
    last_of: dict[str, str] = {}
    while ready:
        ready_s, _, one = heappop(ready)
        primitive = graph.primitives[one]
        waited = set(primitive.parents)
        engine = engines.get(primitive.engine or "")
        if engine is not None and engine.kind in ("embedding", "rerank"):
            waited |= {last_of[engine.name]} if engine.name in last_of else set()
            last_of[engine.name] = one
        before[one] = max(waited, key=lambda other: (ends_s[other], places[other]), default=None)
        begins_s = max((ends_s[other] for other in waited), default=ready_s)
        ends_s[one] = begins_s + seconds.get(one, 0.0)
        for child in graph.children[one]:
            waiting[child] -= 1
            if not waiting[child]:
                parents = graph.primitives[child].parents
                begin_s = max(ends_s[parent] for parent in parents)
                heappush(ready, (begin_s, places[child], child))
    end = max(graph.order, key=lambda one: (ends_s[one], places[one]))
    return Timing(seconds, _way(before, end), ends_s[end])


def measured(graph: PrimitiveGraph, steps: Sequence[PrimitiveStep]) -> Timing | None:
    """Return the measured times, waiting for engines included, or None if nothing has run.

    The critical path goes back from the primitive that ended last to its parent that ended last,
    and so on: the query would have been shorter only if one of these had been.
    """
    ended_s = {step.primitive.id: step.ended_s for step in steps}
    if not ended_s:
        return None
    places = {one: place for place, one in enumerate(graph.order)}

    def last(ended: Collection[str]) -> str | None:
        return max(ended, key=lambda one: (ended_s[one], places[one]), default=None)

    before = {one: last(graph.primitives[one].parents & ended_s.keys()) for one in ended_s}
    end = last(ended_s.keys())
    assert end is not None, "there are some"
    began_s = min(step.started_s for step in steps)
    seconds = {step.primitive.id: step.ended_s - step.started_s for step in steps}
    return Timing(seconds, _way(before, end), ended_s[end] - began_s)


def written(seconds: float) -> str:
    """Write seconds as ``0.25 ms``, ``25 ms`` or ``2.51 s``."""
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{1e3 * seconds:.0f} ms" if seconds >= 0.01 else f"{1e3 * seconds:.2f} ms"


def _way(before: Mapping[str, str | None], end: str) -> tuple[str, ...]:
    way = [end]
    while (last := before[way[-1]]) is not None:
        way.append(last)
    return tuple(reversed(way))


def _has_times(profile: Profile) -> bool:
    return bool(profile.times) or profile.token_s > 0
