"""Real nodes with fake engines that exchange K and V, each behind its HTTP on a thread's loop."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

from stand_in_node import CLUSTER_KEY

import quire
from quire.core.config import EngineConfig, NodeConfig, ServerConfig
from quire.core.engine_info import ImageInput
from quire.core.ids import ModelId
from quire.node import ModelFiles, Node
from quire.node.transports import InProcessTransport
from quire.server.serve import Service
from quire.testing import FakeEngine, FakeTokenizer, fake_pool
from quire.testing.fake_engine.network import FakeNetwork
from quire.testing.tokenizer import CHAT_TEMPLATE

MODEL = "fake"
SHIPPED = Path(quire.__file__).parent / "assets" / "quire-mini"
SEEING_TEMPLATE = """{% for message in messages %}<|{{ message['role'] }}|>\\
{%- if message['content'] is string %}{{ message['content'] }}{% else %}\\
{%- for part in message['content'] %}\\
{%- if part['type'] == 'image' %}<|tool|>{% else %}{{ part['text'] }}{% endif %}\\
{%- endfor %}{% endif %}{% endfor %}<|assistant|>"""
"""With the token for images in the place of each."""

TOKENIZER = FakeTokenizer()


@dataclass(frozen=True, slots=True)
class RealNode:
    """``peer.url`` as that of a stand-in."""

    name: str
    peer: SimpleNamespace
    node: Node
    loop: asyncio.AbstractEventLoop


def _node(network: FakeNetwork, images: ImageInput | None) -> tuple[Node, NodeConfig]:
    def load() -> FakeEngine:
        pool = fake_pool(page_size=16, num_blocks=256, max_batch_tokens=256, max_sequences=16)
        return FakeEngine(
            pool,
            tokenizer=TOKENIZER,
            model=MODEL,
            max_model_len=1024,
            images=images,
            network=network,
        )

    template = CHAT_TEMPLATE if images is None else SEEING_TEMPLATE

    config = NodeConfig(engines=(EngineConfig(source=MODEL, name=ModelId(MODEL)),))
    node = Node(
        config,
        transport_factory=lambda engine: InProcessTransport(engine.name, load),
        model_files=lambda engine: ModelFiles(
            TOKENIZER, template, {}, {"bos_token": "<|bos|>", "eos_token": "<|eos|>"}
        ),
        debug=True,
    )
    return node, config


@contextmanager
def _running(
    name: str, node: Node, config: NodeConfig, *, is_trusting: bool = False
) -> Iterator[RealNode]:
    sock = socket.create_server(("127.0.0.1", 0))
    server = ServerConfig(
        drain_timeout_s=1.0,
        sandbox_upload=False,
        allow_native_upload=is_trusting,
        cluster_key=CLUSTER_KEY,
    )
    ready = threading.Event()
    holder: list[tuple[Service, asyncio.AbstractEventLoop]] = []

    async def main() -> None:
        service = Service(node, config, server, sock)
        holder.append((service, asyncio.get_running_loop()))
        try:
            await service.run(on_ready=ready.set)
        finally:
            ready.set()

    thread = threading.Thread(target=lambda: asyncio.run(main()), name=name)
    thread.start()
    ready.wait()
    service, loop = holder[0]
    try:
        yield RealNode(name, SimpleNamespace(url=service.url), node, loop)
    finally:
        loop.call_soon_threadsafe(service.request_stop)
        thread.join()
        sock.close()


@contextmanager
def real_nodes(
    num_nodes: int, images: ImageInput | None = None, *, num_trusting: int = 0
) -> Iterator[list[RealNode]]:
    """``images``: what their model sees. ``num_trusting``: the first so many run source that
    clients send in their own process."""
    network = FakeNetwork()
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                _running(
                    f"real-{number}", *_node(network, images), is_trusting=number < num_trusting
                )
            )
            for number in range(num_nodes)
        ]


@contextmanager
def whole_nodes(num_nodes: int) -> Iterator[list[RealNode]]:
    """With engine processes of their own, which compute the shipped model in float32."""
    engine = EngineConfig(
        source=str(SHIPPED),
        name=ModelId(MODEL),
        dtype="float32",
        device="cpu",
        kv_cache_bytes=8 << 20,
        num_threads=1,
        data_address="tcp://127.0.0.1:0",
    )
    config = NodeConfig(engines=(engine,))
    with ExitStack() as stack:
        yield [
            stack.enter_context(_running(f"whole-{number}", Node(config), config))
            for number in range(num_nodes)
        ]
