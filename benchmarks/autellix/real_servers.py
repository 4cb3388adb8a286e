"""Compares real servers on programs: ``quire serve`` with vLLM's server, at equal batch and cache.

    python benchmarks/autellix/real_servers.py [--workload mixed] [--model small] [--seeds 1 2]

The same programs arrive at the same times at each server over HTTP, with forced lengths; their
calls follow one another as in the simulator. Nothing else should run meanwhile. Quire's requests
name their program, as ``quire.client.track`` does. vLLM has its prefix cache (vLLM-opt in Autellix)
or not (vLLM), and calculates in float32 where the processor has no bf16, which is its best type
there. Quire runs with ``quire`` and with ``fcfs``: the latter differs from vLLM in all but the
order of calls. Both have their defaults otherwise, so Quire pauses programs that do not fit and
keeps pages of waiting ones in 256 MiB of the host's memory, which vLLM does not.

Chosen before the first run: all lengths of the workload (Autellix, Fig. 11) times ``--lengths``,
because a processor is that much slower than the paper's GPUs; programs that exceed the model's
context are left out; batches of 16 and a cache of 8,192 tokens, in pages of 32; a minute of
arrivals, 12 to 60 programs. Latency is that of a program: its response time over its generated
tokens. The level is that of programs that run alone on vLLM with its prefix cache, times 2, 3 and
5 (P95 twice these). Each system plays the middle rate, then higher ones until its mean is beyond
the largest level, then lower ones until it is within the smallest; a run whose mean is certainly
beyond is ended. Throughput is the rate at which a system reaches a level (where the next rate was
ended, the one before it), *over* its ratio within a seed, as the median of the seeds. Systems take
turns at each step.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from math import inf, isfinite
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.autellix.rates import Rate, median_of, over, rate_at
from benchmarks.checkpoints import SHAPES
from benchmarks.http.program_client import PlayedPrograms, Target, play_programs
from benchmarks.http.servers import Server, start_quire, start_vllm
from benchmarks.options import plain_parser
from benchmarks.peers.catalog import DEFAULT_CACHE, MAX_MODEL_LEN, PeerMissing
from benchmarks.plots import Panel, draw_lines
from benchmarks.report import emit, multiplies_bf16, print_table, processor
from quire.simulation.arrivals import Arrivals
from quire.simulation.outcomes import spread
from quire.simulation.workloads import WORKLOADS, Workload, create_workload
from quire.simulation.workloads.plan import CallPlan, ProgramPlan

Row = dict[str, Any]

MAX_SEQUENCES = 16
KV_TOKENS, PAGE_TOKENS = 8192, 32
"""32: the smallest page that vLLM has on a processor."""
TIMES_ALONE = (2.0, 3.0, 5.0)
TAILS = {"mean": 1.0, "p95": 2.0}
MIDDLE_RATE, STEP = 0.4, 1.6
"""Programs a second on ``small``, and the ratio of a rate to the next lower one."""
MAX_STEPS = 6
"""Rates above the middle one and below it, at most."""
ARRIVALS_S, QUICK_ARRIVALS_S = 60.0, 15.0
LEAST, MOST = 12, 60
NUM_ALONE = 8
_SETTLED, _SETTLE_S = 0.05, 30.0
"""A server has settled when it takes less of a core than this; it is waited for that long."""


@dataclass(frozen=True, slots=True)
class System:
    """``start`` starts the server with a model from the folder of models."""

    start: Callable[[str, Path], Server]
    names_programs: bool


def _quire(policy: str, model: str, cache: Path) -> Server:
    kv_bytes = KV_TOKENS * SHAPES[model].kv_bytes_per_token()
    options = {
        "--policy": policy,
        "--max-sequences": MAX_SEQUENCES,
        "--kv-cache-bytes": kv_bytes,
        "--page-size": PAGE_TOKENS,
    }
    return start_quire(model, cache, *(str(part) for pair in options.items() for part in pair))


def _vllm(caching: str, model: str, cache: Path) -> Server:
    blocks = str(KV_TOKENS // PAGE_TOKENS)
    options = ("--block-size", str(PAGE_TOKENS), "--num-gpu-blocks-override", blocks, caching)
    dtype = "bfloat16" if multiplies_bf16() else "float32"
    return start_vllm(model, cache, MAX_SEQUENCES, dtype=dtype, options=options)


VLLM, VLLM_CACHING = "vLLM, no cache", "vLLM"
SYSTEMS: Mapping[str, System] = {
    VLLM: System(partial(_vllm, "--no-enable-prefix-caching"), names_programs=False),
    VLLM_CACHING: System(partial(_vllm, "--enable-prefix-caching"), names_programs=False),
    "quire, fcfs": System(partial(_quire, "fcfs"), names_programs=True),
    "quire": System(partial(_quire, "quire"), names_programs=True),
}


def shortened(plan: ProgramPlan, share: float) -> ProgramPlan:
    """Return the same program with all lengths times ``share``, each at least one token."""

    def short(number: int) -> int:
        return max(1, round(number * share)) if number else 0

    def shorter(call: CallPlan) -> CallPlan:
        return replace(
            call,
            num_prompt=short(call.num_prompt),
            num_output=short(call.num_output),
            num_shared=short(call.num_shared),
        )

    return ProgramPlan(plan.kind, tuple(map(shorter, plan.calls)))


def fits(plan: ProgramPlan) -> bool:
    """Return whether each call fits the model's context, and the cache with room to spare."""
    ends = zip(plan.prompt_lengths, plan.calls, strict=True)
    return max(start + call.num_output for start, call in ends) < MAX_MODEL_LEN


