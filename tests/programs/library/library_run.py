"""Runs a shipped program on a node of its own, over a fake engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from programs_node import level, node_of, node_saying

from quire.programs.library import find
from quire.programs.runtime import ProgramHost


async def run(
    name: str, *args: str, answer: Callable[[str], str] | None = None, page_size: int = 4
) -> tuple[Any, list[str], int]:
    """Result, messages and number of prompts the model saw."""
    node, script = (
        node_saying(answer, page_size) if answer is not None else (node_of(page_size), None)
    )
    async with node:
        host = ProgramHost(asyncio.get_running_loop())
        running = host.launch(find(name), args, node.connect())
        try:
            result = await running.result()
        finally:
            messages = [message async for message in running.messages()]
            await host.shutdown()
            held = (await level(node))["held"]  # what was exported stays for others
            assert held == 0 or node.controller.statistics().num_exports > 0
    return result, messages, len(script.prompts) if script else 0
