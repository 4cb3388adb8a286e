"""A custom decoding rule, token by token: the program receives every distribution.

    quire run examples/custom_decoding.py -- "List 3 animals, one per line."

The rule: no pair of tokens occurs twice. Of the two best remaining tokens, the program takes the
one whose own best continuation is the most likely. Both branches share the pages of the text so
far; each needs one ``forward`` of one token, and both run in one batch.
"""

from __future__ import annotations

import asyncio

from quire.programs.api import Api, Embed, KvPage
from quire.programs.chat import chat_template
from quire.programs.sdk import inferlet

MAX_TOKENS = 48


async def likely_pair(
    api: Api, pages: list[KvPage], position: int, token: int, prob: float, emb: list[Embed]
) -> float:
    """Probability of ``token`` and its best follower. Nothing is kept: no output pages."""
    api.embed_txt(token, position, emb)
    api.forward(pages, emb, [], emb)
    follower = await api.get_next_dist(emb, top_k=1)
    return prob * follower.probs[0]


@inferlet("custom_decoding", traits={"OutputText": 1, "Tokenize": 1})
async def custom_decoding(api: Api, question: str = "List 3 animals, one per line.") -> str:
    """Answer a question without repeating a pair of tokens, looking one token ahead."""
    model = api.available_models()[0]
    prompt = chat_template(model.served).render([{"role": "user", "content": question}])
    tokens = api.tokenize(prompt)
    num_prompt, limit = len(tokens), len(tokens) + MAX_TOKENS

    pages = api.alloc_kvpage(-(-limit // model.page_size))
    prompt_emb, next_emb = api.alloc_emb(num_prompt), api.alloc_emb(1)
    branch_embs = [api.alloc_emb(1), api.alloc_emb(1)]
    api.embed_txt(tokens, list(range(num_prompt)), prompt_emb)
    api.forward([], prompt_emb, pages, next_emb)

    seen: set[tuple[int, int]] = set()
    for position in range(num_prompt, limit):
        dist = await api.get_next_dist(next_emb, top_k=16)
        ranked = zip(dist.token_ids, dist.probs, strict=True)
        fresh = [(token, prob) for token, prob in ranked if (tokens[-1], token) not in seen][:2]
        if not fresh:
            break
        scores = await asyncio.gather(
            *(
                likely_pair(api, pages, position, token, prob, emb)
                for (token, prob), emb in zip(fresh, branch_embs, strict=False)
            )
        )
        best = fresh[scores.index(max(scores))][0]
        if best in model.eos_token_ids:
            break
        seen.add((tokens[-1], best))
        tokens.append(best)
        await api.send(api.detokenize(best))
        api.embed_txt(best, position, next_emb)
        api.forward(pages, next_emb, pages, next_emb)
    return api.detokenize(tokens[num_prompt:])