def draw_fitting(workload: Workload, number: int, seed: int, share: float) -> list[ProgramPlan]:
    """Return the first ``number`` programs of ``seed`` that fit."""
    found: list[ProgramPlan] = []
    for tried in count():
        plan = shortened(workload.draw(Random(f"{workload.name}/{seed}/{tried}")), share)
        if fits(plan):
            found.append(plan)
        if len(found) == number:
            return found
    raise AssertionError("count() does not end")


class RateSearch:
    """The rates that a system plays with one seed: the middle one, then higher ones until one is
    beyond the largest level, then lower ones until one is within the smallest."""

    def __init__(self, smallest_s: float, largest_s: float, middle: float) -> None:
        self._smallest_s, self._largest_s, self._middle = smallest_s, largest_s, middle
        self.means_s: dict[int, float] = {}
        """By the number of steps from the middle rate."""

    def next_rate(self) -> float | None:
        """Return the rate to be played next; None: there is none."""
        step = self._next_step()
        return None if step is None else self._middle * STEP**step

    def add(self, mean_s: float) -> None:
        """Note the mean latency at the rate that came last from ``next_rate``."""
        step = self._next_step()
        assert step is not None
        self.means_s[step] = mean_s

    def _next_step(self) -> int | None:
        if not self.means_s:
            return 0
        highest, lowest = max(self.means_s), min(self.means_s)
        if self.means_s[highest] <= self._largest_s and highest < MAX_STEPS:
            return highest + 1
        if self.means_s[lowest] > self._smallest_s and lowest > -MAX_STEPS:
            return lowest - 1
        return None


