"""Low-level completion: one command for each step, one token per turn (Pie 4.2).

    quire run low_level_completion -- "Hello," 10

Programs that use each distribution start from this. One ``forward`` may read and write the same
page; pages are filled in order, whatever their size.

::

    embed_txt(token, position) ─► embed ─► forward(kv, embed, kv, embed) ─► get_next_dist ─► token
                                            reads kv, appends to kv                            │
        ▲──────────────────────────────────────────────────────────────────────────────────────┘
"""

from __future__ import annotations

from quire.programs.api import Api
from quire.programs.sdk import inferlet


@inferlet("low_level_completion", traits={"OutputText": 1, "Tokenize": 1}, restartable=True)
async def low_level_completion(
    api: Api, prompt: str = "Hello,", max_tokens: int = 32
) -> dict[str, object]:
    """Continue a prompt with ``embed_txt``, ``forward`` and ``get_next_dist``, and report the
    probability of the least likely token."""
    tokens = api.tokenize(prompt)
    limit = len(tokens) + max_tokens
    model = api.available_models()[0]

    prompt_emb = api.alloc_emb(len(tokens))
    next_emb = api.alloc_emb(1)
    kv = api.alloc_kvpage(-(-limit // model.page_size))

    api.embed_txt(tokens, list(range(len(tokens))), prompt_emb)
    api.forward([], prompt_emb, kv, next_emb)

    generated, sureness = [], []
    for position in range(len(tokens), limit):
        dist = await api.get_next_dist(next_emb)
        token = dist.max_index()
        if token in model.eos_token_ids:
            break
        generated.append(token)
        sureness.append(max(dist.probs))
        api.embed_txt(token, position, next_emb)
        api.forward(kv, next_emb, kv, next_emb)

    api.dealloc_emb(prompt_emb)
    api.dealloc_emb(next_emb)
    api.dealloc_kvpage(kv)
    return {
        "text": api.detokenize(generated),
        "num_distributions": len(generated),
        "least_sure": round(min(sureness, default=1.0), 3),
    }
