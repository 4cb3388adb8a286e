"""Compares the virtual cluster with two real nodes: the same requests, behind the same strategies.

    python benchmarks/microserving/two_nodes.py [--rates 1 2] [--requests 120] [--quick]

Two processes of ``quire serve`` with the shipped model, one thread each, and ``quire router``
before them; requests with ShareGPT's lengths over four (50 tokens in, 65 out, log-normal, sigma 1)
arrive independently. Then ``quire.cluster.simulation`` plays the same requests. Its engines have
the costs of the run's own messages, fitted as ``quire profile`` does: what is off is the model's
fault and not that of a machine that has changed since a profile was measured; ``--profile FILE``
adds the simulator with one that was measured before. The time from the router to a node and back is
fitted to requests which came alone, before the run: with it the simulator gives their first token
when it came. The aim: mean and P99 of TTFT, TPOT and JCT within 10 %.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.http.servers import Server, on_core
from benchmarks.http.stream_client import Streamed, completion_body, stream
from benchmarks.measurement import figure
from benchmarks.microserving.nodes import MODEL, new_key, start_node, start_router
from benchmarks.options import plain_parser
from benchmarks.report import emit, print_table, processor
from quire import __version__
from quire.cli.recorded_logs import read_times
from quire.cluster.routing.strategy import StrategySource
from quire.cluster.simulation import ClusterStudy, Lengths, RequestLoad, examine_cluster
from quire.cluster.simulation.figures import ClusterSummary
from quire.cluster.simulation.requests import RequestPlan
from quire.core.engine_info import EngineInfo
from quire.node.models import resolve_source
from quire.simulation.engines import EngineSpec
from quire.simulation.exchange import LinkCost
from quire.simulation.message_times import MessageSample
from quire.simulation.outcomes import Spread, spread
from quire.simulation.profile import decode_profile, fit

NUM_NODES, MAX_SEQUENCES = 2, 16
PROMPTS, ANSWERS = Lengths(50, 1.0, "lognormal"), Lengths(65, 1.0, "lognormal")
STRATEGIES = {
    "data_parallel": StrategySource("data_parallel"),
    "balanced 0.2": StrategySource("balanced", options={"ratio": 0.2}),
}
RATES, QUICK_RATES = (1.0, 2.0), (1.0,)
NUM_REQUESTS, QUICK_REQUESTS, ROUNDS = 120, 20, 3
NUM_ALONE, ALONE_S = 12, 1.5
_FIRST_ALONE = 1 << 20
"""The seed of the requests that come alone in round 0: no round has it."""
VOCABULARY = 1536
"""Of the shipped model."""
LINK = LinkCost(bytes_per_s=1e9)
"""K and V of these prompts are less than a megabyte: what the link takes hardly shows."""

_TRIED_S = 1e-3

FIGURES = tuple((name, part) for name in ("ttft_s", "tpot_s", "jct_s") for part in ("mean", "p99"))
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Real:
    """The measurements of two nodes. ``alone_s``: times to the first token of requests that
    came alone."""

    times: dict[str, Spread]
    alone_s: float
    samples: Sequence[MessageSample]
    info: EngineInfo
    late_s: float


def load_of(rate: float, num_requests: int, seed: int) -> RequestLoad:
    """Return the load at ``rate`` requests per second for each node."""
    return RequestLoad(num_requests, rate * NUM_NODES, PROMPTS, ANSWERS, seed=seed)


def alone_of(seed: int) -> RequestLoad:
    """Return the requests that come alone before the load of ``seed``."""
    lengths = Lengths(PROMPTS.mean), Lengths(2)
    return RequestLoad(NUM_ALONE, 1 / ALONE_S, *lengths, seed=_FIRST_ALONE + seed)


# -- real nodes ------------------------------------------------------------------------------------


def on_nodes(strategy: StrategySource, load: RequestLoad, core: int | None) -> Real:
    """Play ``load`` over nodes of its own. ``core``: the core that all processes share, if they
    shall."""
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        key = new_key(scratch)
        logs = [scratch / f"node-{number}.log" for number in range(NUM_NODES)]
        stack.enter_context(on_core(core))
        with ExitStack() as running:
            nodes = [running.enter_context(_node(key, log)) for log in logs]
            routes = ["--cluster-key-file", str(key)]
            for option, value in strategy.options.items():
                routes += ["--strategy-option", f"{option}={value}"]
            router = running.enter_context(start_router(nodes, strategy.name, *routes))
            alone, _ = asyncio.run(_played(router, alone_of(load.seed).drawn()))
            answers, late_s = asyncio.run(_played(router, load.drawn()))
        found = [read_times(log) for log in logs]
    info = found[0].info
    assert info is not None
    return Real(
        _times(answers, load.drawn()),
        statistics.median(one[0] for one in alone),
        [sample for times in found for sample in times.samples],
        info,
        late_s,
    )


def _node(key: Path, log: Path) -> Server:
    options = ("--record", str(log), "--max-sequences", str(MAX_SEQUENCES))
    return start_node(Path(resolve_source(None)), key, "float32", 1, *options)


async def _played(
    router: Server, plans: Sequence[RequestPlan]
) -> tuple[list[tuple[float, float]], float]:
    """First and last token of each, from when it should have come; and how late the latest came."""
    began_s = time.perf_counter()
    late = [0.0]

    async def ask(plan: RequestPlan) -> tuple[float, float]:
        tokens = [3 + token % (VOCABULARY - 3) for token in plan.prompt]
        body = completion_body(MODEL, tokens, plan.num_output)
        await asyncio.sleep(began_s + plan.at_s - time.perf_counter())
        late.append(time.perf_counter() - began_s - plan.at_s)
        answer: Streamed = await stream(router.completions_url, body)
        if answer.status != 200:
            raise SystemExit(f"a node refuses a request: {answer.status}")
        come_s = answer.start_s - began_s - plan.at_s
        return come_s + answer.event_s[0], come_s + answer.event_s[-2]  # behind it is [DONE]

    return list(await asyncio.gather(*map(ask, plans))), max(late)


def _times(
    answers: Sequence[tuple[float, float]], plans: Sequence[RequestPlan]
) -> dict[str, Spread]:
    steps = [max(1, plan.num_output - 1) for plan in plans]
    return {
        "ttft_s": spread([first for first, _ in answers]),
        "tpot_s": spread(
            [(last - first) / count for (first, last), count in zip(answers, steps, strict=True)]
        ),
        "jct_s": spread([last for _, last in answers]),
    }


# -- the virtual cluster ---------------------------------------------------------------------------


def simulated(
    strategy: StrategySource, load: RequestLoad, engine: EngineSpec, real: Real
) -> ClusterSummary:
    """Play ``load`` in virtual time, over engines like ``engine``."""
    pool = real.info.pool
    token_bytes = sum(group.bytes_per_block for group in pool.groups) // pool.page_size
    engine = replace(engine, num_layers=real.info.num_layers, token_bytes=token_bytes)
    study = ClusterStudy(load=load, num_nodes=NUM_NODES, engine=engine, link=LINK, call_s=0.0)
    call_s = _call_s(replace(study, load=alone_of(load.seed)), strategy, real.alone_s)
    return examine_cluster(replace(study, call_s=call_s), strategy).summary


def _call_s(study: ClusterStudy, strategy: StrategySource, alone_s: float) -> float:
    """The time to a node and back with which lone requests have their first token after
    ``alone_s``. A divided request makes three calls, and each takes this time."""

    def first_s(call_s: float) -> float:
        played = examine_cluster(replace(study, call_s=call_s), strategy)
        return statistics.median(one.ttft_s for one in played.outcomes)

    at_once_s = first_s(0.0)
    return max(0.0, alone_s - at_once_s) / num_calls_of(at_once_s, first_s(_TRIED_S))


def num_calls_of(at_once_s: float, tried_s: float) -> float:
    """The number of calls before the first token, which comes after ``at_once_s``, or after
    ``tried_s`` if each call takes ``_TRIED_S``. On a busy machine the messages are so long that a
    later call may meet a shorter one: a request makes one call at least."""
    return max(1.0, (tried_s - at_once_s) / _TRIED_S)


def own_engine(real: Real) -> EngineSpec:
    """Return an engine whose costs are fitted to the run's own messages."""
    date = datetime.now(UTC).isoformat(timespec="seconds")
    made = fit(real.samples, real.info, machine=processor(), date=date, release=__version__)
    return made.engines()


