"""Tests that need a device: recorded steps, FlashInfer itself, bfloat16 and FP8, batch invariance.

The other tests of this folder also run on a device, where there is one.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from attention_cases import EVERYTHING, RowShape, make_case
from cuda_engines import SETTINGS, AnywhereBackend, cuda_backend
from engine_driver import Driver, Row

from quire.core.decoding import StopSpec
from quire.engine.attention.backend import AttentionAttributes
from quire.engine.cuda.attention import CudaAttention
from quire.engine.cuda.cascade import find_shared
from quire.engine.cuda.flashinfer_attention import FlashInfer
from quire.engine.cuda.flashinfer_plan import segments, visible_keys
from quire.engine.cuda.graphs import CudaGraphRecorder
from quire.engine.cuda.linears import Float8Linear, has_float8_products, quantize_rows
from quire.engine.cuda.page_entries import page_entries
from quire.engine.cuda.triton_attention import TritonAttention
from quire.engine.layers.linear import Linear
from quire.engine.layers.parameters import Parameters

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(900),  # FlashInfer may compile
    pytest.mark.filterwarnings("default"),  # warnings of a device's libraries are not tested
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]

__all__ = ["cuda_backend"]

MakeDriver = Callable[..., Driver]
PROMPTS = ([5, 9, 11, 40, 41, 42, 7], [100, 101], [60, 61, 62, 63, 64])
BF16 = {"atol": 2e-2, "rtol": 2e-2}


@pytest.mark.parametrize("window", [None, 7])
@pytest.mark.parametrize("page_size", [1, 16, 64])
@pytest.mark.parametrize("library", ["triton", "flashinfer"])
def test_attention_in_bfloat16(library: str, page_size: int, window: int | None) -> None:
    if library == "flashinfer" and find_spec("flashinfer") is None:
        pytest.skip("FlashInfer is not installed")
    case = make_case(
        EVERYTHING, page_size=page_size, heads=(8, 2, 64), dtype=torch.bfloat16, device="cuda"
    )
    device = case.q_TND.device
    positions = torch.from_numpy(case.rows.slot_positions).to(device)
    triton = TritonAttention(device, positions, 4, 2)
    flashinfer = FlashInfer(8, 2, 64, device) if library == "flashinfer" else None
    sinks = torch.linspace(-1, 2, 8, device=device)
    for attributes in (
        AttentionAttributes(0.125, window),
        AttentionAttributes(0.125, window, softcap=5.0),
        AttentionAttributes(0.125, window, sinks_N=sinks),
    ):
        out = (
            CudaAttention(triton, flashinfer)
            .plan(case.rows)
            .attend(case.q_TND, case.cache, attributes)
        )
        torch.testing.assert_close(out, case.expected(attributes), **BF16)


@pytest.mark.skipif(find_spec("flashinfer") is None, reason="FlashInfer is not installed")
def test_cascade_in_bfloat16() -> None:
    shapes = tuple(RowShape(1000, 1) for _ in range(8))
    case = make_case(
        shapes, page_size=16, heads=(8, 2, 64), dtype=torch.bfloat16, device="cuda",
        num_slots=16384,
    )  # fmt: skip
    pages = case.rows.pages
    for row in range(1, 8):  # 63 pages each; all but the last become those of row 0
        pages.blocks[63 * row : 63 * row + 62] = pages.blocks[:62]
    device = case.q_TND.device
    positions = torch.from_numpy(case.rows.slot_positions).to(device)
    attention = CudaAttention(
        TritonAttention(device, positions, 4, 2), FlashInfer(8, 2, 64, device)
    )
    asked = AttentionAttributes(0.125)
    out = attention.plan(case.rows).attend(case.q_TND, case.cache, asked)
    entries = page_entries(case.rows)
    keys = visible_keys(case.rows, entries, np.arange(8))
    [segment] = segments(case.rows, entries, keys, np.arange(8), None)
    assert find_shared(segment) is not None
    torch.testing.assert_close(out, case.expected(asked), **BF16)


def test_a_recording_repeats_its_work_on_the_memory_as_it_is_then() -> None:
    x = torch.zeros(4, device="cuda")
    y = torch.zeros(4, device="cuda")
    replay = CudaGraphRecorder(x.device).record(lambda: y.copy_(x * 2))
    x.fill_(3.0)
    replay()
    assert y.tolist() == [6.0] * 4


@pytest.mark.parametrize("model", ["llama", "qwen3-moe", "gpt-oss", "gemma2"])
def test_recorded_steps_give_the_tokens_of_the_reference(
    model: str, make_driver: MakeDriver, cuda_backend: AnywhereBackend
) -> None:
    def run(backend: str, num_steps: int) -> Any:
        driver = make_driver(model, **{**SETTINGS, "backend": backend})
        started = [
            driver.open(n, p, range(10 * n, 10 * n + 8), stop=StopSpec(max_tokens=5 + 4 * n))
            for n, p in enumerate(PROMPTS)
        ]
        return driver.decode(started, num_steps=num_steps)

    assert run("cuda", 6) == run("torch", 1)


@pytest.mark.parametrize("model", ["llama", "qwen3-moe"])
def test_batch_invariant_rows_are_equal_bit_for_bit(
    model: str, make_driver: MakeDriver, cuda_backend: AnywhereBackend
) -> None:
    """A prompt alone, among others, and in chunks has the same log probabilities."""
    settings = {**SETTINGS, "batch_invariant": True, "dtype": "bfloat16"}
    prompt = list(PROMPTS[0])
    together = make_driver(model, **settings).logprobs([Row(one) for one in PROMPTS])
    alone = make_driver(model, **settings).logprobs([Row(prompt)])
    assert np.array_equal(together[: len(prompt)], alone)
    driver = make_driver(model, **settings)
    parts = []
    for start, end in ((0, 3), (3, 6), (6, 7)):
        table = driver.write_table(0, [2, 5], range(start))
        row = Row(prompt[start:end], 0, range(start, end), driver.flat([2, 5], range(start, end)))
        parts.append(driver.logprobs([row], [table]))
    assert np.array_equal(np.concatenate(parts), alone)


def test_float8_product_on_the_device() -> None:
    if not has_float8_products(torch.device("cuda")):
        pytest.skip("no FP8 products before Hopper")
    parameters = Parameters(torch.device("cuda"), torch.bfloat16)
    plain = Linear(parameters, {"a": 256}, 512)
    plain.weight_OI.normal_(0, 0.05)
    tested = Float8Linear(plain)
    x = torch.randn(33, 512, device="cuda", dtype=torch.bfloat16)
    quantized, scale = quantize_rows(x)
    stored = tested.weight_OI.float() * tested.scale_O[:, None]
    expected = F.linear(quantized.float() * scale, stored)
    torch.testing.assert_close(tested(x).float(), expected, **BF16)


def test_bfloat16_is_near_float32(make_driver: MakeDriver, cuda_backend: AnywhereBackend) -> None:
    def probs(dtype: str) -> np.ndarray[Any, Any]:
        driver = make_driver("qwen3-moe", **{**SETTINGS, "dtype": dtype})
        return np.exp(driver.logprobs([Row(one) for one in PROMPTS]))

    assert float(np.abs(probs("bfloat16") - probs("float32")).max()) < 0.05
