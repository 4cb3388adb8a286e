"""Starts a node with a fake engine, and builds the programs that are launched on it.

The benchmarks measure the path of programs and their calls, which an engine's work would hide. The
fake engine is a process of its own behind a real engine's transport, so that its time is not the
node's, and the node pays for communicating with an engine. The three programs do the same: send one
word, then make the requested number of calls.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from subprocess import run
from typing import Any

from quire.core.config import EngineConfig, NodeConfig, SandboxConfig
from quire.core.ids import ModelId, TenantId
from quire.core.interpreter import collect_seldom, settle, take_short_turns
from quire.node import ModelFiles, Node
from quire.node.transports import ZeroMQTransport
from quire.programs.inferlet import Inferlet, load_inferlet
from quire.programs.sandbox.program import GuestProgram
from quire.testing import FakeTokenizer

HERE = Path(__file__).resolve().parent
SDK = HERE.parent.parent / "sdk" / "c"
TENANT = TenantId("default")
KINDS = ("native", "compiled", "python")

Program = Inferlet | GuestProgram


ENGINE_COMMAND = (sys.executable, "-P", str(HERE / "engine_child.py"))


class EnginePid:
    """The process id of a node's fake engine, once it has started."""

    def __init__(self) -> None:
        self._transport: ZeroMQTransport | None = None

    def make_transport(self, config: EngineConfig) -> ZeroMQTransport:
        self._transport = ZeroMQTransport(config, command=ENGINE_COMMAND)
        return self._transport

    def get(self) -> int:
        assert self._transport is not None, "the node starts its engine"
        return self._transport.pid


def _model_files(config: EngineConfig) -> ModelFiles:
    return ModelFiles(FakeTokenizer(), FakeTokenizer.chat_template)


@asynccontextmanager
async def started_node(engine: EnginePid | None = None, **sandbox: Any) -> AsyncIterator[Node]:
    """Start a node. ``engine`` receives the process id of the fake engine. ``sandbox``: settings of
    ``SandboxConfig``."""
    config = NodeConfig(
        engines=(EngineConfig(source="fake", name=ModelId("fake")),),
        sandbox=SandboxConfig(**sandbox),
    )
    node = Node(
        config,
        transport_factory=(engine or EnginePid()).make_transport,
        model_files=_model_files,
        sandbox_command=(sys.executable, "-P", str(HERE / "sandbox_child.py")),
    )
    take_short_turns()  # as ``quire serve`` does, with the next two calls
    collect_seldom()
    await node.start()
    settle()
    try:
        yield node
    finally:
        await node.stop()


async def programs(node: Node, kinds: list[str]) -> dict[str, Program]:
    """Build the programs of ``kinds``, those that can be built here."""
    made: dict[str, Program] = {}
    for kind in kinds:
        if kind == "native":
            made[kind] = load_inferlet(HERE / "hello.py")
        elif kind == "python":
            made[kind] = await node.inspect((HERE / "hello.py").read_bytes())
        elif (module := compiled_hello()) is None:
            print("no compiled guest: pip install ziglang, or put zig on the path", file=sys.stderr)
        else:
            made[kind] = await node.inspect(module)
    return made


def compiled_hello() -> bytes | None:
    """Compile ``hello.c`` to a module; return None without a compiler."""
    if shutil.which("zig"):
        compiler = ["zig", "cc"]
    elif find_spec("ziglang"):
        compiler = [sys.executable, "-m", "ziglang", "cc"]
    else:
        return None
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "hello.wasm"
        run(
            [*compiler, "--target=wasm32-freestanding", "-O2", "-nostdlib", "-Wl,--no-entry",
             "-Wl,-z,stack-size=65536", "-I", str(SDK), "-o", str(target), str(HERE / "hello.c")],
            check=True,
        )  # fmt: skip
        return target.read_bytes()
