"""Tokens in canonical form: the same bytes from every pool, whatever its pages and tiles."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tile_tokens import keys_by_token, take, values_by_token

from quire.core.errors import ConfigError
from quire.engine.cpu.library import load_kernel
from quire.engine.cpu.native_pool import NativeKVPool, padded_head_dim
from quire.engine.cpu.team import Team
from quire.engine.kv_cache.pool import BlockShape
from quire.engine.kv_cache.token_form import TokenPlaces, TokenPool
from quire.engine.kv_cache.torch_pool import TorchKVPool
from quire.engine.layers.key_turn import KeyTurn
from quire.engine.layers.rope_config import RopeConfig

NUM_LAYERS, NUM_HEADS = 3, 2
NUM_SLOTS = 192
MakePool = Callable[[int, int, torch.dtype], TokenPool]


def _turn(head_dim: int) -> KeyTurn:
    return KeyTurn((RopeConfig(1e4),), (0,) * NUM_LAYERS, head_dim)


def torch_pool(page_size: int, head_dim: int, dtype: torch.dtype) -> TokenPool:
    return TorchKVPool(
        BlockShape(NUM_LAYERS, NUM_HEADS, head_dim, page_size, dtype),
        num_blocks=NUM_SLOTS // page_size,
        num_host_blocks=0,
        num_scratch=1,
        num_axes=1,
        device=torch.device("cpu"),
        turn=_turn(head_dim),
    )


def native_pool(page_size: int, head_dim: int, dtype: torch.dtype) -> TokenPool:
    try:
        team = Team(load_kernel(None), 1)
    except ConfigError as exc:
        pytest.skip(str(exc))
    return NativeKVPool(
        team,
        BlockShape(NUM_LAYERS, NUM_HEADS, padded_head_dim(head_dim), page_size, dtype),
        head_dim,
        _turn(head_dim),
        num_blocks=NUM_SLOTS // page_size,
        num_host_blocks=0,
        num_scratch=1,
        num_axes=1,
    )


def i64(*values: int) -> NDArray[np.int64]:
    return np.array(values, np.int64)


def random_tokens(pool: TokenPool, count: int, num_layers: int, seed: int) -> NDArray[np.uint8]:
    """Bytes of ordinary numbers: a NaN would not equal itself."""
    form = pool.form
    generator = torch.Generator().manual_seed(seed)
    size = (num_layers, 2, count, form.num_kv_heads, form.head_dim)
    numbers = torch.randn(size, generator=generator).to(form.dtype)
    return numbers.view(torch.uint8).numpy().reshape(-1)


def read(pool: TokenPool, slots: NDArray[np.int64], layers: range) -> NDArray[np.uint8]:
    found = np.full(len(slots) * len(layers) * pool.form.bytes_per_layer, 0xEE, np.uint8)
    pool.read_tokens(slots, layers, found)
    return found


POOLS = [
    pytest.param(make, page_size, id=f"{name}, pages of {page_size}")
    for name, make in {"torch": torch_pool, "cpu": native_pool}.items()
    for page_size in (1, 16, 64)
]
SPANS = {
    "one": i64(37),
    "whole tiles": np.arange(32, 96, dtype=np.int64),
    "shifted": np.arange(5, 58, dtype=np.int64),
    "backwards": np.arange(50, 17, -1, dtype=np.int64),
    "scattered": np.random.default_rng(1).permutation(NUM_SLOTS)[:70].astype(np.int64),
    "all": np.arange(NUM_SLOTS, dtype=np.int64),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("head_dim", [16, 12], ids=["whole vectors", "padded"])
@pytest.mark.parametrize(("make", "page_size"), POOLS)
def test_what_was_written_is_read(
    make: MakePool, page_size: int, head_dim: int, dtype: torch.dtype
) -> None:
    pool = make(page_size, head_dim, dtype)
    everywhere = np.arange(NUM_SLOTS, dtype=np.int64)
    for seed, slots in enumerate(SPANS.values()):
        before = random_tokens(pool, NUM_SLOTS, NUM_LAYERS, seed + 100)
        pool.write_tokens(everywhere, range(NUM_LAYERS), before)
        written = random_tokens(pool, len(slots), 2, seed)
        pool.write_tokens(slots, range(1, 3), written)
        assert np.array_equal(read(pool, slots, range(1, 3)), written)
        numbers = pool.form.view(before, NUM_LAYERS).clone()
        numbers[1:, :, slots] = pool.form.view(written, 2)
        found = pool.form.view(read(pool, everywhere, range(NUM_LAYERS)), NUM_LAYERS)
        assert torch.equal(found, numbers), "nothing else has changed"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("head_dim", [16, 12, 13], ids=["whole vectors", "padded", "odd"])
def test_the_kernel_reads_what_its_tiles_hold(head_dim: int, dtype: torch.dtype) -> None:
    """Its translation is compared with PyTorch's, from the memory itself."""
    pool = native_pool(16, head_dim, dtype)
    assert isinstance(pool, NativeKVPool)
    everywhere = np.arange(NUM_SLOTS, dtype=np.int64)
    pool.write_tokens(everywhere, range(NUM_LAYERS), random_tokens(pool, NUM_SLOTS, NUM_LAYERS, 1))
    for slots in SPANS.values():
        found = pool.form.view(read(pool, slots, range(NUM_LAYERS)), NUM_LAYERS)
        for layer, (keys, values) in enumerate(pool.layers):
            of_slots = torch.empty(2, NUM_SLOTS, NUM_HEADS, head_dim, dtype=dtype)
            for half, by_token in enumerate((keys_by_token, values_by_token)):
                tiles = (keys, values)[half].view(dtype)[: NUM_SLOTS * NUM_HEADS * 16]
                take(by_token(tiles, NUM_HEADS, 16), of_slots[half], 16)
            assert torch.equal(found[layer], of_slots[:, slots])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("span", SPANS)
