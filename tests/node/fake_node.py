"""Configurations, transports and model files of nodes with fake engines; a small real model."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from quire.core.actions import Action
from quire.core.config import EngineConfig, NodeConfig
from quire.core.events import Event
from quire.core.ids import ModelId, TenantId
from quire.node import ModelFiles, Node
from quire.node.loops import call_on
from quire.node.transports import InProcessTransport
from quire.testing import FakeEngine, FakeTokenizer, fake_pool

TENANT = TenantId("default")


def fake_config(*names: str, **settings: Any) -> NodeConfig:
    engines = tuple(
        EngineConfig(source="fake", name=ModelId(name), page_size=4) for name in names or ("fake",)
    )
    return NodeConfig(engines=engines, **settings)


def fake_model_files(config: EngineConfig) -> ModelFiles:
    return ModelFiles(FakeTokenizer(), FakeTokenizer.chat_template)


def fake_transport(config: EngineConfig) -> InProcessTransport:
    pool = fake_pool(page_size=config.page_size, num_blocks=256)
    return InProcessTransport(config.name, lambda: FakeEngine(pool, model=config.name))


class _Watch:
    """An observer that wakes a test after each event."""

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def observe(self, event: Event, actions: Sequence[Action]) -> None:
        call_on(self._loop, self.changed.set)

    def observe_failure(self, event: Event, error: Exception) -> None:
        raise AssertionError(f"the controller failed: {error!r}")

    def flush(self) -> None: ...


async def until(node: Node, predicate: Callable[[], bool]) -> None:
    """Wait for an event of control after which ``predicate()`` holds."""
    watch = _Watch()
    node._parts.observers.append(watch)
    while not predicate():
        await watch.changed.wait()
        watch.changed.clear()
    node._parts.observers.remove(watch)


StartNode = Callable[..., Awaitable[Node]]


def make_model(directory: Path, *, seed: int = 0) -> Path:
    """A random two-layer Llama with a byte-level BPE, in the Hugging Face layout."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<eos>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["hello, a small world of programs " * 8], trainer)
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        bos_token_id=0,
        eos_token_id=0,
    )
    LlamaForCausalLM(config).save_pretrained(directory)
    tokenizer.save(str(directory / "tokenizer.json"))
    return directory
