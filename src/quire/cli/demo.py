"""``quire demo``: starts a server with the shipped model, runs a chat and an agent on it, and
reports.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import openai
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from quire.cli.console import live, output, table
from quire.cli.demonstration import Demonstration, Tell, demonstrate
from quire.cli.exit_codes import EXIT_FAILED
from quire.cli.process_table import process_table
from quire.cli.server_process import server_process
from quire.core.errors import EngineLost, QuireError
from quire.node import SHIPPED_MODEL

_TIMEOUT_S = 60.0
_STYLES = {"chat": "cyan", "agent": "magenta"}


def next_steps() -> tuple[tuple[str, str], ...]:
    """Return the commands to try next, spelled as they can be typed here."""
    installed = Path(sys.executable).with_name("quire")
    quire = "quire" if shutil.which("quire") else os.path.relpath(installed)
    return (
        (f"{quire} serve", "a node for your own OpenAI client, on port 8000"),
        (f'{quire} run react -- "What is 17*23?"', "the agent alone, with your question"),
        (f"{quire} doctor", "what this machine has and what to install for more"),
        ("README.md", "a client, an inferlet and an embedded node"),
    )


def demo() -> None:
    """Start a node with the shipped model, run a chat and an agent on it at the same time, and
    report.

    Needs no network, ends by itself and leaves nothing behind. Exit status 1 if a check failed.

    Examples:

        quire demo
    """
    console = output()
    shown = asyncio.run(_demo(console))
    report(console, shown)
    failures = shown.failures()
    for failure in failures:
        console.print(Text(f"failed: {failure}", style="bold red"))
    if failures:
        raise typer.Exit(EXIT_FAILED)


async def _demo(console: Console) -> Demonstration:
    console.print(Text("Quire: a chat and an agent on one engine", style="bold"))
    async with contextlib.AsyncExitStack() as stack:
        started_s = time.monotonic()
        with _waiting(console, f"starting a node with {SHIPPED_MODEL}"):
            server = await stack.enter_async_context(server_process(("--log-level", "warning")))
        ready_s = time.monotonic() - started_s
        console.print(f"a node with {SHIPPED_MODEL} is ready on {server.url} after {ready_s:.1f} s")
        console.print()
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                return await demonstrate(server.url, SHIPPED_MODEL, _teller(console))
        except TimeoutError as exc:
            raise EngineLost(
                f"the demonstration did not end within {_TIMEOUT_S:.0f} s: run 'quire doctor' to "
                "see whether this machine is short of cores or memory"
            ) from exc
        except openai.OpenAIError as exc:
            raise QuireError(f"the chat through the openai package failed: {exc}") from exc


@contextlib.contextmanager
def _waiting(console: Console, text: str) -> Iterator[None]:
    """Show a spinner in a terminal, print a line elsewhere."""
    if console.is_terminal:
        with live().status(Text(text)):
            yield
    else:
        console.print(f"{text} ...")
        yield


def _teller(console: Console) -> Tell:
    """Return a function that prints what each client does as it happens, with the time since the
    start."""
    started_s = time.monotonic()

    def tell(voice: str, text: str) -> None:
        stamp = f"{time.monotonic() - started_s:6.2f} s  "
        for index, line in enumerate(text.strip().splitlines()):
            shown = stamp if index == 0 else " " * len(stamp)
            console.print(Text.assemble(shown, (f"{voice:7}", _STYLES[voice]), line))

    return tell


def report(console: Console, shown: Demonstration) -> None:
    """Print the questions and answers, the cost of the chat, the process table, and what to try
    next."""
    _heading(console, "What was asked and answered")
    asked = table("voice", "question", "answer", wrap=("question", "answer"))
    for turn in shown.turns:
        asked.add_row("chat", turn.question, turn.answer)
    calls = ", ".join(f"{action} = {result}" for action, result in shown.agent.calls)
    asked.add_row("agent", shown.agent.question, f"{shown.agent.answer}, by {calls}")
    console.print(asked)
    _heading(console, "What the chat cost (tokens, pieces streamed, times)")
    console.print(_figures(shown))
    _heading(console, f"The process table (both were at work at once for {shown.overlap_s:.2f} s)")
    console.print(process_table(shown.agent.programs, time.time(), width=console.width))
    _heading(console, "Where to go next")
    steps = next_steps()
    width = max(len(command) for command, _ in steps)
    for command, purpose in steps:
        console.print(f"  {command:{width}}   {purpose}")


def _heading(console: Console, text: str) -> None:
    console.print()
    console.print(Text(text, style="bold"))


def _figures(shown: Demonstration) -> Table:
    columns = ("prompt", "cached", "generated", "pieces", "first", "whole", "tokens/s")
    listed = table("turn", *columns, right=columns)
    for number, turn in enumerate(shown.turns, start=1):
        listed.add_row(
            str(number),
            str(turn.num_prompt_tokens),
            str(turn.num_cached_tokens),
            str(turn.num_generated_tokens),
            str(turn.num_pieces),
            f"{1000 * turn.first_token_s:.0f} ms",
            f"{1000 * turn.elapsed_s:.0f} ms",
            f"{turn.tokens_per_s:.0f}",
        )
    return listed
