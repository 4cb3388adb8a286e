"""Whole engines over the CUDA backend equal those over the PyTorch backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from cuda_engines import REFERENCE, SETTINGS, AnywhereBackend, assert_near, cuda_backend
from engine_driver import Driver, Output, Row, i32
from triton_mode import runs_triton

from quire.core.batch import RepositionSlots
from quire.core.batch_result import SequenceEnd
from quire.core.decoding import Processor, SamplerSpec, StopSpec
from quire.engine.cuda.decode_loop import DecodeLoop
from quire.engine.cuda.static_attention import StaticAttention

pytestmark = [runs_triton, pytest.mark.timeout(600)]

__all__ = ["cuda_backend"]

MakeDriver = Callable[..., Driver]
PROMPTS = ([5, 9, 11, 40, 41, 42, 7], [100, 101], [60, 61, 62, 63, 64])


_PARAMETERS = {
    "top_k": "k", "top_p": "p", "min_p": "p", "frequency_penalty": "penalty",
    "presence_penalty": "penalty",
}  # fmt: skip


def drawn(seed: int, **params: float) -> SamplerSpec:
    processors = tuple(
        Processor(name, {_PARAMETERS.get(name, name): value}) for name, value in params.items()
    )
    return SamplerSpec(processors=processors, greedy=False, seed=seed)


def run(driver: Driver, num_steps: int, **options: Any) -> dict[int, Output]:
    """Decode the prompts, each in its own pages."""
    started = []
    for number, prompt in enumerate(PROMPTS):
        blocks = range(10 * number, 10 * number + 8)
        chosen = {name: values[number] for name, values in options.items()}
        started.append(driver.open(number, prompt, blocks, **chosen))
    return driver.decode(started, num_steps=num_steps)


@pytest.mark.parametrize("model", ["llama", "qwen3-moe", "gpt-oss", "gemma2", "mistral"])
def test_logits(model: str, make_driver: MakeDriver, cuda_backend: AnywhereBackend) -> None:
    def logprobs(driver: Driver) -> np.ndarray[Any, Any]:
        mask = np.tril(np.ones((4, 12), np.bool_), 8)
        mask[2, 3] = False
        table = driver.write_table(0, [3, 1], [0, 1, 2, 5, 6])
        written = Row(PROMPTS[0], positions=range(7), slots=driver.flat([3, 1], range(7)))
        driver.logprobs([written])
        rows = [
            Row([4, 8, 15, 16], table=0, positions=[7, 9, 8, 10]),
            Row([23], table=0, positions=[20]),
            Row([1, 2, 3, 4], table=0, positions=[30, 31, 32, 33], mask=mask),
            Row(range(20, 40)),
        ]
        return driver.logprobs(rows, [table])

    expected = logprobs(make_driver(model, **{**REFERENCE, "max_batch_tokens": 64}))
    assert_near(logprobs(make_driver(model, **{**SETTINGS, "max_batch_tokens": 64})), expected)


@pytest.mark.parametrize("model", ["llama", "gemma3", "mistral"])
def test_repositioned_slots(
    model: str, make_driver: MakeDriver, cuda_backend: AnywhereBackend
) -> None:
    """Windows go by the positions that the device has of its slots."""

    def logprobs(driver: Driver) -> np.ndarray[Any, Any]:
        slots = driver.flat([3, 1], range(7))
        table = driver.write_table(0, [3, 1], range(7))
        driver.logprobs([Row(PROMPTS[0], positions=range(7), slots=slots)])
        away = RepositionSlots(slots=i32(slots[2:]), positions=i32(range(20, 25)))
        rows = [Row([4, 8, 15], table=0, positions=[25, 26, 27]), Row([4], table=0, positions=[21])]
        return driver.logprobs(rows, [away, table])

    expected = logprobs(make_driver(model, **REFERENCE))
    assert_near(logprobs(make_driver(model, **SETTINGS)), expected)


@pytest.mark.parametrize("model", ["llama", "qwen3-moe", "gpt-oss"])
def test_greedy_decoding(
    model: str, make_driver: MakeDriver, cuda_backend: AnywhereBackend
) -> None:
    stops = [StopSpec(max_tokens=9), StopSpec(max_tokens=3), StopSpec(max_tokens=12)]
    expected = run(make_driver(model, **REFERENCE), 1, stop=stops)
    assert run(make_driver(model, **SETTINGS), 5, stop=stops) == expected


def test_drawn_tokens(make_driver: MakeDriver, cuda_backend: AnywhereBackend) -> None:
    samplers = [
        drawn(1, temperature=1.5),
        drawn(2, top_k=20, temperature=0.8, min_p=0.01, top_p=0.9),
        SamplerSpec(),
    ]
    expected = run(make_driver(**REFERENCE), 1, sampler=samplers)
    assert run(make_driver(**SETTINGS), 6, sampler=samplers) == expected


def test_stop_tokens_and_their_minimum(
    make_driver: MakeDriver, cuda_backend: AnywhereBackend
) -> None:
    plain = run(make_driver(**REFERENCE), 1)
    stop = plain[0].tokens[2]
    stops = [
        StopSpec(max_tokens=16, token_ids=(stop,)),
        StopSpec(max_tokens=16, token_ids=(plain[1].tokens[1],), min_tokens=4),
        StopSpec(max_tokens=2),
    ]
    expected = run(make_driver(**REFERENCE), 1, stop=stops)
    outputs = run(make_driver(**SETTINGS), 8, stop=stops)
    assert outputs == expected
    assert outputs[0].end is SequenceEnd.STOP_TOKEN
    assert outputs[0].matched == stop


def test_the_loop_is_taken(
    make_driver: MakeDriver, cuda_backend: AnywhereBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    original = DecodeLoop.run

    def spy(self: DecodeLoop, rows: Any) -> Any:
        done = original(self, rows)
        assert done is not None
        calls.append(len(done.tokens_SR))
        return done

    monkeypatch.setattr(DecodeLoop, "run", spy)
    run(make_driver(**SETTINGS), 4, stop=[StopSpec(max_tokens=9)] * 3)
    assert calls == [3, 4, 1]


@pytest.mark.parametrize("model", ["llama", "gemma2"])
def test_steps_that_the_host_looks_at_are_recorded_ones(
    model: str,
    make_driver: MakeDriver,
    cuda_backend: AnywhereBackend,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Penalties and stop strings; rows end, and one prompt joins in between."""
    replayed: list[int] = []
    original = DecodeLoop.step

    def spy(self: DecodeLoop, tokens_R: Any, *rest: Any) -> Any:
        replayed.append(len(tokens_R))
        return original(self, tokens_R, *rest)

    monkeypatch.setattr(DecodeLoop, "step", spy)
    options = {
        "stop": [StopSpec(max_tokens=9), StopSpec(max_tokens=4), StopSpec(max_tokens=12)],
        "sampler": [drawn(1, frequency_penalty=0.7), SamplerSpec(), drawn(3, temperature=1.2)],
    }
    expected = run(make_driver(model, **REFERENCE), 1, **options)
    assert not replayed
    assert run(make_driver(model, **SETTINGS), 5, **options) == expected
    assert replayed[:4] == [3, 3, 3, 2]


def test_rows_beyond_the_memory_of_the_loop_go_without_it(
    make_driver: MakeDriver, cuda_backend: AnywhereBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StaticAttention, "take", lambda *args, **kwargs: False)
    options = {"sampler": [drawn(n, presence_penalty=0.5) for n in range(3)]}
    expected = run(make_driver(**REFERENCE), 1, **options)
    assert run(make_driver(**SETTINGS), 5, **options) == expected


def test_stale_data_in_the_cache_is_not_read(
    make_driver: MakeDriver, cuda_backend: AnywhereBackend
) -> None:
    """The slots of all steps are planned ahead, so a step must not read those of later steps."""
    stop = [StopSpec(max_tokens=9)] * 3
    expected = run(make_driver(**REFERENCE), 1, stop=stop)
    driver = make_driver(**SETTINGS)
    assert cuda_backend.runner is not None
    with torch.inference_mode():
        for layer in cuda_backend.runner.pool.layers:
            layer.keys_SKD.fill_(torch.nan)
            layer.values_SKD.fill_(torch.nan)
    assert run(driver, 5, stop=stop) == expected
