"""The line that tells an operator, at the start, what an engine has room for."""

from __future__ import annotations

from quire.core.engine_info import EngineInfo, LayerGroup, PoolSpec
from quire.server.capacity import capacity_line

FULL = LayerGroup(num_blocks=4000, num_host_blocks=1000, bytes_per_block=1 << 16)
WINDOW = LayerGroup(
    kind="window", num_blocks=100, num_host_blocks=0, bytes_per_block=1 << 20, window=64
)


def info_of(*groups: LayerGroup) -> EngineInfo:
    pool = PoolSpec(
        page_size=16, groups=groups, num_embeds=8, num_token_slots=8,
        max_sequences=256, max_batch_tokens=512,
    )  # fmt: skip
    return EngineInfo(
        model="m", family="f", content="c", layout="l", vocab_size=128, hidden_size=1, num_layers=1,
        max_model_len=2048, dtype="bfloat16", device="cpu", backend="cpu",
        num_parameters=4_100_000, pool=pool, traits=[],
    )  # fmt: skip


def test_it_has_memory_tokens_and_bounds() -> None:
    assert capacity_line(info_of(FULL)) == (
        "4.1 M parameters, bfloat16 on cpu; KV cache 250 MiB, host 62.5 MiB: 4,000 pages of 16, "
        "64,000 tokens, 31.2 contexts of 2,048; at most 256 sequences and 512 tokens a step"
    )


def test_layers_with_a_window_count_as_memory_and_not_as_tokens() -> None:
    line = capacity_line(info_of(FULL, WINDOW))
    assert "KV cache 350 MiB" in line
    assert "64,000 tokens" in line
    assert "1,600 tokens" in capacity_line(info_of(WINDOW))


def test_replicas_are_counted() -> None:
    assert capacity_line(info_of(FULL), 3).startswith("3 engines, each: 4.1 M parameters")
