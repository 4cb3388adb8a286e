"""The machine's limits, and what a share of them counts."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

import pytest

from benchmarks.checkpoints import SHAPES
from benchmarks.generation_rounds import RoundOutcome, Workload
from benchmarks.machine_limits import Limits
from benchmarks.machine_peak import TYPES, peak_flops, read_buffer, read_rate
from benchmarks.process_time import cpu_s
from benchmarks.step_limits import (
    BF16,
    format_of,
    generation_limit_s,
    prefill_limit_s,
    step_limit_s,
)

KIB, MIB = 1 << 10, 1 << 20
FLOPS = {"f32": 1e9, "bf16": 1e12, "int8": 4e12}


def limits(read: dict[int, float] | None = None, **flops: float) -> Limits:
    return Limits(read or {MIB: 1e9}, FLOPS | flops)


def test_reading_is_bounded_by_the_rate_of_what_is_smaller() -> None:
    found = limits({256 * KIB: 90.0, MIB: 50.0, 4 * MIB: 10.0})
    assert found.bytes_per_s(4 * MIB) == found.bytes_per_s(64 * MIB) == 10
    assert found.bytes_per_s(4 * MIB - 1) == found.bytes_per_s(MIB) == 50
    assert found.bytes_per_s(KIB) == 90
    assert found.memory_bytes_per_s == 10


def test_each_rate_is_the_best_of_all_rounds() -> None:
    first = limits({MIB: 5.0, 4 * MIB: 3.0}, f32=1.0, int8=9.0)
    second = limits({MIB: 4.0, 4 * MIB: 6.0}, f32=2.0, int8=8.0)
    best = Limits.best_of([first, second])
    assert best.read == {MIB: 5.0, 4 * MIB: 6.0}
    assert best.flops == FLOPS | {"f32": 2.0, "int8": 9.0}


def test_a_share_is_of_the_limit_whatever_the_round() -> None:
    reports = {"quire": [{"step_s": 2.0}, {"step_s": 4.0}]}
    outcome = RoundOutcome("tiny", Workload(1, 8, 8), reports, limits())
    share = outcome.share("quire", "step_s", 1.0)
    assert (share.low, share.high) == (0.25, 0.5)


@pytest.mark.parametrize(
    ("contender", "bytes_per_weight"),
    [
        ("quire", 2),
        ("vllm", 2),
        ("vllm-float32", 4),
        ("quire-int8", 1),
        ("llamacpp-q8_0", 34 / 32),
        ("llamacpp-q4_0", 18 / 32),
    ],
)
def test_one_request_is_bound_by_reading_its_own_format(
    contender: str, bytes_per_weight: float
) -> None:
    shape, weights = SHAPES["small"], format_of(contender)
    fast = limits(f32=1e15, bf16=1e15, int8=1e15)
    expected = shape.num_step_weights * bytes_per_weight / 1e9
    assert step_limit_s(shape, 1, 0, fast, weights) == pytest.approx(expected)
    with_cache = step_limit_s(shape, 1, 100, fast, weights)
    kv_bytes = 100 * shape.kv_bytes_per_token(4 if contender == "vllm-float32" else 2)
    assert with_cache == pytest.approx(expected + kv_bytes / 1e9)


def test_many_rows_are_bound_by_the_peak_of_their_type() -> None:
    shape = SHAPES["small"]
    fast = limits({MIB: 1e15})
    operations = 2 * 64 * shape.num_step_weights
    assert step_limit_s(shape, 64, 0, fast, BF16) == pytest.approx(operations / 1e12)
    float32 = format_of("vllm-float32")
    assert step_limit_s(shape, 64, 0, fast, float32) == pytest.approx(operations / 1e9)
    prompts_s = prefill_limit_s(shape, 2, 128, fast, float32)
    step_s = step_limit_s(shape, 2, 136, fast, float32)
    whole_s = generation_limit_s(shape, 2, 128, 16, fast, float32)
    assert whole_s == pytest.approx(prompts_s + 15 * step_s)


def test_the_machine_is_measured() -> None:
    buffer = read_buffer(MIB)
    assert all(peak_flops(kind, 1) > 0 for kind in TYPES)
    for num_threads in (1, 2, 3):
        assert read_rate(buffer, MIB, num_threads) > 0
    assert read_rate(buffer, 4 * KIB, 64) > 0, "more threads than pages"


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_what_is_read_lies_in_private_memory_as_weights_do() -> None:
    """Shared anonymous memory gets no huge pages, in which reading is faster: a product would
    reach more than the limit."""
    buffer = read_buffer(4 * MIB)
    address = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
    spans = [line.split()[:2] for line in Path("/proc/self/maps").read_text().splitlines()]
    permissions = [
        kind
        for span, kind in spans
        if int(span.split("-")[0], 16) <= address < int(span.split("-")[1], 16)
    ]
    assert permissions == ["rw-p"]


def test_processor_time_is_that_of_the_system() -> None:
    before = os.times()
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    assert cpu_s(os.getpid()) >= before.user + before.system - 2 * tick_s > 0
