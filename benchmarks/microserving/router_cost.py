"""Measures what a router costs: first tokens and tokens per second through it, over those of its
node.

    python benchmarks/microserving/router_cost.py [--models small] [--requests 32] [--quick]

One node, one router before it, both on this machine; the same client asks one and the other in
interleaved rounds. First token: requests one after the other, each over a new connection, with a
prompt that the node has cached; the cost is the difference of a round's medians. Tokens per second:
concurrent streams with one event per token; the cost is the ratio. The router's processor time per
request is that of its process during the first part, and per event during the second. Node and
router share a key, with which all streams have one connection between them; ``--without-key`` each
has its own.

Other work on the machine disturbs times by more than a router costs. Processor time is disturbed
less: ``cpu_ratio`` is what node and client take for the streams without a router, over what node,
client and router take with one, so it is the ratio of tokens per second where all of them share one
core that is always busy. With ``--node-core`` and ``--router-core`` the node has one core, router
and client another one.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

from benchmarks.checkpoints import SHAPES
from benchmarks.http.servers import Server, on_core, start_quire
from benchmarks.http.stream_client import completion_body, stream, stream_all
from benchmarks.measurement import figure, ratio, take_turns
from benchmarks.microserving.nodes import new_key, start_router
from benchmarks.options import parser, rounds_of
from benchmarks.report import emit, print_table

PROMPT, OUTPUT, NUM_FIRST = 128, 64, 30


def run(
    asked: Server, node: Server, router: Server, model: str, count: int, seed: int
) -> dict[str, float]:
    """Send one round of requests to the server ``asked``, and return what it took."""
    random = np.random.default_rng(seed)
    prompts = random.integers(3, SHAPES[model].vocab_size, (count, PROMPT)).tolist()
    url = asked.completions_url
    first = completion_body(model, prompts[0], 2)
    began_s = router.cpu_s()
    firsts = [asyncio.run(stream(url, first)).event_s[0] for _ in range(NUM_FIRST)]
    bodies = [completion_body(model, one, OUTPUT) for one in prompts]
    node_s, client_s, router_s = node.cpu_s(), time.process_time(), router.cpu_s()
    answers = asyncio.run(stream_all(url, bodies))
    node_s, client_s = node.cpu_s() - node_s, time.process_time() - client_s
    router_cpu_s = router.cpu_s() - router_s
    total_s = max(one.end_s for one in answers) - min(one.start_s for one in answers)
    num_events = sum(len(one.event_s) for one in answers)
    return {
        "first_s": statistics.median(firsts),
        "tokens_per_s": count * OUTPUT / total_s,
        "cpu_s": node_s + client_s + (router_cpu_s if asked is router else 0.0),
        "router_cpu_us_per_request": 1e6 * (router_s - began_s) / NUM_FIRST,
        "router_cpu_us_per_event": 1e6 * router_cpu_s / num_events,
        "node_cpu_us_per_event": 1e6 * node_s / num_events,
    }


def measure(arguments: Any, model: str) -> dict[str, Any]:
    with ExitStack() as stack:
        shared: tuple[str, ...] = ()
        if not arguments.without_key:
            scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            shared = ("--cluster-key-file", str(new_key(scratch)))
        options = list(shared)
        if arguments.num_threads is not None:
            options += ["--num-threads", str(arguments.num_threads)]
        with on_core(arguments.node_core):
            node = stack.enter_context(start_quire(model, arguments.cache, *options))
        routes = [*shared, *(["--resume"] if arguments.resume else [])]
        stack.enter_context(on_core(arguments.router_core))
        router = stack.enter_context(start_router([node], arguments.strategy, *routes))
        seeds = iter(range(1_000_000))
        turns = {
            name: lambda asked=asked: run(
                asked, node, router, model, arguments.requests, next(seeds)
            )
            for name, asked in (("node", node), ("router", router))
        }
        rounds = take_turns(f"{model}, {arguments.requests} streams", turns, rounds_of(arguments))
    of = partial(_of, rounds)
    extra_s = [r - n for r, n in zip(of("router", "first_s"), of("node", "first_s"), strict=True)]
    return {
        "model": model,
        "num_requests": arguments.requests,
        "strategy": arguments.strategy,
        "resume": arguments.resume,
        "has_key": not arguments.without_key,
        "first_token_node_ms": figure(of("node", "first_s")).scaled(1e3).rounded(),
        "first_token_router_ms": figure(of("router", "first_s")).scaled(1e3).rounded(),
        "first_token_cost_ms": figure(extra_s).scaled(1e3).rounded(),
        "tokens_per_s_node": figure(of("node", "tokens_per_s")).rounded(),
        "tokens_per_s_router": figure(of("router", "tokens_per_s")).rounded(),
        "router_over_node": ratio(
            of("router", "tokens_per_s"), of("node", "tokens_per_s")
        ).rounded(),
        "cpu_ratio": ratio(of("node", "cpu_s"), of("router", "cpu_s")).rounded(),
        "router_cpu_us_per_request": figure(of("router", "router_cpu_us_per_request")).rounded(),
        "router_cpu_us_per_event": figure(of("router", "router_cpu_us_per_event")).rounded(),
        "node_cpu_us_per_event": figure(of("node", "node_cpu_us_per_event")).rounded(),
    }


def _of(rounds: dict[str, list[dict[str, float]]], name: str, field: str) -> list[float]:
    return [one[field] for one in rounds[name]]


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--requests", type=int, default=32, help="at once (default: %(default)s)")
    made.add_argument("--strategy", default="least_used", help="default: %(default)s")
    made.add_argument("--without-key", action="store_true", help="node and router share no key")
    made.add_argument("--resume", action="store_true", help="the router resumes streams")
    made.add_argument("--node-core", type=int, help="the core of the node")
    made.add_argument("--router-core", type=int, help="the core of router and client")
    arguments = made.parse_args()
    if arguments.resume and arguments.without_key:
        made.error("--resume needs the key: leave --without-key out")
    rows = [measure(arguments, model) for model in arguments.models]
    print_table("A router's cost", rows)
    emit("microserving/router_cost", arguments.out, results=rows)


if __name__ == "__main__":
    main()
