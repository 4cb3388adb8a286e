"""Two ranks equal one: every family, adapters, the engine suite."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from engine_adapters import RECIPES, write_adapter
from engine_checkpoints import MODELS
from parallel_engines import tiny
from transformers import PreTrainedModel

from quire.core.config import AdapterConfig, EngineConfig
from quire.core.decoding import StopSpec
from quire.core.engine_info import PoolSpec
from quire.core.errors import ConfigError
from quire.core.interfaces import EngineCore, Tokenizer
from quire.engine.engine import Engine
from quire.engine.parallel.group import RankGroup
from quire.engine.tokenizer import load_tokenizer
from quire.testing.conformance.engine_driver import EngineDriver
from quire.testing.conformance.engine_forward import EngineForwardSuite
from quire.testing.conformance.engine_memory import EngineMemorySuite
from quire.testing.conformance.engine_reposition import EngineRepositionSuite
from quire.testing.conformance.engine_rows import RowSpec
from quire.testing.conformance.engine_sequences import EngineSequenceSuite

Checkpoint = Callable[[str], Path]

FAMILIES = [
    "llama", "llama-mqa-head-dim", "llama-biases", "qwen2-tied", "qwen3", "mistral", "mixtral",
    "qwen3-moe", "gemma2", "gemma3", "phi3", "gpt-oss", "olmo2", "granite",
    "granite-moe", "granite-4", "glm4", "exaone4", "olmoe", "ernie4-5",
]  # fmt: skip


def pair(config: EngineConfig, ranks: RankGroup) -> tuple[EngineDriver, EngineDriver]:
    """One rank's engine and two ranks' engine."""
    alone = {name: getattr(config, name) for name in config.__slots__}
    one = Engine(EngineConfig(**{**alone, "tensor_parallel": 1, "backend": "torch"}))
    return EngineDriver(one), EngineDriver(Engine(config, ranks=ranks))


def compare(one: EngineDriver, two: EngineDriver, adapters: tuple[int, ...] = (-1,)) -> None:
    random = np.random.default_rng(0)
    rows = [
        RowSpec(None, random.integers(3, 290, 5 + i).tolist(), range(5 + i), adapter=adapter)
        for i, adapter in enumerate((*adapters, *adapters))
    ]
    for mine, theirs in zip(one.forward(rows), two.forward(rows), strict=True):
        assert np.abs(mine - theirs).max() <= 1e-4
    for adapter in adapters:
        options = {"num_steps": 4, "adapter": adapter}
        prompt, stop = rows[0].tokens, StopSpec(max_tokens=10)
        assert two.decode(range(8), prompt, stop, **options) == one.decode(
            range(8), prompt, stop, **options
        )


@pytest.mark.parametrize("model", FAMILIES)
def test_families(model: str, checkpoint: Checkpoint, ranks: RankGroup) -> None:
    compare(*pair(tiny(str(checkpoint(model)), **MODELS[model].engine), ranks))


@pytest.mark.parametrize("model", ["llama", "llama-mqa-head-dim"])
def test_adapters(
    model: str,
    checkpoint: Checkpoint,
    ranks: RankGroup,
    reference: Callable[[str], PreTrainedModel],
    tmp_path: Path,
) -> None:
    adapters = tuple(
        AdapterConfig(name, str(write_adapter(tmp_path / name, reference(model), recipe)))
        for name, recipe in RECIPES.items()
    )
    one, two = pair(tiny(str(checkpoint(model)), adapters=adapters), ranks)
    assert two.info.adapters == one.info.adapters
    compare(one, two, tuple(range(-1, len(adapters))))


def test_the_engine_describes_itself(checkpoint: Checkpoint, ranks: RankGroup) -> None:
    one, two = pair(tiny(str(checkpoint("llama"))), ranks)
    assert two.info.vocab_size == one.info.vocab_size
    assert two.info.num_parameters == one.info.num_parameters
    assert two.info.content == one.info.content
    assert two.info.layout != one.info.layout, "blocks cannot be copied as they are"
    group, whole = two.info.pool.groups[0], one.info.pool.groups[0]
    assert group.bytes_per_block * 2 == whole.bytes_per_block
    assert two.info.extra["tensor_parallel"] == 2


def test_a_refused_model_leaves_the_ranks_for_another(
    checkpoint: Checkpoint, ranks: RankGroup
) -> None:
    with pytest.raises(ConfigError, match="5 attention heads"):
        Engine(tiny(str(checkpoint("llama-five-to-one"))), ranks=ranks)
    with pytest.raises(ConfigError, match="backend 'cpu' does not split"):
        Engine(tiny(str(checkpoint("llama")), backend="cpu"), ranks=ranks)
    compare(*pair(tiny(str(checkpoint("llama"))), ranks))


class TestConformance(
    EngineForwardSuite, EngineMemorySuite, EngineRepositionSuite, EngineSequenceSuite
):
    """The engine suite on two ranks, without sampling, which only rank 0 does."""

    page_sizes = (2,)

    @pytest.fixture(autouse=True)
    def _ranks(self, checkpoint: Checkpoint, ranks: RankGroup) -> None:
        self.source, self.ranks = checkpoint("llama"), ranks

    def make_engine(self, pool: PoolSpec) -> EngineCore:
        config = tiny(
            str(self.source),
            page_size=pool.page_size,
            num_blocks=pool.groups[0].num_blocks,
            num_embeds=pool.num_embeds,
            num_token_slots=pool.num_token_slots,
            max_sequences=pool.max_sequences,
            max_batch_tokens=pool.max_batch_tokens,
        )
        return Engine(config, ranks=self.ranks)

    def make_tokenizer(self) -> Tokenizer:
        return load_tokenizer(str(self.source))
