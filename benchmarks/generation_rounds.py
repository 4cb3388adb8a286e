"""Runs offline generations of all contenders in turn, and probes the machine's limits: the
measurements behind ``generation`` and ``ttft``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from benchmarks.checkpoints import SHAPES
from benchmarks.machine_limits import Limits, MachineProbe
from benchmarks.measurement import Figure, figure, ratio, take_turns
from benchmarks.peers.catalog import LLAMACPP_TYPES, OURS, WHOLE_PEERS, PeerLaunch, quantises
from benchmarks.peers.process import PeerProcess
from benchmarks.process_memory import available_bytes

_LIMITS = "the machine's limits"
_KEPT_FREE_BYTES = 3 << 30
"""Reserved for contenders' memory while they run, and for the system's own caches."""

Report = dict[str, float]
"""See ``peers.process.PeerProcess.generate``."""


@dataclass(frozen=True, slots=True)
class Workload:
    """``num_requests`` prompts at once; random ones in each run, so that no cache helps."""

    num_requests: int
    prompt_tokens: int
    output_tokens: int

    @property
    def title(self) -> str:
        return f"{self.num_requests} x {self.prompt_tokens}+{self.output_tokens}"


@dataclass(slots=True)
class RoundOutcome:
    """The reports of one workload by contender, round by round. ``limits``: the machine's best
    rates, measured in the same rounds."""

    model: str
    workload: Workload
    reports: dict[str, list[Report]]
    limits: Limits
    pss_bytes: dict[str, int] = field(default_factory=dict)

    def figures(self, name: str) -> dict[str, Figure]:
        """Return each contender's figure: ``first_s``, ``step_s``, ``total_s``, ``cpu_s`` or
        ``tokens_per_s``."""
        return {who: figure(self.values(who, name)) for who in self.reports}

    def share(self, who: str, name: str, limit_s: float) -> Figure:
        """Return the limit divided by the time of ``who``."""
        return figure([limit_s / seconds for seconds in self.values(who, name)])

    def values(self, who: str, name: str) -> list[float]:
        reports = self.reports[who]
        if name == "tokens_per_s":
            return [report["num_tokens"] / report["total_s"] for report in reports]
        return [report[name] for report in reports]

    def best_peer(self, name: str, *, larger_is_better: bool) -> str | None:
        """Return the peer with the best median, of those that do not quantise."""
        peers = {who: one.median for who, one in self.figures(name).items() if who in WHOLE_PEERS}
        if not peers:
            return None
        return (max if larger_is_better else min)(peers, key=lambda who: peers[who])

    def comparisons(self, name: str, *, larger_is_better: bool) -> dict[str, dict[str, Figure]]:
        """Return the speed-up of each of Quire's contenders over its peers: the best one that does
        not quantise, or for quantised weights each type of llama.cpp."""
        best = self.best_peer(name, larger_is_better=larger_is_better)
        whole = [] if best is None else [best]
        quantised = [peer for peer in LLAMACPP_TYPES if peer in self.reports]
        return {
            who: {
                peer: self.speedup(who, peer, name, larger_is_better=larger_is_better)
                for peer in (quantised if quantises(who) else whole)
            }
            for who in OURS
            if who in self.reports
        }

    def speedup(self, who: str, peer: str, name: str, *, larger_is_better: bool) -> Figure:
        """Return the speed-up of ``who`` over ``peer``, round by round."""
        ours, theirs = self.values(who, name), self.values(peer, name)
        return ratio(ours, theirs) if larger_is_better else ratio(theirs, ours)


def run_workloads(
    model: str,
    launches: Mapping[str, PeerLaunch],
    workloads: Sequence[Workload],
    num_rounds: int,
    num_threads: int | None = None,
) -> list[RoundOutcome]:
    """Run all workloads. All contenders stay loaded while they take turns, so all must fit into
    memory."""
    outcomes = []
    with ExitStack() as stack:
        workers = {}
        for name, launch in launches.items():
            workers[name] = stack.enter_context(launch.start(num_threads))
            _require_memory(list(workers), list(launches))
        probe = stack.enter_context(MachineProbe())
        for workload in workloads:
            random = np.random.default_rng(0)
            limits: list[Limits] = []
            turns = {
                name: partial(_run, worker, model, workload, random)
                for name, worker in workers.items()
            }
            turns[_LIMITS] = partial(_probe, probe, limits)
            reports = take_turns(f"{model}, {workload.title}", turns, num_rounds)
            del reports[_LIMITS]
            memory = {name: worker.pss_bytes() for name, worker in workers.items()}
            best = Limits.best_of(limits)
            outcomes.append(RoundOutcome(model, workload, reports, best, memory))
    return outcomes


def _require_memory(started: list[str], wanted: list[str]) -> None:
    """Refuse to start without enough memory: the machine would swap without end rather than
    fail."""
    available = available_bytes()
    if available is not None and available < _KEPT_FREE_BYTES:
        raise SystemExit(
            f"{available >> 20} MiB of memory are left with {', '.join(started)} loaded, of "
            f"{len(wanted)} contenders: measure fewer at a time (--contenders), one in every run"
        )


def _probe(probe: MachineProbe, found: list[Limits]) -> Report:
    found.append(probe.measure())
    return {}


def _run(
    worker: PeerProcess, model: str, workload: Workload, random: np.random.Generator
) -> Report:
    size = (workload.num_requests, workload.prompt_tokens)
    prompts = random.integers(3, SHAPES[model].vocab_size, size).tolist()
    return worker.generate(prompts, workload.output_tokens)
