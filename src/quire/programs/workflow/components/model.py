"""A language model as a component: its configuration, and what is refused with the template."""

from __future__ import annotations

from collections.abc import Mapping

from quire.core.errors import InvalidArgument
from quire.programs.workflow.components.building import ComponentSite, Value
from quire.programs.workflow.components.component import Component, NodeShape, Shape
from quire.programs.workflow.components.model_calls import OWN_PARTS, ComponentCalls
from quire.programs.workflow.components.prompts import read_prompt
from quire.programs.workflow.components.turns import TURN_CONFIG, check_turns
from quire.programs.workflow.engines.engine import Engine
from quire.programs.workflow.graphs.values import Ref, ValueType

MODES = ("one_shot", "refine", "tree")
_OF_ONE_CALL = (
    "refine_prompt", "combine_prompt", "synthesis", "context", "last_first", "schema", "tools",
    "turns",
)  # fmt: skip
"""Configuration that a batchable model does not have: each element has one call of its own."""


class LanguageModel(Component):
    """See the module docstring. The configuration is described in the guide."""

    config = frozenset(
        {
            "prompt", "refine_prompt", "combine_prompt", "synthesis", "context", "separator",
            "last_first", "system", "max_tokens", "schema", "answer_after", "model", *TURN_CONFIG,
        }
    )  # fmt: skip
    splittable = True
    shape = Shape("a model", None, (("text",), ("texts",)))

    def changeable(self, node: NodeShape) -> frozenset[str]:
        is_batchable = node.annotation == "batchable"
        return self.config - TURN_CONFIG - set(_OF_ONE_CALL if is_batchable else ())

    def check(self, node: NodeShape, engine: Engine | None) -> None:
        super().check(node, engine)
        check_turns(node)
        if node.annotation == "batchable":
            _check_batchable(node)
            self._check_prompts(node)
            return
        has_schema = node.config.get("schema") is not None
        if node.annotation == "splittable" and not has_schema:
            raise InvalidArgument(
                f"{node.name} is splittable without a schema: give config 'schema', an array of "
                "strings, so that complete elements can be told apart",
                param=f"{node.name}.schema",
            )
        if (ValueType.TEXTS in node.outputs.values()) != has_schema:
            raise InvalidArgument(
                f"{node.name}: an output of type texts and a schema belong together: give both or "
                "neither",
                param=f"{node.name}.schema",
            )
        self._check_prompts(node)

    def _check_prompts(self, node: NodeShape) -> None:
        """Check that every part is an input or stands for answers, and that every input is a part
        of a prompt."""
        used = set[str]()
        for field, own in OWN_PARTS.items():
            text = node.config.get(field)
            if text is not None:
                used |= set(read_prompt(node.name, field, text, node.inputs, own).names)
        for turn in node.config.get("turns") or []:  # type: ignore[attr-defined]
            if turn["content"]:
                prompt = read_prompt(node.name, "turns", turn["content"], node.inputs, ())
                used |= set(prompt.names)
        for name, kind in node.inputs.items():
            if name not in used and kind is not ValueType.DONE:
                raise InvalidArgument(
                    f"{node.name}: no prompt uses the input {name!r}: put {{{name}}} into one, or "
                    "drop the input",
                    param=f"{node.name}.inputs.{name}",
                )

    def build(self, site: ComponentSite) -> Mapping[str, Value]:
        call = ComponentCalls(site)
        if site.batchable:
            return call.each()
        mode = site.option("synthesis", str, "one_shot")
        if mode not in MODES:
            raise site.error("synthesis", f"is {mode!r}: use one of {', '.join(MODES)}")
        last = {"one_shot": call.one_shot, "refine": call.refine, "tree": call.tree}[mode]()
        if last is None:
            return site.defer()
        ((out, kind),) = site.outputs.items()
        return {out: Value(Ref(last.id), kind, call.elements)}


def _check_batchable(node: NodeShape) -> None:
    for key in _OF_ONE_CALL:
        if node.config.get(key) is not None:
            raise InvalidArgument(
                f"{node.name}: a batchable model is asked once for each element and takes no "
                f"{key}: leave it out, or drop the annotation",
                param=f"{node.name}.{key}",
            )
    if ValueType.TEXTS not in node.inputs.values() or ValueType.TEXTS not in node.outputs.values():
        raise InvalidArgument(
            f"{node.name}: a batchable model takes a list of texts and produces one, an answer for "
            "each element: make an input and the output texts, or drop the annotation",
            param=f"{node.name}.outputs",
        )
