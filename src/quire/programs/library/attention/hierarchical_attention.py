"""Hierarchical attention: a text is a tree, a token attends to its own branch (Tang et al., 2022).

    quire run hierarchical_attention -- "# Kabo
    The age of Kabo is 31.
    # Lima
    The age of Lima is 9." "What is the age of Kabo?" --compare

Headings (``#``, ``##``, ...) define the tree. The tokens of a section attend to the section and its
ancestors, so that sibling sections do not affect one another (in AST-Trans, nodes of a syntax tree
attend to their ancestors). The question after the text attends to all of it. The whole text is
computed in one forward pass under one mask. Traits: Decode, Forward (masks), OutputText.

::

    # A            A     # . . . .          key: # seen
    ## A1          A1    # # . . .
    ## A2          A2    # . # . .
    # B            B     . . . # .
    question       q     # # # # #
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from quire.programs.api import Api
from quire.programs.chat.template import chat_template
from quire.programs.library.answers import Compare, plain_text
from quire.programs.sdk import Context, inferlet, steps


@dataclass(frozen=True, slots=True)
class DocumentSection:
    """A heading with its text; ``above``: the indices of itself and its ancestors."""

    text: str
    above: frozenset[int]


def sections(text: str) -> list[DocumentSection]:
    """The sections of a text with headings, in order. Text before the first heading is above
    all."""
    found: list[DocumentSection] = []
    path: list[tuple[int, int]] = [(0, 0)]  # depth and index of the open sections
    for index, part in enumerate(re.split(r"(?m)^(?=#)", text)):
        depth = len(part) - len(part.lstrip("#"))
        while depth and path[-1][0] >= depth:
            path.pop()
        if index:
            path.append((depth, index))
        found.append(DocumentSection(part, frozenset(open_index for _, open_index in path)))
    return found


async def read_tree(ctx: Context, parts: Sequence[DocumentSection], question: str) -> int:
    """Compute the sections, each attending to its own branch only, and append the question.

    Returns the number of pairs of tokens of the text of which one attends to the other; a plain
    pass of n tokens has n(n+1)/2.
    """
    owner: list[int] = []
    sizes = []
    for index, part in enumerate(parts):
        ctx.fill(part.text)
        sizes.append(len(ctx) - len(owner))
        owner += [index] * sizes[-1]

    def sees(query: int, key: int) -> bool:
        return owner[key] in parts[owner[query]].above

    await ctx.next_dist(sees=sees, top_k=1)
    ctx.fill(question)
    return sum(
        size * (sum(sizes[above] for above in part.above) - size) + size * (size + 1) // 2
        for size, part in zip(sizes, parts, strict=True)
    )


@inferlet(
    "hierarchical_attention", traits={"Decode": 1, "OutputText": 1, "Tokenize": 1}, restartable=True
)
async def hierarchical_attention(
    api: Api, text: str, question: str, max_tokens: int = 32, *, compare: Compare = False
) -> dict[str, object]:
    """Answer a question on a text with headings, whose sections were computed separately."""
    async with Context(api) as ctx:
        template = chat_template(ctx.model.served)
        chat = template.render([{"role": "user", "content": f"{text}\n{question}"}])
        begin, end = chat.index(text), chat.rindex(f"\n{question}")
        before, *parts = sections(chat[begin:end])
        parts.insert(0, DocumentSection(chat[:begin] + before.text, before.above))
        compared = await plain_text(Context(api).fill(chat), max_tokens, compare)
        num_pairs = await read_tree(ctx, parts, chat[end:])
        num_read = len(api.tokenize(chat[:end]))
        start = len(ctx)
        async for dist in steps(ctx, max_tokens):
            ctx.fill([dist.max_index()])
        return {
            "text": api.detokenize(ctx.tokens[start:], skip_special=True),
            "num_pairs_seen": num_pairs,
            "num_pairs_of_all": num_read * (num_read + 1) // 2,
            **compared,
        }
