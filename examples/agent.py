"""An agent as a Quire program: it may call Python functions until it has an answer.

    quire run examples/agent.py -- "What is the weather in Oslo?"

The conversation is one text in one context. A call is parsed in the model's own format, its result
is appended, and the model continues; everything before is still in its KV cache.
"""

from __future__ import annotations

from typing import Any, Literal

from quire.programs.api import Api
from quire.programs.sdk import Context, Conversation, inferlet

MAX_TURNS = 6
TEMPERATURES = {"Oslo": 3, "Lima": 19, "Cairo": 31}


def get_weather(city: str, unit: Literal["celsius", "fahrenheit"] = "celsius") -> dict[str, object]:
    """The present temperature in a city."""
    celsius = TEMPERATURES.get(city, 15)
    return {
        "temperature": celsius if unit == "celsius" else celsius * 9 // 5 + 32,
        "conditions": "sunny",
    }


@inferlet("agent", traits={"Decode": 1, "Tokenize": 1})
async def agent(api: Api, question: str = "What is the weather in Oslo?") -> dict[str, Any]:
    """Answer a question, calling tools where they help."""
    used: list[dict[str, str]] = []
    async with Context(api) as ctx:
        chat = Conversation(ctx, tools=[get_weather]).say(question)
        for _ in range(MAX_TURNS):
            answer = await chat.answer(max_tokens=200)
            if not answer.calls:
                return {"answer": answer.content, "calls": used}
            results = await chat.tools.call_all(answer.calls)
            for call, result in zip(answer.calls, results, strict=True):
                used.append({"name": call.name, "arguments": call.arguments, "result": result})
                await api.send(f"{call.name}({call.arguments}) = {result}")
            chat.add_results(results)
    return {"answer": "", "calls": used}
