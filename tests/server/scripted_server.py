"""A real node with a scripted fake engine behind a real HTTP listener, for the server's tests.

What the model says stands in the prompt, so that tests share one server without sharing state:

    say TEXT            it answers TEXT
    call NAME ARGS      it answers a tool call, in the form that the shipped model uses
    (a tool's answer)   it answers "The tool said ..."
    anything else       it answers "Hello there."
"""

from __future__ import annotations

import asyncio
import socket
import string
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import httpx
import tokenizers

from quire.core.batch import Batch
from quire.core.batch_result import BatchResult
from quire.core.config import (
    AdapterConfig,
    EncoderConfig,
    EngineConfig,
    NodeConfig,
    SandboxConfig,
    ServerConfig,
    TenantConfig,
)
from quire.core.ids import ModelId, TenantId
from quire.engine.encoders.text import EncoderTexts
from quire.node import ModelFiles, Node
from quire.node.encoders.transport import EncoderTransports, in_process_encoder
from quire.node.transports import InProcessTransport
from quire.programs.workflow.applications import Applications
from quire.server.serve import Service
from quire.testing import FakeEncoder, FakeEngine, FakeTokenizer, ScriptedModel, fake_pool
from quire.testing.scripted import Answer
from quire.testing.tokenizer import CHAT_TEMPLATE

T = TypeVar("T")

MODEL = "scripted"
MAX_MODEL_LEN = 1024
OPEN = (TenantConfig(TenantId("default")),)
TOKENIZER = FakeTokenizer()


def answer(prompt: str) -> str:
    """The script; see the module docstring. ``prompt`` has its special tokens spelled out."""
    role, text = last_turn(prompt)
    if role == "tool":
        return f"The tool said {text}."
    if text.startswith("say "):
        return text[4:]
    if text.startswith("call "):
        name, _, arguments = text[5:].partition(" ")
        return f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'
    return "Hello there."


def last_turn(prompt: str) -> tuple[str, str]:
    """Role and text of the last message; a prompt without markers is a user's."""
    last = prompt.removesuffix("<|assistant|>").removesuffix("<|end|>")
    role, text = "user", last
    for marker in ("user", "tool", "assistant", "system"):
        _, found, tail = last.rpartition(f"<|{marker}|>")
        if found and len(tail) < len(text):
            role, text = marker, tail
    return role, text


def scripted_engine(answer: Answer = answer) -> FakeEngine:
    pool = fake_pool(page_size=16, num_blocks=1024, max_batch_tokens=256, max_sequences=64)
    script = ScriptedModel(answer, TOKENIZER)
    return FakeEngine(
        pool, tokenizer=TOKENIZER, model=MODEL, max_model_len=MAX_MODEL_LEN, script=script
    )


def scripted_files(engine: EngineConfig) -> ModelFiles:
    special_tokens = {"bos_token": "<|bos|>", "eos_token": "<|eos|>"}
    return ModelFiles(TOKENIZER, CHAT_TEMPLATE, {}, special_tokens)


def scripted_node(
    tenants: Sequence[TenantConfig] = OPEN,
    *,
    load: Callable[[], FakeEngine] = scripted_engine,
    models: Sequence[str] = (MODEL,),
    adapters: Sequence[str] = (),
    sandbox: SandboxConfig | None = None,
    template: str = CHAT_TEMPLATE,
    text_start: tuple[int, ...] = (),
    encoders: Mapping[str, FakeEncoder] | None = None,
    otlp_endpoint: str | None = None,
    search: str | None = None,
    data_dir: Path | None = None,
) -> tuple[Node, NodeConfig]:
    adapted = tuple(AdapterConfig(name, name) for name in adapters)
    engines = tuple(
        EngineConfig(source=name, name=ModelId(name), adapters=adapted) for name in models
    )
    cores = encoders or {}
    config = NodeConfig(
        engines=engines,
        tenants=tuple(tenants),
        sandbox=sandbox or SandboxConfig(),
        encoders=tuple(EncoderConfig(source=name, name=ModelId(name)) for name in cores),
        otlp_endpoint=otlp_endpoint,
        search=search,
        data_dir=data_dir,
    )
    node = Node(
        config,
        transport_factory=lambda engine: InProcessTransport(engine.name, load),
        model_files=lambda engine: replace(
            scripted_files(engine), chat_template=template, text_start=text_start
        ),
        encoder_transports=EncoderTransports(
            lambda encoder, on_progress: in_process_encoder(
                encoder.name, lambda: cores[encoder.name]
            ),
            lambda source: EncoderTexts(word_tokenizer(), cores[source].info.max_tokens, ""),
        ),
        debug=True,
    )
    return node, config


