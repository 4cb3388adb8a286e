"""The graphs of a query that ``quire workflow`` shows: notes of the passes, times and drawings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from quire.cli.console import escaped, messages, output, table
from quire.core.errors import InvalidArgument
from quire.programs.api.encode import EncoderBatches
from quire.programs.workflow import Graph
from quire.programs.workflow.drawing import counted
from quire.programs.workflow.engines.durations import batches_alone
from quire.programs.workflow.execution.watching import PrimitiveStep
from quire.programs.workflow.graphs.graph import PrimitiveGraph
from quire.programs.workflow.graphs.primitives import Primitive
from quire.programs.workflow.passes.note import Note, folded
from quire.programs.workflow.query import Query
from quire.programs.workflow.timing import measured, predicted, written


def explain(graph: Graph, svg: Path | None) -> None:
    p_graph, e_graph = graph.p_graph, graph.e_graph
    output().print(
        f"{len(p_graph.primitives)} primitives and {p_graph.num_edges} dependencies as written, "
        f"{len(e_graph.primitives)} and {e_graph.num_edges} as optimised"
    )
    whole, best = (predicted(one, graph.app.engines) for one in (p_graph, e_graph))
    if whole is not None and best is not None:
        output().print(
            f"by profile {written(whole.total_s)} as written, {written(best.total_s)} as "
            f"optimised, which waits for {escaped(_of_components(e_graph, best.way))}"
        )
    if batches := _batches(graph):
        output().print(f"encoders by profile: {escaped(batches)}")
    _show_notes(folded(graph.notes))
    if svg is not None:
        _draw(svg, graph)


def _show_notes(notes: Sequence[Note]) -> None:
    if not notes:
        output().print("no pass found anything to change")
        return
    listed = table("pass", "where", "what it did, or why not", wrap=("what it did, or why not",))
    for note in notes:
        text = note.text if note.applied else f"no: {note.text}"
        listed.add_row(note.rule, escaped(note.where), escaped(text))
    output().print(listed)


def _of_components(graph: PrimitiveGraph, way: Sequence[str]) -> str:
    return ", ".join(dict.fromkeys(graph.primitives[one].node for one in way))


def _draw(svg: Path, graph: Graph, steps: Sequence[PrimitiveStep] = ()) -> None:
    try:
        svg.write_text(graph.explain(steps), encoding="utf-8")
    except OSError as exc:
        raise InvalidArgument(f"{svg} cannot be written: {exc}") from exc


def draw_measured(svg: Path, asked: Query) -> None:
    """Draw the graph of a query that has run; print a line on stderr about the whole."""
    assert asked.graph is not None, "a query that has ended has a graph"
    graph, steps = asked.graph.e_graph, asked.log.steps
    _draw(svg, asked.graph, steps)
    took = measured(graph, steps)
    if took is not None:
        messages().print(
            f"{len(steps)} primitives took {written(took.total_s)}; what it waited for: "
            f"{escaped(_of_components(graph, took.way))}; drawn in {svg}"
        )
    if batches := _batches(asked.graph, steps):
        messages().print(f"encoders: {escaped(batches)}")


def _batches(graph: Graph, steps: Sequence[PrimitiveStep] = ()) -> str:
    """Return, for each component that an encoder carries out, its number of batches by profile and
    how many of them are short; with ``steps`` also how many were sent, and how many of those were
    short."""
    alone, went = dict[str, EncoderBatches](), dict[str, EncoderBatches]()
    for one in graph.e_graph.primitives.values():
        _add(alone, one, batches_alone(one, graph.app.profiles))
    for step in steps:
        _add(went, step.primitive, step.batches)
    told = []
    for node in {**alone, **went}:
        parts = [_of_batches(alone[node])] if node in alone else []
        if steps:
            parts = [f"{part} by profile" for part in parts]
            parts.append(f"{_of_batches(went.get(node, EncoderBatches()))} sent")
        told.append(f"{node} {', '.join(parts)}")
    return "; ".join(told)


def _add(
    found: dict[str, EncoderBatches], primitive: Primitive, batches: EncoderBatches | None
) -> None:
    if batches is not None:
        own = found.setdefault(primitive.node, EncoderBatches())
        own.num_batches += batches.num_batches
        own.num_short_batches += batches.num_short_batches


def _of_batches(batches: EncoderBatches) -> str:
    return f"{counted(batches.num_batches)} ({batches.num_short_batches} short)"