def test_raw_tokens_are_the_same_tokens(span: str, dtype: torch.dtype) -> None:
    """Also where what is a tile in one pool is not one in the other."""
    one, other = native_pool(16, 12, dtype), native_pool(64, 12, dtype)
    assert one.raw is not None
    assert other.raw is not None
    assert one.raw.layout == other.raw.layout
    slots = SPANS[span]
    one.write_tokens(slots, range(1, 3), random_tokens(one, len(slots), 2, 1))
    raw = np.zeros(one.raw.num_bytes(len(slots), 2), np.uint8)
    one.raw.read(TokenPlaces.on_device(slots), range(1, 3), raw)
    target = np.random.default_rng(3).permutation(NUM_SLOTS)[: len(slots)].astype(np.int64)
    for to in target, np.arange(len(slots), dtype=np.int64):
        other.raw.write(to, range(1, 3), raw)
        assert np.array_equal(read(other, to, range(1, 3)), read(one, slots, range(1, 3)))


def test_layouts_differ_by_what_a_tile_holds() -> None:
    names = {
        pool.raw.layout
        for dtype in (torch.float32, torch.bfloat16)
        for pool in (native_pool(16, 12, dtype), native_pool(1, 17, dtype))
        if pool.raw is not None
    }
    assert len(names) == 4


@pytest.mark.parametrize(("make", "page_size"), POOLS)
def test_positions_are_placed(make: MakePool, page_size: int) -> None:
    pool = make(page_size, 16, torch.float32)
    pool.place(i64(3, 9), np.array([[70, 20]], np.int32))
    assert pool.positions_AS[0, [3, 9]].tolist() == [70, 20]
    assert (pool.positions_AS >= 0).sum() == 2


def test_float16_travels_too() -> None:
    pool = torch_pool(16, 16, torch.float16)
    written = random_tokens(pool, 4, NUM_LAYERS, 0)
    pool.write_tokens(i64(1, 0, 7, 9), range(NUM_LAYERS), written)
    assert np.array_equal(read(pool, i64(1, 0, 7, 9), range(NUM_LAYERS)), written)
