"""Swarm: specialised agents that hand work over to one another (Zhuge 2024; Pie Table 2).

    quire run swarm -- "What is the age of Kabo plus 5?" \\
        "The age of Kabo is 31. Lin has age 8." --compare

Every agent is a child program with its own contexts and an inbox. It reads a letter, processes it,
and writes a letter: to a more competent agent, or to the user. This program is the post office,
which carries letters and shows them; it decides nothing. The triage forwards a request by the
model's classification; the planner (a ReAct loop) asks other agents where a single agent would call
tools; the librarian answers from the facts; the mathematician divides a problem until the model can
solve it (``recursion_of_thought``). Only the model computes answers. The common beginning of
several letters to one agent, such as the facts, is in the prefix index after the first.

::

    user ─► triage ─┬─► host ─────────────────────────────► user
                    └─► planner ◄──► librarian  [facts]
                           │    ◄──► mathematician
                           └──────────────────────────────► user
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

from quire.core.errors import InvalidArgument, MailboxClosed
from quire.programs.api import Api
from quire.programs.api.children import Child
from quire.programs.library.agents.react import SYSTEM, react_loop
from quire.programs.library.answers import Compare, ask, final_answer, plain_answer
from quire.programs.library.reasoning.recursion_of_thought import Recursion
from quire.programs.sdk import Context, inferlet

USER = "user"
MAX_LETTERS = 64


@dataclass(frozen=True, slots=True)
class AgentMessage:
    """A message of one agent to another, or to the user."""

    sender: str
    to: str
    text: str


@dataclass(frozen=True, slots=True)
class Desk:
    """An agent's environment: its name, the facts that all agents have, its mail."""

    api: Api
    name: str
    facts: str

    async def read(self) -> AgentMessage:
        return AgentMessage(**json.loads(await self.api.receive()))

    async def write(self, to: str, text: str) -> None:
        await self.api.send(json.dumps(asdict(AgentMessage(self.name, to, text))))

    async def consult(self, colleague: str, text: str) -> str:
        """Another agent's answer. Agents process one letter at a time, so the next letter is the
        answer."""
        await self.write(colleague, text)
        return (await self.read()).text


async def triage(desk: Desk, letter: AgentMessage) -> None:
    """Forwards every request: conversation to the host, other work to the planner."""
    kind = final_answer(await ask(desk.api, f"Classify as math, search or chat: {letter.text}"))
    await desk.write("host" if kind == "chat" else "planner", letter.text)


async def host(desk: Desk, letter: AgentMessage) -> None:
    """Makes conversation."""
    await desk.write(USER, await ask(desk.api, letter.text))


async def planner(desk: Desk, letter: AgentMessage) -> None:
    """Divides a request into parts for other agents, and combines their answers."""

    async def lookup(arguments: str) -> str:
        name, _, key = arguments.partition(",")
        return await desk.consult("librarian", f"What is the {key.strip()} of {name.strip()}?")

    async def calc(problem: str) -> str:
        return await desk.consult("mathematician", problem)

    system = SYSTEM.format(tools="calc(expression), lookup(name, key)")
    async with Context(desk.api) as ctx:
        ctx.fill_chat(
            [{"role": "system", "content": system}, {"role": "user", "content": letter.text}]
        )
        result = await react_loop(ctx, {"lookup": lookup, "calc": calc})
    await desk.write(USER, result.answer)


async def librarian(desk: Desk, letter: AgentMessage) -> None:
    """Finds one value in the facts."""
    reply = await ask(desk.api, f"Context: {desk.facts}\nQuestion: {letter.text}")
    await desk.write(letter.sender, final_answer(reply))


async def mathematician(desk: Desk, letter: AgentMessage) -> None:
    """Solves a problem, or reports what is wrong with it."""
    try:
        answer = str(await Recursion(desk.api).solve(letter.text))
    except InvalidArgument as exc:
        answer = f"error: {exc.message}"
    await desk.write(letter.sender, answer)


Role = Callable[[Desk, AgentMessage], Awaitable[None]]
ROLES: Mapping[str, Role] = MappingProxyType(
    {role.__name__: role for role in (triage, host, planner, librarian, mathematician)}
)


async def work(desk: Desk) -> None:
    """An agent's loop: processes one letter after another until the post office closes."""
    if desk.name not in ROLES:
        raise InvalidArgument(f"no role {desk.name!r}: use one of {', '.join(ROLES)}")
    while True:
        try:
            letter = await desk.read()
        except MailboxClosed:
            return
        await ROLES[desk.name](desk, letter)


class PostOffice:
    """Carries letters between the agents until one is for the user."""

    def __init__(self, api: Api, agents: Mapping[str, Child]) -> None:
        self._api = api
        self._agents = agents
        self.letters: list[AgentMessage] = []

    async def deliver(self, letter: AgentMessage) -> None:
        """Carry ``letter``. Raises ``InvalidArgument`` for too many letters, as from agents that
        write only to each other."""
        if len(self.letters) == MAX_LETTERS:
            raise InvalidArgument(
                f"{MAX_LETTERS} letters without an answer: the agents are in a loop"
            )
        self.letters.append(letter)
        await self._api.send(f"{letter.sender} -> {letter.to}: {letter.text}")
        if letter.to != USER:
            await self._agents[letter.to].send(json.dumps(asdict(letter)))

    async def carry_from(self, agent: Child) -> str:
        """Deliver the letters of ``agent`` until one is for the user, and return that."""
        async for message in agent.messages():
            letter = AgentMessage(**json.loads(message))
            await self.deliver(letter)
            if letter.to == USER:
                return letter.text
        await agent.join()
        raise InvalidArgument(f"agent {agent.name!r} ended without an answer")


@inferlet("swarm", traits={"Decode": 1, "Messaging": 1, "Tokenize": 1}, restartable=True)
async def swarm(
    api: Api, question: str, facts: str = "", role: str = "", *, compare: Compare = False
) -> dict[str, Any] | None:
    """Answer a question by agents that write to one another. Each agent is this program in a
    ``role``."""
    if role:
        await work(Desk(api, role, facts))
        return None
    names = list(ROLES)
    children = await asyncio.gather(*(api.launch("swarm", ["", facts, name]) for name in names))
    office = PostOffice(api, dict(zip(names, children, strict=True)))
    rounds = [asyncio.ensure_future(office.carry_from(child)) for child in children]
    try:
        await office.deliver(AgentMessage(USER, "triage", question))
        await asyncio.wait(rounds, return_when=asyncio.FIRST_COMPLETED)
        answer = next(one for one in rounds if one.done()).result()
    finally:
        for one in rounds:
            one.cancel()
        await asyncio.gather(*rounds, return_exceptions=True)
    for child in children:
        await child.cancel("the question has been answered")
    return {
        "answer": answer,
        "letters": [asdict(letter) for letter in office.letters],
        **await plain_answer(api, f"Context: {facts}\nQuestion: {question}", compare),
    }
