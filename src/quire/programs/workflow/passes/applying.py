"""Applies one pass to a graph, and refuses a pass of a developer that breaks a rule: by the name of
the pass, before the graph runs.

Must not know the purpose of the passes. It cannot know whether a graph still computes the same.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import PurePath
from typing import Any, NoReturn

from quire.core.errors import InvalidArgument, QuireError
from quire.programs.workflow.graphs.graph import PrimitiveGraph
from quire.programs.workflow.graphs.values import Ref, ValueType
from quire.programs.workflow.passes.note import Note, Pass, Profiles, Rewritten

HOW = "return Rewritten(graph) or Rewritten(graph, notes)"


def applied(name: str, rule: Pass, graph: PrimitiveGraph, profiles: Profiles) -> Rewritten:
    """Return what the pass ``name`` makes of ``graph``. ``profiles``: of all engines by name.

    Raises:
        InvalidArgument: the pass raises an error, returns something else, or returns a graph that
            cannot run, has other results, or lacks a component with effects.
    """
    try:
        made: Any = rule(graph, profiles)
    except (Exception, SystemExit) as exc:
        text = exc.message if isinstance(exc, QuireError) else f"{type(exc).__name__}: {exc}"
        _refuse(name, f"failed{_line(exc)}: {text}", exc)
    if not isinstance(made, Rewritten) or not isinstance(made.graph, PrimitiveGraph):
        _refuse(name, f"returned {type(made).__name__}: {HOW}")
    if not all(isinstance(note, Note) for note in made.notes):
        _refuse(name, f"returned notes that are no Note: {HOW}")
    if made.graph is not graph:
        _check(name, graph, made.graph, profiles)
    return made


def _line(error: Exception | SystemExit) -> str:
    """Return the line of the pass at which it failed, as " at mine.py:12"."""
    assert error.__traceback__ is not None, "it was raised"
    own = error.__traceback__.tb_next
    if own is None:  # it does not take two arguments
        return ""
    return f" at {PurePath(own.tb_frame.f_code.co_filename).name}:{own.tb_lineno}"


def _check(
    name: str, before: PrimitiveGraph, after: PrimitiveGraph, engines: Collection[str]
) -> None:
    for primitive in after.primitives.values():
        if primitive.engine is not None and primitive.engine not in engines:
            known = ", ".join(engines)
            _refuse(name, f"gives {primitive.id} the engine {primitive.engine!r}: use {known}")
        for ref in primitive.refs():
            if _type(after, ref) is None:
                _refuse(name, f"lets {primitive.id} use {_named(ref)}, which is not there")
    if after.results.keys() != before.results.keys():
        _refuse(name, "changed the results: keep them")
    for output, ref in before.results.items():
        kind, given = _type(before, ref), _type(after, after.results[output])
        if given is not kind:
            now = "nothing" if given is None else given
            _refuse(name, f"makes {now} of the result {output!r}, which is {kind}: keep it")
    lost = _with_effects(before) - _with_effects(after)
    if lost:
        _refuse(name, f"removed {min(lost)}, which has effects: keep it")


def _type(graph: PrimitiveGraph, ref: Ref) -> ValueType | None:
    """Return the type of the output or input that ``ref`` names; None if there is none."""
    if ref.from_query:
        return graph.query_inputs.get(ref.port)
    maker = graph.primitives.get(ref.primitive)
    return None if maker is None else maker.outputs.get(ref.port)


def _named(ref: Ref) -> str:
    return f"the input {ref.port!r}" if ref.from_query else f"{ref.primitive}.{ref.port}"


def _with_effects(graph: PrimitiveGraph) -> set[str]:
    """Return the components that change something outside the graph."""
    return {one.node for one in graph.primitives.values() if one.writes}


def _refuse(name: str, text: str, cause: BaseException | None = None) -> NoReturn:
    raise InvalidArgument(f"the pass {name!r} {text}", param="passes") from cause
