"""Agents of the package openai-agents, tracked: prints what the server knows of their programs."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import httpx
from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI

from quire.client import program, track

URL, MODEL = sys.argv[1:]


@function_tool
def add(a: int, b: int) -> int:
    """The sum of two numbers."""
    return a + b


async def session_of(one: program) -> dict[str, Any]:
    async with httpx.AsyncClient(base_url=URL) as http:
        response = await http.get(f"/v1/sessions/{one.id}")
    response.raise_for_status()
    found: dict[str, Any] = response.json()
    return found


async def main() -> None:
    set_tracing_disabled(True)
    client = track(AsyncOpenAI(base_url=f"{URL}/v1", api_key="none"))
    model = OpenAIChatCompletionsModel(model=MODEL, openai_client=client)
    adder = Agent(name="adder", model=model, tools=[add])
    plain = Agent(name="plain", model=model)
    async with client, program("tracked-agents") as one:
        with_tool = await Runner.run(adder, 'call add {"a": 2, "b": 3}')
        streamed = Runner.run_streamed(plain, "say streamed")
        async for _ in streamed.stream_events():
            pass
        side_by_side = await asyncio.gather(
            *(Runner.run(plain, f"say {word}") for word in ("left", "right"))
        )
        found = await session_of(one)
    print(
        json.dumps(
            {
                "answers": [
                    with_tool.final_output,
                    streamed.final_output,
                    *(result.final_output for result in side_by_side),
                ],
                "num_calls": found["num_calls"],
                "num_threads": found["figures"]["num_threads"],
                "name": found["metadata"]["name"],
            }
        )
    )


asyncio.run(main())
