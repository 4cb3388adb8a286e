"""Draws templates at random, of all kinds of components."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

from hypothesis import strategies as st
from workflow_reference import digest, elements

from quire.programs.workflow import App, Engine, Growth, Node, Profile
from quire.programs.workflow.graphs.primitives import Primitive
from quire.programs.workflow.passes import STANDARD

NAMES = [name for name, _ in STANDARD]
"""The names of the standard passes."""
KINDS = (
    "tool", "list_tool", "batch_tool", "embedding", "ingest", "search", "rerank", "condition",
    "web_search",
)  # fmt: skip
CALLS = ("one_shot", "refine", "tree", "splittable", "each")
DEFERRED = ("deferred_refine", "deferred_tree", "deferred_each")
"""Calls for each element of any list."""


class RandomApp:
    """Draws a template: each component takes values that were there before it. ``branches``: of
    which much is decided by conditions and rankings, and tools are often pure. ``grows``: with
    loops, and with models that read lists whose length is known only while the query runs."""

    def __init__(self, draw: st.DrawFn, *, branches: bool = False, grows: bool = False) -> None:
        self._draw = draw
        self._branches, self._grows = branches, grows
        self._kinds = (*KINDS, *CALLS, *(("loop", *DEFERRED) if grows else ()))
        self.functions: dict[str, Callable[..., Any]] = {}
        """Those of its growths."""
        self._num_rounds: dict[str, int] = {}
        self.types = {"question": "text", "items": "texts", "documents": "documents"}
        self.sized = {"items"}
        self.guarded = set[str]()
        self.stored = self.stored_by_chance = False
        self.nodes: list[Node] = []
        self._add(
            "chunker", {"documents": "documents"}, "texts", config={"chunk_size": 7, "overlap": 2}
        )
        self.sized.add("v0")
        if branches:
            self._call("one_shot")
            self._condition()
            self._rerank()
        if grows:
            self._list_tool()
            self._call(draw(st.sampled_from(DEFERRED)))
            self._loop()
        for _ in range(draw(st.integers(3, 12) if branches else st.integers(1, 9))):
            self._node()
        self._order()

    def _pick(self, kind: str, *, sized: bool = False) -> str | None:
        certain = self.sized - self.guarded
        names = [n for n, t in self.types.items() if t == kind and (not sized or n in certain)]
        return self._draw(st.sampled_from(names)) if names else None

    def _add(
        self,
        engine: str,
        inputs: dict[str, str],
        out: str,
        annotation: Any = None,
        config: Any = (),
        *,
        may_branch: bool = True,
    ) -> str:
        number = len(self.nodes)
        flagged = may_branch and self._draw(st.integers(0, 1 if self._branches else 3)) == 0
        flag = self._pick("boolean") if flagged else None
        node = Node(
            engine,
            inputs,
            {f"v{number}": out},
            annotation,
            dict(config),
            name=f"n{number}",
            when=flag,
        )
        self.nodes.append(node)
        self.types[f"v{number}"] = out
        if flag is not None:  # what is not run gives no elements, so its number is not certain
            self.guarded.add(f"v{number}")
        return f"v{number}"

    def _node(self) -> None:
        kind = self._draw(st.sampled_from(self._kinds))
        make = getattr(self, f"_{kind}", None)
        if make is None:
            self._call(kind)
        else:
            make()

    def _annotation(self, name: str | None) -> Any:
        batchable = name is not None and self._draw(st.booleans())
        return "batchable" if batchable else None

    def _tool(self) -> str:
        text, items = self._pick("text"), self._pick("texts")
        effects = ["e"] if self._draw(st.booleans()) else []
        return self._add(
            "tool", {str(text): "text", str(items): "texts"}, "text",
            config={"function": "f", "effects": effects, "pure": self._pure(effects)},
        )  # fmt: skip

    def _list_tool(self) -> str:
        return self._add(
            "tool", {str(self._pick("text")): "text"}, "texts",
            config={"function": "f", "pure": self._pure([])},
        )  # fmt: skip

    def _pure(self, effects: list[str]) -> bool:
        return self._branches and not effects and self._draw(st.booleans())

    def _batch_tool(self) -> str:
        name = str(self._pick("texts", sized=True))
        config = {"function": "f", "pure": self._pure([])}
        made = self._add("tool", {name: "texts"}, "texts", "batchable", config)
        self.sized.add(made)
        return made

    def _embedding(self) -> str:
        name = str(self._pick("texts"))
        made = self._add("embedding", {name: "texts"}, "vectors", self._annotation(name))
        if name in self.sized - self.guarded:
            self.sized.add(made)
        return made

    def _ingest(self) -> str | None:
        name = str(self._pick("texts", sized=True))
        vectors = self._add(
            "embedding", {name: "texts"}, "vectors", self._annotation(name), may_branch=False
        )
        self.stored = True
        inputs = {name: "texts", vectors: "vectors"}
        made = self._add("vectors", inputs, "done", self._annotation(name), {"operation": "ingest"})
        self.stored_by_chance |= made in self.guarded
        return None

    def _search(self) -> str | None:
        name = self._pick("vectors", sized=True)
        if name is None or not self.stored:
            return None
        config = {"operation": "search", "top_k": self._draw(st.integers(1, 4))}
        made = self._add("vectors", {name: "vectors"}, "texts", self._annotation(name), config)
        if not self.stored_by_chance:  # otherwise it finds fewer if little is stored
            self.sized.add(made)
        return made

    def _web_search(self) -> str:
        """It gives a number of texts that is known when they are found."""
        kind = self._draw(st.sampled_from(["text", "texts"]))
        name = str(self._pick(kind))
        annotation = self._annotation(name) if kind == "texts" else None
        return self._add("search", {name: kind}, "texts", annotation, {"top_k": 2})

    def _rerank(self) -> str:
        name, text = str(self._pick("texts")), str(self._pick("text"))
        made = self._add("rerank", {text: "text", name: "texts"}, "texts", config={"top_n": 2})
        if name in self.sized - self.guarded:
            self.sized.add(made)
        return made

    def _condition(self) -> str:
        return self._add(
            "condition", {str(self._pick("text")): "text"}, "boolean", config={"equals": "yes"}
        )

    def _call(self, mode: str) -> str:
        mode, is_deferred = mode.removeprefix("deferred_"), mode in DEFERRED
        text, items = str(self._pick("text")), str(self._pick("texts", sized=not is_deferred))
        inputs = {text: "text", items: "texts"}
        begin = "Some words of an instruction. " if self._draw(st.booleans()) else ""
        if mode == "splittable":
            num = self._draw(st.integers(1, 4))
            schema = {
                "type": "array", "items": {"type": "string"}, "minItems": num, "maxItems": num
            }  # fmt: skip
            config: dict[str, Any] = {"prompt": f"{begin}{{{text}}}{{{items}}}", "schema": schema}
            made = self._add("llm", inputs, "texts", "splittable", config)
            self.sized.add(made)
            return made
        if mode == "each":
            return self._map(begin, text, items)
        order = self._draw(st.permutations([text, items]))
        parts = " and ".join(f"{{{name}}}" for name in order)
        config = {
            "synthesis": mode,
            "prompt": begin + parts,
            "refine_prompt": f"{begin}{parts} {{answer}} {{{text}}}",
            "combine_prompt": f"{begin}{{answers}} {{{text}}}",
            "last_first": self._draw(st.booleans()),
        }
        return self._add("llm", inputs, "text", config=config)

    def _map(self, begin: str, text: str, items: str) -> str:
        """A call for each element, and now and then a tool and an index behind them."""
        config = {"prompt": f"{begin}{{{text}}} and {{{items}}}"}
        inputs = {text: "text", items: "texts"}
        made = self._add("llm", inputs, "texts", "batchable", config)
        if items not in self.sized - self.guarded:
            return made
        self.sized.add(made)
        if made not in self.guarded and self._draw(st.booleans()):
            both = {made: "texts", items: "texts"}
            joined = self._add(
                "tool", both, "texts", "batchable", {"function": "f"}, may_branch=False
            )
            self.sized.add(joined)
        return made

    def _loop(self) -> str:
        """A tool that works on a text some times in turn."""
        text, name = str(self._pick("text")), f"loop{len(self.nodes)}"
        out, num_rounds = f"v{len(self.nodes)}", self._draw(st.integers(0, 3))

        def step(number: int, taken: str) -> Callable[..., Any]:
            def stepped(**given: str) -> Any:
                if number == num_rounds:
                    return given[taken]
                made = f"{name}_{number + 1}"
                work = Node("tool", {taken: "text"}, {made: "text"}, None, {"function": "f"},
                            name=f"{name}_work")  # fmt: skip
                again = Node("growth", {made: "text"}, {out: "text"}, None, {"function": made},
                             name=f"{name}_again")  # fmt: skip
                return Growth([again, work])

            return stepped

        self.functions[name] = step(0, text)
        for number in range(1, num_rounds + 1):
            self.functions[f"{name}_{number}"] = step(number, f"{name}_{number}")
        self._num_rounds[f"n{len(self.nodes)}"] = num_rounds
        return self._add("growth", {text: "text"}, "text", config={"function": name})

    def become(self, primitive: Primitive, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """What a growth gives, computed without one."""
        (node,) = (one for one in self.nodes if one.name == primitive.node)
        (out,) = node.outputs
        if node.engine == "growth":
            (value,) = inputs.values()
            for _ in range(self._num_rounds[node.name]):
                value = digest([value])
            return {out: value}
        (items,) = (name for name, kind in node.inputs.items() if kind == "texts")
        (text,) = (name for name, kind in node.inputs.items() if kind == "text")
        read = inputs[items][::-1] if node.config.get("last_first") else inputs[items]

        def prompt(field: str, one: str, **answers: str) -> str:
            values = {text: inputs[text], items: one, **answers}
            return str(node.config[field].format(**values))

        if node.annotation == "batchable":
            return {out: [elements(prompt("prompt", one), 1)[0] for one in read]}
        if not read:
            return {out: digest(prompt("prompt", ""))}
        if node.config["synthesis"] == "tree":
            answers = [digest(prompt("prompt", one)) for one in inputs[items]]
            numbered = "\n".join(f"{n}. {one}" for n, one in enumerate(answers, 1))
            return {out: digest(prompt("combine_prompt", "", answers=numbered))}
        answer = digest(prompt("prompt", read[0]))
        for one in read[1:]:
            answer = digest(prompt("refine_prompt", one, answer=answer))
        return {out: answer}

    def _order(self) -> None:
        """Components with an effect in the order in which they were drawn; others by chance."""
        effectful = [
            node
            for node in self.nodes
            if node.engine == "vectors" or "e" in node.config.get("effects", ())
        ]
        for before, after in pairwise(effectful):
            before >> after
        chained = self._draw(st.booleans()) and not self._branches
        for place, node in enumerate(self.nodes[1:]):
            if chained or self._draw(st.integers(0, 3)) == 0:
                self.nodes[place] >> node

    def app(self, max_batch: int) -> App:
        functions = {"f": lambda **given: digest(given)}
        profile = Profile(max_batch)
        grows = [self.functions] if self.functions else []
        app = App(
            "random",
            [
                *(Engine(kind) for kind in ("llm", "vectors", "chunker", "rerank")),
                Engine("embedding", profile=profile),
                Engine("search", profile=profile),
                Engine("tool", config={"functions": functions}, profile=profile),
                *(Engine("growth", config={"functions": made}) for made in grows),
            ],
        )
        app.update_template(self.nodes)
        return app
