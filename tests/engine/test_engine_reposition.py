"""Slots that go to other positions: what a turned context is worth, for every rotary variant."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pytest
import torch
from engine_checkpoints import MODELS, VOCAB_SIZE
from engine_driver import Driver, Row, i32
from numpy.typing import NDArray
from transformers import PreTrainedModel

from quire.core.batch import RepositionSlots
from quire.core.config import EngineConfig
from quire.core.errors import EngineFault
from quire.core.ids import ModelId
from quire.engine.kv_cache.pool import BlockShape
from quire.engine.kv_cache.torch_pool import TorchKVPool
from quire.engine.layers.key_turn import KeyTurn
from quire.engine.layers.rope_config import RopeConfig
from quire.engine.layers.rotary import RotaryEmbedding, rotate

MakeDriver = Callable[..., Driver]
Reference = Callable[[str], PreTrainedModel]

NUM_OLD, NUM_NEW, SHIFT = 14, 3, 6
BLOCKS = (5, 2, 9, 0, 7, 3)
RELATIVE = sorted(set(MODELS) - {"ministral3"})
"""Models whose attention depends on differences of positions alone; that one scales its queries by
their own."""


@pytest.fixture
def make_driver(make_driver: MakeDriver, backend: str) -> MakeDriver:
    """Drivers of engines on every backend."""
    return partial(make_driver, backend=backend)


def random_tokens(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(3, VOCAB_SIZE, count).tolist()


def computed_at(model: PreTrainedModel, tokens: Sequence[int], start: int) -> NDArray[np.float64]:
    """Log probabilities of transformers over a context that stands at ``start`` and on."""
    positions = torch.arange(start, start + len(tokens))[None]
    with torch.inference_mode():
        logits = model(torch.tensor([list(tokens)]), position_ids=positions).logits[0]
    return logits.double().log_softmax(-1).numpy()


def fill(driver: Driver, tokens: Sequence[int]) -> None:
    span = range(len(tokens))
    table = driver.write_table(0, BLOCKS, span)
    driver.logprobs([Row(tokens, 0, span, driver.flat(BLOCKS, span))], [table])


def moved(driver: Driver, slots: Sequence[int], shift: int) -> RepositionSlots:
    positions = [slot + shift for slot in slots]
    return RepositionSlots(slots=i32(driver.flat(BLOCKS, slots)), positions=i32(positions))


def go_on(driver: Driver, tokens: Sequence[int], start: int) -> NDArray[np.float64]:
    return driver.logprobs([Row(tokens, 0, range(start, start + len(tokens)))])


@pytest.mark.parametrize("name", RELATIVE)
def test_a_whole_context_that_is_moved_is_the_one_computed_there(
    name: str, make_driver: MakeDriver, reference: Reference
) -> None:
    driver = make_driver(name, **MODELS[name].engine)
    tokens = random_tokens(NUM_OLD + NUM_NEW)
    fill(driver, tokens[:NUM_OLD])
    driver.good(operations=[moved(driver, range(NUM_OLD), SHIFT)])
    after = go_on(driver, tokens[NUM_OLD:], NUM_OLD + SHIFT)
    wanted = computed_at(reference(name), tokens, SHIFT)[NUM_OLD:]
    assert np.abs(after - wanted).max() <= 1e-4
    driver.good(operations=[moved(driver, range(NUM_OLD), 0)])
    back = go_on(driver, tokens[NUM_OLD:], NUM_OLD)
    assert np.abs(back - computed_at(reference(name), tokens, 0)[NUM_OLD:]).max() <= 1e-4


def test_what_is_moved_alone_is_not_what_would_be_computed_there(
    make_driver: MakeDriver, reference: Reference
) -> None:
    """Deeper layers of what stood behind it keep what they saw of the old neighbourhood."""
    driver = make_driver("llama")
    tokens = random_tokens(NUM_OLD + 1)
    fill(driver, tokens[:NUM_OLD])
    driver.good(operations=[moved(driver, range(4, NUM_OLD), SHIFT)])
    after = go_on(driver, tokens[NUM_OLD:], NUM_OLD + SHIFT)[-1]
    positions = torch.tensor([[*range(4), *range(4 + SHIFT, NUM_OLD + 1 + SHIFT)]])
    with torch.inference_mode():
        logits = reference("llama")(torch.tensor([tokens]), position_ids=positions).logits[0, -1]
    assert np.abs(after - logits.double().log_softmax(-1).numpy()).max() > 1e-3


def test_both_backends_turn_bfloat16_alike(make_driver: MakeDriver) -> None:
    """Keys of half the precision: a turned context against the one that was computed there."""
    driver = make_driver("llama", dtype="bfloat16")
    tokens = random_tokens(NUM_OLD + NUM_NEW)
    fill(driver, tokens[:NUM_OLD])
    driver.good(operations=[moved(driver, range(NUM_OLD), SHIFT)])
    after = go_on(driver, tokens[NUM_OLD:], NUM_OLD + SHIFT)
    positions = range(SHIFT, NUM_OLD + NUM_NEW + SHIFT)
    there = driver.logprobs([Row(tokens, positions=positions)])[NUM_OLD:]
    assert np.abs(after - there).max() <= 0.1
    unmoved = driver.logprobs([Row(tokens[NUM_OLD:], positions=positions[NUM_OLD:])])
    assert np.abs(unmoved - there).max() > 0.5


def test_many_slots_of_many_pages(make_driver: MakeDriver, reference: Reference) -> None:
    """Parts of tiles, whole ones and pages in any order: as much as threads share."""
    driver = make_driver("qwen3", page_size=16, max_batch_tokens=128)
    tokens = random_tokens(90)
    fill(driver, tokens[:-1])
    driver.good(operations=[moved(driver, range(89), 300)])
    after = go_on(driver, tokens[-1:], 389)
    assert np.abs(after - computed_at(reference("qwen3"), tokens, 300)[-1:]).max() <= 1e-4


@pytest.mark.parametrize(
    ("slots", "positions", "words"),
    [
        ([0, 1], [4], "differ in length"),
        ([3, 3], [4, 5], "repositioned twice"),
    ],
)
def test_messages_that_contradict_themselves(
    slots: list[int], positions: list[int], words: str, make_driver: MakeDriver
) -> None:
    driver = make_driver()
    with pytest.raises(EngineFault, match=words):
        driver.send(operations=[RepositionSlots(slots=i32(slots), positions=i32(positions))])


def test_slots_and_positions_out_of_range_fail_alone(make_driver: MakeDriver) -> None:
    driver = make_driver()
    bad = [
        RepositionSlots(slots=i32([1 << 20]), positions=i32([4])),
        RepositionSlots(slots=i32([1]), positions=i32([-4])),
    ]
    failures = driver.send(operations=bad).failures
    assert [(failure.stage, failure.index) for failure in failures] == [
        ("operations", 0),
        ("operations", 1),
    ]


ROPES = {
    "default": RopeConfig(1e4),
    "none": RopeConfig(1e4, "none"),
    "half": RopeConfig(1e4, rotary_fraction=0.5),
    "linear": RopeConfig(1e4, "linear", factor=4.0),
    "dynamic": RopeConfig(1e4, "dynamic", factor=4.0, original_length=64, length=256),
    "llama3": RopeConfig(1e4, "llama3", factor=8.0, original_length=64),
    "yarn": RopeConfig(1e4, "yarn", factor=4.0, original_length=64, attention_factor=1.3),
    "longrope": RopeConfig(
        1e4,
        "longrope",
        attention_factor=1.2,
        plane_factors=(1.0, 1.3, 1.9, 2.6, 4.2, 7.5, 8.0, 9.0),
    ),
}
HEAD_DIM, NUM_SLOTS = 16, 64


def pool_of(ropes: Sequence[RopeConfig], dtype: torch.dtype) -> TorchKVPool:
    """One layer with each of ``ropes``."""
    shape = BlockShape(len(ropes), 2, HEAD_DIM, 16, dtype)
    return TorchKVPool.allocate(
        shape,
        EngineConfig(source="", name=ModelId("m"), num_blocks=NUM_SLOTS // 16, max_batch_tokens=1),
        torch.device("cpu"),
        KeyTurn(ropes, range(len(ropes)), HEAD_DIM),
    )


def keys_at(rope: RopeConfig, keys_SKD: torch.Tensor, positions: NDArray[np.int32]) -> torch.Tensor:
    embedding = RotaryEmbedding(rope, HEAD_DIM, torch.device("cpu"), torch.float32)
    return rotate(keys_SKD, embedding.at(torch.from_numpy(positions)))


@pytest.mark.parametrize("start", [0, 100, 100_000])
@pytest.mark.parametrize("name", ROPES)
def test_keys_are_those_of_their_new_positions(name: str, start: int) -> None:
    """So the first layer of whatever is moved is what would have been computed there. Positions
    far out too, where float32 knows an angle to a hundredth."""
    rope, pool = ROPES[name], pool_of([ROPES[name]], torch.float32)
    keys_SKD = torch.randn(NUM_SLOTS, 2, HEAD_DIM, generator=torch.Generator().manual_seed(1))
    slots = np.arange(NUM_SLOTS, dtype=np.int32)
    pool.layers[0].keys_SKD[:NUM_SLOTS] = keys_at(rope, keys_SKD, slots)
    pool.positions_AS[0, slots] = slots
    targets = (start + slots[::-1] * 3).astype(np.int32)
    pool.reposition(slots, targets)
    torch.testing.assert_close(
        pool.layers[0].keys_SKD[:NUM_SLOTS], keys_at(rope, keys_SKD, targets), atol=3e-6, rtol=0
    )
    assert pool.positions_AS[0, slots].tolist() == targets.tolist()


def test_each_layer_is_turned_by_its_own_rope() -> None:
    ropes = [ROPES["default"], ROPES["linear"]]
    pool = pool_of(ropes, torch.float32)
    keys_SKD = torch.randn(1, 2, HEAD_DIM, generator=torch.Generator().manual_seed(1))
    first, there = np.array([3], np.int32), np.array([9], np.int32)
    slot = np.array([20], np.int32)
    for layer, rope in zip(pool.layers, ropes, strict=True):
        layer.keys_SKD[20] = keys_at(rope, keys_SKD, first)[0]
        layer.values_SKD[20] = 1.0
    pool.positions_AS[0, slot] = first
    pool.reposition(slot, there)
    for layer, rope in zip(pool.layers, ropes, strict=True):
        torch.testing.assert_close(layer.keys_SKD[20], keys_at(rope, keys_SKD, there)[0])
        assert layer.values_SKD[20].eq(1.0).all()


def test_turning_again_and_again_rounds_again_and_again() -> None:
    """In bfloat16 one turn, however far, costs about what writing the key costs. Many small ones
    cost more: slow planes turn by less than what the type can tell. The bounds are those of
    ``docs/decisions/061-reposition.md``."""
    rope = ROPES["default"]
    keys_SKD = torch.randn(NUM_SLOTS, 2, HEAD_DIM, generator=torch.Generator().manual_seed(1))
    slots = np.arange(NUM_SLOTS, dtype=np.int32)
    written = float((keys_SKD.bfloat16().float() - keys_SKD).norm() / keys_SKD.norm())

    def error_after(steps: Sequence[int]) -> float:
        pool = pool_of([rope], torch.bfloat16)
        pool.positions_AS[0, slots] = slots + 1000
        pool.layers[0].keys_SKD[:NUM_SLOTS] = keys_at(rope, keys_SKD, slots + 1000).bfloat16()
        for distance in steps:
            pool.reposition(slots, (slots + 1000 - distance).astype(np.int32))
        wanted = keys_at(rope, keys_SKD, (slots + 1000 - steps[-1]).astype(np.int32))
        off = pool.layers[0].keys_SKD[:NUM_SLOTS].float() - wanted
        return float(off.norm() / wanted.norm())

    at_once, in_steps = error_after([832]), error_after(range(13, 833, 13))
    assert at_once < 2 * written
    assert 4 * at_once < in_steps < 25 * written
