"""Nodes with fake engines and a real sandbox; programs for it as source text."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from fake_node import fake_config, fake_model_files, fake_transport

from quire.core.config import NodeConfig, SandboxConfig
from quire.node import Node, ProgramHandle

CHILD = Path(__file__).parent / "sandbox_child.py"
HEADER = "import asyncio\nfrom quire.programs.sdk import Context, inferlet\n"

needs_sandbox = pytest.mark.skipif(
    find_spec("wasmtime") is None or find_spec("componentize_py") is None,
    reason="the extra 'sandbox' is not installed (wasmtime, componentize-py)",
)

StartSandbox = Callable[..., Awaitable[Node]]


def program(body: str) -> bytes:
    """Source of a program: ``body`` behind the imports that all of them need."""
    return (HEADER + textwrap.dedent(body)).encode()


def sandbox_config(cache_dir: Path, **settings: Any) -> NodeConfig:
    settings.setdefault("num_warm", 1)
    return fake_config(sandbox=SandboxConfig(cache_dir=cache_dir, **settings))


def sandbox_node(config: NodeConfig, mode: str = "serve", **options: Any) -> Node:
    """``mode``: see ``sandbox_child``."""
    options.setdefault("transport_factory", fake_transport)
    options.setdefault("model_files", fake_model_files)
    command = (sys.executable, str(CHILD), mode)
    return Node(config, debug=True, sandbox_command=command, **options)


BYSTANDER = program(
    """
    @inferlet()
    async def bystander(api):
        steps = 0
        async for _ in messages(api):
            steps += 1
            await api.synchronize()
            await api.send(str(steps))
        return steps

    async def messages(api):
        while (text := await api.receive()) != "end":
            yield text
    """
)


async def steps(handle: ProgramHandle, count: int) -> None:
    """Have a bystander make so many steps, one by one."""
    attachment = handle.attach(after=handle.record().num_messages)
    try:
        for _ in range(count):
            await handle.send("step")
            await anext(attachment)
    finally:
        attachment.close()
