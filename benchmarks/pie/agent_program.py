"""Runs three agents as one program of the node (Pie 7.1): ReAct, CodeAct, Swarm, with forced
tokens.

Self-contained, because the node gets this file's text. The plan fixes what an agent reads and how
much it writes, so that random weights suffice. ``react`` calls a web service after each turn;
``codeact`` has its code run by a child in the sandbox (the library's interpreter); ``swarm``
launches its members as children and passes letters between them; each member keeps its own context.
"""

from __future__ import annotations

import json
import random
from collections.abc import Awaitable, Callable
from typing import Any

from quire.core.errors import MailboxClosed
from quire.programs.api import Api
from quire.programs.library.agents.codeact import Interpreter
from quire.programs.sdk import Context, inferlet

Plan = dict[str, Any]


def tokens_of(seed: int, count: int, vocab_size: int) -> list[int]:
    return random.Random(seed).choices(range(3, vocab_size), k=count)


async def turns(api: Api, plan: Plan, act: Callable[[], Awaitable[object]]) -> int:
    """Write, act, read the result; returns the number of turns."""
    vocab_size = plan["vocab_size"]
    async with Context(api) as ctx:
        ctx.fill(tokens_of(1, plan["system_tokens"], vocab_size))
        ctx.fill(tokens_of(plan["seed"], plan["question_tokens"], vocab_size))
        for turn in range(plan["num_acts"]):
            await ctx.generate(max_tokens=plan["turn_tokens"], ignore_eos=True)
            await act()
            ctx.fill(tokens_of(plan["seed"] + 1 + turn, plan["answer_tokens"], vocab_size))
        await ctx.generate(max_tokens=plan["turn_tokens"], ignore_eos=True)
    return int(plan["num_acts"]) + 1


async def react(api: Api, plan: Plan) -> int:
    return await turns(api, plan, lambda: api.http_post(plan["service"], "{}"))


async def codeact(api: Api, plan: Plan) -> int:
    async with Interpreter(api) as interpreter:
        return await turns(api, plan, lambda: interpreter.run(plan["code"]))


async def swarm(api: Api, plan: Plan) -> int:
    """Pass a letter from member to member; returns the number of letters."""
    members = []
    for number in range(plan["num_members"]):
        of_member = json.dumps({**plan, "kind": "member", "number": number})
        members.append(await api.launch(agent, [of_member]))
    letter = tokens_of(plan["seed"], plan["question_tokens"], plan["vocab_size"])
    for number in range(plan["num_acts"]):
        member = members[number % len(members)]
        await member.send(json.dumps(letter))
        letter = json.loads(await member.receive())
    for member in members:
        await member.cancel("the last letter has been written")
    return int(plan["num_acts"])


async def member(api: Api, plan: Plan) -> int:
    """Answer letters until there are no more."""
    async with Context(api) as ctx:
        ctx.fill(tokens_of(1 + plan["number"], plan["system_tokens"], plan["vocab_size"]))
        while True:
            try:
                ctx.fill(json.loads(await api.receive()))
            except MailboxClosed:
                return 0
            written = await ctx.generate(max_tokens=plan["turn_tokens"], ignore_eos=True)
            await api.send(json.dumps(written.token_ids))


KINDS = {one.__name__: one for one in (react, codeact, swarm, member)}


@inferlet("agent")
async def agent(api: Api, plan_json: str) -> int:
    """Run the plan; returns the number of turns or letters."""
    plan = json.loads(plan_json)
    return await KINDS[plan["kind"]](api, plan)
