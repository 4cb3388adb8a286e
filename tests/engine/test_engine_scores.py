"""The attention mass of rows equals the sum of transformers' attention probabilities."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pytest
import torch
from engine_checkpoints import VOCAB_SIZE
from engine_driver import Driver, Row, forward_rows, i32
from numpy.typing import NDArray
from transformers import PreTrainedModel

from quire.core.batch import DistRows
from quire.core.batch_result import BatchResult
from quire.core.errors import InvalidArgument, from_record
from quire.core.traits import Trait
from quire.engine.cpu.native_runner import NativeRunner
from quire.engine.torch_runner import TorchRunner

NUM_TOKENS = 23
FAMILIES = ["llama", "llama-mqa-head-dim", "qwen3", "mistral", "gemma2", "gpt-oss", "granite"]
"""Plain, grouped and single KV heads, odd head sizes, windows, soft-caps, sinks, a scale."""

MakeDriver = Callable[..., Driver]
Reference = Callable[[str], PreTrainedModel]
Floats = NDArray[np.float64]


@pytest.fixture
def make_driver(make_driver: MakeDriver, backend: str) -> MakeDriver:
    return partial(make_driver, backend=backend)


def random_tokens(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(3, VOCAB_SIZE, count).tolist()


def attentions(
    model: PreTrainedModel, tokens: Sequence[int], mask: NDArray[np.bool_] | None = None
) -> Floats:
    """Probabilities ``[L, T, T]`` of transformers, averaged over heads; ``mask``: which token sees
    which."""
    extra = {}
    if mask is not None:
        bias = torch.zeros(1, 1, *mask.shape)
        hidden = torch.finfo(torch.float32).min
        extra["attention_mask"] = bias.masked_fill(~torch.from_numpy(mask), hidden)
    with torch.inference_mode():
        found = model(torch.tensor([list(tokens)]), output_attentions=True, **extra).attentions
    return np.stack([layer[0].double().mean(dim=0).numpy() for layer in found])


def ask(
    driver: Driver, rows: Sequence[Row], scored: Sequence[int], **fields: object
) -> BatchResult:
    forward = forward_rows(rows)
    forward.attention_rows = i32(scored)
    return driver.send(forward=forward, **fields)


def mass_of(result: BatchResult, index: int) -> Floats:
    start, stop = result.attention_starts[index : index + 2]
    return result.attention_mass[:, start:stop].astype(np.float64)


def blocks_of(driver: Driver, num_tokens: int, seed: int = 1) -> list[int]:
    count = driver.num_pages(num_tokens)
    return np.random.default_rng(seed).permutation(96)[:count].tolist()


def chunk(driver: Driver, blocks: Sequence[int], tokens: Sequence[int], start: int) -> Row:
    span = range(start, start + len(tokens))
    return Row(tokens, 0, span, driver.flat(blocks, span))


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("name", FAMILIES)
def test_chunks_give_the_mass_of_transformers(
    name: str, page_size: int, make_driver: MakeDriver, reference: Reference
) -> None:
    driver = make_driver(name, page_size=page_size)
    assert Trait.SCORES in driver.info.traits
    tokens = random_tokens(NUM_TOKENS)
    wanted = attentions(reference(name), tokens)
    blocks = blocks_of(driver, NUM_TOKENS)
    num_slots = len(blocks) * page_size
    for start, stop in ((0, 9), (9, 22), (22, 23)):
        table = driver.write_table(0, blocks, range(stop))
        row = chunk(driver, blocks, tokens[start:stop], start)
        mass = mass_of(ask(driver, [row], [0], operations=[table]), 0)
        assert mass.shape == (driver.info.num_layers, num_slots + stop - start)
        expected = wanted[:, start:stop].sum(axis=1)
        np.testing.assert_allclose(mass[:, :start], expected[:, :start], atol=2e-5)
        assert not mass[:, start:num_slots].any()
        np.testing.assert_allclose(mass[:, num_slots:], expected[:, start:stop], atol=2e-5)


def test_explicit_masks_and_hidden_slots(make_driver: MakeDriver, reference: Reference) -> None:
    """Slots hidden by the table's bits regardless of the mask, slots hidden by the mask, and one
    token that sees only itself."""
    driver = make_driver("llama")
    tokens = random_tokens(14)
    sees = np.tril(np.ones((14, 14), np.bool_))
    sees[10:, [2, 5]] = False
    sees[11, 3:9] = False
    sees[12] = np.arange(14) == 12
    wanted = attentions(reference("llama"), tokens, sees)[:, 10:].sum(axis=1)
    blocks = blocks_of(driver, 14)
    driver.good(
        operations=[driver.write_table(0, blocks, range(10))],
        forward=forward_rows([chunk(driver, blocks, tokens[:10], 0)]),
    )
    num_slots = len(blocks) * driver.page_size
    mask = np.ones((4, num_slots + 4), np.bool_)
    mask[:, :10] = sees[10:, :10]
    mask[:, [2, 5]] = True
    mask[:, num_slots:] = sees[10:, 10:]
    table = driver.write_table(0, blocks, [slot for slot in range(10) if slot not in (2, 5)])
    row = Row(tokens[10:], 0, range(10, 14), mask=mask)
    mass = mass_of(ask(driver, [row], [0], operations=[table]), 0)
    assert not mass[:, [2, 5]].any()
    np.testing.assert_allclose(mass[:, :10], wanted[:, :10], atol=2e-5)
    np.testing.assert_allclose(mass[:, num_slots:], wanted[:, 10:], atol=2e-5)


def test_rows_that_do_not_ask_and_hidden_states_stay_as_they_are(make_driver: MakeDriver) -> None:
    driver = make_driver("qwen3")
    rows = [Row(random_tokens(count, seed), -1) for seed, count in enumerate((5, 17, 1, 9))]
    num_tokens = sum(len(row.tokens) for row in rows)
    dists = DistRows(embeds=i32(range(num_tokens)), top_k=i32([8] * num_tokens))
    plain = driver.send(forward=forward_rows(rows), dists=dists)
    asked = ask(driver, rows, [1, 3], dists=dists)
    assert np.array_equal(plain.dist_probs, asked.dist_probs)
    assert asked.attention_starts.tolist() == [0, 17, 26]
    alone = [mass_of(ask(driver, [row], [0]), 0) for row in rows]
    np.testing.assert_allclose(mass_of(asked, 0), alone[1], atol=1e-6)
    np.testing.assert_allclose(mass_of(asked, 1), alone[3], atol=1e-6)
    assert plain.attention_starts.size == plain.attention_mass.size == 0


def test_a_row_sees_what_an_earlier_row_of_its_message_writes(
    make_driver: MakeDriver, reference: Reference
) -> None:
    driver = make_driver("llama")
    tokens = random_tokens(12)
    wanted = attentions(reference("llama"), tokens)[:, 8:].sum(axis=1)
    blocks = blocks_of(driver, 12)
    rows = [chunk(driver, blocks, tokens[:8], 0), Row(tokens[8:], 0, range(8, 12))]
    table = driver.write_table(0, blocks, range(8))
    mass = mass_of(ask(driver, rows, [1], operations=[table]), 0)
    np.testing.assert_allclose(np.delete(mass, range(8, 12), axis=1), wanted, atol=2e-5)


def test_one_block_in_two_entries_counts_in_each(make_driver: MakeDriver) -> None:
    """Pages share blocks: a slot that is in a table twice has its mass in both entries."""
    driver = make_driver("llama")
    tokens = random_tokens(5)
    driver.good(
        operations=[driver.write_table(0, [7], range(4))],
        forward=forward_rows([chunk(driver, [7], tokens[:4], 0)]),
    )
    table = driver.write_table(0, [7, 9, 7], [*range(4), *range(8, 12)])
    mass = mass_of(ask(driver, [Row(tokens[4:], 0, [4])], [0], operations=[table]), 0)
    np.testing.assert_allclose(mass[:, :4], mass[:, 8:12], rtol=1e-5)
    np.testing.assert_allclose(mass.sum(axis=1), 1.0, rtol=1e-5)
    assert mass[:, :4].all()


def test_a_bad_row_has_no_columns(make_driver: MakeDriver) -> None:
    driver = make_driver("llama")
    rows = [Row([5, 6]), Row([VOCAB_SIZE]), Row([7])]
    result = ask(driver, rows, [0, 1, 2])
    assert [(one.stage, one.index) for one in result.failures] == [("forward", 1)]
    assert result.attention_starts.tolist() == [0, 2, 2, 3]
    np.testing.assert_allclose(mass_of(result, 2), 1.0, rtol=1e-6)


@pytest.mark.parametrize("name", ["llama", "gpt-oss"])
def test_long_rows_in_bfloat16(name: str, make_driver: MakeDriver, reference: Reference) -> None:
    """Uses the cache's own type and more tiles than one chunk of the kernel has."""
    driver = make_driver(
        name, dtype="bfloat16", page_size=16, max_batch_tokens=512, max_model_len=512
    )
    tokens = random_tokens(400)
    blocks = blocks_of(driver, 400)
    first = driver.write_table(0, blocks, range(399))
    row = chunk(driver, blocks, tokens[:399], 0)
    driver.good(operations=[first], forward=forward_rows([row], outputs=False))
    mass = mass_of(ask(driver, [Row(tokens[399:], 0, [399])], [0]), 0)
    wanted = attentions(reference(name), tokens)[:, 399]
    differences = np.abs(mass[:, :399] - wanted[:, :399]).sum(axis=1)
    assert (differences < 0.05).all(), differences


def test_an_engine_without_the_trait_refuses_the_row_alone(
    make_driver: MakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    for runner in (TorchRunner, NativeRunner):
        monkeypatch.setattr(runner, "serves_scores", False)
    driver = make_driver("llama")
    assert Trait.SCORES not in driver.info.traits
    result = ask(driver, [Row([5, 6]), Row([7])], [1])
    assert [(one.stage, one.index) for one in result.failures] == [("forward", 1)]
    with pytest.raises(InvalidArgument, match="attention scores"):
        raise from_record(result.failures[0].error)
