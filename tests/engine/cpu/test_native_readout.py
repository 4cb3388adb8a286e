"""Tokens and distributions after embeds: by the kernel, and by their definitions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from engine_driver import Driver, i32

from quire.core.batch import DistRows, SampleRows
from quire.core.batch_result import BatchResult
from quire.core.decoding import Processor, SamplerSpec
from quire.engine.cpu.library import INSTRUCTION_SETS, kernel_report
from quire.engine.cpu.native_runner import NativeRunner

PROBLEMS = {state.isa: state.problem for state in kernel_report().states}
MakeDriver = Callable[..., Driver]

SAMPLERS = [
    SamplerSpec(),
    SamplerSpec(greedy=False, seed=3),
    SamplerSpec((Processor("temperature", {"temperature": 1.7}),), greedy=False, seed=4),
    SamplerSpec(
        (Processor("top_k", {"k": 9}), Processor("top_p", {"p": 0.8})), greedy=False, seed=5
    ),
]
TIE, NOTHING = 6, 7
"""Embeds whose logits are all equal, and are all NaN."""


@pytest.fixture(params=INSTRUCTION_SETS)
def isa(request: pytest.FixtureRequest) -> str:
    if PROBLEMS[request.param] is not None:
        pytest.skip(f"{request.param}: {PROBLEMS[request.param]}")
    return str(request.param)


def with_embeds(driver: Driver) -> Driver:
    """Embeds 0 to 5 are random, followed by the special ones."""
    size = driver.info.hidden_size
    vectors = np.random.default_rng(1).normal(size=(8, size)).astype(np.float32)
    vectors[TIE], vectors[NOTHING] = 0, np.nan
    step = driver.engine._step  # type: ignore[attr-defined]
    with torch.inference_mode():
        step._embeds.write(i32(range(8)), torch.from_numpy(vectors))
    return driver


def sampled(driver: Driver) -> BatchResult:
    """Every embed with every sampler; drawn tokens go to token slots."""
    which = np.repeat(np.arange(len(SAMPLERS)), 8)
    return driver.send(
        samples=SampleRows(
            embeds=i32([*range(8)] * len(SAMPLERS)),
            sampler_index=i32(which),
            samplers=SAMPLERS,
            positions=i32(range(len(which))),
            token_slots=i32(range(len(which))),
        )
    )


def test_choices_equal_the_definition(
    isa: str, make_driver: MakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(driver: Driver) -> tuple[list[int], list[tuple[str, int]], list[int]]:
        results = [sampled(driver), sampled(driver)]  # the second call reuses the plan of the first
        slots = driver.engine._step._token_slots.resolve(  # type: ignore[attr-defined]
            ~np.arange(8 * len(SAMPLERS), dtype=np.int32)
        )
        failures = [(f.stage, f.index) for result in results for f in result.failures]
        return [t for result in results for t in result.samples.tolist()], failures, slots.tolist()

    native = told(with_embeds(make_driver(kernel_isa=isa)))
    assert native[0][TIE] == 0, "ties go to the lower id"
    assert native[1] == [("samples", NOTHING + 8 * i) for i in range(len(SAMPLERS))] * 2
    monkeypatch.setattr(NativeRunner, "choose", lambda *_: None)
    assert told(with_embeds(make_driver(kernel_isa=isa))) == native


@pytest.mark.parametrize("top_k", [1, 16, 10_000])
def test_distributions_equal_the_definition(
    isa: str, top_k: int, make_driver: MakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(driver: Driver) -> BatchResult:
        return driver.good(dists=DistRows(embeds=i32(range(8)), top_k=i32([top_k] * 7 + [2])))

    native = told(with_embeds(make_driver(kernel_isa=isa)))
    monkeypatch.setattr(NativeRunner, "best", lambda *_: None)
    defined = told(with_embeds(make_driver(kernel_isa=isa)))
    assert native.dist_starts.tolist() == defined.dist_starts.tolist()
    assert native.dist_ids.tolist() == defined.dist_ids.tolist()
    np.testing.assert_allclose(native.dist_probs, defined.dist_probs, rtol=2e-5, atol=1e-9)
    starts = native.dist_starts
    assert native.dist_ids[starts[TIE] : starts[TIE + 1]].tolist() == list(
        range(starts[TIE + 1] - starts[TIE])
    )
    of_nothing = slice(int(starts[NOTHING]), None)
    assert np.isnan(native.dist_probs[of_nothing]).all()


def test_a_message_with_other_samplers_does_not_take_the_plan_before(
    make_driver: MakeDriver,
) -> None:
    driver = with_embeds(make_driver(backend="cpu"))
    warm = SamplerSpec((Processor("temperature", {"temperature": 3.0}),), greedy=False, seed=8)
    wanted = with_embeds(make_driver(backend="torch")).sample([0, 1, 2], warm, [5, 6, 7])
    assert driver.sample([0, 1, 2], SamplerSpec(), [5, 6, 7]) != wanted
    assert driver.sample([0, 1, 2], warm, [5, 6, 7]) == wanted