class Bench:
    """The running servers, and what is played on them."""

    def __init__(self, servers: Mapping[str, Server], arguments: Any) -> None:
        self.servers = servers
        self._arguments = arguments
        self._workload = create_workload(arguments.workload)
        self._num_runs = 0

    def alone_s(self) -> float:
        """Return the mean latency of a token of programs that run one after the other on vLLM with
        its prefix cache."""
        plans = draw_fitting(self._workload, NUM_ALONE, 0, self._arguments.lengths)
        found: list[float] = []
        for plan in plans:
            found += self._play(VLLM_CACHING, [plan], [0.0], inf).latencies_s()
        return sum(found) / len(found)

    def row(self, name: str, rate: float, seed: int, give_up_s: float) -> Row:
        """Play a minute of arrivals on ``name``."""
        number = min(MOST, max(LEAST, round(rate * self._arguments.seconds)))
        plans = draw_fitting(self._workload, number, seed, self._arguments.lengths)
        times_s = Arrivals(rate=rate).times_s(number, seed)
        played = self._play(name, plans, times_s, give_up_s)
        latency, response = spread(played.latencies_s()), spread(played.responses_s())
        return {
            "system": name,
            "rate": rate,
            "seed": seed,
            "programs": number,
            "latency_s": {tail: _finite(getattr(latency, tail)) for tail in ("mean", "p50", "p95")},
            "response_s": {"mean": _finite(response.mean), "p95": _finite(response.p95)},
        }

    def _play(
        self, name: str, plans: Sequence[ProgramPlan], times_s: Sequence[float], give_up_s: float
    ) -> PlayedPrograms:
        server, model = self.servers[name], self._arguments.model
        self._num_runs += 1
        settle(self.servers.values())
        vocabulary = SHAPES[model].vocab_size
        target = Target(server.url, model, vocabulary, SYSTEMS[name].names_programs)
        return asyncio.run(play_programs(target, plans, times_s, self._num_runs, give_up_s))


def _finite(value: float) -> float | None:
    return float(f"{value:.5g}") if isfinite(value) else None


def settle(servers: Collection[Server]) -> None:
    """Wait until the servers rest: what was cancelled ends, and threads that spin after a burst
    stop."""
    until_s = time.monotonic() + _SETTLE_S
    while time.monotonic() < until_s:
        before_s = sum(server.cpu_s() for server in servers)
        time.sleep(1.0)
        if sum(server.cpu_s() for server in servers) - before_s < _SETTLED:
            return


def sweep(
    bench: Bench, alone_s: float, seed: int, middle: float, note: Callable[[Row], None]
) -> list[Row]:
    """Return the rows of all systems with one seed. ``middle``: the first rate."""
    smallest_s, largest_s = min(TIMES_ALONE) * alone_s, max(TIMES_ALONE) * alone_s
    searches = {name: RateSearch(smallest_s, largest_s, middle) for name in bench.servers}
    rows: list[Row] = []
    while any(search.next_rate() is not None for search in searches.values()):
        for name, search in searches.items():
            rate = search.next_rate()
            if rate is None:
                continue
            row = bench.row(name, rate, seed, largest_s)
            mean_s = row["latency_s"]["mean"]
            search.add(inf if mean_s is None else mean_s)
            rows.append(row)
            note(row)
    return rows


def throughputs(rows: Sequence[Row], alone_s: float) -> list[dict[str, str]]:
    """Return the rate that each system sustains at each level, also over that of each vLLM."""
    table = []
    names = list(dict.fromkeys(row["system"] for row in rows))
    seeds = sorted({row["seed"] for row in rows})
    for times in TIMES_ALONE:
        for tail, factor in TAILS.items():
            level_s = times * factor * alone_s
            rates = {
                name: {seed: rate_at(curve(rows, name, tail, seed), level_s) for seed in seeds}
                for name in names
            }
            table += [_line(f"{tail}, {times * factor:g} x alone", name, rates) for name in names]
    return table


def _line(level: str, name: str, rates: Mapping[str, Mapping[int, Rate]]) -> dict[str, str]:
    ours = {base: over(rates[name], rates[base]) for base in (VLLM, VLLM_CACHING) if base in rates}
    found = {"latency": level, "system": name, "programs/s": median_of([*rates[name].values()])}
    return found | {f"over {base}": ratio for base, ratio in ours.items()}


