"""Compares the simulator with the real engine: the same programs run on a node and in virtual time.

    python benchmarks/autellix/validate.py [--quick] [--profile FILE] [--seconds 40]

Nothing else should run meanwhile. A node with the shipped model is profiled as ``quire profile``
does, with the engine settings that are validated. Then chats with forced lengths arrive at 50, 80
and 95 % of the throughput that the simulator has when all come at once, under each policy: on a
node with the Python API, in real time, and in the simulator with that profile. Chosen before the
first run: eight sequences, one thread of the engine (the node and the clients have the other core),
chats that fit the model's context, one seed, 40 seconds of arrivals for each run. The bars: means
of response and of latency of a token within 10 %, P95 within 20 %, policies in the same order
unless they are within 5 % of each other on the node. Policies take turns at each load, so that a
machine that changes meanwhile does so for all. Beside that each run is simulated with the costs of
its own messages: what is off there is the model's fault, the rest the machine's.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import combinations
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.autellix.real_node import Played, play_plans, started
from benchmarks.options import plain_parser
from benchmarks.report import emit, print_table, processor
from quire import __version__
from quire.cli.profile.command import measure
from quire.cli.recorded_logs import read_times
from quire.core.config import EngineConfig, NodeConfig
from quire.core.ids import ModelId
from quire.core.scheduler_config import SchedulerConfig
from quire.node.models import resolve_source
from quire.simulation.arrivals import Arrivals
from quire.simulation.engines import EngineSpec
from quire.simulation.message_times import MessageSample, MessageTimes
from quire.simulation.outcomes import spread
from quire.simulation.profile import (
    EngineProfile,
    FitErrors,
    decode_profile,
    encode_profile,
    fit,
)
from quire.simulation.trial import SimulationRun
from quire.simulation.workloads.conversations import SimulatedConversation
from quire.simulation.workloads.distributions import LogNormal
from quire.simulation.workloads.plan import ProgramPlan

Row = dict[str, Any]

MAX_SEQUENCES = 8
MAX_CONTEXT = 2000
LOADS = (0.5, 0.8, 0.95)
SECONDS, QUICK_SECONDS = 40.0, 8.0
NUM_SAMPLES = 300
"""Programs whose throughput at once is what loads are shares of."""
WARM_UP = 12
MEAN_WITHIN, P95_WITHIN, TIE = 0.10, 0.20, 0.05
DRIFT = 0.05
"""By how much messages may differ from the profile before the machine is said to have changed."""

ENGINE = EngineConfig(
    source=resolve_source(None), name=ModelId("model"), max_sequences=MAX_SEQUENCES, num_threads=1
)
CHATS = SimulatedConversation(
    "chats",
    num_calls=LogNormal(4, 0.9, most=12).draw,
    first=LogNormal(48, 0.8, most=256).draw,
    added=LogNormal(48, 0.8, most=256).draw,
    answer=LogNormal(120, 0.7, most=512).draw,
)


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of one run: response in seconds, latency in seconds per token."""

    response_mean: float
    response_p95: float
    latency_mean: float
    latency_p95: float


def chats(num_programs: int, seed: int) -> list[ProgramPlan]:
    return [_fitting(CHATS.draw(Random(f"chats/{seed}/{n}"))) for n in range(num_programs)]


def _fitting(plan: ProgramPlan) -> ProgramPlan:
    """Return ``plan`` without the calls that do not fit into the model's context; the first one
    always fits."""
    num_fit = sum(
        length + call.num_output <= MAX_CONTEXT
        for call, length in zip(plan.calls, plan.prompt_lengths, strict=True)
    )
    return ProgramPlan(plan.kind, plan.calls[:num_fit])


