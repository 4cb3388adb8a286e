"""Compares two nodes behind a router with two servers of vLLM: requests of the same lengths at the
same times (Microserving, Fig. 10 and 11, in real time).

    python benchmarks/microserving/against_vllm.py [--loads fig10] [--rates 0.5 1] [--quick]

Each of the two engines has one core of its own and one thread; router and client use what is left
of both. Quire's nodes stay, and each strategy gets a router of its own before them; vLLM has no
router, so the client gives its requests to the two servers in turn. All have the model ``small`` in
one type, at most 32 sequences, and their own defaults otherwise, prefix caches among them. All take
turns in each round, and begin another one each time. Requests arrive independently; a round's
lengths and times are those of its seed, while each contender gets tokens of its own, so that nobody
finds in a cache what another one computed there. Answers have exactly the planned lengths.

Loads: ``fig10`` are ShareGPT's lengths over four (50 tokens in, 65 out, log-normal, sigma 1);
``fig11`` has 500 tokens in and 100 out, for which a core takes about the paper's ratio of prefill
to decode (1 to 3 here, 1 to 4 there, with 3000 in). ``fig10-raw`` and ``fig11-raw`` have the
paper's own lengths and take several times as long. ``of capacity``: the rate over what a server of
the kind serves if it is never idle, measured once by requests of the mean lengths.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.checkpoints import SHAPES
from benchmarks.http.servers import Server, start_vllm
from benchmarks.http.stream_client import Streamed, completion_body, stream
from benchmarks.measurement import figure, ratio
from benchmarks.microserving.nodes import MODEL, new_key, start_node, start_router
from benchmarks.options import plain_parser
from benchmarks.peers.catalog import (
    DEFAULT_CACHE,
    MAX_SEQUENCES,
    PeerMissing,
    model_directory,
    peer_python,
)
from benchmarks.plots import Panel, draw_lines
from benchmarks.report import emit, multiplies_bf16, print_table
from quire.cluster.routing.strategy import StrategySource
from quire.cluster.simulation import Lengths, RequestLoad
from quire.cluster.simulation.requests import RequestPlan
from quire.simulation.outcomes import spread

CHECKPOINT = "small"
CORES = (0, 1)
NUM_SERVERS = len(CORES)
MAX_TOKENS = 4096
"""Positions of the model."""
KV_CACHE = "2GiB"
"""Of each of Quire's engines; vLLM's have as much (``vllm_environment``)."""
VLLM = "vLLM"
STRATEGIES = {
    "data parallel": StrategySource("data_parallel"),
    "balanced 0.2": StrategySource("balanced", options={"ratio": 0.2}),
    "1P1D": StrategySource("disaggregated"),
    "quire": StrategySource("quire"),
}
CONTENDERS = (*STRATEGIES, VLLM)
NUM_REQUESTS, QUICK_REQUESTS, ROUNDS = 60, 6, 2
NUM_WARMING, NUM_AT_ONCE = 4, 16


@dataclass(frozen=True, slots=True)
class Load:
    """``rates``: requests per second and server, unless others are asked for."""

    prompts: Lengths
    answers: Lengths
    rates: tuple[float, ...]


LOADS = {
    "fig10": Load(Lengths(50, 1.0, "lognormal"), Lengths(65, 1.0, "lognormal"), (0.5, 1.0)),
    "fig11": Load(Lengths(500, 5), Lengths(100, 5), (0.25,)),
    "fig10-raw": Load(Lengths(200, 1.0, "lognormal"), Lengths(260, 1.0, "lognormal"), (0.2,)),
    "fig11-raw": Load(Lengths(3000, 5), Lengths(100, 5), (0.05,)),
}
FIGURES = tuple(
    (f"{name} {unit} {part}", f"{name}_s", part, scale)
    for name, unit, scale in (("ttft", "ms", 1e3), ("tpot", "ms", 1e3), ("jct", "s", 1.0))
    for part in ("mean", "p99")
)
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Asked:
    """Where a contender's requests go: to these addresses in turn, with this name of the model."""

    urls: tuple[str, ...]
    model: str


@dataclass(frozen=True, slots=True)
class Answered:
    """One answer, in seconds from when its request should have come: its first and its last token.
    ``late_s``: how much later it came."""

    first_s: float
    last_s: float
    num_output: int
    late_s: float = 0.0

    @property
    def tpot_s(self) -> float:
        return (self.last_s - self.first_s) / max(1, self.num_output - 1)


# -- requests --------------------------------------------------------------------------------------


