"""CodeAct: the model acts by writing Python, and the Python really runs (Wang 2024; Pie Table 2).

    quire run codeact -- "How many times does the letter r occur in strawberry?" --compare

What a model writes is not to be trusted, so it runs where nothing can be reached: the program
launches one child from source, which is always a guest of the sandbox, sends it each block of code,
and reads back what the code printed. The child starts while the model writes its first block, and
keeps its variables from block to block, as a notebook does. An error is told to the model, which
may write again; code that never ends, or takes too much memory, ends the child alone, and the next
block gets a new one. The conversation is one text in one context, as in ``react``. Needs a node
with a sandbox.

::

    agent   [question][```python ... Result:]  [ 9 ][Answer: 9]
                                  │ send        ▲
    child                         ▼             │ receive      a guest of the sandbox, whose
    (guest)                    exec(code) ── printed           variables live as long as it does
"""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from quire.core.errors import MailboxClosed, QuireError
from quire.core.events import Quotas
from quire.programs.api import Api
from quire.programs.api.children import Child
from quire.programs.library.answers import Compare, final_answer, plain_answer
from quire.programs.sdk import Context, inferlet

SYSTEM = "Solve the task with Python code. After the Result, write Answer."
STOP = "Result:"
MAX_TURNS = 6
TURN_TOKENS = 256
MAX_PRINTED_CHARS = 2000
QUOTAS = Quotas(
    max_cpu_ms=10_000,
    max_memory_bytes=128 << 20,
    max_generated_tokens=0,
    max_pages=0,
    max_encoded_tokens=0,
)
"""Of one interpreter, all its blocks together: processor time and memory, nothing of the models."""

INTERPRETER = '''
import contextlib, io, json, traceback
from quire.programs.sdk import inferlet

@inferlet("interpreter")
async def interpreter(api):
    """Run each message as Python with one set of variables; answer with what it printed."""
    names = {"__name__": "__main__"}
    while True:
        code = await api.receive()
        printed, error = io.StringIO(), ""
        try:
            with contextlib.redirect_stdout(printed):
                exec(compile(code, "<code>", "exec"), names)
        except BaseException as exc:  # SystemExit too: it ends the block, not the interpreter
            error = "".join(traceback.format_exception_only(exc)).strip()
        await api.send(json.dumps({"printed": printed.getvalue(), "error": error}))
'''

_BLOCK = re.compile(r"```(?:python|py)?\n(.*?)```", re.DOTALL)


class Interpreter:
    """Runs Python in a child of ``api``'s program, which is launched while the model still writes
    its first block. Use ``async with``."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._child: asyncio.Task[Child]

    async def __aenter__(self) -> Interpreter:
        self._launch()
        return self

    async def __aexit__(self, *_: object) -> None:
        """The child ends soon after; nobody waits for it."""
        with suppress(QuireError):  # one that could not be launched, or has ended
            await (await self._child).cancel("its agent has finished")

    def _launch(self) -> None:
        launching = self._api.launch(source=INTERPRETER, quotas=QUOTAS)
        self._child = asyncio.ensure_future(launching)

    async def run(self, code: str) -> str:
        """What ``code`` printed, and its error if it raised one, as the model is to read it."""
        child = await self._child
        try:
            await child.send(code)
            answer = json.loads(await child.receive())
        except MailboxClosed:
            self._launch()
            return await _loss(child)
        told = [answer["printed"].rstrip("\n"), answer["error"] and f"error: {answer['error']}"]
        return shortened("\n".join(part for part in told if part))


async def _loss(child: Child) -> str:
    """It has ended in the middle of a block: why, as its owner is told."""
    try:
        await child.join()
    except QuireError as exc:
        return f"error: {exc.message}"
    return "error: the interpreter ended"


def code_in(text: str) -> str:
    """The last block of code in ``text``; nothing if there is none."""
    blocks = _BLOCK.findall(text)
    return blocks[-1] if blocks else ""


def shortened(text: str) -> str:
    """At most so much as a model should read; it says how much is missing."""
    missing = len(text) - MAX_PRINTED_CHARS
    return text if missing <= 0 else f"{text[:MAX_PRINTED_CHARS]}... ({missing} characters more)"


@dataclass(frozen=True, slots=True)
class Block:
    """One turn: the code that the model wrote and what it was told."""

    code: str
    result: str


async def codeact_loop(
    ctx: Context, interpreter: Interpreter, *, max_turns: int = MAX_TURNS
) -> tuple[str, list[Block]]:
    """Go on with ``ctx`` until the model answers; the answer (empty if none came) and all turns."""
    blocks: list[Block] = []
    for _ in range(max_turns):
        generated = await ctx.generate(max_tokens=TURN_TOKENS, stop=STOP)
        if generated.stop != STOP:
            return final_answer(generated.text), blocks
        code = code_in(generated.text)
        result = await interpreter.run(code) if code else "error: write the code between ``` marks"
        ctx.fill(f" {result}\n")
        blocks.append(Block(code, result))
    return "", blocks


@inferlet("codeact", traits={"Decode": 1, "Tokenize": 1})
async def codeact(
    api: Api, question: str, system: str = SYSTEM, *, compare: Compare = False
) -> dict[str, Any]:
    """Answer a question by writing Python that runs in the sandbox."""
    messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    async with Interpreter(api) as interpreter, Context(api) as ctx:
        ctx.fill_chat(messages)
        answer, blocks = await codeact_loop(ctx, interpreter)
    return {
        "answer": answer,
        "blocks": [{"code": block.code, "result": block.result} for block in blocks],
        **await plain_answer(api, question, compare),
    }
