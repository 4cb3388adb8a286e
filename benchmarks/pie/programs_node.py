"""A node with a fake engine in its own process, and the programs that are launched on it.

What is measured here is the path of programs and their calls; an engine's work would hide it. The
three programs do the same: say one word, then make as many calls as they are told to.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from subprocess import run
from typing import Any

from quire.core.batch import Batch, BatchResult
from quire.core.config import EngineConfig, NodeConfig, SandboxConfig
from quire.core.ids import ModelId, TenantId
from quire.core.interpreter import collect_seldom, settle, take_short_turns
from quire.node import ModelFiles, Node
from quire.node.transports import InProcessTransport
from quire.programs.inferlet import Inferlet, load_inferlet
from quire.programs.sandbox.program import GuestProgram
from quire.testing import FakeEngine, FakeTokenizer, fake_pool

HERE = Path(__file__).resolve().parent
SDK = HERE.parent.parent / "sdk" / "c"
TENANT = TenantId("default")
KINDS = ("native", "compiled", "python")

Program = Inferlet | GuestProgram


class TimedEngine(FakeEngine):
    """A fake engine that knows what it costs itself, which is no cost of the node's."""

    spent_s = 0.0

    def execute(self, batch: Batch) -> BatchResult:
        began_s = time.thread_time()
        result = super().execute(batch)
        TimedEngine.spent_s += time.thread_time() - began_s
        return result


def _transport(config: EngineConfig) -> InProcessTransport:
    """With room for all programs, as an engine has it by default."""
    pool = fake_pool(
        page_size=config.page_size,
        num_blocks=4096,
        num_embeds=config.num_embeds,
        max_batch_tokens=config.max_batch_tokens,
    )
    return InProcessTransport(config.name, lambda: TimedEngine(pool, model=config.name))


def _model_files(config: EngineConfig) -> ModelFiles:
    return ModelFiles(FakeTokenizer(), FakeTokenizer.chat_template)


@asynccontextmanager
async def started_node(**sandbox: Any) -> AsyncIterator[Node]:
    """``sandbox``: settings of ``SandboxConfig``."""
    config = NodeConfig(
        engines=(EngineConfig(source="fake", name=ModelId("fake")),),
        sandbox=SandboxConfig(**sandbox),
    )
    node = Node(
        config,
        transport_factory=_transport,
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


__all__ = [
    "KINDS",
    "TENANT",
    "Program",
    "TimedEngine",
    "compiled_hello",
    "programs",
    "started_node",
]
