"""The demonstration itself: what it sends to a running node, and what it measures.

Two clients at the same time: a chat through the ``openai`` package, and the library's ReAct agent
through the program routes. Must not know how the result is shown.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from openai import AsyncOpenAI
from openai.types.chat import ChatCompletionMessageParam

from quire.cli.client import NodeClient
from quire.client.attachment import Attachment

CHAT_QUESTIONS = ("What can you do?", "What is an inferlet?")
AGENT_PROGRAM = "react"
AGENT_QUESTION = (
    "Ada has 1234 pears and Ben has 566. They share them in 8 equal groups. How many per group?"
)
AGENT_ANSWER = str((1234 + 566) // 8)

SESSION = "demo-chat"

Tell = Callable[[str, str], None]
"""Called with a client's name and its latest action, as it happens."""


@dataclass(frozen=True, slots=True)
class StreamedCall:
    """One streamed call, as its client saw it. ``num_pieces``: events that carried text."""

    question: str
    answer: str
    num_prompt_tokens: int
    num_cached_tokens: int
    num_generated_tokens: int
    num_pieces: int
    first_token_s: float
    elapsed_s: float

    @property
    def tokens_per_s(self) -> float:
        """The rate over the whole call. The time between the first and the last token means little
        for a short answer, because an engine may send several tokens at once."""
        return self.num_generated_tokens / self.elapsed_s


@dataclass(frozen=True, slots=True)
class AgentRun:
    """One launched program. ``calls``: tool calls with their results. ``programs``: the process
    table at the last look that found the agent running, or else after the launch."""

    question: str
    answer: str
    calls: tuple[tuple[str, str], ...]
    programs: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Demonstration:
    """The whole demonstration. ``overlap_s``: how long both clients were active."""

    turns: tuple[StreamedCall, ...]
    agent: AgentRun
    overlap_s: float

    def failures(self) -> list[str]:
        """Return the checks that failed; empty if none did."""
        found = [f"no answer to {turn.question!r}" for turn in self.turns if not turn.answer]
        if self.agent.answer != AGENT_ANSWER:
            found.append(f"the agent answered {self.agent.answer!r}, right is {AGENT_ANSWER!r}")
        if not self.agent.calls:
            found.append("the agent called no tool")
        if self.turns[-1].num_cached_tokens == 0:
            found.append("the second turn of the chat reused no tokens of the first")
        if self.overlap_s <= 0:
            found.append("chat and agent did not run at the same time")
        return found


async def demonstrate(url: str, model: str, tell: Tell) -> Demonstration:
    """Run both clients on the node at ``url``.

    Raises:
        QuireError, openai.OpenAIError: one of the clients was refused or failed.
    """
    with NodeClient(url) as node:
        (turns, chat_span), (agent, agent_span) = await asyncio.gather(
            _timed(_chat(url, model, tell)), _timed(_agent(node, tell))
        )
    overlap_s = min(chat_span[1], agent_span[1]) - max(chat_span[0], agent_span[0])
    return Demonstration(turns, agent, overlap_s)


async def _timed(work: Any) -> tuple[Any, tuple[float, float]]:
    started_s = time.monotonic()
    done = await work
    return done, (started_s, time.monotonic())


async def _chat(url: str, model: str, tell: Tell) -> tuple[StreamedCall, ...]:
    """Run a conversation of several turns; each request repeats the earlier turns, as chat clients
    do."""
    conversation: list[ChatCompletionMessageParam] = []
    turns = []
    headers = {"x-quire-program-id": SESSION}
    async with AsyncOpenAI(
        base_url=f"{url}/v1", api_key="none", default_headers=headers, max_retries=0
    ) as client:
        for question in CHAT_QUESTIONS:
            conversation.append({"role": "user", "content": question})
            tell("chat", f"asks: {question}")
            turn = await _stream(client, model, conversation)
            conversation.append({"role": "assistant", "content": turn.answer})
            tell("chat", turn.answer)
            turns.append(turn)
    return tuple(turns)


async def _stream(
    client: AsyncOpenAI, model: str, conversation: list[ChatCompletionMessageParam]
) -> StreamedCall:
    started_s = time.monotonic()
    stream = await client.chat.completions.create(
        model=model,
        messages=conversation,
        stream=True,
        stream_options={"include_usage": True},
        temperature=0,
        max_completion_tokens=128,
    )
    parts: list[str] = []
    first_token_s = 0.0
    usage = None
    async for chunk in stream:
        if chunk.choices and chunk.choices[0].delta.content:
            first_token_s = first_token_s or time.monotonic() - started_s
            parts.append(chunk.choices[0].delta.content)
        usage = chunk.usage or usage
    assert usage is not None, "include_usage was asked for"
    details = usage.prompt_tokens_details
    return StreamedCall(
        question=str(conversation[-1]["content"]),
        answer="".join(parts),
        num_prompt_tokens=usage.prompt_tokens,
        num_cached_tokens=(details.cached_tokens or 0) if details else 0,
        num_generated_tokens=usage.completion_tokens,
        num_pieces=len(parts),
        first_token_s=first_token_s,
        elapsed_s=time.monotonic() - started_s,
    )


async def _agent(node: NodeClient, tell: Tell) -> AgentRun:
    """Run the ReAct program from launch to result, and report its steps as they arrive."""
    tell("agent", f"asks: {AGENT_QUESTION}")
    request = {"program": AGENT_PROGRAM, "args": [AGENT_QUESTION]}
    launched = await asyncio.to_thread(node.launch, request)
    programs = await asyncio.to_thread(node.programs)
    async with Attachment(node.url, node.headers, launched["id"]) as program:
        async for message in program.messages():
            tell("agent", message)
            now = await asyncio.to_thread(node.programs)
            if _is_running(now, launched["id"]):
                programs = now
        result = await program.result()
    calls = tuple((step["action"], step["observation"]) for step in result["steps"])
    return AgentRun(AGENT_QUESTION, result["answer"], calls, programs)


def _is_running(programs: list[dict[str, Any]], public_id: str) -> bool:
    return any(p["id"] == public_id and p["process"] is not None for p in programs)
