"""The real engine and tokenizer pass the suites that every implementation must pass."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from quire.core.config import EngineConfig
from quire.core.engine_info import PoolSpec
from quire.core.ids import ModelId
from quire.core.interfaces import EngineCore, Tokenizer
from quire.engine.engine import Engine
from quire.engine.tokenizer import load_tokenizer
from quire.exchange import InProcessExchange
from quire.testing.conformance import EngineCoreSuite, EngineExchangeSuite, TokenizerSuite


class RealEngineSuite(EngineCoreSuite):
    """The suite over one checkpoint recipe."""

    recipe = "llama"
    source: Path
    disk: Path

    @pytest.fixture(autouse=True)
    def _source(self, checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
        self.source = checkpoint(self.recipe)
        self.disk = tmp_path

    def make_engine(self, pool: PoolSpec) -> EngineCore:
        group = pool.groups[0]
        return Engine(
            EngineConfig(
                source=str(self.source),
                name=ModelId(self.recipe),
                dtype="float32",
                page_size=pool.page_size,
                num_blocks=group.num_blocks,
                host_cache_bytes=group.num_host_blocks * 64 << 10,
                disk_cache_bytes=group.num_disk_blocks * 64 << 10,
                disk_cache_dir=str(self.disk),
                num_embeds=pool.num_embeds,
                num_token_slots=pool.num_token_slots,
                max_sequences=pool.max_sequences,
                max_batch_tokens=pool.max_batch_tokens,
                num_threads=1,
            )
        )

    def make_tokenizer(self) -> Tokenizer:
        return load_tokenizer(str(self.source))


class TestLlama(RealEngineSuite):
    recipe = "llama"


class TestQwen3(RealEngineSuite):
    recipe = "qwen3"


class TestLlamaExchange(EngineExchangeSuite):
    """From the fastest backend to PyTorch's."""

    backends = ("auto", "torch")
    source: Path

    @pytest.fixture(autouse=True)
    def _source(self, checkpoint: Callable[[str], Path]) -> None:
        self.source = checkpoint("llama")

    def make_engines(self, sender: PoolSpec, receiver: PoolSpec) -> tuple[EngineCore, EngineCore]:
        exchange = InProcessExchange()

        def make(pool: PoolSpec, backend: str) -> EngineCore:
            config = EngineConfig(
                source=str(self.source),
                name=ModelId("llama"),
                dtype="float32",
                page_size=pool.page_size,
                num_blocks=pool.groups[0].num_blocks,
                host_cache_bytes=pool.groups[0].num_host_blocks * 64 << 10,
                num_threads=1,
                device="cpu",
                backend=backend,
            )
            return Engine(config, transport=exchange.join())

        return make(sender, self.backends[0]), make(receiver, self.backends[1])


class TestLlamaRawExchange(TestLlamaExchange):
    """Between engines whose memory is alike."""

    backends = ("auto", "auto")


class TestLlamaPlainExchange(TestLlamaExchange):
    backends = ("torch", "auto")


class TestByteLevelTokenizer(TokenizerSuite):
    source: Path

    @pytest.fixture(autouse=True)
    def _source(self, checkpoint: Callable[[str], Path]) -> None:
        self.source = checkpoint("llama")

    def make_tokenizer(self) -> Tokenizer:
        return load_tokenizer(str(self.source))
