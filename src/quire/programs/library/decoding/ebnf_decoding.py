"""EBNF decoding: the output is derived from a grammar (Dong et al., 2024; Pie Table 2).

    quire run ebnf_decoding -- "What is 48 + 17?" --compare
    quire run ebnf_decoding -- "Name a color." \\
        'start: ("red" | "green") ("," ("red" | "green"))*' --compare

The grammar, in Lark's EBNF, is sent with the decode as data. The engine keeps a matcher for each
sequence and masks the logits of every step to the tokens that can continue a text of the language;
the matcher runs while the forward pass does. Without a grammar in the arguments it is that of a
written addition. A grammar that allows everything changes nothing. Traits: Decode, Grammar.

::

    grammar   start: NUMBER "+" NUMBER "\\n" step+ "Answer: " NUMBER
    text      48+            allowed next: 0 1 2 ... 9 10 11 ...     not: + A { end
"""

from __future__ import annotations

from quire.core.errors import InvalidArgument
from quire.programs.api import Api
from quire.programs.library.answers import Compare, plain_text
from quire.programs.sdk import Context, inferlet, lark

ADDITION = r"""
start: NUMBER "+" NUMBER "\n" step+ "Answer: " NUMBER
step: DIGIT "+" DIGIT "+" DIGIT "=" DIGIT DIGIT "\n"
NUMBER: DIGIT{1,6}
DIGIT: /[0-9]/
"""


@inferlet("ebnf_decoding", traits={"Decode": 1, "Grammar": 1, "Tokenize": 1}, restartable=True)
async def ebnf_decoding(
    api: Api,
    question: str,
    grammar: str = ADDITION,
    max_tokens: int = 64,
    *,
    compare: Compare = False,
) -> dict[str, object]:
    """Answer in the language of a grammar (default: an addition, column by column)."""
    async with Context(api) as ctx:
        ctx.fill_chat([{"role": "user", "content": question}])
        compared = await plain_text(ctx, max_tokens, compare)
        generated = await ctx.generate(max_tokens=max_tokens, grammar=lark(grammar))
    if generated.finish_reason != "stop":
        raise InvalidArgument(
            f"the answer was cut after {len(generated.token_ids)} tokens, before it was complete: "
            "raise max_tokens, or bound the grammar's repetitions"
        )
    return {"text": generated.text, "num_tokens": len(generated.token_ids), **compared}