def curve(rows: Sequence[Row], name: str, tail: str, seed: int) -> list[tuple[float, float]]:
    """Return rates and latencies of one system with one seed, at rising rates."""
    points = [
        (row["rate"], inf if row["latency_s"][tail] is None else row["latency_s"][tail])
        for row in rows
        if row["system"] == name and row["seed"] == seed
    ]
    return sorted(points)


def draw(path: Path, title: str, rows: Sequence[Row], alone_s: float) -> None:
    names = list(dict.fromkeys(row["system"] for row in rows))
    seeds = sorted({row["seed"] for row in rows})
    panels = []
    for tail, factor in TAILS.items():
        lines = {
            f"{name}, seed {seed}" if len(seeds) > 1 else name: [
                point for point in curve(rows, name, tail, seed) if isfinite(point[1])
            ]
            for name in names
            for seed in seeds
        }
        level_s = TIMES_ALONE[1] * factor * alone_s
        panels.append(Panel(f"s/token, {tail}", lines, level=level_s))
    draw_lines(path, title, "programs/s", panels, machine=processor())


def main() -> None:
    made = plain_parser(__doc__)
    made.add_argument("--workload", choices=WORKLOADS, default="mixed", help="default: mixed")
    made.add_argument("--model", choices=SHAPES, default="small", help="default: small")
    made.add_argument("--seeds", nargs="+", type=int, default=[1], help="default: 1")
    made.add_argument(
        "--lengths", type=float, default=1 / 16, help="of the workload's (default: %(default)s)"
    )
    made.add_argument(
        "--rate",
        type=float,
        default=MIDDLE_RATE,
        help="programs a second that each system plays first (default: %(default)s)",
    )
    made.add_argument(
        "--systems", nargs="+", choices=SYSTEMS, default=[*SYSTEMS], help="default: all"
    )
    made.add_argument(
        "--cache",
        type=Path,
        default=DEFAULT_CACHE,
        help="folder of models and peers, see benchmarks/peers/install.py (default: %(default)s)",
    )
    arguments = made.parse_args()
    arguments.seconds = QUICK_ARRIVALS_S if arguments.quick else ARRIVALS_S
    if VLLM_CACHING not in arguments.systems:
        raise SystemExit(f"--systems needs {VLLM_CACHING!r}: its latency alone is the level")
    title = f"{arguments.workload} on {arguments.model}"
    began_s = time.monotonic()

    def note(row: Row) -> None:
        mean_s = row["latency_s"]["mean"]
        latency = "beyond the largest level" if mean_s is None else f"{1000 * mean_s:.0f} ms/token"
        taken_s = time.monotonic() - began_s
        told = f"[{taken_s:.0f} s] seed {row['seed']}, {row['rate']:.3g} programs/s"
        print(f"{told}, {row['system']}: {latency}", file=sys.stderr, flush=True)

    with ExitStack() as stack:
        servers = {}
        for name in arguments.systems:
            try:
                started = SYSTEMS[name].start(arguments.model, arguments.cache)
            except PeerMissing as exc:
                raise SystemExit(str(exc)) from None
            servers[name] = stack.enter_context(started)
        bench = Bench(servers, arguments)
        alone_s = bench.alone_s()
        print(f"alone: {1000 * alone_s:.1f} ms/token", file=sys.stderr)
        rows = [
            row
            for seed in arguments.seeds
            for row in sweep(bench, alone_s, seed, arguments.rate, note)
        ]
    table = throughputs(rows, alone_s)
    print_table(f"{title}: programs/s at equal latency, {processor()}", table)
    name = f"real_servers-{arguments.workload}"
    draw(arguments.out / f"autellix-{name}.png", title, rows, alone_s)
    emit(
        f"autellix/{name}",
        arguments.out,
        model=arguments.model,
        lengths=arguments.lengths,
        alone_s=alone_s,
        rows=rows,
        throughput=table,
    )


if __name__ == "__main__":
    main()
