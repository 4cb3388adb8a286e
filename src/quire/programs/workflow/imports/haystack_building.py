"""``Building``: the unfinished application of a pipeline: its values, nodes, engines and stores."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from quire.core.errors import InvalidArgument
from quire.programs.workflow.engines.engine import ASSUMED_EMBEDDING, NO_PROFILE, Engine
from quire.programs.workflow.imports.haystack_reading import HaystackComponent, Pipeline, Socket
from quire.programs.workflow.template.node import Node

STORE = "InMemoryDocumentStore"


@dataclass(frozen=True, slots=True)
class TemplateOutput:
    """An output of the template by its name."""

    name: str
    kind: str
    vectors: str = ""
    """The name of the vectors of embedded documents."""


@dataclass(frozen=True, slots=True)
class PromptText:
    text: str
    inputs: Mapping[str, str]
    separator: str | None
    system: str | None


@dataclass(slots=True)
class Building:
    pipeline: Pipeline
    values: dict[Socket, TemplateOutput | PromptText] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    engines: dict[str, Engine] = field(default_factory=dict)
    stores: dict[str, str] = field(default_factory=dict)
    """The engine of each document store, by its index."""
    notes: list[str] = field(default_factory=list)
    writers: dict[str, list[Node]] = field(default_factory=dict)
    readers: dict[str, list[Node]] = field(default_factory=dict)


def input_of(
    building: Building, part: HaystackComponent, socket: str, kind: str, asked: str = ""
) -> TemplateOutput:
    """Return the output that is connected to the socket, or the query's input of that name."""
    sender = building.pipeline.senders.get(Socket(part.name, socket))
    if sender is None:
        return TemplateOutput(asked or socket, kind)
    value = building.values.get(sender)
    if not isinstance(value, TemplateOutput) or value.kind != kind:
        has = value.kind if isinstance(value, TemplateOutput) else "a prompt"
        raise InvalidArgument(
            f"{part.name}.{socket} takes {kind}, and {'.'.join(sender)} gives {has}: connect "
            "another component",
            param=part.name,
        )
    return value


def add(
    building: Building,
    part: HaystackComponent,
    engine: str,
    inputs: Mapping[str, str],
    socket: str,
    kind: str,
    config: Mapping[str, Any] | None = None,
    *,
    batchable: bool = False,
    called: str = "",
) -> TemplateOutput:
    """Make the node of ``part``, whose one output is its ``socket``."""
    if engine not in building.engines:
        profile = ASSUMED_EMBEDDING if engine == "embedding" else NO_PROFILE
        building.engines[engine] = Engine(engine, profile=profile)
    name = re.sub(r"\W", "_", part.name)
    made = TemplateOutput(called or f"{name}_{socket}", kind)
    annotation = "batchable" if batchable else None
    building.nodes.append(
        Node(engine, inputs, {made.name: kind}, annotation, config or {}, name=name)  # type: ignore[arg-type]
    )
    building.values[Socket(part.name, socket)] = made
    return made


def store_of(building: Building, part: HaystackComponent) -> str:
    """Return the engine of the store that a writer or retriever names."""
    store = part.used.get("document_store")
    store = store if isinstance(store, dict) else {}
    shown = str(store.get("type", "none"))
    if shown.rpartition(".")[2] != STORE:
        raise InvalidArgument(
            f"{part.name} uses the store {shown}; documents come with the query here, "
            f"into a collection of its own: use an {STORE} that a DocumentWriter of the same "
            "pipelines fills, and choose where it lies with --vector-store",
            param=part.name,
        )
    index = str((store.get("init_parameters") or {}).get("index"))
    known = building.stores
    if index not in known:
        known[index] = f"vectors_{len(known) + 1}" if known else "vectors"
        building.engines[known[index]] = Engine("vectors", name=known[index])
    return known[index]


def order_stores(building: Building) -> None:
    """Order a store's writers before its retrievers, so that these find what was written."""
    for store, readers in building.readers.items():
        for reader in readers:
            writers = building.writers.get(store, [])
            if not writers:
                raise InvalidArgument(
                    f"{reader.name} searches a store that nothing fills: documents come with the "
                    "query here, so import the pipeline that writes them too "
                    "(INDEXING.yaml+ASKING.yaml)",
                    param=reader.name,
                )
            for writer in writers:
                writer >> reader
