"""Agent: the model plans calls of tools, which run side by side, and continues from their results
until it answers.

::

    question ─► plan ─► act ┬─► answer
                            └─► tools, all at once ─► plan ─► act ┬─► ...

``act`` is a growth, because the number of calls and rounds is not known before. The beginning of
the next prompt is computed while the tools run. The format of the calls is that of the model's chat
template.
"""

from __future__ import annotations

import json
import zoneinfo
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime
from itertools import pairwise
from typing import Any

from quire.core.errors import InvalidArgument
from quire.programs.chat.pieces import Call
from quire.programs.sdk.tools import Tool, Toolbox
from quire.programs.workflow.components.turns import literal
from quire.programs.workflow.engines.engine import Engine
from quire.programs.workflow.template.app import App
from quire.programs.workflow.template.growth import Growth
from quire.programs.workflow.template.node import Node

MAX_TOKENS = 256
MAX_CALLS = 32


def add(a: int, b: int) -> dict[str, int]:
    """The sum of two numbers."""
    return {"result": a + b}


def get_time(city: str) -> dict[str, str]:
    """The time in a city that has a time zone of its name."""
    wanted = city.strip().replace(" ", "_").casefold()
    for zone in sorted(zoneinfo.available_timezones()):
        if zone.rpartition("/")[2].casefold() == wanted:
            return {"time": datetime.now(zoneinfo.ZoneInfo(zone)).strftime("%H:%M")}
    raise InvalidArgument(f"no time zone is named after {city!r}")


def agent(
    tools: Iterable[Tool | Callable[..., Any]] = (add, get_time),
    *,
    name: str = "agent",
    max_rounds: int = 8,
    effects: Iterable[str] = (),
) -> App:
    """An agent with ``tools``, functions or ``Tool``s. ``effects``: names of what they change;
    tools with effects run one after the other in the order of their calls. The model receives the
    error of a tool as its result.

    Raises:
        InvalidArgument: a tool that has no name or whose parameters have no types.
    """
    toolbox = Toolbox(tools)
    acting = _Acting(toolbox, tuple(effects), max_rounds)
    functions = {one: _caller(toolbox, one) for one in toolbox.names}
    app = App(
        name,
        [
            Engine("llm"),
            Engine("tool", config={"functions": functions}),
            Engine("growth", config={"functions": {"act": acting.act}}),
        ],
        "Answer a question with tools that run side by side.",
    )
    plan = acting.plan([], {})
    act = acting.growth({})
    plan >> act
    app.update_template([plan, act])
    return app


class _Acting:
    """Makes the components that follow each turn of the model."""

    def __init__(self, toolbox: Toolbox, effects: tuple[str, ...], max_rounds: int) -> None:
        self._toolbox, self._effects, self._max_rounds = toolbox, list(effects), max_rounds

    def plan(self, turns: list[dict[str, Any]], results: dict[str, str]) -> Node:
        config = {
            "prompt": "{question}", "tools": self._toolbox.schemas(), "turns": turns,
            "max_tokens": MAX_TOKENS,
        }  # fmt: skip
        return Node(
            "llm", {"question": "text", **results}, {"turn": "text"}, None, config, name="plan"
        )

    def growth(self, taken: dict[str, str]) -> Node:
        config = {"function": "act", "max_rounds": self._max_rounds, "effects": self._effects}
        inputs = {"question": "text", "turn": "text", **taken}
        return Node("growth", inputs, {"answer": "text"}, None, config, name="act")

    def act(self, question: str, turn: str, history: str = "[]", **results: str) -> str | Growth:
        """The answer, or the tools and the next turn. ``history``: the turns so far, as JSON; the
        contents of the last tools' messages are in ``results``."""
        said = json.loads(turn)
        calls: list[dict[str, str]] = said["calls"]
        if not calls:
            content: str = said["content"]
            return content.strip()
        if len(calls) > MAX_CALLS:
            raise InvalidArgument(
                f"the model calls {len(calls)} tools at once; at most {MAX_CALLS} are allowed"
            )
        messages: list[dict[str, Any]] = json.loads(history)
        for message in messages:
            message["content"] = results.get(message.pop("result", ""), message["content"])
        messages.append(_asking(said["content"], calls))
        names = [f"result_{call['id']}" for call in calls]
        answered = [
            {"role": "tool", "name": c["name"], "tool_call_id": c["id"], "content": "", "result": n}
            for c, n in zip(calls, names, strict=True)
        ]
        turns = [{**message, "content": literal(message["content"])} for message in messages]
        turns += [
            {**{key: one for key, one in message.items() if key != "result"},
             "content": f"{{{message['result']}}}"}
            for message in answered
        ]  # fmt: skip
        taken = dict.fromkeys(names, "text")
        tools = [self._tool(call, name) for call, name in zip(calls, names, strict=True)]
        known = self._toolbox.names
        values = {f"arguments_{c['id']}": c["arguments"] for c in calls if c["name"] in known}
        values |= {
            n: f"error: no tool {c['name']!r}; the tools are {', '.join(known)}"
            for c, n in zip(calls, names, strict=True)
            if c["name"] not in known
        }
        values["history"] = json.dumps([*messages, *answered])
        kept = [tool for tool in tools if tool is not None]
        if self._effects:
            for before, after in pairwise(kept):
                before >> after
        nodes = [*kept, self.plan(turns, taken), self.growth({"history": "text", **taken})]
        return Growth(nodes, values)

    def _tool(self, call: dict[str, str], result: str) -> Node | None:
        if call["name"] not in self._toolbox.names:
            return None
        config = {"function": call["name"], "effects": self._effects}
        taken = {f"arguments_{call['id']}": "text"}
        return Node("tool", taken, {result: "text"}, None, config, name=f"tool_{call['id']}")


def _asking(content: str, calls: Sequence[dict[str, str]]) -> dict[str, Any]:
    """The message in which the model calls tools."""
    entries = [
        {
            "id": call["id"],
            "type": "function",
            "function": {"name": call["name"], "arguments": _object(call["arguments"])},
        }
        for call in calls
    ]
    return {"role": "assistant", "content": content, "tool_calls": entries}


def _caller(toolbox: Toolbox, name: str) -> Callable[..., Awaitable[str]]:
    async def call(**given: str) -> str:
        (arguments,) = given.values()
        return await toolbox.call(Call("", name, arguments))

    return call


def _object(arguments: str) -> Any:
    try:
        return json.loads(arguments or "{}")
    except ValueError:
        return arguments
