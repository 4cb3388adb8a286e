"""Rows with adapters equal transformers over merged weights, however they are mixed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from engine_adapters import RECIPES, merged, write_adapter
from numpy.typing import NDArray
from transformers import PreTrainedModel

from quire.core.batch import PoolSpec
from quire.core.config import AdapterConfig, EngineConfig
from quire.core.decoding import StopSpec
from quire.core.ids import ModelId
from quire.core.interfaces import EngineCore, Tokenizer
from quire.engine.engine import Engine
from quire.engine.tokenizer import load_tokenizer
from quire.testing.conformance import EngineCoreSuite
from quire.testing.conformance.engine_driver import Decoded, EngineDriver, RowSpec, gather
from quire.testing.fake_engine import fake_pool

Checkpoint = Callable[[str], Path]
Reference = Callable[[str], PreTrainedModel]

NAMES = tuple(RECIPES)


@pytest.fixture(scope="module")
def adapters(
    tmp_path_factory: pytest.TempPathFactory, reference: Reference
) -> Callable[[str], tuple[AdapterConfig, ...]]:
    """Every recipe for a model, as directories."""

    def get(model: str) -> tuple[AdapterConfig, ...]:
        root = tmp_path_factory.mktemp("adapters")
        return tuple(
            AdapterConfig(name, str(write_adapter(root / name, reference(model), recipe)))
            for name, recipe in RECIPES.items()
        )

    return get


def make_engine(source: Path, adapters: tuple[AdapterConfig, ...], pool: PoolSpec) -> Engine:
    return Engine(
        EngineConfig(
            source=str(source),
            name=ModelId("m"),
            dtype="float32",
            page_size=pool.page_size,
            num_blocks=pool.groups[0].num_blocks,
            host_cache_bytes=pool.groups[0].num_host_blocks * 64 << 10,
            num_embeds=pool.num_embeds,
            num_token_slots=pool.num_token_slots,
            max_sequences=pool.max_sequences,
            max_batch_tokens=pool.max_batch_tokens,
            num_threads=1,
            backend="torch",
            adapters=adapters,
        )
    )


def expected(model: PreTrainedModel, tokens: list[int]) -> NDArray[np.float64]:
    with torch.inference_mode():
        logits = model(torch.tensor([tokens])).logits[0, -1]
    return logits.double().log_softmax(-1).numpy()


def greedy(model: PreTrainedModel, tokens: list[int], count: int) -> list[int]:
    tokens = list(tokens)
    for _ in range(count):
        tokens.append(int(expected(model, tokens).argmax()))
    return tokens[-count:]


def prompts(count: int) -> list[list[int]]:
    random = np.random.default_rng(3)
    return [random.integers(3, 300, 5 + 3 * i).tolist() for i in range(count)]


@pytest.mark.parametrize("model", ["llama", "qwen2", "qwen3", "llama-mqa-head-dim"])
def test_every_adapter_equals_its_merged_model(
    model: str, checkpoint: Checkpoint, reference: Reference, adapters: Callable[[str], tuple]
) -> None:
    """One message: each adapter twice and plain rows between, no two adjacent rows alike."""
    driver = EngineDriver(make_engine(checkpoint(model), adapters(model), fake_pool()))
    assert [adapter.name for adapter in driver.info.adapters] == list(NAMES)
    models = [reference(model), *(merged(reference(model), one) for one in RECIPES.values())]
    order = [*range(-1, len(NAMES)), *range(len(NAMES) - 1, -2, -1)]
    rows = [
        RowSpec(None, tokens, range(len(tokens)), adapter=adapter)
        for tokens, adapter in zip(prompts(len(order)), order, strict=True)
    ]
    afters = []
    for start in range(0, len(rows), 3):  # messages of the size that the pool allows
        afters += driver.forward(rows[start : start + 3])
    for row, after in zip(rows, afters, strict=True):
        wanted = expected(models[row.adapter + 1], list(row.tokens))
        assert np.abs(after - wanted).max() <= 1e-4
        if row.adapter >= 0:
            assert np.abs(after - expected(models[0], list(row.tokens))).max() > 1e-2


def test_sequences_decode_as_their_merged_models(
    checkpoint: Checkpoint, reference: Reference, adapters: Callable[[str], tuple]
) -> None:
    pool = fake_pool(num_blocks=96)
    driver = EngineDriver(make_engine(checkpoint("llama"), adapters("llama"), pool))
    models = [reference("llama"), *(merged(reference("llama"), one) for one in RECIPES.values())]
    pages, decoded = driver.pages_for(40), [Decoded() for _ in models]
    for index, prompt in enumerate(prompts(len(models))):
        holder = driver.holder(range(index * pages, (index + 1) * pages))
        stop = StopSpec(max_tokens=4 + index)
        opened = driver.open(index, holder, prompt, stop, adapter=index - 1)
        gather(decoded[index], driver.start(opened, holder), 0)
    report = driver.advance(list(range(len(models))), num_steps=16)
    for index, (model, prompt) in enumerate(zip(models, prompts(len(models)), strict=True)):
        gather(decoded[index], report, index)
        assert decoded[index].tokens == greedy(model, prompt, 4 + index)


class TestConformance(EngineCoreSuite):
    """The whole suite of engines, with adapters loaded."""

    page_sizes = (2,)

    @pytest.fixture(autouse=True)
    def _sources(self, checkpoint: Checkpoint, adapters: Callable[[str], tuple]) -> None:
        self.source, self.adapters = checkpoint("llama"), adapters("llama")

    def make_engine(self, pool: PoolSpec) -> EngineCore:
        return make_engine(self.source, self.adapters, pool)

    def make_tokenizer(self) -> Tokenizer:
        return load_tokenizer(str(self.source))
