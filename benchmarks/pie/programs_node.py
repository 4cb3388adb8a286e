"""A node with a fake engine, and the programs that are launched on it.

What is measured here is the path of programs and their calls; an engine's work would hide it. The
fake engine is a process of its own behind the transport of a real one, so that its time is not the
node's, and the node pays what speaking to an engine costs. The three programs do the same: say one
word, then make as many calls as they are told to.
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
    """Of the fake engine of one node, once that has started."""

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
    """``engine`` is told the process of the fake engine. ``sandbox``: settings of
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
    take_short_turns()  # these three as ``quire serve`` does
    collect_seldom()
    await node.start()
    settle()
    try:
        yield node
    finally:
        await node.stop()


async def programs(node: Node, kinds: list[str]) -> dict[str, Program]:
    """Those of ``kinds`` that can be made here."""
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
    """``hello.c`` as a module; ``None`` without a compiler."""
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
