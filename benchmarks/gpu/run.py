"""Measures decode, prefill and experts on one GPU, next to its limits and to transformers.

    python benchmarks/gpu/run.py --out DIR [--models Llama-3.2-1B ...] [--no-peer]

First the tests that need a device (``--test-seconds 150``), then the measurements (``--seconds
400``): less than ten minutes together. ``outcome.py`` says what lies in ``--out``, complete after
every model; a model that fails is noted there and does not end the run.

Random weights in the published shapes, made on the device. Needs PyTorch, Triton and Quire on the
path (``PYTHONPATH=src`` in a source tree) and the engine's imports (numpy, msgspec, safetensors);
uses FlashInfer and transformers where they are installed. Appends the table to
``benchmarks/gpu/RESULTS.md``, too, and prints it. Measurements that do not fit into the time are
listed as left out. ``--smoke`` measures in miniature, on a CPU with ``TRITON_INTERPRET=1``, and
appends nothing.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from measure import (
    Effort,
    bandwidth,
    decode_step_s,
    experts_s,
    prefill_s,
    product_rate,
    step_limit_s,
    token_operations,
)
from models import PAGE_SIZE, random_model, runner_of
from outcome import GpuMeasurement, GpuOutcome, run_tests
from peers import Peer
from shapes import SHAPES, SMOKE

from quire.core.decoding import Processor, SamplerSpec

RESULTS = Path(__file__).parent / "RESULTS.md"
DRAWN = SamplerSpec(
    processors=(
        Processor("temperature", {"temperature": 0.8}),
        Processor("top_p", {"p": 0.95}),
    ),
    greedy=False,
    seed=1,
)


@dataclass(frozen=True)
class Setting:
    """The workload. ``context``: tokens before a decode step."""

    batches: tuple[int, ...] = (1, 64, 256)
    context: int = 512
    prompt: int = 8192
    read_bytes: int = 8 << 30
    product_size: int = 8192
    effort: Effort = field(default_factory=Effort)


SMOKE_SETTING = Setting((1, 2), 20, 40, 1 << 20, 64, Effort(rounds=1, steps=2))


class TimeBudget:
    """The time that remains."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds
        self.left_out: list[str] = []

    def allows(self, what: str, seconds: float) -> bool:
        if time.monotonic() + seconds < self._end:
            return True
        self.left_out.append(what)
        return False


def measure_model(
    name: str,
    raw: dict[str, Any],
    setting: Setting,
    device: torch.device,
    limits: tuple[float, float],
) -> list[GpuMeasurement]:
    """Measure one model with Quire; return its lines."""
    length = max(setting.prompt, setting.context + 64)
    loaded = random_model(raw, length, device)
    pages_of_a_row = -(-(setting.context + 64) // PAGE_SIZE)
    num_blocks = max(max(setting.batches) * pages_of_a_row, -(-length // PAGE_SIZE))
    runner = runner_of(loaded, list(setting.batches), setting.prompt, num_blocks)
    lines = []
    for batch in setting.batches:
        seconds = decode_step_s(
            runner, loaded, batch, setting.context, SamplerSpec(), setting.effort
        )
        limit = step_limit_s(loaded, batch, setting.context + 16, *limits)
        lines.append(GpuMeasurement(name, "decode step", batch, seconds * 1e3, limit / seconds))
        experts = experts_s(loaded, batch)
        if experts is not None:
            share = f"{experts / seconds:.0%} of the step"
            lines.append(GpuMeasurement(name, "experts", batch, experts * 1e3, note=share))
    largest = max(setting.batches)
    seconds = decode_step_s(runner, loaded, largest, setting.context, DRAWN, setting.effort)
    lines.append(GpuMeasurement(name, "decode step, sampled with top-p", largest, seconds * 1e3))
    seconds = prefill_s(runner, loaded, setting.prompt, setting.effort)
    rate = setting.prompt * token_operations(loaded.config, setting.prompt / 2) / seconds
    lines.append(
        GpuMeasurement(
            name,
            f"prefill of {setting.prompt}",
            1,
            seconds * 1e3,
            rate / limits[1],
            f"{rate / 1e12:.0f} TFLOP/s",
        )
    )
    for line in lines:
        figure = f"{line.ms:.3f} ms {line.note}"
        print(f"{line.model}: {line.what} at {line.batch}: {figure}", file=sys.stderr)
    return lines


def measure_peer(
    raw: dict[str, Any],
    setting: Setting,
    device: torch.device,
    lines: list[GpuMeasurement],
    clock: TimeBudget,
) -> None:
    """Add transformers' times to a model's lines."""
    peer = Peer(raw, device)
    for line in lines:
        what = f"transformers, {line.model}, {line.what} at {line.batch}"
        if line.what == "decode step" and clock.allows(what, 15):
            line.peer_ms = peer.decode_step_s(line.batch, setting.context) * 1e3
        elif line.what.startswith("prefill") and clock.allows(what, 15):
            line.peer_ms = peer.prefill_s(setting.prompt) * 1e3
    peer.close()


def measure_all(
    outcome: GpuOutcome,
    options: argparse.Namespace,
    setting: Setting,
    shapes: dict[str, dict[str, Any]],
    clock: TimeBudget,
) -> None:
    """Measure the limits and model by model; a model that fails is noted and left out."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    limits = outcome.limits = (
        bandwidth(device, setting.read_bytes),
        product_rate(device, setting.product_size),
    )
    least_s, peer_s = (0, 0) if options.smoke else (60, 40)
    for name in options.models:
        if not clock.allows(name, least_s):
            continue
        try:
            own = measure_model(name, shapes[name], setting, device, limits)
            outcome.lines += own
            outcome.write()
            free(device)
            if options.no_peer or find_spec("transformers") is None:
                continue
            if clock.allows(f"transformers, {name}", peer_s):
                measure_peer(shapes[name], setting, device, own, clock)
        except Exception:  # of a driver, a compiler, or a library: the other models may run
            outcome.failed(name)
        free(device)
        outcome.write()


def free(device: torch.device) -> None:
    """Free the memory of what is no longer used."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=list(SHAPES), default=list(SHAPES))
    parser.add_argument(
        "--seconds", type=float, default=400.0, help="time limit of the measurements"
    )
    parser.add_argument(
        "--test-seconds", type=float, default=150.0, help="time limit of the tests; 0: none"
    )
    parser.add_argument("--out", type=Path, default=Path("benchmark-results"), metavar="DIR")
    parser.add_argument("--no-peer", action="store_true", help="leave transformers out")
    parser.add_argument("--smoke", action="store_true", help="in miniature, without tests")
    options = parser.parse_args()
    if not torch.cuda.is_available() and not options.smoke:
        parser.error("no CUDA device: run it on one, or try the script with --smoke")
    return options


def main() -> None:
    options = parse()
    setting, shapes = (SMOKE_SETTING, SMOKE) if options.smoke else (Setting(), SHAPES)
    outcome = GpuOutcome(options.out)
    outcome.write()
    if options.test_seconds and not options.smoke:
        run_tests(outcome, options.test_seconds)
    clock = TimeBudget(options.seconds)
    outcome.left_out = clock.left_out
    with torch.inference_mode():
        try:
            measure_all(outcome, options, setting, shapes, clock)
        except Exception:
            outcome.failed("the measurement of the limits")
    outcome.write()
    text = outcome.table()
    print(text)
    if not options.smoke:
        with RESULTS.open("a") as file:
            file.write("\n" + text)
    if outcome.failures:
        raise SystemExit(f"{len(outcome.failures)} failed: {options.out / 'gpu.json'} says why")


if __name__ == "__main__":
    main()
