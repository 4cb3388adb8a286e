"""Equal sequences of a tenant are computed once, within a bound."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.core.batch import F32
from quire.core.calls import SPARE_PRIORITY
from quire.core.ids import TenantId
from quire.engine.encoders.text import EncodedText
from quire.node.encoders import kept_rows
from quire.node.encoders.aside import MANY_SEQUENCES, MANY_TOKENS
from quire.node.encoders.kept_rows import KeptRows, KeptRowsStatistics

ANN, BOB = TenantId("ann"), TenantId("bob")
ROW_BYTES = 4 + 200


def text(number: int, kind: int = 0) -> EncodedText:
    return EncodedText((2, number, 3), (0, kind, 0))


class Encoder:
    """A row is the sum of its tokens and types. ``gate``: computes nothing until it is set."""

    def __init__(self, *, is_open: bool = True) -> None:
        self.asked: list[list[EncodedText]] = []
        self.gate = asyncio.Event()
        self.errors: list[Exception] = []
        if is_open:
            self.gate.set()

    async def __call__(self, sequences: Sequence[EncodedText]) -> F32:
        self.asked.append(list(sequences))
        await self.gate.wait()
        if self.errors:
            raise self.errors.pop(0)
        return np.asarray([[sum(one.tokens) + sum(one.types)] for one in sequences], np.float32)


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_what_is_kept_is_not_computed_again() -> None:
    kept, encoder = KeptRows(1 << 20), Encoder()
    first = await kept.rows(ANN, "e", [text(1), text(2), text(1)], encoder)
    again = await kept.rows(ANN, "e", [text(2), text(3), text(1)], encoder)
    assert first[:, 0].tolist() == [6, 7, 6]
    assert again[:, 0].tolist() == [7, 8, 6]
    assert encoder.asked == [[text(1), text(2)], [text(3)]]


async def test_tenants_encoders_and_types_are_told_apart() -> None:
    kept, encoder = KeptRows(1 << 20), Encoder()
    for tenant, name, one in (
        (ANN, "e", text(1)),
        (BOB, "e", text(1)),
        (ANN, "f", text(1)),
        (ANN, "e", text(1, kind=1)),
    ):
        await kept.rows(tenant, name, [one], encoder)
    assert len(encoder.asked) == 4


async def test_who_comes_meanwhile_waits_for_the_row() -> None:
    kept, encoder = KeptRows(0), Encoder(is_open=False)
    asking = [
        asyncio.create_task(kept.rows(ANN, "e", sequences, encoder))
        for sequences in ([text(1), text(2)], [text(2), text(3)], [text(1)])
    ]
    other = asyncio.create_task(kept.rows(BOB, "e", [text(1)], encoder))
    await settled()
    assert encoder.asked == [[text(1), text(2)], [text(3)], [text(1)]]
    encoder.gate.set()
    rows = [(await one)[:, 0].tolist() for one in asking]
    assert rows == [[6, 7], [7, 8], [6]]
    assert (await other).tolist() == [[6]]
    assert kept.statistics() == KeptRowsStatistics(0, 2, 4, 0)
    assert kept.statistics().num_bytes == 0
    await kept.rows(ANN, "e", [text(1)], encoder)
    assert len(encoder.asked) == 4  # nothing was kept


async def test_nobody_waits_for_a_call_of_a_lower_priority() -> None:
    """Such a call may wait for as long as the encoder has anything else to do."""
    kept, spare, urgent = KeptRows(1 << 20), Encoder(is_open=False), Encoder()
    first = asyncio.create_task(kept.rows(ANN, "e", [text(1), text(2)], spare, SPARE_PRIORITY))
    await settled()
    async with asyncio.timeout(60):
        assert (await kept.rows(ANN, "e", [text(1)], urgent)).tolist() == [[6]]
    second = asyncio.create_task(kept.rows(ANN, "e", [text(2)], urgent, SPARE_PRIORITY))
    await settled()
    assert not second.done(), "it is of no higher priority"
    spare.gate.set()
    assert (await first)[:, 0].tolist() == [6, 7]
    assert (await second).tolist() == [[7]]
    assert (spare.asked, urgent.asked) == ([[text(1), text(2)]], [[text(1)]])
    assert not kept._under_way


async def test_a_row_that_was_found_is_counted_once() -> None:
    kept, encoder = KeptRows(1 << 20), Encoder()
    await kept.rows(ANN, "e", [text(1)], encoder)
    encoder.gate.clear()
    first = asyncio.create_task(kept.rows(ANN, "e", [text(2)], encoder))
    await settled()
    second = asyncio.create_task(kept.rows(ANN, "e", [text(1), text(2)], encoder))
    await settled()
    first.cancel()
    encoder.gate.set()
    assert (await second)[:, 0].tolist() == [6, 7]
    assert kept.statistics().num_found == 1


@pytest.mark.parametrize("how", ["fails", "is cancelled"])
async def test_who_waits_goes_on_when_the_first_one_does_not(how: str) -> None:
    kept, encoder = KeptRows(1 << 20), Encoder(is_open=False)
    first = asyncio.create_task(kept.rows(ANN, "e", [text(1)], encoder))
    await settled()
    second = asyncio.create_task(kept.rows(ANN, "e", [text(1)], encoder))
    await settled()
    if how == "fails":
        encoder.errors.append(ValueError("no"))
    else:
        first.cancel()
    encoder.gate.set()
    with pytest.raises((ValueError, asyncio.CancelledError)):
        await first
    assert (await second).tolist() == [[6]]
    assert encoder.asked == [[text(1)], [text(1)]]


async def test_who_waits_and_is_cancelled_disturbs_nobody() -> None:
    kept, encoder = KeptRows(1 << 20), Encoder(is_open=False)
    first = asyncio.create_task(kept.rows(ANN, "e", [text(1)], encoder))
    await settled()
    second = asyncio.create_task(kept.rows(ANN, "e", [text(1)], encoder))
    await settled()
    second.cancel()
    await settled()
    encoder.gate.set()
    assert (await first).tolist() == [[6]]


async def test_the_row_that_was_not_used_for_longest_goes() -> None:
    kept, encoder = KeptRows(2 * ROW_BYTES), Encoder()
    for number in (1, 2, 1, 3):
        await kept.rows(ANN, "e", [text(number)], encoder)
    encoder.asked.clear()
    await kept.rows(ANN, "e", [text(1), text(3), text(2)], encoder)
    assert encoder.asked == [[text(2)]]


async def test_the_tenant_that_has_most_gives_way() -> None:
    kept, encoder = KeptRows(3 * ROW_BYTES), Encoder()
    await kept.rows(BOB, "e", [text(1)], encoder)
    for number in range(10):
        await kept.rows(ANN, "e", [text(number)], encoder)
    encoder.asked.clear()
    await kept.rows(BOB, "e", [text(1)], encoder)
    assert encoder.asked == []


@given(st.lists(st.tuples(st.sampled_from([ANN, BOB]), st.integers(0, 9)), max_size=40))
def test_rows_are_right_and_bounded(asked: list[tuple[TenantId, int]]) -> None:
    async def run() -> None:
        kept, encoder = KeptRows(4 * ROW_BYTES), Encoder()
        for tenant, number in asked:
            rows = await kept.rows(tenant, "e", [text(number)], encoder)
            assert rows.tolist() == [[5 + number]]
            assert kept.statistics().num_bytes <= 4 * ROW_BYTES

    asyncio.run(run())


@pytest.mark.parametrize(
    ("num", "num_more", "aside"),
    [(MANY_SEQUENCES - 1, 0, False), (MANY_SEQUENCES, 0, True), (2, MANY_TOKENS, True)],
)
async def test_many_sequences_are_read_and_joined_beside_the_loop(
    num: int, num_more: int, aside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop is every client's: 40,000 chunks would hold it for a second."""
    used: list[tuple[str, bool]] = []
    loop_thread = threading.get_ident()

    def watched(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            used.append((name, threading.get_ident() != loop_thread))
            return function(*args)

        return call

    for name in ("_keys", "_stacked"):
        monkeypatch.setattr(kept_rows, name, watched(name, getattr(kept_rows, name)))
    more = (0,) * num_more
    texts = [EncodedText((2, one, 3, *more), (0, 0, 0, *more)) for one in range(num)]
    rows = await KeptRows(1 << 20).rows(ANN, "e", texts, Encoder())
    assert rows[:, 0].tolist() == [5 + one for one in range(num)]
    assert used == [("_keys", aside), ("_stacked", aside)]
