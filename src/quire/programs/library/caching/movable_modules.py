r"""Movable modules: parts of prompts are computed once and used at any position (after Gim et al.,
2024).

    quire run movable_modules -- '{"begin": "<|bos|><|user|>", "kabo": "The age of Kabo is 31. ",
    "lima": "The age of Lima is 9. "}' \
        "begin kabo lima: What is the age of Lima?<|end|><|assistant|>" \
        "begin lima kabo: What is the age of Lima?<|end|><|assistant|>"

``modular_caching`` gives every module one fixed position, so prompts have gaps, and a schema cannot
be longer than the model's context. Here a module is computed and exported at position 0; every
prompt that names it imports it and rotates it to its position in the prompt, one module after
another, in any order. Each is rotated from its export, never from an earlier rotation. A module
attends only to itself, and rotation is exact for tokens that move together, so the result equals
computing each module at its position separately. Traits: Allocate (export, import), Reposition,
Forward, Decode.

::

    exported    | begin 0..1 |  | kabo 0..8 |  | lima 0..7 |
    prompt 1    | begin 0..1 | kabo 2..10 | lima 11..18 | question 19..
    prompt 2    | begin 0..1 | lima 2..9 | kabo 10..18 | question 19..        nothing is computed
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from quire.core.decoding import StopSpec
from quire.core.errors import InvalidArgument
from quire.programs.api import Api, KvPage
from quire.programs.library.caching.modular_caching import Module, Schema, pages_of
from quire.programs.sdk import inferlet


async def compose(
    api: Api, modules: Mapping[str, Module], names: Sequence[str], question: str, max_tokens: int
) -> tuple[list[int], int]:
    """The answer's tokens after the modules ``names``, in this order, and the question; and how
    many tokens of modules were imported.

    Raises:
        InvalidArgument: a name that the schema does not have.
    """
    if unknown := [name for name in names if name not in modules]:
        raise InvalidArgument(f"no modules {unknown}: the schema has {', '.join(modules)}")
    model = api.available_models()[0]
    queue = api.create_queue(model)
    context: list[KvPage] = []
    position = num_imported = 0
    for name in names:
        module = modules[name]
        pages, was_there = await pages_of(api, queue, module)
        if position:
            api.reposition_kvpage(queue, pages, position)
        context += pages
        position += len(module.tokens)
        num_imported += len(module.tokens) * was_there
    asked = api.tokenize(question)
    output = api.alloc_kvpage(queue, -(-(len(asked) + max_tokens) // model.page_size))
    stop = StopSpec(max_tokens, token_ids=model.eos_token_ids)
    decoded = await api.decode(queue, context, asked, output, stop=stop, position=position)
    api.close_queue(queue)  # frees its pages; exports stay
    return decoded.token_ids, num_imported


@inferlet("movable_modules", traits={"Reposition": 1, "Decode": 1, "Tokenize": 1}, restartable=True)
async def movable_modules(api: Api, schema: Schema, *prompts: str) -> list[dict[str, object]]:
    """Answer prompts (``NAME NAME: question``) after modules in any order, and count the reused
    tokens."""
    modules = {name: Module(tuple(api.tokenize(text)), 0) for name, text in schema.items()}
    answers: list[dict[str, object]] = []
    for prompt in prompts:
        names, _, question = prompt.partition(": ")
        tokens, num_imported = await compose(api, modules, names.split(), question, 32)
        answers.append(
            {
                "text": api.detokenize(tokens, skip_special=True),
                "num_module_tokens": sum(len(modules[name].tokens) for name in names.split()),
                "num_imported_tokens": num_imported,
            }
        )
    return answers
