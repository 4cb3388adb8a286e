"""Measures the kernel's matrix products next to PyTorch's (oneDNN, MKL) in the same run.

    python benchmarks/engine/products.py [--models tiny small 1b] [--rows 1 8 32 512] [--quick]
    taskset -c 1 python benchmarks/engine/products.py --processor-time --num-threads 1

Every product of a decoder layer and the output matrix, with random weights in the model's shapes.
Each layer has its own weights, so that they are read from where a step reads them. All contenders
take turns. Quire's products take and return float32 rows, as inside a step, and convert them;
PyTorch's take and return the weight type. With bf16 weights PyTorch also runs in float32
(``torch-f32``), its best type where the processor has no bf16; the ratio is to the better of the
two. The limit is the larger of reading the weights at the speed of a pure read, by the same
threads, of as many bytes as are read in turn, and multiplying at the peak of the processor's
instructions (``machine_limits``); both are the best of all rounds. A product called from Python
takes one or two microseconds more than inside a step: ``call_ms`` is the time of a call without
rows, and ``share_without_call`` leaves it out. Quote the ratios and the shares, not the
milliseconds. On a machine with other work ``--processor-time`` counts the processor time of one
thread instead, which does not include waiting for a core; what others do to the caches stays in it.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from benchmarks.checkpoints import SHAPES, CheckpointShape
from benchmarks.machine_limits import READ_SIZES, Limits, measure_limits
from benchmarks.machine_peak import read_buffer
from benchmarks.measurement import Figure, figure, ratio, take_turns
from benchmarks.plots import draw_bars
from benchmarks.report import emit, print_table, processor
from quire.engine.cpu.library import INSTRUCTION_SETS, load_kernel
from quire.engine.cpu.packed_matrix import (
    Epilogue,
    PackedMatrix,
    Product,
    WeightType,
)
from quire.engine.cpu.team import Team

NUM_LAYERS = 4
"""Of each model: enough that the layers of small and 1b exceed the caches."""
TORCH_TYPES = {WeightType.F32: torch.float32, WeightType.BF16: torch.bfloat16}
OURS, THEIRS, THEIRS_F32 = "quire", "torch", "torch-f32"
CALL = ("call", 0)
"""In Quire's times: a product without rows."""
LIMITS = "the machine's limits"
"""Their turn in each round."""
Times = dict[tuple[str, int], float]


@dataclass(frozen=True, slots=True)
class Shaped:
    """``y[M, N] = x[M, K] . w[N, K]``; ``num_columns`` counts both halves of a gated product."""

    name: str
    num_columns: int
    depth: int
    is_gated: bool = False

    def limit_s(
        self, num_rows: int, weight_type: WeightType, num_in_turn: int, limits: Limits
    ) -> float:
        """Return the least time of the product, in seconds. ``num_in_turn``: matrices of this shape
        that are read in turn."""
        size = self.num_columns * self.depth
        num_bytes = size * {WeightType.F32: 4, WeightType.BF16: 2, WeightType.INT8: 1}[weight_type]
        read_s = num_bytes / limits.bytes_per_s(num_in_turn * num_bytes)
        return max(read_s, 2 * num_rows * size / limits.flops[weight_type.name.lower()])


def products_of(shape: CheckpointShape) -> list[Shaped]:
    hidden, inner = shape.hidden_size, shape.intermediate_size
    kv = shape.num_key_value_heads * shape.head_dim
    return [
        Shaped("qkv", hidden + 2 * kv, hidden),
        Shaped("output", hidden, hidden),
        Shaped("gate_up", 2 * inner, hidden, is_gated=True),
        Shaped("down", hidden, inner),
        Shaped("logits", shape.vocab_size, hidden),
    ]


Clock = Callable[[], float]
"""Seconds since some time."""


