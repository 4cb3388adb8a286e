"""Which part of every tensor a rank takes, and which splits are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from engine_checkpoints import MODELS

from quire.core.errors import ConfigError
from quire.engine.checkpoint.config_reader import ConfigReader
from quire.engine.checkpoint.model_directory import ModelDirectory
from quire.engine.layers.parameters import Parameters
from quire.engine.models.decoder_config import DecoderConfig
from quire.engine.models.registry import family_of
from quire.engine.parallel.shard import Shard, check_split, local_config, local_destinations

Checkpoint = Callable[[str], Path]


def read(path: Path) -> DecoderConfig:
    raw = ModelDirectory(path).read_config()
    return family_of(raw, "here").read(ConfigReader(raw, "here"))


def parts(path: Path, size: int) -> dict[str, list[torch.Tensor]]:
    """Each rank's part of every tensor, where element i of the whole has the value i + 1."""
    raw = ModelDirectory(path).read_config()
    family, config = family_of(raw, "here"), read(path)
    whole = Parameters(torch.device("meta"), torch.float32)
    family.build(config, whole)
    found: dict[str, list[torch.Tensor]] = {name: [] for name in whole.destinations}
    for rank in range(size):
        shard = Shard(rank, size)
        mine = Parameters(torch.device("cpu"), torch.float32)
        family.build(local_config(config, shard), mine)
        local = local_destinations(whole.destinations, mine.destinations, config, shard)
        for name, destination in local.items():
            numel = torch.Size(destination.shape).numel()
            destination.fill(torch.arange(1.0, numel + 1).view(destination.shape))
            found[name].append(destination.target - destination.offset)
    return found


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize(
    "model", ["llama", "llama-biases", "phi3", "mixtral", "gpt-oss", "olmo2", "qwen3-moe"]
)
def test_the_ranks_hold_everything_and_norms_as_a_whole(
    model: str, size: int, checkpoint: Checkpoint
) -> None:
    config = read(checkpoint(model))
    try:
        check_split(config, size)
    except ConfigError:
        pytest.skip(f"{model} does not split into {size}")
    for name, held in parts(checkpoint(model), size).items():
        values = [set(part.flatten().tolist()) - {0.0} for part in held]
        whole = set(range(1, max(map(int, set().union(*values))) + 1))
        assert set().union(*values) == whole, name
        is_whole = "norm.weight" in name and "q_norm" not in name and "k_norm" not in name
        if is_whole or "router" in name or name.endswith("mlp.gate.weight"):
            assert all(one == whole for one in values), name


def test_rows_of_heads_go_to_the_rank_of_their_head(checkpoint: Checkpoint) -> None:
    """4 heads over 2 KV heads of size 8: with 4 ranks, two ranks share each KV head."""
    held = parts(checkpoint("llama"), 4)
    rows = {
        name: [int(part[0].flatten()[0] - 1) // 32 for part in held[f"{ATTENTION}.{name}.weight"]]
        for name in ("q_proj", "k_proj", "v_proj")
    }
    assert rows == {"q_proj": [0, 8, 16, 24], "k_proj": [0, 0, 8, 8], "v_proj": [0, 0, 8, 8]}
    columns = [int(part[0, 0] - 1) for part in held[f"{ATTENTION}.o_proj.weight"]]
    assert columns == [0, 8, 16, 24]


ATTENTION = "model.layers.0.self_attn"


def test_a_fused_tensor_is_split_within_each_of_its_sections(checkpoint: Checkpoint) -> None:
    config = read(checkpoint("phi3"))
    assert config.mlp is not None
    width, columns = config.mlp.intermediate_size, config.hidden_size
    for rank, part in enumerate(
        parts(checkpoint("phi3"), 2)["model.layers.0.mlp.gate_up_proj.weight"]
    ):
        first = (part[:, 0] - 1).div(columns).int().tolist()
        half = width // 2
        gate = range(rank * half, (rank + 1) * half)
        assert first == [*gate, *(width + row for row in gate)]


def test_biases_of_partial_sums_are_rank_zeros_alone(checkpoint: Checkpoint) -> None:
    for model, name in (
        ("llama-biases", f"{ATTENTION}.o_proj.bias"),
        ("llama-biases", "model.layers.0.mlp.down_proj.bias"),
        ("gpt-oss", "model.layers.0.mlp.experts.down_proj_bias"),
    ):
        first, second = parts(checkpoint(model), 2)[name]
        assert first.all()
        assert not second.any()


def test_a_vocabulary_that_does_not_divide_is_padded(checkpoint: Checkpoint) -> None:
    """300 tokens over 8 ranks: 38 each, the last has 34 and 4 rows of zeros."""
    shards = [Shard(rank, 8) for rank in range(8)]
    assert [shard.vocabulary(300) for shard in shards[-2:]] == [(228, 266), (266, 300)]
    held = parts(checkpoint("llama"), 4)["lm_head.weight"]
    assert [len(part) for part in held] == [75] * 4
    assert Shard(3, 4).vocabulary(5) == (5, 5)


@pytest.mark.parametrize(
    ("model", "size", "figures"),
    [
        ("llama-five-to-one", 2, "5 attention heads"),
        ("llama", 8, "4 attention heads"),
        (
            "llama",
            3,
            r"4 attention heads and 2 KV heads, which 3 ranks cannot share: choose 1, 2, 4",
        ),
    ],
)
def test_impossible_splits_are_refused_with_figures(
    model: str, size: int, figures: str, checkpoint: Checkpoint
) -> None:
    assert model in MODELS
    with pytest.raises(ConfigError, match=figures):
        local_config(read(checkpoint(model)), Shard(0, size))
