"""An agent of LlamaIndex, tracked: prints what the server knows of its program."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import httpx
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike

from quire.client import program, track

URL, MODEL = sys.argv[1:]


def add(a: int, b: int) -> int:
    """The sum of two numbers."""
    return a + b


def session_of(one: program) -> dict[str, Any]:
    response = httpx.get(f"{URL}/v1/sessions/{one.id}")
    response.raise_for_status()
    found: dict[str, Any] = response.json()
    return found


async def main() -> None:
    llm = OpenAILike(
        model=MODEL,
        api_base=f"{URL}/v1",
        api_key="none",
        context_window=1024,
        is_chat_model=True,
        is_function_calling_model=True,
        http_client=track(httpx.Client()),
        async_http_client=track(httpx.AsyncClient()),
    )
    agent = FunctionAgent(tools=[add], llm=llm)
    async with program("tracked-index") as one:
        with_tool = await agent.run('call add {"a": 2, "b": 3}')
        sync = llm.chat([ChatMessage(role="user", content="say sync")])
        streamed = ""
        async for piece in await llm.astream_chat([ChatMessage(role="user", content="say flow")]):
            streamed += piece.delta or ""
        found = session_of(one)
    print(
        json.dumps(
            {
                "answers": [str(with_tool), str(sync.message.content), streamed],
                "num_calls": found["num_calls"],
                "name": found["metadata"]["name"],
            }
        )
    )


asyncio.run(main())
