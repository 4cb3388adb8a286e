"""Graphs that grow: templates drawn at random, a loop, and the reference that runs them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from random import Random
from typing import Any

from hypothesis import assume
from hypothesis import strategies as st
from workflow_reference import ReferenceRun, digest

from quire.programs.workflow import App, Engine, Graph, Growth, Node, StepLog
from quire.programs.workflow.execution.growing import TemplateGrower
from quire.programs.workflow.execution.scheduler import GraphScheduler
from quire.programs.workflow.graphs.primitives import Op, Primitive
from quire.programs.workflow.graphs.values import ValueType

DOCUMENTS = [{"name": "a", "text": " ".join(f"w{n}" for n in range(30))}]
QUERY = {"question": "Who?", "items": ["a", "b", "c"], "documents": DOCUMENTS}


class Reference:
    """A runner for all engines; ``order``: how many turns of the loop a primitive takes."""

    def __init__(self, graph: Graph, order: Random) -> None:
        self.reference = ReferenceRun(graph.p_graph, graph.query, order)
        self._order = order
        self.ran: list[Primitive] = []

    async def run(self, primitive: Primitive, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        for _ in range(self._order.randrange(4)):
            await asyncio.sleep(0)
        self.ran.append(primitive)
        return self.reference.outputs(primitive, inputs)

    async def close(self) -> None:
        """Nothing is held."""


class ByReference(GraphScheduler):
    """Its conditions are those of the reference, which are true by chance."""

    async def _outputs(self, primitive: Primitive) -> Mapping[str, Any]:
        if primitive.op is not Op.CONDITION:
            return await super()._outputs(primitive)
        (text,) = self.state.inputs_of(primitive).values()
        return {"out": bool(int(digest(text), 16) % 2)}


def scheduler_of(
    graph: Graph, seed: int = 0, runner: Any = None, log: StepLog | None = None
) -> GraphScheduler:
    runners = dict.fromkeys(graph.app.engines, runner or Reference(graph, Random(seed)))
    grower = TemplateGrower(graph.app, graph.config, graph.passes, graph.cache)
    return ByReference(graph.e_graph, graph.query, runners, lambda: 0.0, log, grower=grower)


def run(graph: Graph, seed: int = 0, log: StepLog | None = None) -> tuple[Any, GraphScheduler]:
    scheduler = scheduler_of(graph, seed, log=log)
    return asyncio.run(scheduler.run()), scheduler


class Grown:
    """Nodes of a template, some of which are in the growth of another one, now and then of one
    inside it."""

    def __init__(self, draw: Any) -> None:
        self._draw = draw
        self.functions: dict[str, Any] = {}

    def nodes(self, nodes: list[Node], wanted: set[str]) -> list[Node]:
        """``nodes`` with a growth in the place of some neighbours."""
        start = self._draw(st.integers(0, len(nodes) - 1))
        stop = self._draw(st.integers(start + 1, len(nodes)))
        inside, outside = nodes[start:stop], nodes[:start] + nodes[stop:]
        made = {name: kind for node in inside for name, kind in node.outputs.items()}
        assume(all(node.when is None or node.when in made for node in inside))
        used = {name for node in outside for name in (*node.inputs, node.when)} | wanted
        outputs = {
            name: kind for name, kind in made.items() if name in used and kind is not ValueType.DONE
        }
        assume(outputs)
        inputs = {
            name: kind for node in inside for name, kind in node.inputs.items() if name not in made
        }
        effects = {node.engine for node in inside if node.engine == "vectors"}
        effects |= {one for node in inside for one in node.config.get("effects", ())}
        number = len(self.functions)
        config = {"function": f"g{number}", "effects": sorted(effects)}
        growth = Node("growth", inputs, outputs, None, config, name=f"grown{number}")
        self.functions[f"g{number}"] = None
        new = {node: _copied(node) for node in inside}
        for node in inside:
            new[node].before = [new[later] for later in node.before if later in new]
        grown = list(new.values())
        if len(grown) > 1 and self._draw(st.booleans()):
            grown = self.nodes(grown, set(outputs))
        self.functions[f"g{number}"] = lambda **_: Growth(grown)
        others = {node: _copied(node) for node in outside} | dict.fromkeys(inside, growth)
        for node in nodes:
            before = {others[later] for later in node.before} - {others[node]}
            others[node].before = list(dict.fromkeys([*others[node].before, *before]))
        return list(dict.fromkeys(others[node] for node in nodes))


def _copied(node: Node) -> Node:
    inputs, outputs = dict(node.inputs), dict(node.outputs)
    return Node(
        node.engine, inputs, outputs, node.annotation, node.config, name=node.name, when=node.when
    )


def counted(goal: int, pure: bool = False, **growth: Any) -> App:
    """A loop: a tool works on a text until it is as long as the goal."""

    def longer(text: str) -> str:
        return text + "x"

    def step(text: str) -> Any:
        if len(text) >= goal:
            return text
        config = {"function": "longer", "pure": pure}
        work = Node("tool", {"text": "text"}, {"more": "text"}, None, config, name="work")
        return Growth([work, loop("more")])

    def loop(taken: str) -> Node:
        config = {"function": "step" if taken == "text" else "again", **growth}
        return Node("growth", {taken: "text"}, {"answer": "text"}, None, config, name="loop")

    def again(more: str) -> Any:
        made = step(more)
        return Growth(made.nodes, {"text": more}) if isinstance(made, Growth) else made

    app = App(
        "loop",
        [
            Engine("tool", config={"functions": {"longer": longer}}),
            Engine("growth", config={"functions": {"step": step, "again": again}}),
        ],
    )
    app.update_template([loop("text")])
    return app
