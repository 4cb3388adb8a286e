"""The calls of a language model that a component becomes, by its synthesis mode.

One call is a prefilling and a decoding, or one primitive for a model behind HTTP. ``refine`` chains
one call for each element of the context; ``tree`` makes a call for each element on its own and
combines the answers. A batchable model is called once for each element of its lists, and its output
has an answer for each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from quire.programs.workflow.components.building import ComponentSite, Value
from quire.programs.workflow.components.prompts import read_prompt
from quire.programs.workflow.components.turns import TURN_CONFIG, turn_parts, turn_prompts
from quire.programs.workflow.graphs.primitives import EACH, Op, Primitive
from quire.programs.workflow.graphs.prompts import Prompt, PromptPart
from quire.programs.workflow.graphs.values import Ref, ValueType

MAX_TOKENS = 256
MAX_ELEMENTS = 1024
"""The most elements that a schema may ask for."""
MAX_LIST_PARTS = 1024
"""A list of more elements is one part of a prompt, which is ready when all of the list is."""
MAX_PARTS = 16 * MAX_LIST_PARTS
"""The most parts of a prompt, each element of a list and each separator counted. A list whose
elements would be more than this in all calls of a component is one part of each prompt."""
MAX_PARTS_OF_CALLS = 16 * MAX_PARTS
"""The most parts of all prompts of a component."""
ANSWER, ANSWERS = "answer", "answers"
"""The prompt parts for the answer so far (refine) and for all answers (tree)."""
OWN_PARTS: Mapping[str, tuple[str, ...]] = {
    "prompt": (),
    "refine_prompt": (ANSWER,),
    "combine_prompt": (ANSWERS,),
}


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
        self._num_calls = 1
        self._num_parts = 0
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
        self._num_calls = num
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
        self._num_calls = num
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
        if len(parts) > MAX_PARTS:
            raise self._site.error(
                "prompt", f"has {len(parts)} parts with the elements of its lists; at most "
                f"{MAX_PARTS} are allowed: name each list once"
            )  # fmt: skip
        self._num_parts += len(parts)
        if self._num_parts > MAX_PARTS_OF_CALLS:
            raise self._site.error(
                "prompt", f"has {len(parts)} parts, and there are {self._num_calls} calls; at most "
                f"{MAX_PARTS_OF_CALLS} parts in all are allowed: shorten it, or take less context"
            )  # fmt: skip
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
        elements may be ready one after the other; a list of unknown size, a long one, or one that
        very many calls read is joined when it is there."""
        value = given or self._site.inputs[name]
        size = value.size
        most = min(MAX_LIST_PARTS, MAX_PARTS // self._num_calls)
        if value.kind is ValueType.TEXT or size is None or size > most:
            parts.append(PromptPart(name=name))
            inputs[name] = value.ref
            return
        order = range(size)
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
        return read_prompt(self._site.node, field, text, kinds, OWN_PARTS[field])

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
                "schema", f"is {schema!r:.80}: this release reads an array of strings: give "
                '{"type": "array", "items": {"type": "string"}}, with minItems and maxItems'
            )  # fmt: skip
        least, most = (self._num_items(schema, key) for key in ("minItems", "maxItems"))
        if least is not None and most is not None and least > most:
            raise self._site.error(
                "schema", f"asks for at least {least} and at most {most} elements: turn minItems "
                "and maxItems round"
            )  # fmt: skip
        return (least if least == most else None), schema

    def _num_items(self, schema: Mapping[str, Any], key: str) -> int | None:
        num = schema.get(key)
        if num is None:
            return None
        if not isinstance(num, int) or isinstance(num, bool) or num < 0:
            raise self._site.error("schema", f"has {key} {num!r:.80}: give an integer, 0 or more")
        if num > MAX_ELEMENTS:
            raise self._site.error(
                "schema", f"has {key} {num}: ask for at most {MAX_ELEMENTS} elements"
            )
        return num


def _kind_of_items(schema: Mapping[str, Any]) -> Any:
    items = schema.get("items")
    return items.get("type") if isinstance(items, Mapping) else None


def _text(answer: Primitive) -> Value:
    return Value(Ref(answer.id), ValueType.TEXT)
