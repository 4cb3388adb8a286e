"""Asynchronous tool calls: a tool starts as soon as its call is complete, while the model
continues.

    quire run async_tools -- "What is the price of KLM? What time is it in Oslo?"

The stream is parsed as it arrives. A call is complete once the JSON of its arguments is, which is
before its end marker and before the model's next text; its tool then starts as a task beside the
generation. Several tools run concurrently. At the end of the turn the results are appended in the
order of the calls, whichever tool was done first, so the conversation is the same as if the tools
had been called afterwards, one by one, but without the waiting time.

::

    model   [call get_price(KLM)][call get_time(Oslo)]              [It is ...]
    tools                  └─ get_price ──────────┐    the results, in the
                                              └─ get_time ──┐ order of the calls
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from quire.programs.api import Api
from quire.programs.chat import Call, CallArguments, CallStarted, Piece
from quire.programs.sdk import Context, Conversation, Toolbox, inferlet

MAX_TURNS = 6
TURN_TOKENS = 256
_TIMES = {"Oslo": "14:05", "Lima": "08:05", "Cairo": "15:05"}
_PRICES = {"ABC": 12, "KLM": 87, "XYZ": 430}


class EarlyCalls:
    """The calls of one turn: ``start`` is called once for each, in order, when it is complete."""

    def __init__(self, start: Callable[[Call], None]) -> None:
        self._start = start
        self._names: list[CallStarted] = []
        self._arguments: list[str] = []
        self._num_started = 0

    def feed(self, pieces: Iterable[Piece]) -> None:
        for piece in pieces:
            if isinstance(piece, CallStarted):
                self.finish()  # the preceding call has ended, with or without arguments
                self._names.append(piece)
                self._arguments.append("")
            elif isinstance(piece, CallArguments):
                self._arguments[piece.index] += piece.text
                if _is_whole(self._arguments[piece.index]):
                    self.finish()

    def finish(self) -> None:
        """Start calls that were not started: no further text belongs to them."""
        while self._num_started < len(self._names):
            started = self._names[self._num_started]
            arguments = self._arguments[self._num_started]
            self._num_started += 1
            self._start(Call(started.id, started.name, arguments))


def _is_whole(arguments: str) -> bool:
    """A proper prefix of a JSON object is never valid JSON, so text that parses is complete."""
    try:
        json.loads(arguments)
    except ValueError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class ToolRun:
    """One call of a turn. ``at_chars``: the length of the turn's text when the call started."""

    call: Call
    result: str
    at_chars: int


@dataclass(frozen=True, slots=True)
class ToolTurn:
    """The model's text, and the results of its calls in order."""

    text: str
    content: str
    runs: tuple[ToolRun, ...]


async def streamed_turn(chat: Conversation, *, max_tokens: int = TURN_TOKENS) -> ToolTurn:
    """One turn of the model; its tools run concurrently from the moment they are called."""
    answering = chat.answer(max_tokens=max_tokens)
    running: list[tuple[Call, int, asyncio.Task[str]]] = []

    def start(call: Call) -> None:
        task = asyncio.create_task(chat.tools.call(call), name=f"tool {call.name}")
        running.append((call, len(answering.text), task))

    calls = EarlyCalls(start)
    try:
        async for piece in answering:
            calls.feed([piece])
        calls.finish()
        results = await asyncio.gather(*(task for _, _, task in running))
    finally:
        for _, _, task in running:
            task.cancel()
    runs = zip(running, results, strict=True)
    return ToolTurn(
        answering.text,
        (await answering).content,
        tuple(ToolRun(call, result, at) for (call, at, _), result in runs),
    )


async def converse(
    ctx: Context, question: str, tools: Toolbox, *, max_turns: int = MAX_TURNS
) -> tuple[str, Sequence[ToolTurn]]:
    """Run turns until the model answers without a call. Returns the answer (empty if there was
    none) and all turns."""
    chat = Conversation(ctx, tools=tools).say(question)
    turns: list[ToolTurn] = []
    for _ in range(max_turns):
        turns.append(await streamed_turn(chat))
        turn = turns[-1]
        if not turn.runs:
            return turn.content, turns
        chat.add_results([run.result for run in turn.runs])
    return "", turns


def toolbox(delay_s: float) -> Toolbox:
    """Two tools over small tables, each with the given delay."""

    async def get_time(city: str) -> dict[str, object]:
        """The time in a city."""
        await asyncio.sleep(delay_s)
        return {"time": _TIMES.get(city, "12:00")}

    async def get_price(symbol: str) -> dict[str, object]:
        """The price of a share."""
        await asyncio.sleep(delay_s)
        return {"price": _PRICES.get(symbol, 100)}

    return Toolbox([get_time, get_price])


@inferlet("async_tools", traits={"Decode": 1, "Tokenize": 1}, restartable=True)
async def async_tools(
    api: Api,
    question: str = "What is the price of KLM? What time is it in Oslo?",
    delay_s: float = 0.1,
) -> dict[str, Any]:
    """Answer with tools that run while the model is still writing."""
    async with Context(api) as ctx:
        answer, turns = await converse(ctx, question, toolbox(delay_s))
    return {
        "answer": answer,
        "calls": [
            {
                "name": run.call.name,
                "arguments": run.call.arguments,
                "result": run.result,
                "started_at": f"{run.at_chars} of {len(turn.text)} characters",
            }
            for turn in turns
            for run in turn.runs
        ],
    }