class Ours:
    """Quire's packed weights of a few layers, and one pass through all of their products."""

    def __init__(
        self, team: Team, products: list[Shaped], weight_type: WeightType, clock: Clock
    ) -> None:
        self._clock = clock
        self._team = team
        self._products = products
        self._layers = [
            [self._pack(product, weight_type) for product in products_in_layer(products, layer)]
            for layer in range(NUM_LAYERS)
        ]

    def _pack(self, product: Shaped, weight_type: WeightType) -> PackedMatrix:
        halves = 2 if product.is_gated else 1
        rows = [random_weights(product.num_columns // halves, product.depth) for _ in range(halves)]
        return PackedMatrix(self._team, rows[0], weight_type, *rows[1:])

    def turn(self, all_rows: list[int]) -> Times:
        times = timed(self._products, all_rows, self._runs, self._clock)
        first = self._products[0]
        times[CALL] = timed([first], [0], self._runs, self._clock)[first.name, 0]
        return times

    def _runs(self, index: int, num_rows: int) -> list[Callable[[], object]]:
        product = self._products[index]
        x_MK = torch.randn(num_rows, product.depth)
        width = product.num_columns // (2 if product.is_gated else 1)
        y_MN = torch.zeros(num_rows, width)
        epilogue = Epilogue.SILU_MUL if product.is_gated else Epilogue.STORE
        return [
            Product(self._team, layer[index], x_MK, y_MN, epilogue=epilogue)
            for layer in self._layers
            if index < len(layer)
        ]


class Theirs:
    """The same products by PyTorch, without the following activation."""

    def __init__(self, products: list[Shaped], dtype: torch.dtype, clock: Clock) -> None:
        self._clock = clock
        self._products = products
        self._dtype = dtype
        self._layers = [
            [
                random_weights(product.num_columns, product.depth).to(dtype)
                for product in products_in_layer(products, layer)
            ]
            for layer in range(NUM_LAYERS)
        ]

    def turn(self, all_rows: list[int]) -> Times:
        return timed(self._products, all_rows, self._runs, self._clock)

    def _runs(self, index: int, num_rows: int) -> list[Callable[[], object]]:
        product = self._products[index]
        x_MK = torch.randn(num_rows, product.depth).to(self._dtype)
        y_MN = torch.zeros(num_rows, product.num_columns, dtype=self._dtype)
        return [
            partial(torch.mm, x_MK, layer[index].T, out=y_MN)
            for layer in self._layers
            if index < len(layer)
        ]


def torch_type(weight_type: WeightType) -> torch.dtype:
    return TORCH_TYPES.get(weight_type, torch.bfloat16)


def random_weights(num_columns: int, depth: int) -> torch.Tensor:
    return torch.randn(num_columns, depth) / math.sqrt(depth)


def products_in_layer(products: list[Shaped], layer: int) -> list[Shaped]:
    """Return the products of this layer. The output matrix, the last one, counts as part of the
    first layer."""
    return products if layer == 0 else products[:-1]


def timed(
    products: list[Shaped],
    all_rows: list[int],
    runs: Callable[[int, int], list[Callable[[], object]]],
    clock: Clock,
) -> Times:
    """Return the seconds per product, averaged over layers that run one after another."""
    times = {}
    for index, product in enumerate(products):
        for num_rows in all_rows:
            steps = runs(index, num_rows)
            for step in steps:  # warm-up: page faults of its buffers are not counted
                step()
            started_s = clock()
            for step in steps[1:] or steps:
                step()
            times[product.name, num_rows] = (clock() - started_s) / max(1, len(steps) - 1)
    return times


def rows_of_model(
    model: str,
    team: Team,
    weight_type: WeightType,
    measure: Callable[[], Limits],
    arguments: argparse.Namespace,
) -> list[dict[str, Any]]:
    products = products_of(SHAPES[model])
    clock = time.thread_time if arguments.processor_time else time.perf_counter
    ours = Ours(team, products, weight_type, clock)
    theirs = Theirs(products, torch_type(weight_type), clock)
    contenders = {OURS: ours.turn, THEIRS: theirs.turn}
    if weight_type is WeightType.BF16:
        contenders[THEIRS_F32] = Theirs(products, torch.float32, clock).turn
    found: list[Limits] = []
    turns = {name: partial(turn, arguments.rows) for name, turn in contenders.items()}
    turns[LIMITS] = partial(add_limits, found, measure)
    times = take_turns(model, turns, arguments.rounds)
    del times[LIMITS]
    limits = Limits.best_of(found)
    return [
        row(model, product, num_rows, times, limit_s(product, num_rows, weight_type, limits))
        for product in products
        for num_rows in arguments.rows
    ]


def add_limits(found: list[Limits], measure: Callable[[], Limits]) -> Times:
    found.append(measure())
    return {}


def limit_s(product: Shaped, num_rows: int, weight_type: WeightType, limits: Limits) -> float:
    """Return the least time for one product in seconds, where the layers' matrices are read one
    after another."""
    num_in_turn = 1 if product.name == "logits" else NUM_LAYERS - 1
    return product.limit_s(num_rows, weight_type, num_in_turn, limits)


def row(
    model: str, product: Shaped, num_rows: int, turns: Mapping[str, list[Times]], limit_s: float
) -> dict[str, Any]:
    key = (product.name, num_rows)
    seconds = {name: [times[key] for times in taken] for name, taken in turns.items()}
    ours = figure(seconds[OURS])
    call_s = median(times[CALL] for times in turns[OURS])
    rivals = [values for name, values in seconds.items() if name != OURS]
    best = min(rivals, key=median)
    return {
        "model": model,
        "product": product.name,
        "num_rows": num_rows,
        "shape": [product.num_columns, product.depth],
        "ms": {name: figure(values).scaled(1e3).rounded() for name, values in seconds.items()},
        "ahead_of_torch": ratio(best, seconds[OURS]).rounded(3),
        "limit_ms": float(f"{1e3 * limit_s:.4g}"),
        "share_of_limit": round(limit_s / ours.median, 3),
        "call_ms": float(f"{1e3 * call_s:.3g}"),
        "share_without_call": round(limit_s / (ours.median - call_s), 3),
    }


def shown(one: dict[str, Any]) -> dict[str, object]:
    ahead = one["ahead_of_torch"]
    return {
        "model": one["model"],
        "product": f"{one['product']} {one['shape'][0]}x{one['shape'][1]}",
        "rows": one["num_rows"],
        "quire ms": f"{one['ms'][OURS]['median']:.3g}",
        **{
            f"{name} ms": f"{one['ms'][name]['median']:.3g}"
            for name in (THEIRS, THEIRS_F32)
            if name in one["ms"]
        },
        "quire / best torch": f"{ahead['median']}x [{ahead['low']}, {ahead['high']}]",
        "share of limit": one["share_of_limit"],
        "without the call": one["share_without_call"],
    }


def draw(rows: list[dict[str, Any]], arguments: argparse.Namespace) -> None:
    """Draw the speed-up over PyTorch, for each product of the largest model measured."""
    model = arguments.models[-1]
    chosen = [one for one in rows if one["model"] == model]
    names = list(dict.fromkeys(one["product"] for one in chosen))
    series = {
        f"{num_rows} rows": [
            Figure(**one["ahead_of_torch"])
            for name in names
            for one in chosen
            if one["product"] == name and one["num_rows"] == num_rows
        ]
        for num_rows in arguments.rows
    }
    title = f"Products of {model}, {arguments.weights}: speed over PyTorch"
    draw_bars(arguments.out / "engine-products.png", title, "times faster", names, series)


def parse() -> argparse.Namespace:
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--models", nargs="+", choices=SHAPES, default=list(SHAPES))
    made.add_argument("--rows", nargs="+", type=int, default=[1, 8, 32, 512], metavar="M")
    types = [kind.name.lower() for kind in WeightType]
    made.add_argument("--weights", choices=types, default="bf16", help="default: %(default)s")
    made.add_argument("--isa", choices=INSTRUCTION_SETS, help="default: the best of this machine")
    made.add_argument("--num-threads", type=int, default=torch.get_num_threads())
    made.add_argument(
        "--processor-time", action="store_true", help="of the one thread, for a loaded machine"
    )
    made.add_argument("--rounds", type=int, default=7, help="default: %(default)s")
    made.add_argument("--quick", action="store_true", help="2 rounds, for a quick try")
    made.add_argument("--out", type=Path, default=Path("benchmark-results"))
    arguments = made.parse_args()
    if arguments.processor_time and arguments.num_threads != 1:
        made.error("--processor-time counts one thread: give --num-threads 1")
    arguments.rounds = 2 if arguments.quick else max(1, arguments.rounds)
    return arguments


def main() -> None:
    arguments = parse()
    torch.manual_seed(0)
    torch.set_num_threads(arguments.num_threads)
    weight_type = WeightType[arguments.weights.upper()]
    measure = partial(measure_limits, read_buffer(READ_SIZES[-1]), arguments.num_threads)
    with Team(load_kernel(arguments.isa), arguments.num_threads) as team:
        rows = [
            one
            for model in arguments.models
            for one in rows_of_model(model, team, weight_type, measure, arguments)
        ]
        isa = team.library.isa
    print_table(
        f"Products in {arguments.weights}, {isa}, {arguments.num_threads} threads, {processor()}",
        [shown(one) for one in rows],
    )
    emit(
        "engine/products",
        arguments.out,
        isa=isa,
        weights=arguments.weights,
        num_threads=arguments.num_threads,
        time="processor" if arguments.processor_time else "wall",
        rounds=arguments.rounds,
        rows=rows,
    )
    draw(rows, arguments)


if __name__ == "__main__":
    main()
