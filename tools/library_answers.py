"""Runs every command of the guide to the library with the shipped model (``make answers``).

    python -m tools.library_answers docs/guide/library-answers.json

Writes what each answers, by command, for ``tools.pages.library`` to show. Programs that need an
encoder have no answer there; ``codeact`` needs the sandbox (``quire[sandbox]``).
"""

from __future__ import annotations

import asyncio
import json
import shlex
import sys
from pathlib import Path
from typing import Any

from quire.cli.programs.arguments import split
from quire.core.config import EngineConfig, NodeConfig, SandboxConfig
from quire.core.ids import ModelId, TenantId
from quire.node import Node
from quire.programs.library import LIBRARY
from tools.pages.library import commands

TENANT = TenantId("default")
# In bfloat16 a sampled text is another one on another processor, by the rounding of its sums.
ENGINE = EngineConfig(source="quire-mini", name=ModelId("quire-mini"), dtype="float32")
MAX_CHARS = 320


def shown() -> list[str]:
    """Return the commands that the shipped model alone can answer."""
    found = [command for name in LIBRARY for command in commands(name)]
    return [command for command in found if "--encoder" not in shlex.split(command)]


async def answer(node: Node, command: str) -> Any:
    """Return what the command line ``quire run NAME -- ARGUMENTS`` returns on ``node``."""
    _, _, name, _, *texts = shlex.split(command.replace("\\\n", " "))
    given = split(texts)
    handle = node.launch(LIBRARY[name], given.args, tenant=TENANT, named=given.named)
    return shortened(await handle.result())


def shortened(answer: Any) -> Any:
    """Return ``answer`` with long texts cut, as the page shows them."""
    if isinstance(answer, dict):
        return {key: shortened(one) for key, one in answer.items()}
    if isinstance(answer, list):
        return [shortened(one) for one in answer]
    is_long = isinstance(answer, str) and len(answer) > MAX_CHARS
    return f"{answer[:MAX_CHARS]}..." if is_long else answer


async def answers(node: Node, which: list[str]) -> dict[str, Any]:
    """Ask one after another: each finds the prefix cache as it would when run by itself, but for
    what the commands before have left there."""
    return {command: await answer(node, command) for command in which}


async def all_answers() -> dict[str, Any]:
    node = Node(NodeConfig(engines=(ENGINE,), sandbox=SandboxConfig()))
    await node.start()
    try:
        return await answers(node, shown())
    finally:
        await node.stop()


def main() -> None:
    text = json.dumps(asyncio.run(all_answers()), indent=1, ensure_ascii=False)
    Path(sys.argv[1]).write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
