"""``quire run`` with a node of its own: result, messages, failure, Ctrl-C."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

PROGRAM = '''
from quire.programs.sdk import Context, inferlet

@inferlet()
async def answer(api, question):
    """Say the question, then the model's answer; then wait for a message that never comes."""
    await api.send(question)
    ctx = Context(api).fill_chat([{"role": "user", "content": question}])
    await api.send(await ctx.generate_until(max_tokens=16))
    await api.receive()
'''


async def test_an_embedded_node_runs_a_program_until_interrupted(tmp_path: Path) -> None:
    path = tmp_path / "answer.py"
    path.write_text(PROGRAM, encoding="utf-8")
    process = await _start("run", str(path), "--interactive", "--", "Hello")
    assert process.stdout is not None
    assert await process.stdout.readline() == b"Hello\n"
    assert (await process.stdout.readline()).strip(), "the model's answer"
    process.send_signal(signal.SIGINT)
    _, said = await process.communicate()
    assert process.returncode == 130
    assert b"cancelled" in said
    assert b"Traceback" not in said


async def test_a_library_program_with_a_result(tmp_path: Path) -> None:
    log = tmp_path / "events.log"
    process = await _start("run", "text_completion", "--record", str(log), "--", "Hello")
    out, said = await process.communicate()
    assert process.returncode == 0, said
    assert out.strip()
    replayed = await _start("replay", str(log))
    out, _ = await replayed.communicate()
    assert b"the same actions throughout" in out


async def _start(*arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "quire.cli",
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
