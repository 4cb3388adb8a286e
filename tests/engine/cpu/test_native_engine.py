"""Whole engines on the kernel: the loop in one call, batch invariance, int8 weights."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from engine_driver import Driver, Row

from quire.core.decoding import Processor, SamplerSpec, StopSpec
from quire.engine.cpu.library import INSTRUCTION_SETS, kernel_report
from quire.engine.cpu.native_runner import NativeRunner

PROBLEMS = {state.isa: state.problem for state in kernel_report().states}
MakeDriver = Callable[..., Driver]

SAMPLERS = [
    SamplerSpec(),
    SamplerSpec(processors=(Processor("temperature", {"temperature": 1.5}),), greedy=False, seed=4),
    SamplerSpec(processors=(Processor("top_k", {"k": 9}),), greedy=False, seed=5),
    SamplerSpec(processors=(Processor("top_p", {"p": 0.7}),), greedy=False, seed=6),
]


@pytest.fixture(params=INSTRUCTION_SETS)
def isa(request: pytest.FixtureRequest) -> str:
    if PROBLEMS[request.param] is not None:
        pytest.skip(f"{request.param}: {PROBLEMS[request.param]}")
    return str(request.param)


def tokens(count: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(3, 300, count).tolist()


def decode(driver: Driver) -> list[tuple[list[int], object, int]]:
    started = []
    for number, sampler in enumerate(SAMPLERS):
        stop = StopSpec(max_tokens=9 + number, min_tokens=4, token_ids=(tuple(range(100))))
        blocks = range(number * 8, number * 8 + 8)
        prompt = tokens(5 + number, number)
        started.append(driver.open(number, prompt, list(blocks), sampler=sampler, stop=stop))
    outputs = driver.decode(started, num_steps=5)
    return [(outputs[n].tokens, outputs[n].end, outputs[n].matched) for n in range(len(SAMPLERS))]


def test_the_fused_loop_equals_single_steps(
    isa: str, make_driver: MakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    fused = decode(make_driver(kernel_isa=isa))
    calls = []
    monkeypatch.setattr(NativeRunner, "decode_fused", lambda self, rows: calls.append(rows))
    assert decode(make_driver(kernel_isa=isa)) == fused
    assert calls


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_batch_invariance(isa: str, dtype: str, make_driver: MakeDriver) -> None:
    """Chunks and batches of all kinds give the same bits."""
    driver = make_driver(
        "qwen3", kernel_isa=isa, dtype=dtype, batch_invariant=True, page_size=16, num_threads=2
    )
    prompt, blocks = tokens(60, 1), [3, 1, 7, 5]
    whole = driver.logprobs([Row(prompt)])
    for start, end in [(0, 33), (33, 34), (34, 60)]:
        span = range(start, end)
        row = Row(prompt[start:end], 0, span, driver.flat(blocks, span))
        others = [Row(tokens(n, n)) for n in (1, 17)]
        table = driver.write_table(0, blocks, range(end))
        part = driver.logprobs([others[0], row, others[1]], [table])
        assert np.array_equal(part[1 : 1 + end - start], whole[start:end])


@pytest.mark.parametrize("one_sees_another", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rows_of_a_large_batch_equal_each_alone(
    isa: str, dtype: str, one_sees_another: bool, make_driver: MakeDriver
) -> None:
    """Includes rows that see what another row writes in the same step."""
    driver = make_driver(
        "qwen3", kernel_isa=isa, dtype=dtype, batch_invariant=True, page_size=16, num_threads=2
    )
    lengths = [1 + number % 6 for number in range(18)]
    prompts, rows, tables = [], [], []
    for number, length in enumerate(lengths):
        slots = driver.flat([number], range(length + 1))
        prompts.append(Row(tokens(length, number), number, range(length), slots[:length]))
        rows.append(Row([number + 3], number, [length], slots[length:]))
        tables.append(driver.write_table(number, [number], range(length + 1)))
    driver.logprobs(prompts, tables)
    if one_sees_another:
        seen = [*range(lengths[0] + 1), 16]
        tables.append(driver.write_table(len(rows), [0, 18], seen))
        rows.append(Row([7], len(rows), [16], driver.flat([0, 18], [16])))
    together = driver.logprobs(rows, tables[len(prompts) :])
    for row, expected in zip(rows, together, strict=True):
        assert np.array_equal(driver.logprobs([row])[0], expected)


def test_int8_weights_stay_close(isa: str, make_driver: MakeDriver) -> None:
    exact, rounded = make_driver(kernel_isa=isa), make_driver(kernel_isa=isa, weights="int8")
    assert rounded.info.extra["weights"] == "int8"
    row = Row(tokens(40, 2))
    difference = np.abs(rounded.logprobs([row]) - exact.logprobs([row]))
    assert 0 < difference.mean() < 0.1