async def profiled() -> EngineProfile:
    """Return the profile of ``ENGINE``, measured as ``quire profile`` does."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "events.log"
        async with started(NodeConfig((ENGINE,), record_path=path)) as node:
            await measure(node)
        return _profile_of(read_times(path))


def _profile_of(times: MessageTimes) -> EngineProfile:
    assert times.info is not None
    date = datetime.now(UTC).isoformat(timespec="seconds")
    return fit(times.samples, times.info, machine=processor(), date=date, release=__version__)


def simulated(
    plans: Sequence[ProgramPlan], times_s: Sequence[float], engines: EngineSpec, policy: str
) -> tuple[Figures, float]:
    """Simulate ``plans``; return the figures, and when the last program ended."""
    outcomes = SimulationRun(plans, times_s, engines, SchedulerConfig(policy=policy)).run().outcomes
    figures = figures_of(plans, [one.response_s for one in outcomes])
    return figures, max(one.ended_s for one in outcomes)


def figures_of(plans: Sequence[ProgramPlan], responses_s: Sequence[float]) -> Figures:
    response = spread(responses_s)
    latency = spread(
        [s / plan.num_output_tokens for s, plan in zip(responses_s, plans, strict=True)]
    )
    return Figures(response.mean, response.p95, latency.mean, latency.p95)


@dataclass(frozen=True, slots=True)
class Load:
    """Programs of one load, and when they arrive."""

    share: float
    plans: Sequence[ProgramPlan]
    times_s: Sequence[float]


def loads_of(engines: EngineSpec, seconds: float, shares: Sequence[float], seed: int) -> list[Load]:
    samples = chats(NUM_SAMPLES, ~seed)
    _, makespan_s = simulated(samples, [0.0] * NUM_SAMPLES, engines, "fcfs")
    capacity = NUM_SAMPLES / makespan_s
    tell(f"capacity: {capacity:.2f} programs/s in the simulator")
    loads = []
    for share in shares:
        num_programs = max(20, round(share * capacity * seconds))
        arrivals = Arrivals(rate=share * capacity)
        plans = chats(num_programs, seed)
        loads.append(Load(share, plans, arrivals.times_s(num_programs, seed)))
    return loads


@dataclass(frozen=True, slots=True)
class Served:
    """What a node did with one load under one policy. ``drift`` and ``drift_between``: how much
    longer its messages took, together, than the profile says, and what passed between them; a
    machine that has changed since shows here. ``own``: the profile of these messages themselves."""

    played: Sequence[Played]
    drift: float
    drift_between: float
    own: EngineProfile


async def on_node(policy: str, load: Load, seed: int, cost: Mapping[str, float]) -> Served:
    """Play ``load`` on a node of its own, after a warm-up."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "events.log"
        scheduler = SchedulerConfig(policy=policy)
        async with started(NodeConfig((ENGINE,), scheduler=scheduler, record_path=path)) as node:
            await play_plans(node, chats(WARM_UP, ~seed), [0.0] * WARM_UP, seed=~seed)
            tell(f"{policy} at {load.share:g}: {len(load.plans)} programs")
            played = await play_plans(node, load.plans, load.times_s, seed)
        times = read_times(path)
        drifts = drift_of(times.samples, cost), drift_between(times.samples, cost)
        return Served(played, *drifts, _profile_of(times))


def drift_of(samples: Sequence[MessageSample], cost: Mapping[str, float]) -> float:
    predicted_s = sum(
        cost["message_s"]
        + cost["step_s"] * one.num_steps
        + cost["row_s"] * one.num_rows
        + cost["context_token_s"] * one.num_context_tokens
        + cost["prompt_s"] * (one.num_prompt_tokens > 0)
        + cost["prompt_token_s"] * one.num_prompt_tokens
        + cost["moved_block_s"] * one.num_moved_blocks
        for one in samples
    )
    return sum(one.elapsed_s for one in samples) / predicted_s - 1


def drift_between(samples: Sequence[MessageSample], cost: Mapping[str, float]) -> float:
    measured_s = predicted_s = 0.0
    for one in samples:
        if one.gap_s is not None:
            measured_s += one.gap_s
            predicted_s += cost["gap_s"] + cost["gap_row_s"] * one.num_commands
        elif one.behind_s is not None:
            measured_s += one.behind_s
            predicted_s += cost["behind_s"] + cost["behind_row_s"] * one.num_commands
    return measured_s / max(predicted_s, 1e-9) - 1


def tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def row_of(
    load: Load, policy: str, real: Figures, model: Figures, own: Figures, late_s: float
) -> Row:
    """Return the row of one load under one policy: what was measured, what was simulated, and how
    far off that is. ``own``: what the simulator says with the costs of the run itself; ``late_s``:
    how late the latest client began, in seconds."""
    row: Row = {"load": load.share, "policy": policy, "programs": len(load.plans)}
    for name in ("response_mean", "response_p95", "latency_mean", "latency_p95"):
        measured, modelled = getattr(real, name), getattr(model, name)
        row[name] = float(f"{measured:.4g}")
        row[f"{name} simulated"] = float(f"{modelled:.4g}")
        row[f"{name} off"] = round(modelled / measured - 1, 3)
        row[f"{name} own off"] = round(getattr(own, name) / measured - 1, 3)
    row["latest client s"] = round(late_s, 4)
    return row


