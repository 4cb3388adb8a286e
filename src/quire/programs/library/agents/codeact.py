"""CodeAct: the model acts by writing Python, which is executed (Wang 2024; Pie Table 2).

    quire run codeact -- "How many times does the letter r occur in strawberry?" --compare

The model's code is untrusted, so it runs where it can reach nothing: the program launches one child
from source, which is always a guest of the sandbox, sends it each block of code, and reads what the
code printed. The child starts while the model writes its first block, and keeps its variables from
block to block, like a notebook. Errors are passed to the model, which may write again; code that
does not end, or uses too much memory, ends only the child, and the next block gets a new one. The
conversation is one text in one context, as in ``react``. Needs a node with a sandbox.

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
from quire.core.quotas import Quotas
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
"""The quotas of one interpreter for all of its blocks: processor time and memory, and no use of
models."""

INTERPRETER = '''
import contextlib, io, json, traceback
from quire.programs.sdk import inferlet

@inferlet("interpreter", restartable=True)
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
    """Runs Python in a child of ``api``'s program, which is launched while the model writes its
    first block. Use ``async with``."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._child: asyncio.Task[Child]

    async def __aenter__(self) -> Interpreter:
        self._launch()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Cancel the child without waiting for its end."""
        with suppress(QuireError):  # the child could not be launched, or has ended
            await (await self._child).cancel("its agent has finished")

    def _launch(self) -> None:
        launching = self._api.launch(source=INTERPRETER, quotas=QUOTAS)
        self._child = asyncio.ensure_future(launching)

    async def run(self, code: str) -> str:
        """The output of ``code``, and its error if it raised one, as text for the model."""
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
    """The reason why the child has ended within a block."""
    try:
        await child.join()
    except QuireError as exc:
        return f"error: {exc.message}"
    return "error: the interpreter ended"


def code_in(text: str) -> str:
    """The last block of code in ``text``; empty if there is none."""
    blocks = _BLOCK.findall(text)
    return blocks[-1] if blocks else ""


def shortened(text: str) -> str:
    """``text`` cut to a length that a model can read, with the number of missing characters."""
    missing = len(text) - MAX_PRINTED_CHARS
    return text if missing <= 0 else f"{text[:MAX_PRINTED_CHARS]}... ({missing} characters more)"


@dataclass(frozen=True, slots=True)
class CodeBlock:
    """One turn: the model's code and its result."""

    code: str
    result: str


async def codeact_loop(
    ctx: Context, interpreter: Interpreter, *, max_turns: int = MAX_TURNS
) -> tuple[str, list[CodeBlock]]:
    """Continue ``ctx`` until the model answers. Returns the answer (empty if there was none) and
    all turns."""
    blocks: list[CodeBlock] = []
    for _ in range(max_turns):
        generated = await ctx.generate(max_tokens=TURN_TOKENS, stop=STOP)
        if generated.stop != STOP:
            return final_answer(generated.text), blocks
        code = code_in(generated.text)
        result = await interpreter.run(code) if code else "error: write the code between ``` marks"
        ctx.fill(f" {result}\n")
        blocks.append(CodeBlock(code, result))
    return "", blocks


@inferlet("codeact", traits={"Decode": 1, "Tokenize": 1}, restartable=True)
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