def word_tokenizer() -> tokenizers.Tokenizer:
    """One token per word: 10 for the word a, 11 for b and so on, 1 for any longer one."""
    vocab = {"[UNK]": 1, "[CLS]": 2, "[SEP]": 3}
    vocab |= {letter: 10 + index for index, letter in enumerate(string.ascii_lowercase)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["[UNK]", "[CLS]", "[SEP]"])
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return tokenizer


class GatedEngine(FakeEngine):
    """A scripted engine that stops before a message while its gate is closed."""

    def __init__(self) -> None:
        pool = fake_pool(page_size=16, num_blocks=1024, max_batch_tokens=256, max_sequences=64)
        script = ScriptedModel(answer, TOKENIZER)
        super().__init__(
            pool, tokenizer=TOKENIZER, model=MODEL, max_model_len=MAX_MODEL_LEN, script=script
        )
        self.gate = threading.Event()
        self.gate.set()
        self.arrived = threading.Event()
        """A message has come while the gate was closed."""
        self._num_open: int | None = None

    def close_after(self, num_messages: int) -> None:
        """Close the gate behind so many messages."""
        self._num_open = num_messages

    def execute(self, batch: Batch) -> BatchResult:
        if self._num_open is not None:
            if not self._num_open:
                self.gate.clear()
            self._num_open = self._num_open - 1 if self._num_open else None
        if not self.gate.is_set():
            self.arrived.set()
            self.gate.wait()
        return super().execute(batch)


@dataclass(frozen=True, slots=True)
class RunningServer:
    """``url`` without a path. ``call`` runs a function on the server's loop and waits for it."""

    url: str
    host: str
    port: int
    node: Node
    service: Service
    loop: asyncio.AbstractEventLoop

    def call(self, function: Callable[[], T]) -> T:
        async def run() -> T:
            return function()

        return self.wait(run())

    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result()

    def num_held_blocks(self) -> int:
        """Blocks that any program holds, once no call is under way and no message in flight."""
        self.wait(self.node._parts.sessions.wait_idle())
        # its messages go behind those in flight
        with httpx.Client(base_url=self.url, timeout=60) as http:
            http.post("/v1/completions", json={"prompt": "say x"}).raise_for_status()
        self.wait(self.node._parts.sessions.wait_idle())
        (engine,) = self.call(self.node.statistics).controller.engines
        return engine.pool.num_held


@contextmanager
def running_server(
    server: ServerConfig | None = None,
    tenants: Sequence[TenantConfig] = OPEN,
    *,
    load: Callable[[], FakeEngine] = scripted_engine,
    models: Sequence[str] = (MODEL,),
    adapters: Sequence[str] = (),
    sandbox: SandboxConfig | None = None,
    template: str = CHAT_TEMPLATE,
    text_start: tuple[int, ...] = (),
    encoders: Mapping[str, FakeEncoder] | None = None,
    otlp_endpoint: str | None = None,
    search: str | None = None,
    data_dir: Path | None = None,
    wait_ready: bool = True,
    send_buffer_bytes: int | None = None,
    port: int = 0,
    workflows: Applications | None = None,
) -> Iterator[RunningServer]:
    """Serve on ``port`` (0: a free one) from a thread of its own; drains and stops on exit."""
    server = server or ServerConfig(drain_timeout_s=1.0, sandbox_upload=False)
    sock = socket.create_server(("127.0.0.1", port))
    if send_buffer_bytes is not None:  # accepted connections inherit it
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer_bytes)
    node, config = scripted_node(
        tenants,
        load=load,
        models=models,
        adapters=adapters,
        sandbox=sandbox,
        template=template,
        text_start=text_start,
        encoders=encoders,
        otlp_endpoint=otlp_endpoint,
        search=search,
        data_dir=data_dir,
    )
    ready = threading.Event()
    holder: list[RunningServer] = []

    async def main() -> None:
        service = Service(node, config, server, sock, workflows)
        host, port = sock.getsockname()
        loop = asyncio.get_running_loop()
        holder.append(RunningServer(service.url, host, port, node, service, loop))
        if not wait_ready:
            ready.set()
        try:
            await service.run(on_ready=ready.set)
        finally:
            ready.set()

    thread = threading.Thread(target=lambda: asyncio.run(main()), name="test-server")
    thread.start()
    ready.wait()
    running = holder[0]
    try:
        yield running
    finally:
        running.loop.call_soon_threadsafe(running.service.request_stop)
        thread.join()
        sock.close()