def compared(real: Real, summary: ClusterSummary) -> Row:
    """Return the simulated figure over the real one, less 1."""
    return {
        f"{name} {part}": round(
            getattr(getattr(summary, name), part) / getattr(real.times[name], part) - 1, 3
        )
        for name, part in FIGURES
    }


def main() -> None:
    made = plain_parser(__doc__)
    made.add_argument("--rates", nargs="+", type=float, help="requests a second and node")
    made.add_argument("--requests", type=int, help=f"of each run (default: {NUM_REQUESTS})")
    made.add_argument("--profile", type=Path, help="simulate with this one, too")
    made.add_argument("--core", type=int, help="all processes share this core")
    arguments = made.parse_args()
    quick = arguments.quick
    num_requests = arguments.requests or (QUICK_REQUESTS if quick else NUM_REQUESTS)
    earlier = None
    if arguments.profile is not None:
        earlier = decode_profile(arguments.profile.read_text(), str(arguments.profile)).engines()
    rows: list[Row] = []
    for rate in arguments.rates or (QUICK_RATES if quick else RATES):
        for seed in range(arguments.rounds or (1 if quick else ROUNDS)):
            load = load_of(rate, num_requests, seed)
            for name, strategy in STRATEGIES.items():
                rows += _rows(name, strategy, load, rate, earlier, arguments.core)
    medians = _medians(rows)
    print_table("simulated over real, less 1: medians of the rounds", medians)
    emit("microserving/two_nodes", arguments.out, results=rows, medians=medians)


def _rows(
    name: str,
    strategy: StrategySource,
    load: RequestLoad,
    rate: float,
    earlier: EngineSpec | None,
    core: int | None,
) -> list[Row]:
    real = on_nodes(strategy, load, core)
    measured = {f"{one} {part}": getattr(real.times[one], part) for one, part in FIGURES}
    engines = {"its own": own_engine(real)} | ({} if earlier is None else {"earlier": earlier})
    rows = [
        {
            "strategy": name,
            "rate": rate,
            "seed": load.seed,
            "profile": profile,
            "off": compared(real, simulated(strategy, load, engine, real)),
            "real": {key: round(value, 4) for key, value in measured.items()},
            "latest client s": round(real.late_s, 3),
        }
        for profile, engine in engines.items()
    ]
    for row in rows:
        print(row, file=sys.stderr, flush=True)
    return rows


def _medians(rows: Sequence[Row]) -> list[Row]:
    groups: dict[tuple[str, float, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["strategy"], row["rate"], row["profile"]), []).append(row)
    return [
        {
            "strategy": strategy,
            "rate": rate,
            "profile": profile,
            **{key: str(figure([one["off"][key] for one in found])) for key in found[0]["off"]},
        }
        for (strategy, rate, profile), found in groups.items()
    ]


if __name__ == "__main__":
    main()
