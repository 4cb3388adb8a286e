"""A language model: its prompt, its synthesis mode, and the outputs of its answer.

One call is a prefilling and a decoding, or one primitive for a model behind HTTP. ``refine`` chains
one call for each element of the context; ``tree`` makes a call for each element on its own and
combines the answers. A batchable model is called once for each element of its lists, and its output
has an answer for each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from quire.core.errors import InvalidArgument
from quire.programs.workflow.components.building import ComponentSite, Value
from quire.programs.workflow.components.component import Component, NodeShape
from quire.programs.workflow.components.turns import (
    TURN_CONFIG,
    check_turns,
    turn_parts,
    turn_prompts,
)
from quire.programs.workflow.engines.engine import Engine
from quire.programs.workflow.graphs.primitives import EACH, Op, Primitive
from quire.programs.workflow.graphs.prompts import Prompt, PromptPart
from quire.programs.workflow.graphs.values import Ref, ValueType

MODES = ("one_shot", "refine", "tree")
MAX_TOKENS = 256
ANSWER, ANSWERS = "answer", "answers"
"""The prompt parts for the answer so far (refine) and for all answers (tree)."""
_OWN_PARTS: Mapping[str, tuple[str, ...]] = {
    "prompt": (),
    "refine_prompt": (ANSWER,),
    "combine_prompt": (ANSWERS,),
}


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

    def changeable(self, node: NodeShape) -> frozenset[str]:
        is_batchable = node.annotation == "batchable"
        return self.config - TURN_CONFIG - set(_OF_ONE_CALL if is_batchable else ())

    def check(self, node: NodeShape, engine: Engine | None) -> None:
        super().check(node, engine)
        check_turns(node)
        kinds = list(node.outputs.values())
        if kinds not in ([ValueType.TEXT], [ValueType.TEXTS]):
            raise InvalidArgument(
                f"{node.name}: a model produces one output of type text or texts",
                param=f"{node.name}.outputs",
            )
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
        if (kinds == [ValueType.TEXTS]) != has_schema:
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
        for field, own in _OWN_PARTS.items():
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


class ComponentCalls:
    """The calls of one component of one query."""

    def __init__(self, site: ComponentSite) -> None:
        self._site = site
        self._lists = {
            "separator": site.option("separator", str, "\n"),
            "last_first": site.option("last_first", bool, False),
        }
        self.elements, schema = self._elements()
        (self._kind,) = site.outputs.values()
        self._decoding: dict[str, Any] = {
            "max_tokens": site.count("max_tokens", MAX_TOKENS),
            "schema": schema,
            "answer_after": site.option("answer_after", str),
            "tools": [tool["function"]["name"] for tool in site.config.get("tools") or []],
        }
        if schema is not None and self._decoding["answer_after"] is not None:
            raise site.error("answer_after", "cannot be used with a schema: drop one of them")

    # -- modes -------------------------------------------------------------------------------------

    def one_shot(self) -> Primitive:
        return self._call("", self._prompt("prompt"), {})

    def refine(self) -> Primitive | None:
        """Make ``n`` chained calls: each reads one element, in the order of the configuration, and
        the answer so far. None if ``n`` is not known yet."""
        first, later = self._prompt("prompt"), self._prompt("refine_prompt")
        self._needs(later, "refine_prompt", ANSWER)
        context, num = self._context()
        if not num:
            return None if num is None else self.one_shot()
        order = [*reversed(range(num))] if self._lists["last_first"] else [*range(num)]
        answer = self._call("0", first, {context: self._element(context, order[0])})
        for step, index in enumerate(order[1:], 1):
            inputs = {context: self._element(context, index), ANSWER: _text(answer)}
            answer = self._call(str(step), later, inputs)
        return answer

    def tree(self) -> Primitive | None:
        """Make ``n`` calls that read one element each, and one more that combines their answers.
        None if ``n`` is not known yet."""
        leaf, combine = self._prompt("prompt"), self._prompt("combine_prompt")
        self._needs(combine, "combine_prompt", ANSWERS)
        context, num = self._context()
        if not num:
            return None if num is None else self.one_shot()
        answers = [
            self._call(str(index), leaf, {context: self._element(context, index)})
            for index in range(num)
        ]
        return self._call("combine", combine, {}, answers)

    def each(self) -> Mapping[str, Value]:
        """Make a call for each index, which reads that element of every list, and an Aggregate of
        the answers, so that each answer can be passed on as soon as it is complete. Deferred if the
        number of elements is not known yet."""
        prompt = self._prompt("prompt")
        lists = [name for name, one in self._site.inputs.items() if one.kind is ValueType.TEXTS]
        sizes = {name: self._site.inputs[name].size for name in lists}
        known = {size for size in sizes.values() if size is not None}
        if len(known) > 1:
            told = ", ".join(f"{name} {size}" for name, size in sizes.items() if size is not None)
            raise self._site.error(
                "inputs", f"have these numbers of elements: {told}; a batchable model needs lists "
                "of one length"
            )  # fmt: skip
        if None in sizes.values():
            return self._site.defer()
        (num,) = known
        self.elements = 1
        answers = [
            self._call(str(index), prompt, {name: self._element(name, index) for name in lists})
            for index in range(num)
        ]
        gathered = self._site.add(
            Op.AGGREGATE, "all", {str(n): Ref(one.id) for n, one in enumerate(answers)},
            {"out": self._kind}, size=num,
            config={"origin": EACH, "spans": tuple((n, n + 1) for n in range(num))},
        )  # fmt: skip
        (out,) = self._site.outputs
        return {out: Value(Ref(gathered.id), self._kind, num)}

    # -- one call ----------------------------------------------------------------------------------

    def _call(
        self,
        step: str,
        prompt: Prompt,
        given: Mapping[str, Value],
        answers: Sequence[Primitive] = (),
    ) -> Primitive:
        """Make one call. ``given``: values of parts in place of the component's inputs."""
        parts: list[PromptPart] = []
        inputs: dict[str, Ref] = {}
        turns = turn_parts(turn_prompts(self._site.node, self._site.config))
        for part in (*prompt.parts, *turns):
            if part.turn:
                parts.append(part)
                if part.name is not None:
                    inputs[part.name] = self._site.inputs[part.name].ref
            elif part.name == ANSWERS and answers:
                self._add_numbered(answers, parts, inputs)
            elif part.name is None:
                parts.append(part)
            else:
                self._add(part.name, given.get(part.name), parts, inputs)
        before = f"{step}." if step else ""
        asked: dict[str, Any] = {name: self._site.option(name, str) for name in ("system", "model")}
        if self._site.whole_calls:
            return self._whole_call(f"{before}call", inputs, parts, asked)
        asked |= {name: self._site.config.get(name) or [] for name in ("tools", "turns")}
        prefill = self._site.add(
            Op.PREFILLING, f"{before}prefill", inputs, {"state": ValueType.STATE},
            parts=tuple(parts), config={**asked, **self._lists},
        )  # fmt: skip
        return self._site.add(
            Op.DECODING, f"{before}decode", {"state": Ref(prefill.id, "state")},
            {"out": self._kind}, size=self.elements,
            config={**self._decoding, "splittable": self._site.splittable},
        )  # fmt: skip

    def _whole_call(
        self,
        step: str,
        inputs: Mapping[str, Ref],
        parts: Sequence[PromptPart],
        asked: Mapping[str, Any],
    ) -> Primitive:
        if asked["model"] is not None:
            raise self._site.error(
                "model", "is given, and the engine is a model behind HTTP, which the application "
                "names: leave it out"
            )  # fmt: skip
        for key in sorted(TURN_CONFIG):
            if self._site.config.get(key):
                raise self._site.error(
                    key, "is for a model of the node, and the engine is a model behind HTTP"
                )
        return self._site.add(
            Op.GENERATING, step, inputs, {"out": self._kind}, size=self.elements,
            parts=tuple(parts),
            config={**asked, **self._decoding, **self._lists},
        )  # fmt: skip

    def _add(
        self, name: str, given: Value | None, parts: list[PromptPart], inputs: dict[str, Ref]
    ) -> None:
        """Add the part ``name``. Each element of a list of known size is a part of its own, because
        elements may be ready one after the other; a list of another size is joined when it is
        there."""
        value = given or self._site.inputs[name]
        if value.kind is ValueType.TEXT or value.size is None:
            parts.append(PromptPart(name=name))
            inputs[name] = value.ref
            return
        order = range(value.size)
        for place, index in enumerate(reversed(order) if self._lists["last_first"] else order):
            if place:
                parts.append(PromptPart(self._lists["separator"]))
            parts.append(PromptPart(name=f"{name}.{index}"))
            inputs[f"{name}.{index}"] = value.ref.element(index)

    def _add_numbered(
        self, answers: Sequence[Primitive], parts: list[PromptPart], inputs: dict[str, Ref]
    ) -> None:
        for index, answer in enumerate(answers):
            parts.append(PromptPart(f"{chr(10) if index else ''}{index + 1}. "))
            parts.append(PromptPart(name=f"{ANSWERS}.{index}"))
            inputs[f"{ANSWERS}.{index}"] = Ref(answer.id)

    # -- configuration -----------------------------------------------------------------------------

    def _prompt(self, field: str) -> Prompt:
        text = self._site.option(field, str)
        if text is None:
            raise self._site.error(field, "is missing: give a prompt with named parts")
        kinds = {name: one.kind for name, one in self._site.inputs.items()}
        return read_prompt(self._site.node, field, text, kinds, _OWN_PARTS[field])

    def _needs(self, prompt: Prompt, field: str, name: str) -> None:
        if name not in prompt.names:
            raise self._site.error(field, f"does not use {{{name}}}: put it into the prompt")

    def _context(self) -> tuple[str, int | None]:
        """The list whose elements get a call each, and the number of its elements, if that is
        known."""
        lists = [name for name, one in self._site.inputs.items() if one.kind is ValueType.TEXTS]
        name = self._site.option("context", str, lists[0] if len(lists) == 1 else None)
        if name not in lists:
            raise self._site.error(
                "context", f"must name one of the inputs of type texts ({', '.join(lists)})"
            )
        return name, self._site.inputs[name].size

    def _element(self, name: str, index: int) -> Value:
        return Value(self._site.inputs[name].ref.element(index), ValueType.TEXT)

    def _elements(self) -> tuple[int | None, Mapping[str, Any] | None]:
        """The number of elements of the answer, if its schema determines it, and the schema."""
        schema: dict[str, Any] | None = self._site.option("schema", dict)
        if schema is None:
            return None, None
        if schema.get("type") != "array" or _kind_of_items(schema) != "string":
            raise self._site.error(
                "schema", f"is {schema}: this release reads an array of strings: give "
                '{"type": "array", "items": {"type": "string"}}, with minItems and maxItems'
            )  # fmt: skip
        least, most = schema.get("minItems"), schema.get("maxItems")
        return (least if isinstance(least, int) and least == most else None), schema


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


