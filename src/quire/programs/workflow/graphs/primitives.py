"""``Primitive``: one operation of a graph, with all that the optimiser and the scheduler need.

A primitive is data. The name of its engine decides which runner runs it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from quire.programs.workflow.graphs.prompts import PromptPart
from quire.programs.workflow.graphs.values import Ref, ValueType


class Op(StrEnum):
    """The primitives of Ayo's Table 2, those of documents and tools, and growth, which further
    primitives replace. ``reranking`` gives a score for each text, ``choosing`` the best texts by
    their scores. ``generating`` is prefilling and decoding in one, for a model behind HTTP."""

    PARSE = "parse"
    CHUNK = "chunk"
    EMBEDDING = "embedding"
    INGESTION = "ingestion"
    SEARCHING = "searching"
    RERANKING = "reranking"
    CHOOSING = "choosing"
    SEARCH = "search"
    TOOL = "tool"
    PREFILLING = "prefilling"
    PARTIAL_PREFILLING = "partial prefilling"
    FULL_PREFILLING = "full prefilling"
    DECODING = "decoding"
    PARTIAL_DECODING = "partial decoding"
    GENERATING = "generating"
    CONDITION = "condition"
    AGGREGATE = "aggregate"
    GROWTH = "growth"


PREFILLS = frozenset({Op.PREFILLING, Op.PARTIAL_PREFILLING, Op.FULL_PREFILLING})
CONTROL_FLOW = frozenset({Op.CONDITION, Op.AGGREGATE, Op.CHOOSING, Op.GROWTH})
"""The primitives that the graph scheduler runs itself; they have no engine."""
AT_ONCE = frozenset({Op.CONDITION, Op.AGGREGATE, Op.CHOOSING, Op.PREFILLING, Op.FULL_PREFILLING})
"""Primitives without work for an engine: the end of a prompt is computed with the first token."""
EACH = "each"
"""The origin of an Aggregate of primitives that each handle one element of a list."""


class Guess(StrEnum):
    """What may be supposed. ``branch``: a condition is as it mostly was, or as its developer has
    stated. ``first``: a ranking keeps the order in which the texts were found, or chooses the best
    of those that were scored. ``stored``: the texts of a ranking are among those that the query
    stores."""

    BRANCH = "branch"
    FIRST = "first"
    STORED = "stored"


NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Primitive:
    """``id`` is unique in its graph; ``node`` is the component of the template.

    ``inputs``: by parameter, in order; a part of the prompt names one. ``outputs``: types by port.
    ``after``: primitives that must have ended before, whose values it does not use. ``reads`` and
    ``writes``: the effects that it declares. ``batched``: the inputs that are split element by
    element; empty if it is not batchable. ``fan``: the elements of output for each element, or None
    if that is unknown. ``size``: the number of elements that it works on, or None if that is
    unknown. ``first``: the place of its first element among those of the component. ``when``: it
    runs only if this value is true.
    ``guess``: what may be supposed about its outputs before it has ended; ``ahead``: it may run on
    supposed values (``passes.speculate``). ``priority``: the priority of its requests.
    ``depth``: the most primitives on a path from here to a result (Ayo's Algorithm 2). ``number``:
    its place in the graph's order, from 1. ``remaining_us``: microseconds from its beginning to a
    result, by the engines' profiles; 0 if they have no times.
    """

    id: str
    op: Op
    node: str
    engine: str | None
    inputs: Mapping[str, Ref]
    outputs: Mapping[str, ValueType]
    after: frozenset[str] = frozenset()
    reads: frozenset[str] = frozenset()
    writes: frozenset[str] = frozenset()
    batched: tuple[str, ...] = ()
    fan: int | None = 1
    size: int | None = None
    first: int = 0
    parts: tuple[PromptPart, ...] = ()
    config: Mapping[str, Any] = field(default_factory=lambda: NOTHING)
    when: Ref | None = None
    guess: Guess | None = None
    ahead: bool = False
    priority: int = 0
    depth: int = 0
    number: int = 0
    remaining_us: int = 0

    def refs(self) -> Iterator[Ref]:
        """Yield a reference to every value that it uses."""
        yield from self.inputs.values()
        if self.when is not None:
            yield self.when

    @property
    def sources(self) -> frozenset[str]:
        """The primitives whose values it uses."""
        return frozenset(ref.primitive for ref in self.refs() if not ref.from_query)

    @property
    def parents(self) -> frozenset[str]:
        """The primitives that must have ended before it starts."""
        return self.sources | self.after

    @property
    def order(self) -> Mapping[str, int]:
        """Its priority and place in the graph, which order its requests among those of others: the
        last arguments of ``Api.embed`` and similar methods."""
        return {"priority": self.priority, **self.place}

    @property
    def place(self) -> Mapping[str, int]:
        """Its place in the graph as the arguments of ``Context.set_depth``."""
        return {
            "depth": self.depth,
            "invocation": self.number,
            "remaining_us": self.remaining_us,
        }

    def conflicts(self, other: Primitive) -> bool:
        """Whether the order of the two matters because of their declared effects."""
        return bool(self.writes & (other.reads | other.writes) or self.reads & other.writes)
