"""JSON output: every token is chosen from those that keep the answer valid (Pie Table 2).

    quire run json_output -- "What do you know of Kabo? The age of Kabo is 31." --compare

The schema is sent with the decode as data; the engine masks the logits. The answer is always valid
JSON.

::

    text      {"name": "Kabo", "age": 3
    allowed   0 ... 9  }                     not: "  ,  letters  end
"""

from __future__ import annotations

import json
from typing import Any

from quire.core.errors import InvalidArgument
from quire.programs.api import Api
from quire.programs.library.answers import Compare, plain_text
from quire.programs.sdk import Context, inferlet, json_schema

MAX_TOKENS = 200
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@inferlet("json_output", traits={"Decode": 1, "Grammar": 1, "Tokenize": 1}, restartable=True)
async def json_output(
    api: Api, question: str, schema: str = "", *, compare: Compare = False
) -> dict[str, Any]:
    """Answer a question with JSON that conforms to a schema (default: a person's name and age)."""
    grammar = json_schema(schema or PERSON)
    async with Context(api) as ctx:
        ctx.fill_chat([{"role": "user", "content": question}])
        compared = await plain_text(ctx, MAX_TOKENS, compare)
        generated = await ctx.generate(max_tokens=MAX_TOKENS, grammar=grammar)
    if generated.finish_reason != "stop":
        raise InvalidArgument(
            f"the answer was cut after {len(generated.token_ids)} tokens: bound the schema "
            "(maxLength, maxItems)"
        )
    return {
        "answer": json.loads(generated.text),
        "num_tokens": len(generated.token_ids),
        **compared,
    }
