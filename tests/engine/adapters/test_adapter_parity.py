"""Rows with adapters equal transformers with merged weights, in any mixture."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from engine_adapters import RECIPES, Recipe, merged, write_adapter
from numpy.typing import NDArray
from transformers import PreTrainedModel

from quire.core.config import AdapterConfig, EngineConfig
from quire.core.decoding import StopSpec
from quire.core.engine_info import PoolSpec
from quire.core.ids import ModelId
from quire.core.interfaces import EngineCore, Tokenizer
from quire.engine.cpu.library import kernel_report
from quire.engine.engine import Engine
from quire.engine.tokenizer import load_tokenizer
from quire.testing.conformance import EngineCoreSuite
from quire.testing.conformance.engine_adapters import EngineAdapterSuite
from quire.testing.conformance.engine_driver import EngineDriver
from quire.testing.conformance.engine_rows import RowSpec, SequenceOutput, gather
from quire.testing.fake_engine import fake_pool

Checkpoint = Callable[[str], Path]
Reference = Callable[[str], PreTrainedModel]

USABLE = [state.isa for state in kernel_report().states if state.problem is None]
BACKENDS = ["torch", *USABLE]
"""PyTorch, and the CPU kernel of every instruction set that this machine has."""

FUSED = {"fused": Recipe(targets=("qkv_proj", "o_proj", "gate_up_proj", "down_proj"))}


@pytest.fixture(scope="module")
def adapters(
    tmp_path_factory: pytest.TempPathFactory, reference: Reference
) -> Callable[[str], tuple[AdapterConfig, ...]]:
    """Every recipe for a model, as directories."""

    def get(model: str) -> tuple[AdapterConfig, ...]:
        root = tmp_path_factory.mktemp("adapters")
        return tuple(
            AdapterConfig(name, str(write_adapter(root / name, reference(model), recipe)))
            for name, recipe in recipes_of(model).items()
        )

    return get


def recipes_of(model: str) -> dict[str, Recipe]:
    return FUSED if model == "phi3" else RECIPES


def make_engine(
    source: Path,
    adapters: tuple[AdapterConfig, ...],
    pool: PoolSpec,
    backend: str,
    **changes: object,
) -> Engine:
    settings: dict[str, object] = {"dtype": "float32", "num_threads": 1, **changes}
    return Engine(
        EngineConfig(
            source=str(source),
            name=ModelId("m"),
            page_size=pool.page_size,
            num_blocks=pool.groups[0].num_blocks,
            host_cache_bytes=pool.groups[0].num_host_blocks * 64 << 10,
            num_embeds=pool.num_embeds,
            num_token_slots=pool.num_token_slots,
            max_sequences=pool.max_sequences,
            max_batch_tokens=pool.max_batch_tokens,
            backend="torch" if backend == "torch" else "cpu",
            kernel_isa=None if backend == "torch" else backend,
            adapters=adapters,
            **settings,  # type: ignore[arg-type]
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


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_missing_adapter_does_not_move_the_others(
    backend: str, tmp_path: Path, checkpoint: Checkpoint, reference: Reference
) -> None:
    """The other adapters keep their indices."""
    base, recipe = reference("llama"), RECIPES["all"]
    adapters = (
        AdapterConfig("gone", str(tmp_path / "gone"), is_needed=False),
        AdapterConfig("all", str(write_adapter(tmp_path / "all", base, recipe))),
    )
    driver = EngineDriver(make_engine(checkpoint("llama"), adapters, fake_pool(), backend))
    assert [bool(one.problem) for one in driver.info.adapters] == [True, False]
    (prompt,) = prompts(1)
    rows = [RowSpec(None, prompt, range(len(prompt)), adapter=adapter) for adapter in (-1, 1)]
    wanted = [expected(base, prompt), expected(merged(base, recipe), prompt)]
    np.testing.assert_allclose(driver.forward(rows), wanted, atol=1e-4)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "model",
    [
        "llama",
        "qwen2",
        "qwen3",
        "llama-mqa-head-dim",
        "gemma2",
        "granite",
        "olmo2",
        "phi3",
        "ernie4-5",
    ],
)
def test_every_adapter_equals_its_merged_model(
    model: str,
    backend: str,
    checkpoint: Checkpoint,
    reference: Reference,
    adapters: Callable[[str], tuple],
) -> None:
    """One message with each adapter twice and plain rows between, no two adjacent rows alike."""
    driver = EngineDriver(make_engine(checkpoint(model), adapters(model), fake_pool(), backend))
    recipes = recipes_of(model)
    assert [adapter.name for adapter in driver.info.adapters] == list(recipes)
    models = [reference(model), *(merged(reference(model), one) for one in recipes.values())]
    order = [*range(-1, len(recipes)), *range(len(recipes) - 1, -2, -1)]
    rows = [
        RowSpec(None, tokens, range(len(tokens)), adapter=adapter)
        for tokens, adapter in zip(prompts(len(order)), order, strict=True)
    ]
    afters = []
    for start in range(0, len(rows), 3):  # as many rows per message as the pool allows
        afters += driver.forward(rows[start : start + 3])
    for row, after in zip(rows, afters, strict=True):
        wanted = expected(models[row.adapter + 1], list(row.tokens))
        assert np.abs(after - wanted).max() <= 1e-4
        if row.adapter >= 0:
            assert np.abs(after - expected(models[0], list(row.tokens))).max() > 1e-2


@pytest.mark.parametrize("backend", BACKENDS)
def test_sequences_decode_as_their_merged_models(
    backend: str, checkpoint: Checkpoint, reference: Reference, adapters: Callable[[str], tuple]
) -> None:
    pool = fake_pool(num_blocks=96)
    driver = EngineDriver(make_engine(checkpoint("llama"), adapters("llama"), pool, backend))
    models = [reference("llama"), *(merged(reference("llama"), one) for one in RECIPES.values())]
    pages, decoded = driver.pages_for(40), [SequenceOutput() for _ in models]
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
    """The whole engine suite, with adapters loaded."""

    page_sizes = (2,)
    backend = "torch"

    @pytest.fixture(autouse=True)
    def _sources(self, checkpoint: Checkpoint, adapters: Callable[[str], tuple]) -> None:
        self.source, self.adapters = checkpoint("llama"), adapters("llama")

    def make_engine(self, pool: PoolSpec) -> EngineCore:
        return make_engine(self.source, self.adapters, pool, self.backend)

    def make_tokenizer(self) -> Tokenizer:
        return load_tokenizer(str(self.source))


@pytest.mark.skipif(not USABLE, reason="the CPU kernel was not built here")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_batch_invariant_rows_do_not_depend_on_their_company(
    dtype: str, checkpoint: Checkpoint, adapters: Callable[[str], tuple]
) -> None:
    """Long rows are split into several parts, on two threads."""
    engine = make_engine(
        checkpoint("llama"),
        adapters("llama"),
        fake_pool(num_blocks=96, max_batch_tokens=512),
        USABLE[0],
        dtype=dtype,
        batch_invariant=True,
        num_threads=2,
    )
    driver = EngineDriver(engine)
    random = np.random.default_rng(1)
    rows = [
        RowSpec(None, random.integers(3, 290, length).tolist(), range(length), adapter=adapter)
        for length, adapter in ((70, 0), (5, -1), (90, 3), (140, 0), (1, 3))
    ]
    alone = [driver.forward([row])[0] for row in rows]
    for together, single in zip(driver.forward(rows), alone, strict=True):
        assert np.array_equal(together, single)


@pytest.mark.skipif(not USABLE, reason="the CPU kernel was not built here")
class TestKernel(EngineAdapterSuite):
    """The CPU kernel with adapters."""

    page_sizes = (1, 16)

    @pytest.fixture(autouse=True)
    def _sources(self, checkpoint: Checkpoint, adapters: Callable[[str], tuple]) -> None:
        self.source, self.adapters = checkpoint("llama"), adapters("llama")

    def make_engine(self, pool: PoolSpec) -> EngineCore:
        return make_engine(self.source, self.adapters, pool, USABLE[0])