def plans_of(load: Load, rate: float, num_requests: int, seed: int) -> list[RequestPlan]:
    """Return requests that arrive at ``rate`` per second and server, cut to the model's
    positions."""
    drawn = RequestLoad(num_requests, rate * NUM_SERVERS, load.prompts, load.answers, seed=seed)
    cut = []
    for plan in drawn.drawn():
        num_output = min(plan.num_output, MAX_TOKENS // 2)
        prompt = plan.prompt[: MAX_TOKENS - num_output]
        cut.append(RequestPlan(plan.at_s, prompt, num_output, plan.prefix))
    return cut


def tokens_of(plan: RequestPlan, number: int, seed: int, name: str) -> list[int]:
    """Return the prompt of request ``number``: as long as planned, of tokens that no other
    contender and no other round has."""
    random = Random(f"against_vllm/{seed}/{name}/{number}")
    return random.choices(range(3, SHAPES[CHECKPOINT].vocab_size), k=len(plan.prompt))


async def played(
    asked: Asked, plans: Sequence[RequestPlan], seed: int, name: str
) -> list[Answered]:
    """Send each request at its time; ``name`` is the contender's."""
    began_s = time.perf_counter()

    async def ask(number: int, plan: RequestPlan) -> Answered:
        tokens = tokens_of(plan, number, seed, name)
        body = completion_body(asked.model, tokens, plan.num_output)
        await asyncio.sleep(began_s + plan.at_s - time.perf_counter())
        url = asked.urls[number % len(asked.urls)]
        answer: Streamed = await stream(f"{url}/v1/completions", body)
        if answer.status != 200:
            raise SystemExit(f"{name} refuses a request: status {answer.status}")
        come_s = answer.start_s - began_s - plan.at_s
        first, last = answer.event_s[0], answer.event_s[-2]  # behind it is [DONE]
        return Answered(come_s + first, come_s + last, plan.num_output, come_s)

    return list(await asyncio.gather(*(ask(*one) for one in enumerate(plans))))


def at_once(load: Load, count: int) -> list[RequestPlan]:
    """Return ``count`` requests of the mean lengths that come together."""
    return [RequestPlan(0.0, [0] * load.prompts.mean, load.answers.mean, None)] * count


def capacity_of(asked: Asked, load: Load, name: str) -> float:
    """Return how many requests of the mean lengths one server answers in a second."""
    one = Asked(asked.urls[:1], asked.model)
    asyncio.run(played(one, at_once(load, 1), -1, name))
    answers = asyncio.run(played(one, at_once(load, NUM_AT_ONCE), -2, name))
    return NUM_AT_ONCE / max(answer.last_s for answer in answers)


# -- servers ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Running:
    """The servers of both systems. ``vllm`` is empty if vLLM takes no part."""

    key: Path
    nodes: Sequence[Server]
    vllm: Sequence[Server]

    @contextmanager
    def contender(self, name: str) -> Iterator[Asked]:
        """Let ``name`` be asked: a strategy has a router as long as the context is open."""
        if name == VLLM:
            yield Asked(tuple(one.url for one in self.vllm), CHECKPOINT)
            return
        strategy = STRATEGIES[name]
        routes = ["--cluster-key-file", str(self.key)]
        for option, value in strategy.options.items():
            routes += ["--strategy-option", f"{option}={value}"]
        with start_router(self.nodes, strategy.name, *routes) as router:
            yield Asked((router.url,), MODEL)


@contextmanager
def running(names: Sequence[str], cache: Path, dtype: str) -> Iterator[Running]:
    """Start the servers that ``names`` need, each on a core of its own."""
    with ExitStack() as stack:
        key = new_key(Path(stack.enter_context(tempfile.TemporaryDirectory())))
        directory = model_directory(cache, CHECKPOINT)
        options = ["--max-sequences", str(MAX_SEQUENCES), "--kv-cache-bytes", KV_CACHE]
        options += ["--max-model-len", str(MAX_TOKENS)]
        vllm = [
            stack.enter_context(
                start_vllm(CHECKPOINT, cache, dtype=dtype, max_model_len=MAX_TOKENS, core=core)
            )
            for core in (CORES if VLLM in names else ())
        ]
        nodes = [
            stack.enter_context(start_node(directory, key, dtype, 1, *options, core=core))
            for core in (CORES if set(names) & set(STRATEGIES) else ())
        ]
        yield Running(key, nodes, vllm)


# -- figures ---------------------------------------------------------------------------------------


def row_of(answers: Sequence[Answered]) -> Row:
    """Return mean and P99 of the answers' times, and how late the latest request came."""
    values = {
        "ttft_s": spread([one.first_s for one in answers]),
        "tpot_s": spread([one.tpot_s for one in answers]),
        "jct_s": spread([one.last_s for one in answers]),
    }
    found = {name: scale * getattr(values[of], part) for name, of, part, scale in FIGURES}
    return {**found, "latest client s": max(one.late_s for one in answers)}


def medians_of(rows: Sequence[Row]) -> list[Row]:
    """Return the medians over the rounds of each rate and contender, and vLLM's times over the
    contender's in the same round."""
    groups: dict[tuple[float, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["rate"], row["contender"]), []).append(row)
    found = []
    for (rate, name), own in groups.items():
        peer = groups.get((rate, VLLM), [])
        figures = {one: str(figure([row[one] for row in own])) for one, *_ in FIGURES}
        if peer and name != VLLM:
            for one in ("jct s mean", "jct s p99"):
                over = ratio([row[one] for row in peer], [row[one] for row in own])
                figures[f"vLLM's {one} over its"] = str(over)
        found.append(
            {"rate": rate, "contender": name, "of capacity": own[0]["of capacity"], **figures}
        )
    return found


def panels_of(rows: Sequence[Row]) -> list[Panel]:
    """Return one drawing for each figure: its median over the rounds, by rate."""
    points: dict[str, dict[str, dict[float, list[float]]]] = {}
    for row in rows:
        for name, *_ in FIGURES:
            of = points.setdefault(name, {}).setdefault(row["contender"], {})
            of.setdefault(row["rate"], []).append(row[name])
    return [
        Panel(
            name,
            {
                contender: [(rate, figure(values).median) for rate, values in sorted(of.items())]
                for contender, of in lines.items()
            },
        )
        for name, lines in points.items()
    ]


def turns_of(names: Sequence[str], number: int) -> list[str]:
    """Return the contenders in the order of round ``number``."""
    first = number % len(names)
    return [*names[first:], *names[:first]]


# -- the command -----------------------------------------------------------------------------------


def measured(
    servers: Running, label: str, rates: Sequence[float], arguments: argparse.Namespace
) -> list[Row]:
    """Play the load of ``label`` in rounds, at each rate."""
    load, names = LOADS[label], arguments.only
    num_rounds = arguments.rounds or (1 if arguments.quick else ROUNDS)
    num_requests = arguments.requests or (QUICK_REQUESTS if arguments.quick else NUM_REQUESTS)
    capacities = _capacities(servers, names, load)
    rows = []
    for rate in rates:
        for seed in range(num_rounds):
            plans = plans_of(load, rate, num_requests, seed)
            for name in turns_of(names, seed):
                point = f"{label} {rate} {name}"
                with servers.contender(name) as asked:
                    asyncio.run(played(asked, at_once(load, NUM_WARMING), -3 - seed, point))
                    answers = asyncio.run(played(asked, plans, seed, point))
                share = rate / capacities[name == VLLM]
                row = {"rate": rate, "seed": seed, "contender": name, "of capacity": share}
                rows.append(_rounded({**row, **row_of(answers)}))
                print(rows[-1], file=sys.stderr, flush=True)
    return rows


def _capacities(servers: Running, names: Sequence[str], load: Load) -> Mapping[bool, float]:
    """Return the capacity of a server, by whether it is vLLM's."""
    found = {}
    for name in names:
        if (name == VLLM) not in found:
            with servers.contender(name) as asked:
                own = asked if name == VLLM else Asked((servers.nodes[0].url,), MODEL)
                found[name == VLLM] = capacity_of(own, load, f"{load} {name}")
    return found


def _rounded(row: Row) -> Row:
    return {k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in row.items()}


def _options() -> argparse.Namespace:
    made = plain_parser(__doc__)
    made.add_argument(
        "--loads", nargs="+", choices=LOADS, default=["fig10", "fig11"], help="default: %(default)s"
    )
    made.add_argument(
        "--rates", nargs="+", type=float, help="requests a second and server (default: the load's)"
    )
    made.add_argument("--requests", type=int, help=f"of each point (default: {NUM_REQUESTS})")
    made.add_argument(
        "--only", nargs="+", choices=CONTENDERS, default=list(CONTENDERS), metavar="CONTENDER",
        help=f"of {', '.join(CONTENDERS)} (default: all)",
    )  # fmt: skip
    made.add_argument(
        "--cache",
        type=Path,
        default=DEFAULT_CACHE,
        help="folder of models and peers, see benchmarks/peers/install.py (default: %(default)s)",
    )
    return made.parse_args()


def main() -> None:
    arguments = _options()
    if VLLM in arguments.only:
        try:
            peer_python(arguments.cache, "vllm")
        except PeerMissing as exc:
            left = " ".join(f'"{name}"' for name in STRATEGIES)
            raise SystemExit(f"{exc}; or leave vLLM out: --only {left}") from exc
    dtype = "bfloat16" if multiplies_bf16() else "float32"
    with running(arguments.only, arguments.cache, dtype) as servers:
        for label in arguments.loads:
            load = LOADS[label]
            rates = arguments.rates or (load.rates[:1] if arguments.quick else load.rates)
            rows = measured(servers, label, rates, arguments)
            medians = medians_of(rows)
            print_table(f"{label}, {dtype}: medians of the rounds", medians)
            name = f"against_vllm-{label}"
            emit(f"microserving/{name}", arguments.out, dtype=dtype, results=rows, medians=medians)
            draw_lines(
                arguments.out / f"microserving-{name}.png",
                f"{label}: two engines with a core each, {CHECKPOINT}, {dtype}",
                "requests a second and engine",
                panels_of(rows),
            )


if __name__ == "__main__":
    main()
