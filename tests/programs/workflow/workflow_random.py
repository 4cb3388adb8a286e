"""Draws templates at random, of all kinds of components."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import strategies as st
from workflow_reference import digest

from quire.programs.workflow import App, Engine, Node, Profile
from quire.programs.workflow.passes import STANDARD

NAMES = [name for name, _ in STANDARD]
"""The names of the standard passes."""
KINDS = (
    "tool", "list_tool", "batch_tool", "embedding", "ingest", "search", "rerank", "condition",
    "web_search",
)  # fmt: skip
CALLS = ("one_shot", "refine", "tree", "splittable", "each")


class RandomApp:
    """Draws a template: each component takes values that were there before it. ``branches``: of
    which much is decided by conditions and rankings, and tools are often pure."""

    def __init__(self, draw: st.DrawFn, *, branches: bool = False) -> None:
        self._draw = draw
        self._branches = branches
        self.types = {"question": "text", "items": "texts", "documents": "documents"}
        self.sized = {"items"}
        self.guarded = set[str]()
        self.stored = False
        self.nodes: list[Node] = []
        self._add(
            "chunker", {"documents": "documents"}, "texts", config={"chunk_size": 7, "overlap": 2}
        )
        self.sized.add("v0")
        if branches:
            self._call("one_shot")
            self._condition()
            self._rerank()
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
        kind = self._draw(st.sampled_from(KINDS + CALLS))
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
        self._add("vectors", inputs, "done", self._annotation(name), {"operation": "ingest"})
        return None

    def _search(self) -> str | None:
        name = self._pick("vectors", sized=True)
        if name is None or not self.stored:
            return None
        config = {"operation": "search", "top_k": self._draw(st.integers(1, 4))}
        made = self._add("vectors", {name: "vectors"}, "texts", self._annotation(name), config)
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
        text, items = str(self._pick("text")), str(self._pick("texts", sized=True))
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
        self.sized.add(made)
        if made not in self.guarded and self._draw(st.booleans()):
            both = {made: "texts", items: "texts"}
            joined = self._add(
                "tool", both, "texts", "batchable", {"function": "f"}, may_branch=False
            )
            self.sized.add(joined)
        return made

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
        app = App(
            "random",
            [
                *(Engine(kind) for kind in ("llm", "vectors", "chunker", "rerank")),
                Engine("embedding", profile=profile),
                Engine("search", profile=profile),
                Engine("tool", config={"functions": functions}, profile=profile),
            ],
        )
        app.update_template(self.nodes)
        return app
