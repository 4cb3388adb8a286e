"""Rounds of requests in which nodes fail: where and how is drawn from a seed.

A round asks for several answers over stand-in nodes, each divided, moved, resumed or passed whole,
while connections break at calls, in the middle of streams and at whole nodes. Run many:

    PYTHONPATH=tests/cluster python tests/cluster/fault_rounds.py [NUM_ROUNDS] [FIRST_SEED]
"""

from __future__ import annotations

import asyncio
import sys
from random import Random
from typing import Any

import msgspec
from router_world import ADMIN_HEADERS, World, until, world
from stand_in_node import continuation

STRATEGIES = (
    ("data_parallel", {}),
    ("disaggregated", {}),
    ("balanced", {"ratio": 0.3}),
    ("migrating", {"max_extra": 0, "min_tokens": 1}),
    ("quire", {}),
)
CALLS = ("prep_recv", "remote_send", "start_generate")
NUM_REQUESTS, NUM_TOKENS = 4, 8
PROMPTS = ("Once upon a time " * 6, "In the beginning there was a prompt. " * 4, "x")


async def round_of(w: World, seed: int) -> int:
    """One round in ``w``; returns how many answers were whole. Every other one says that it is
    not, and nothing is left of any."""
    chance = Random(seed)
    name, options = chance.choice(STRATEGIES)
    assert (await w.put(name=name, options=options)).status_code == 200
    for node in w.nodes:
        node.cut_after, node.call_cuts = None, set()
    for node in chance.sample(list(w.nodes), chance.choice((0, 1, 1, 2))):
        kind = chance.choice(("call", "stream", "both"))
        if kind != "stream":
            node.call_cuts = set(chance.sample(CALLS, chance.choice((1, 1, 2))))
        if kind != "call":
            node.cut_after = chance.randrange(NUM_TOKENS)
    asked = [
        asyncio.create_task(_ask(w, chance.choice(PROMPTS), chance)) for _ in range(NUM_REQUESTS)
    ]
    if chance.random() < 0.3:
        drained = f"/router/nodes/{chance.choice(w.nodes).name}/drain"
        await w.http.post(drained, headers=ADMIN_HEADERS)
        await w.http.delete(drained, headers=ADMIN_HEADERS)
    num_whole = sum(await asyncio.gather(*asked))
    await until(lambda: not any(node.num_outstanding for node in w.router.nodes))
    for node in w.nodes:
        if not node.call_cuts:  # whose lease was cut off, it expires
            await until(lambda node=node: not node.leases)
        node.leases.clear()
    return num_whole


async def _ask(w: World, prompt: str, chance: Random) -> bool:
    """Whether the answer was whole. One that is not begins as it should."""
    path = chance.choice(("/v1/completions", "/v1/chat/completions", "/v1/messages"))
    body: dict[str, Any] = {"prompt": prompt}
    rendered = prompt
    if path != "/v1/completions":
        body = {"messages": [{"role": "user", "content": prompt}]}
        rendered = f"<user>{prompt}<assistant>"
    is_stream = chance.random() < 0.6
    body |= {"stream": is_stream, "max_tokens": NUM_TOKENS}
    answer = await w.http.post(path, json=body)
    if answer.status_code != 200:
        assert answer.status_code in (500, 503), answer.text
        return False
    if not is_stream:
        assert answer.json()["text"] == continuation(rendered, NUM_TOKENS)
        return True
    lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: {")]
    events = [msgspec.json.decode(line) for line in lines]
    texts = [event.get("text") or _text(event) for event in events]
    expected = continuation(rendered, NUM_TOKENS)
    told = "".join(texts)
    assert expected.startswith(told), (expected, told)
    failed = any("error" in event for event in events)
    assert failed or told == expected
    return not failed


def _text(event: dict[str, Any]) -> str:
    choices = event.get("choices") or [{"text": ""}]
    return str(choices[0]["text"])


async def rounds(num_rounds: int, first: int = 0) -> tuple[int, int]:
    """How many answers there were, and how many of them whole."""
    num_whole = 0
    for begin in range(first, first + num_rounds, 50):
        async with world(3, resumes=True) as w:
            for seed in range(begin, min(begin + 50, first + num_rounds)):
                try:
                    num_whole += await round_of(w, seed)
                except BaseException as exc:
                    exc.add_note(f"in the round of seed {seed}")
                    raise
    return num_rounds * NUM_REQUESTS, num_whole


if __name__ == "__main__":
    numbers = [int(argument) for argument in sys.argv[1:]] or [1000]
    num_asked, num_whole = asyncio.run(rounds(*numbers))
    print(f"{num_whole} of {num_asked} answers were whole, the others said that they were not")
