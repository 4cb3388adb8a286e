r"""Modular caching: parts of prompts are computed once and combined (Gim et al., 2024).

    quire run modular_caching -- '{"begin": "<|bos|><|user|>", "kabo": "The age of Kabo is 31. ",
    "lima": "The age of Lima is 9. "}' \
        "begin kabo: What is the age of Kabo?<|end|><|assistant|>" \
        "begin lima: What is the age of Lima?<|end|><|assistant|>" \
        "begin kabo lima: What is the age of Kabo?<|end|><|assistant|>"

A prefix cache reuses the beginning of a prompt. In Prompt Cache a schema gives every module fixed
positions, whichever other modules are used. A module attends only to itself and is exported under a
name derived from its content; every prompt that names it imports it, in this program or in later
ones, as long as it is imported at least every ten minutes. Omitted modules leave a gap in the
positions. The question attends to all modules. Traits: Allocate (export, import), Forward, Decode.

::

    schema      | begin 0..1 | kabo 2..10 | lima 11..19 |
    prompt 1    | begin      | kabo       |              question 20..
    prompt 2    | begin      |            | lima         question 20..       begin: imported
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from quire.core.decoding import StopSpec
from quire.core.errors import InvalidArgument, UnknownHandle
from quire.programs.api import Api, KvPage, Queue
from quire.programs.sdk import inferlet


@dataclass(frozen=True, slots=True)
class ComposedAnswer:
    """An answer. ``imported``: modules that were exported before."""

    tokens: list[int]
    imported: list[str]
    num_prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Module:
    """A part of prompts at its position in the schema."""

    tokens: tuple[int, ...]
    position: int

    @property
    def export_name(self) -> str:
        """The name of its export, derived from the tokens and their position."""
        content = json.dumps([self.position, *self.tokens]).encode()
        return f"module/{hashlib.sha256(content).hexdigest()}"


def place(api: Api, schema: Mapping[str, str]) -> dict[str, Module]:
    """The modules of ``schema`` at consecutive positions."""
    modules: dict[str, Module] = {}
    position = 0
    for name, text in schema.items():
        modules[name] = Module(tuple(api.tokenize(text)), position)
        position += len(modules[name].tokens)
    return modules


async def pages_of(api: Api, queue: Queue, module: Module) -> tuple[list[KvPage], bool]:
    """Pages that hold ``module``, and whether they were exported before."""
    try:
        return await api.import_kvpage(queue, module.export_name), True
    except UnknownHandle:
        api.reset_queue(queue)  # clear the expected failure
    num_tokens = len(module.tokens)
    embeds = api.alloc_emb(queue, num_tokens)
    pages = api.alloc_kvpage(queue, -(-num_tokens // queue.page_size))
    positions = range(module.position, module.position + num_tokens)
    api.embed_txt(queue, module.tokens, positions, embeds)
    api.forward(queue, [], embeds, pages)
    api.dealloc_emb(queue, embeds)
    try:
        await api.export_kvpage(queue, pages, module.export_name)
    except InvalidArgument:  # another program has exported it meanwhile
        api.reset_queue(queue)
    return pages, False


async def compose(
    api: Api, modules: Mapping[str, Module], names: Sequence[str], question: str, max_tokens: int
) -> ComposedAnswer:
    """The answer after the modules ``names`` and the question.

    Raises:
        InvalidArgument: a name that the schema does not have.
    """
    if unknown := [name for name in names if name not in modules]:
        raise InvalidArgument(f"no modules {unknown}: the schema has {', '.join(modules)}")
    model = api.available_models()[0]
    queue = api.create_queue(model)
    context: list[KvPage] = []
    imported = []
    used = sorted(set(names), key=list(modules).index)
    for name in used:
        pages, was_there = await pages_of(api, queue, modules[name])
        context += pages
        if was_there:
            imported.append(name)
    asked = api.tokenize(question)
    position = sum(len(module.tokens) for module in modules.values())
    output = api.alloc_kvpage(queue, -(-(len(asked) + max_tokens) // model.page_size))
    stop = StopSpec(max_tokens, token_ids=model.eos_token_ids)
    decoded = await api.decode(queue, context, asked, output, stop=stop, position=position)
    api.close_queue(queue)  # frees its pages; exports stay
    num_tokens = sum(len(modules[name].tokens) for name in used) + len(asked)
    return ComposedAnswer(decoded.token_ids, imported, num_tokens)


Schema = Annotated[dict[str, str], 'Texts by name, e.g. {"begin": "Read this: "}']


@inferlet("modular_caching", traits={"Decode": 1, "Tokenize": 1}, restartable=True)
async def modular_caching(api: Api, schema: Schema, *prompts: str) -> list[dict[str, object]]:
    """Answer prompts (``NAME NAME: question``) after modules of a schema (JSON: name to text), and
    count the tokens of each prompt that were imported."""
    modules = place(api, schema)
    answers: list[dict[str, object]] = []
    for prompt in prompts:
        names, _, question = prompt.partition(": ")
        made = await compose(api, modules, names.split(), question, 32)
        answers.append(
            {
                "text": api.detokenize(made.tokens, skip_special=True),
                "imported": made.imported,
                "num_imported_tokens": sum(len(modules[name].tokens) for name in made.imported),
                "num_prompt_tokens": made.num_prompt_tokens,
            }
        )
    return answers
