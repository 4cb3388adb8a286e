"""Decode, prefill and experts on one GPU, next to its limits and to transformers.

    python benchmarks/gpu/run.py [--models Llama-3.2-1B ...] [--seconds 450] [--no-peer]

Random weights in the published shapes, made on the device. Needs PyTorch, Triton and Quire on the
path (``PYTHONPATH=src`` in a source tree) and the engine's imports (numpy, msgspec, safetensors);
uses FlashInfer and transformers where they are installed. Appends one table to
``benchmarks/gpu/RESULTS.md`` and prints it. Measurements that do not fit into the time are listed
as left out. ``--smoke`` runs everything in miniature, on a CPU with ``TRITON_INTERPRET=1``, and
writes nothing.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import json
import platform
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from importlib import metadata
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


@dataclass
class GpuMeasurement:
    """One line of the table. ``share`` of the limit that was reached; ``peer_ms``: transformers'
    time."""

    model: str
    what: str
    batch: int
    ms: float
    share: float | None = None
    note: str = ""
    peer_ms: float | None = None


class TimeBudget:
    """The remaining time."""

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
    """Quire's lines of one model."""
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


def table(lines: list[GpuMeasurement], limits: tuple[float, float], left_out: list[str]) -> str:
    """Markdown with device, date, versions and results."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor()
    packages = ("torch", "triton", "flashinfer-python", "transformers")
    versions = [f"{package} {_version(package)}" for package in packages]
    rows = [
        f"## {datetime.datetime.now(datetime.UTC):%Y-%m-%d}, {device}, commit {_commit()}",
        "",
        f"{', '.join(versions)}. Measured in this run: reads {limits[0] / 1e12:.2f} TB/s, bf16 "
        f"products {limits[1] / 1e12:.0f} TFLOP/s.",
        "",
        "| model | what | batch | ms | share of the limit | | transformers, ms | times as fast |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for line in lines:
        share = "" if line.share is None else f"{line.share:.0%}"
        peer = "" if line.peer_ms is None else f"{line.peer_ms:.2f}"
        ratio = "" if line.peer_ms is None else f"{line.peer_ms / line.ms:.1f}"
        rows.append(
            f"| {line.model} | {line.what} | {line.batch} | {line.ms:.3f} | {share} | {line.note} "
            f"| {peer} | {ratio} |"
        )
    if left_out:
        rows += ["", f"Left out for lack of time: {'; '.join(left_out)}."]
    return "\n".join(rows) + "\n"


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "absent"


def _commit() -> str:
    command = ["git", "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.run(
            command, capture_output=True, text=True, check=True, cwd=Path(__file__).parent
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=list(SHAPES), default=list(SHAPES))
    parser.add_argument(
        "--seconds", type=float, default=450.0, help="time limit of the measurements"
    )
    parser.add_argument("--no-peer", action="store_true", help="leave transformers out")
    parser.add_argument("--smoke", action="store_true", help="in miniature; writes nothing")
    options = parser.parse_args()
    if not torch.cuda.is_available() and not options.smoke:
        parser.error("no CUDA device: run it on one, or try the script with --smoke")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    setting, shapes = (SMOKE_SETTING, SMOKE) if options.smoke else (Setting(), SHAPES)
    clock = TimeBudget(options.seconds)
    with torch.inference_mode():
        limits = (
            bandwidth(device, setting.read_bytes),
            product_rate(device, setting.product_size),
        )
        lines: list[GpuMeasurement] = []
        for name in options.models:
            if not clock.allows(name, 60 if not options.smoke else 0):
                continue
            own = measure_model(name, shapes[name], setting, device, limits)
            lines += own
            gc.collect()
            if device.type == "cuda":
                torch.cuda.empty_cache()
            wants_peer = not options.no_peer and find_spec("transformers") is not None
            if wants_peer and clock.allows(f"transformers, {name}", 40 if not options.smoke else 0):
                measure_peer(shapes[name], setting, device, own, clock)
    text = table(lines, limits, clock.left_out)
    print(text)
    print(json.dumps([asdict(line) for line in lines]))
    if not options.smoke:
        with RESULTS.open("a") as file:
            file.write("\n" + text)


if __name__ == "__main__":
    main()