def _kind_of_items(schema: Mapping[str, Any]) -> Any:
    items = schema.get("items")
    return items.get("type") if isinstance(items, Mapping) else None


def _text(answer: Primitive) -> Value:
    return Value(Ref(answer.id), ValueType.TEXT)


def read_prompt(
    node: str, field: str, text: object, inputs: Mapping[str, ValueType], own: tuple[str, ...]
) -> Prompt:
    """The prompt in the configuration ``field``; its parts are ``inputs`` and ``own``.

    Raises:
        InvalidArgument: not a text, or a part that is none of them.
    """
    where = f"{node}.{field}"
    if not isinstance(text, str):
        raise InvalidArgument(f"{where} is {text!r}: give a text", param=where)
    prompt = Prompt.read(text, where)
    for name in prompt.names:
        if name not in inputs and name not in own:
            known = ", ".join([*inputs, *own]) or "none"
            raise InvalidArgument(
                f"{where}: unknown part {{{name}}}; the parts are {known}: name one of them, or "
                "add an input",
                param=where,
            )
        kind = inputs.get(name)
        if kind not in (None, ValueType.TEXT, ValueType.TEXTS):
            raise InvalidArgument(
                f"{where}: the part {{{name}}} is of type {kind}: a part is text or texts",
                param=where,
            )
    return prompt
