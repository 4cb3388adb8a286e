"""The engine's log probabilities equal transformers', for any layout of pages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pytest
import torch
from engine_checkpoints import RECIPES, VOCAB_SIZE
from engine_driver import Driver, Row, forward_rows, i32
from numpy.typing import NDArray
from transformers import PreTrainedModel

from quire.core.batch import CopySlots, SwapIn, SwapOut

TOLERANCE = 1e-4
NUM_TOKENS = 23

MakeDriver = Callable[..., Driver]
Reference = Callable[[str], PreTrainedModel]


@pytest.fixture
def make_driver(make_driver: MakeDriver, backend: str) -> MakeDriver:
    """Drivers of engines on every backend."""
    return partial(make_driver, backend=backend)


def random_tokens(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(3, VOCAB_SIZE, count).tolist()


def expected(
    model: PreTrainedModel,
    tokens: Sequence[int],
    positions: Sequence[int] | None = None,
    mask: NDArray[np.bool_] | None = None,
) -> NDArray[np.float64]:
    """Log probabilities of transformers; ``mask`` [T, T] is True where attention is allowed."""
    extra: dict[str, torch.Tensor] = {}
    if positions is not None:
        extra["position_ids"] = torch.tensor([list(positions)])
    if mask is not None:
        bias = torch.zeros(1, 1, *mask.shape)
        extra["attention_mask"] = bias.masked_fill(
            ~torch.from_numpy(mask), torch.finfo(torch.float32).min
        )
    with torch.inference_mode():
        logits = model(torch.tensor([list(tokens)]), **extra).logits[0]
    return logits.double().log_softmax(-1).numpy()


def assert_close(actual: NDArray[np.float64], wanted: NDArray[np.float64]) -> None:
    assert np.abs(actual - wanted).max() <= TOLERANCE


def shuffled_blocks(driver: Driver, num_tokens: int, seed: int = 1) -> list[int]:
    count = driver.num_pages(num_tokens)
    return (
        np.random.default_rng(seed)
        .permutation(driver.info.pool.groups[0].num_blocks)[:count]
        .tolist()
    )


def chunk(driver: Driver, blocks: Sequence[int], tokens: Sequence[int], start: int) -> Row:
    span = range(start, start + len(tokens))
    return Row(tokens, 0, span, driver.flat(blocks, span))


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("name", RECIPES)
def test_prefill_chunks_and_decode(
    name: str, page_size: int, make_driver: MakeDriver, reference: Reference
) -> None:
    driver = make_driver(name, page_size=page_size)
    tokens = random_tokens(NUM_TOKENS)
    wanted = expected(reference(name), tokens)
    whole = driver.logprobs([Row(tokens)])
    assert_close(whole, wanted)
    blocks = shuffled_blocks(driver, NUM_TOKENS)
    for start, end in [(0, 5), (5, 6), (6, 17), (17, 18), (18, 19), (19, NUM_TOKENS)]:
        table = driver.write_table(0, blocks, range(end))
        part = driver.logprobs([chunk(driver, blocks, tokens[start:end], start)], [table])
        assert_close(part, wanted[start:end])


def fill(driver: Driver, blocks: Sequence[int], tokens: Sequence[int], table: int = 0) -> None:
    span = range(len(tokens))
    operation = driver.write_table(table, blocks, span)
    driver.logprobs([Row(tokens, table, span, driver.flat(blocks, span))], [operation])


@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_rows_of_many_lengths_in_one_batch(
    page_size: int, make_driver: MakeDriver, reference: Reference
) -> None:
    driver = make_driver("qwen3", page_size=page_size, max_batch_tokens=256)
    lengths = [1, 9, 2, 30, 1, 5]
    rows, tables, wanted, block = [], [], [], 0
    for number, length in enumerate(lengths):
        tokens = random_tokens(length, number)
        count = driver.num_pages(length)
        blocks = list(range(block, block + count))
        block += count
        tables.append(driver.write_table(number, blocks, range(length)))
        rows.append(Row(tokens, number, range(length), driver.flat(blocks, range(length))))
        wanted.append(expected(reference("qwen3"), tokens))
    assert_close(driver.logprobs(rows, tables), np.concatenate(wanted))


@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_reordered_pages(page_size: int, make_driver: MakeDriver, reference: Reference) -> None:
    driver = make_driver(page_size=page_size)
    tokens = random_tokens(NUM_TOKENS)
    blocks = shuffled_blocks(driver, NUM_TOKENS - 1)
    fill(driver, blocks, tokens[:-1])
    order = np.random.default_rng(3).permutation(len(blocks))
    slots = [
        int(np.flatnonzero(order == s // page_size)[0]) * page_size + s % page_size
        for s in range(NUM_TOKENS - 1)
    ]
    table = driver.write_table(1, [blocks[i] for i in order], slots)
    last = Row(tokens[-1:], 1, [NUM_TOKENS - 1])
    assert_close(driver.logprobs([last], [table]), expected(reference("llama"), tokens)[-1:])


@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_gapped_pages_and_positions(
    page_size: int, make_driver: MakeDriver, reference: Reference
) -> None:
    """Holes within pages, and positions with jumps: missing slots are not seen."""
    driver = make_driver(page_size=page_size)
    tokens = random_tokens(NUM_TOKENS)
    kept = [i for i in range(NUM_TOKENS - 1) if i % 5 != 2]
    places = [3 + 2 * rank for rank in range(len(kept))]
    blocks = shuffled_blocks(driver, places[-1] + 1)
    positions = [i * 3 for i in kept]
    table = driver.write_table(0, blocks, places)
    row = Row([tokens[i] for i in kept], 0, positions, driver.flat(blocks, places))
    first = driver.logprobs([row], [table])
    last = driver.logprobs([Row(tokens[-1:], 0, [NUM_TOKENS * 3])])
    wanted = expected(reference("llama"), [*row.tokens, tokens[-1]], [*positions, NUM_TOKENS * 3])
    assert_close(np.concatenate([first, last]), wanted)


def test_tokens_see_lower_positions_only_whatever_the_list_order(
    make_driver: MakeDriver, reference: Reference
) -> None:
    driver = make_driver()
    tokens = random_tokens(12)
    blocks = [5, 2, 9]
    fill(driver, blocks, tokens)
    middle = driver.logprobs([Row([tokens[6]], 0, [6])])
    assert_close(middle, expected(reference("llama"), tokens[:7])[-1:])
    backwards = driver.logprobs([Row(tokens[::-1], -1, range(11, -1, -1))])
    assert_close(backwards[::-1], expected(reference("llama"), tokens))


def test_slots_hidden_by_the_holder_are_not_seen(
    make_driver: MakeDriver, reference: Reference
) -> None:
    driver = make_driver()
    tokens = random_tokens(12)
    blocks = [5, 2, 9]
    fill(driver, blocks, tokens[:11])
    shown = [i for i in range(11) if i not in (0, 4, 5, 10)]
    masked = driver.write_table(1, blocks, shown)
    mask = np.tril(np.ones((12, 12), bool))
    mask[11, [0, 4, 5, 10]] = False
    wanted = expected(reference("llama"), tokens, mask=mask)
    assert_close(driver.logprobs([Row(tokens[11:], 1, [11])], [masked]), wanted[11:])


@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_forked_pages_are_shared_and_copied(
    page_size: int, make_driver: MakeDriver, reference: Reference
) -> None:
    """Two holders share a prefix; the page both append to is copied in the same message."""
    driver = make_driver(page_size=page_size)
    prefix = random_tokens(18)
    blocks = shuffled_blocks(driver, 18 + 5)
    fill(driver, blocks, prefix)
    free = [b for b in range(90) if b not in blocks]
    shared = 18 // page_size
    own = free[: driver.num_pages(18 + 5) - shared]
    forked = [*blocks[:shared], *own]
    copied = range(shared * page_size, 18)
    tables = [
        CopySlots(source=i32(driver.flat(blocks, copied)), target=i32(driver.flat(forked, copied))),
        driver.write_table(0, blocks, range(18 + 5)),
        driver.write_table(1, forked, range(18 + 5)),
    ]
    ends = [random_tokens(5, seed) for seed in (11, 12)]
    span = range(18, 23)
    rows = [
        Row(end, table, span, driver.flat(held, span))
        for table, (end, held) in enumerate(zip(ends, (blocks, forked), strict=True))
    ]
    wanted = [expected(reference("llama"), prefix + end)[18:] for end in ends]
    assert_close(driver.logprobs(rows, tables), np.concatenate(wanted))


def test_swapped_pages_come_back_elsewhere(make_driver: MakeDriver, reference: Reference) -> None:
    driver = make_driver("qwen2")
    tokens = random_tokens(NUM_TOKENS)
    blocks, hosts, later = [0, 1, 2, 3, 4, 5], [7, 3, 9, 0, 2, 5], [40, 41, 44, 43, 42, 45]
    fill(driver, blocks, tokens[:-1])
    transfers = i32(range(6))
    out = SwapOut(transfers=transfers, blocks=i32(blocks), host_blocks=i32(hosts))
    driver.good(operations=[out])
    driver.end_transfers()
    fill(driver, blocks, random_tokens(NUM_TOKENS, 99), table=3)
    back = SwapIn(transfers=transfers, host_blocks=i32(hosts), blocks=i32(later))
    driver.good(operations=[back])
    driver.end_transfers()
    operations = [driver.write_table(1, later, range(NUM_TOKENS - 1))]
    last = driver.logprobs([Row(tokens[-1:], 1, [NUM_TOKENS - 1])], operations)
    assert_close(last, expected(reference("qwen2"), tokens)[-1:])


def test_a_later_row_sees_what_an_earlier_row_of_the_message_writes(
    make_driver: MakeDriver, reference: Reference
) -> None:
    driver = make_driver()
    tokens = random_tokens(NUM_TOKENS)
    blocks = shuffled_blocks(driver, NUM_TOKENS)
    rows = [
        chunk(driver, blocks, tokens[start:end], start)
        for start, end in [(0, 7), (7, 8), (8, 20), (20, NUM_TOKENS)]
    ]
    logprobs = driver.logprobs(rows, [driver.write_table(0, blocks, range(NUM_TOKENS))])
    assert_close(logprobs, expected(reference("llama"), tokens))


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_explicit_masks(
    name: str, page_size: int, make_driver: MakeDriver, reference: Reference
) -> None:
    """A random mask over table slots and new tokens, which also shows higher positions."""
    driver = make_driver(name, page_size=page_size)
    tokens = random_tokens(20)
    num_old = 13
    blocks = shuffled_blocks(driver, num_old)
    fill(driver, blocks, tokens[:num_old])
    random = np.random.default_rng(5)
    shown = random.random((7, num_old + 7)) < 0.6
    shown[np.arange(7), num_old + np.arange(7)] = True
    num_slots = len(blocks) * page_size
    mask = np.ones((7, num_slots + 7), bool)
    mask[:, :num_old], mask[:, num_slots:] = shown[:, :num_old], shown[:, num_old:]
    row = Row(tokens[num_old:], 0, range(num_old, 20), mask=mask)
    full = np.tril(np.ones((20, 20), bool))
    full[num_old:] = shown
    wanted = expected(reference(name), tokens, mask=full)[num_old:]
    other = Row(random_tokens(3, 4))
    logprobs = driver.logprobs([other, row])
    assert_close(logprobs[3:], wanted)
    assert_close(logprobs[:3], expected(reference(name), other.tokens))


def test_an_explicit_mask_never_shows_a_hidden_slot(make_driver: MakeDriver) -> None:
    driver = make_driver()
    tokens = random_tokens(8)
    fill(driver, [0, 1], tokens)
    row = Row([5], 1, [8], mask=np.ones((1, 9), bool))
    seen = driver.logprobs([row], [driver.write_table(1, [0, 1], range(8))])
    hidden = driver.logprobs([row], [driver.write_table(1, [0, 1], [0, 1, 2, 5, 6, 7])])
    row.mask = np.array([[1, 1, 1, 0, 0, 1, 1, 1, 1]], bool)
    masked = driver.logprobs([row], [driver.write_table(1, [0, 1], range(8))])
    assert_close(hidden, masked)
    assert np.abs(seen - hidden).max() > 1e-3


def test_an_explicit_mask_may_show_higher_positions(
    make_driver: MakeDriver, reference: Reference
) -> None:
    """The token at position 3 sees all of a table at positions 0 to 7 but its own."""
    driver = make_driver()
    tokens = random_tokens(8)
    fill(driver, [0, 1], tokens)
    shown = np.array([[1, 1, 1, 0, 1, 1, 1, 1, 1]], bool)
    full = np.tril(np.ones((9, 9), bool))
    full[8] = shown[0]
    wanted = expected(reference("llama"), [*tokens, 5], [*range(8), 3], mask=full)[8:]
    assert_close(driver.logprobs([Row([5], 0, [3], mask=shown)]), wanted)


def test_a_token_that_sees_nothing_attends_to_nothing(make_driver: MakeDriver) -> None:
    """Its attention output is zero, so the rest of the table does not matter."""
    driver = make_driver()
    results = []
    for seed in (1, 2):
        fill(driver, [0, 1], random_tokens(8, seed))
        mask = np.zeros((2, 10), bool)
        mask[1, 9] = True
        results.append(driver.logprobs([Row([5, 6], 0, [8, 9], mask=mask)]))
    assert np.isfinite(results[0]).all()
    assert_close(results[0], results[1])


def test_non_finite_memory_of_others_does_not_leak(
    make_driver: MakeDriver, reference: Reference
) -> None:
    """Padding is never multiplied with other holders' blocks, adjacent or not."""
    driver = make_driver()
    foreign = [*range(10), 48, 49, 51, 59, 63]
    step = driver.engine._step  # type: ignore[attr-defined]
    with torch.inference_mode():
        step._embeds.write(i32([0]), torch.full((1, driver.info.hidden_size), torch.nan))
    poison = forward_rows([Row([0] * 60, slots=driver.flat(foreign, range(60)))], outputs=False)
    poison.embeds = i32([0] * 60)
    driver.good(forward=poison)
    tokens = [random_tokens(n, n) for n in (3, 11)]
    blocks = [[50], [60, 61, 62]]
    tables = [driver.write_table(i, blocks[i], range(len(tokens[i]))) for i in (0, 1)]
    rows = [
        Row(tokens[i], i, range(len(tokens[i])), driver.flat(blocks[i], range(len(tokens[i]))))
        for i in (0, 1)
    ]
    wanted = [expected(reference("llama"), part) for part in tokens]
    assert_close(driver.logprobs(rows, tables), np.concatenate(wanted))
