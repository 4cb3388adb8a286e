"""Draws a query's graphs as SVG: boxes in columns, each to the right of those that it waits for.

Owns the layout alone. Solid lines show data, dashed ones an order; the boxes of the critical path
have a red frame.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from xml.sax.saxutils import escape

from quire.programs.workflow.engines.durations import batches_alone
from quire.programs.workflow.execution.watching import PrimitiveStep
from quire.programs.workflow.graphs.graph import PrimitiveGraph
from quire.programs.workflow.graphs.primitives import CONTROL_FLOW, Op, Primitive
from quire.programs.workflow.passes.note import Note, folded
from quire.programs.workflow.template.app import App
from quire.programs.workflow.timing import Timing, measured, predicted, written

BOX_WIDTH, BOX_HEIGHT, GAP_X, GAP_Y, MARGIN, LINE = 196, 50, 44, 12, 24, 18
TEXT_HEIGHT = 14
_FRAME, _WAY_FRAME = "#9a9a9a", "#c62828"
_COLORS: Mapping[str, str] = {
    "model": "#dbe7ff", "part": "#b9d0ff", "flow": "#e6e6e6", "other": "#f3ead7", "node": "#e2f0df"
}  # fmt: skip
_DECOMPOSED = (Op.PARTIAL_PREFILLING, Op.FULL_PREFILLING, Op.PARTIAL_DECODING)


@dataclass(frozen=True, slots=True)
class Box:
    """One box. ``data`` and ``order``: the ids of the boxes that it waits for."""

    id: str
    text: str
    color: str
    data: frozenset[str]
    order: frozenset[str] = frozenset()
    times: str = ""
    batches: str = ""
    on_way: bool = False


@dataclass(slots=True)
class _Canvas:
    width: int = 0
    height: int = MARGIN
    parts: list[str] = field(default_factory=list)

    def text(self, x: int, y: int, text: str, *, size: int = 11, bold: bool = False) -> None:
        weight = ' font-weight="bold"' if bold else ""
        self.parts.append(f'<text x="{x}" y="{y}" font-size="{size}"{weight}>{escape(text)}</text>')
        self.width = max(self.width, x + len(text) * size * 6 // 10 + MARGIN)

    def line(self, text: str, *, size: int = 11, bold: bool = False) -> None:
        self.height += LINE
        self.text(MARGIN, self.height, text, size=size, bold=bold)


def drawing(
    app: App,
    p_graph: PrimitiveGraph,
    e_graph: PrimitiveGraph,
    notes: Sequence[Note],
    steps: Sequence[PrimitiveStep] = (),
) -> str:
    """The SVG document. ``steps``: the primitives of the e-graph that have run."""
    canvas = _Canvas()
    _panel(canvas, f"{app.name}: template", _template(app))
    for name, graph in (("p-graph", p_graph), ("e-graph", e_graph)):
        expected = predicted(graph, app.engines)
        took = measured(graph, steps if graph is e_graph else ())
        title = f"{name}: {len(graph.primitives)} primitives, {graph.num_edges} dependencies"
        batches = _batches(graph, app, steps if graph is e_graph else ())
        made = _boxes(graph, expected, took, steps)
        boxes = [replace(box, batches=batches.get(box.id, "")) for box in made]
        _panel(canvas, title + _totals(expected, took), boxes)
    canvas.line(
        "Blue: a model, dark where a pass has divided its prompt or answer. Grey: no engine. "
        "Dashed: an order without data. Depth: how many follow one another up to a result."
    )
    if steps or predicted(e_graph, app.engines) is not None:
        canvas.line(
            "Red frames: what the whole waits for, one after the other. The end of a prompt is "
            "computed by the decoding behind it, and measured there."
        )
    if _batches(e_graph, app, ()):
        canvas.line(
            "Short: batches of an encoder that are smaller than its profile says is efficient. "
            "Went: how many were sent with room in them although others waited, of those sent."
        )
    canvas.height += LINE
    canvas.line("What the passes did", size=14, bold=True)
    for note in folded(notes):
        canvas.line(f"{note.rule} · {note.where}: {'' if note.applied else 'no: '}{note.text}")
    size = f'width="{canvas.width + MARGIN}" height="{canvas.height + MARGIN}"'
    style = 'font-family="sans-serif" fill="#1b1b1b"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>'
    ground = '<rect width="100%" height="100%" fill="white"/>'
    return "\n".join([head, ground, *canvas.parts, "</svg>", ""])


def _totals(expected: Timing | None, took: Timing | None) -> str:
    told = "" if expected is None else f"; {written(expected.total_s)} by profile"
    return told if took is None else f"{told}; took {written(took.total_s)}"


def _boxes(
    graph: PrimitiveGraph,
    expected: Timing | None,
    took: Timing | None,
    steps: Sequence[PrimitiveStep],
) -> list[Box]:
    decides = took or expected
    ran = steps if took is not None else ()
    marks = {step.primitive.id: " (ran ahead)" for step in ran if step.ahead}
    marks |= {step.primitive.id: " (shared)" for step in ran if step.shared is not None}
    return [
        replace(
            _box(graph.primitives[one]),
            times=_times(one, expected, took) + marks.get(one, ""),
            on_way=decides is not None and one in decides.way,
        )
        for one in graph.order
    ]


def _times(one: str, expected: Timing | None, took: Timing | None) -> str:
    told = []
    if expected is not None and one in expected.seconds:
        told.append(f"predicted {written(expected.seconds[one])}")
    if took is not None:
        has_run = one in took.seconds
        told.append(f"took {written(took.seconds[one])}" if has_run else "did not run")
    return " · ".join(told)


def _batches(graph: PrimitiveGraph, app: App, steps: Sequence[PrimitiveStep]) -> dict[str, str]:
    """Return, by primitive of an encoder, how many of its batches are short by profile, and how
    many of those that were sent were short."""
    told = {
        one.id: f"{alone.num_short_batches} of {counted(alone.num_batches)} short"
        for one in graph.primitives.values()
        if (alone := batches_alone(one, app.profiles)) is not None
    }
    for step in steps:
        if (went := step.batches) is not None:
            before = told.get(step.primitive.id)
            text = f"went {went.num_short_batches} of {went.num_batches}"
            told[step.primitive.id] = text if before is None else f"{before} · {text}"
    return told


def counted(num_batches: int) -> str:
    return f"{num_batches} batch{'' if num_batches == 1 else 'es'}"


def _template(app: App) -> list[Box]:
    makers = {name: node.name for node in app.nodes for name in node.outputs}
    boxes: list[Box] = []
    for node in app.nodes:
        wanted = [*node.inputs, *([node.when] if node.when else [])]
        data = frozenset(makers[name] for name in wanted if name in makers)
        order = frozenset(one.name for one in app.nodes if node in one.before) - data
        what = f"{node.engine}{f', {node.annotation}' if node.annotation else ''}"
        boxes.append(Box(node.name, what, _COLORS["node"], data, order))
    return boxes


def _box(primitive: Primitive) -> Box:
    size = "" if primitive.size is None or not primitive.batched else f" × {primitive.size}"
    if primitive.op in CONTROL_FLOW:
        color = _COLORS["flow"]
    elif primitive.op in _DECOMPOSED:
        color = _COLORS["part"]
    else:
        is_model = primitive.op in (Op.PREFILLING, Op.DECODING, Op.GENERATING)
        color = _COLORS["model" if is_model else "other"]
    text = f"{primitive.op}{size} · depth {primitive.depth}"
    order = primitive.after - primitive.sources
    return Box(primitive.id, text, color, primitive.sources, order)


def _panel(canvas: _Canvas, title: str, boxes: Sequence[Box]) -> None:
    """Draw ``boxes``, each of which comes after those that it waits for."""
    canvas.line(title, size=14, bold=True)
    top = canvas.height + GAP_Y
    height = BOX_HEIGHT + (TEXT_HEIGHT if any(box.batches for box in boxes) else 0)
    columns: dict[str, int] = {}
    rows: dict[int, int] = {}
    places: dict[str, tuple[int, int]] = {}
    for box in boxes:
        column = max((columns[one] + 1 for one in box.data | box.order), default=0)
        row = rows.get(column, 0)
        columns[box.id], rows[column] = column, row + 1
        x = MARGIN + column * (BOX_WIDTH + GAP_X)
        places[box.id] = (x, top + row * (height + GAP_Y))
    for box in boxes:
        for kind, sources in (("", box.data), (' stroke-dasharray="4 3"', box.order)):
            here = places[box.id]
            canvas.parts += [_edge(places[one], here, height, kind) for one in sorted(sources)]
    for box in boxes:
        _draw(canvas, box, height, *places[box.id])
    canvas.height = top + max(rows.values(), default=0) * (height + GAP_Y) + LINE


def _edge(start: tuple[int, int], end: tuple[int, int], height: int, kind: str) -> str:
    """The line between two boxes. Past other columns it runs between two rows, because a box would
    hide it."""
    x1, y1 = start[0] + BOX_WIDTH, start[1] + height // 2
    x2, y2 = end[0], end[1] + height // 2
    bend = GAP_X // 2
    path = f"M{x1} {y1} C{x1 + bend} {y1} "
    if x2 - x1 > GAP_X:
        below = end[1] + height + GAP_Y // 2
        path += f"{x1 + bend} {below} {x1 + GAP_X} {below} H{x2 - GAP_X} C{x2 - bend} {below} "
    path += f"{x2 - bend} {y2} {x2} {y2}"
    return f'<path d="{path}" fill="none" stroke="#7a7a7a"{kind}/>'


def _draw(canvas: _Canvas, box: Box, height: int, x: int, y: int) -> None:
    shape = f'x="{x}" y="{y}" width="{BOX_WIDTH}" height="{height}" rx="5"'
    frame = f'stroke="{_WAY_FRAME}" stroke-width="2"' if box.on_way else f'stroke="{_FRAME}"'
    canvas.parts.append(f'<rect {shape} fill="{box.color}" {frame}/>')
    canvas.text(x + 7, y + 15, box.id, size=11, bold=True)
    canvas.text(x + 7, y + 29, box.text, size=10)
    lines = [line for line in (box.times, box.batches) if line]
    for place, line in enumerate(lines):
        canvas.text(x + 7, y + 43 + place * TEXT_HEIGHT, line, size=10)
    canvas.width = max(canvas.width, x + BOX_WIDTH)