def verdicts(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return the bars, each with the figures that miss it with the profile that was measured before
    the runs; a bar without any is met."""
    return {
        "means within 10 %": _beyond(rows, "mean", MEAN_WITHIN),
        "P95 within 20 %": _beyond(rows, "p95", P95_WITHIN),
        "policies ranked alike": [
            difference
            for one, other in combinations(rows, 2)
            if one["load"] == other["load"]
            for difference in _ranked_differently(one, other)
        ],
    }


def _beyond(rows: Sequence[Mapping[str, Any]], figure: str, most: float) -> list[str]:
    """Return the figures that are off by more than ``most``, each in words with its row."""
    return [
        f"{row['policy']} at {row['load']:g}: {name.replace('_', ' ')} "
        f"{row[f'{name} simulated']:.3g} s simulated, {row[name]:.3g} s on the node "
        f"({100 * row[f'{name} off']:+.0f} %; with its own costs "
        f"{100 * row[f'{name} own off']:+.0f} %)"
        for row in rows
        for name in (f"response_{figure}", f"latency_{figure}")
        if not abs(row[f"{name} off"]) <= most
    ]


def _ranked_differently(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Return the means by which node and simulator rank two policies differently, in words."""
    found = []
    for name in ("response_mean", "latency_mean"):
        measured = one[name] / other[name] - 1
        modelled = one[f"{name} simulated"] / other[f"{name} simulated"] - 1
        if abs(measured) > TIE and measured * modelled <= 0:
            found.append(
                f"{one['policy']} over {other['policy']} at {one['load']:g}: "
                f"{name.replace('_', ' ')} {100 * modelled:+.0f} % simulated, "
                f"{100 * measured:+.0f} % on the node"
            )
    return found


def remedies(
    rows: Sequence[Mapping[str, Any]], fit: FitErrors, found: Mapping[str, Sequence[str]]
) -> list[str]:
    """Return what may be the reason for the bars that were missed, and what to do about it."""
    if not any(found.values()):
        return []
    said = []
    if advice := fit.advice():
        said.append(f"the profile is doubtful: {advice}")
    drift = max((row["messages drift"] for row in rows), key=abs)
    between = max((row["between drift"] for row in rows), key=abs)
    if max(abs(drift), abs(between)) > DRIFT:
        said.append(
            f"the machine has changed since the profile: messages took up to {100 * drift:+.0f} % "
            f"beside it, what passed between them up to {100 * between:+.0f} %. Run this again "
            "with nothing else on the machine, without --profile"
        )
    return said or [
        "machine and profile are as they should be: what is off with a run's own costs is the "
        "model's fault, the rest that costs differ between loads or policies"
    ]


def shown(row: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the lines of a row in the table, one for each figure."""
    lines = []
    for name in ("response_mean", "response_p95", "latency_mean", "latency_p95"):
        scale, unit = (1, "s") if name.startswith("response") else (1000, "ms/token")
        lines.append(
            {
                "load": f"{row['load']:g}",
                "policy": row["policy"],
                "programs": str(row["programs"]),
                "figure": f"{name.replace('_', ' ')}, {unit}",
                "node": f"{scale * row[name]:.3g}",
                "simulated": f"{scale * row[f'{name} simulated']:.3g}",
                "off": f"{100 * row[f'{name} off']:+.0f} %",
                "with its own costs": f"{100 * row[f'{name} own off']:+.0f} %",
            }
        )
    return lines


def main() -> None:
    made = plain_parser(__doc__)
    made.add_argument("--policies", nargs="+", default=["fcfs", "plas"])
    made.add_argument("--loads", nargs="+", type=float, default=list(LOADS))
    made.add_argument("--seconds", type=float, default=None, help=f"default: {SECONDS:g}")
    made.add_argument("--seed", type=int, default=1)
    made.add_argument("--profile", type=Path, default=None, help="take this one, measure none")
    arguments = made.parse_args()
    seconds = arguments.seconds or (QUICK_SECONDS if arguments.quick else SECONDS)
    if arguments.profile is None:
        profile = asyncio.run(profiled())
    else:
        profile = decode_profile(arguments.profile.read_text(), str(arguments.profile))
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "autellix-validate.profile.json").write_text(encode_profile(profile))
    engines = profile.engines()
    if engines.max_sequences != MAX_SEQUENCES:
        raise SystemExit(
            f"{arguments.profile} is of an engine with {engines.max_sequences} sequences: this "
            f"validates one with {MAX_SEQUENCES}; leave --profile out"
        )
    loads = loads_of(engines, seconds, arguments.loads, arguments.seed)
    rows: list[Row] = []
    for load in loads:
        for policy in arguments.policies:
            served = asyncio.run(on_node(policy, load, arguments.seed, profile.cost))
            model, _ = simulated(load.plans, load.times_s, engines, policy)
            own, _ = simulated(load.plans, load.times_s, served.own.engines(), policy)
            real = figures_of(load.plans, [one.response_s for one in served.played])
            late_s = max(one.late_s for one in served.played)
            row = row_of(load, policy, real, model, own, late_s)
            row["messages drift"] = round(served.drift, 3)
            row["between drift"] = round(served.drift_between, 3)
            rows.append(row)
    print_table("node and simulator", [line for row in rows for line in shown(row)])
    for row in rows:
        tell(
            f"{row['policy']} at {row['load']:g}: beside the profile the node's messages took "
            f"{100 * row['messages drift']:+.0f} %, what passed between them "
            f"{100 * row['between drift']:+.0f} %"
        )
    found = verdicts(rows)
    print_table("bars", [{name: "no" if missed else "yes" for name, missed in found.items()}])
    for name, missed in found.items():
        for one in missed:
            tell(f"{name}: {one}")
    for one in remedies(rows, profile.errors, found):
        tell(one)
    emit(
        "autellix/validate",
        arguments.out,
        seed=arguments.seed,
        seconds=seconds,
        cost=profile.cost,
        fit=profile.errors.total,
        verdicts={name: not missed for name, missed in found.items()},
        missed=found,
        rows=rows,
    )


if __name__ == "__main__":
    main()
