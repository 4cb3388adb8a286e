"""A table of cases for the common subset of samplers: greedy; top-k, temperature, min-p, top-p and
a draw. Every sampling implementation in Quire runs them all and must match ``sampling_reference``.

``CASES`` have a name, logits, one ``Parameters`` per row and the positions. Numbers come from a
counter, so they are the same everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray
from sampling_reference import Parameters, choose

F32Array = NDArray[np.float32]


@dataclass(frozen=True)
class Case:
    name: str
    logits_SV: F32Array
    parameters: tuple[Parameters, ...]
    positions: tuple[int, ...]

    def expected(self) -> list[int | None]:
        """The tokens to choose; None for rows that must be reported as impossible."""
        rows = zip(self.logits_SV, self.parameters, self.positions, strict=True)
        return [choose(logits, parameters, position) for logits, parameters, position in rows]


PLAIN = Parameters(seed=1)

SETTINGS = (
    PLAIN,
    Parameters(greedy=True),
    Parameters(temperature=0.7, seed=2),
    Parameters(temperature=1.9, seed=-3),
    Parameters(top_k=1, seed=4),
    Parameters(top_k=40, seed=5),
    Parameters(top_k=300, temperature=1.3, seed=2**63),
    Parameters(top_p=0.9, seed=7),
    Parameters(top_p=1e-9, seed=8),
    Parameters(top_p=0.9999, temperature=30.0, seed=9),
    Parameters(min_p=0.05, seed=10),
    Parameters(min_p=1.0, seed=11),
    Parameters(top_k=50, temperature=0.8, min_p=0.02, top_p=0.95, seed=12),
    Parameters(top_k=5, temperature=1e-5, seed=13),
    Parameters(top_k=1 << 31, top_p=1.0, temperature=1.0, seed=14),
    Parameters(temperature=1e-40, seed=15),
    Parameters(top_k=3, temperature=1e-300, min_p=0.5, top_p=0.5, seed=16),
)


def logits(vocab_size: int, seed: int, scale: float, *, bf16: bool = False) -> F32Array:
    values = np.random.default_rng(seed).normal(size=vocab_size) * scale
    rounded = values.astype(np.float32)
    if bf16:  # many ties
        rounded = (rounded.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    return rounded


def _sweep() -> list[Case]:
    shapes = product((2, 127, 128, 1000, 4999), (0.02, 3.0, 12.0), (False, True))
    cases = []
    for number, (vocab_size, scale, bf16) in enumerate(shapes):
        rows = [
            logits(vocab_size, 100 * number + i, scale, bf16=bf16) for i in range(len(SETTINGS))
        ]
        name = f"{vocab_size} tokens, scale {scale}, {'bf16' if bf16 else 'float32'}"
        cases.append(
            Case(name, np.stack(rows), SETTINGS, tuple(range(number, number + len(SETTINGS))))
        )
    return cases


def _many_draws() -> Case:
    """One distribution, 400 positions."""
    row = logits(1000, 7, 2.0)
    parameters = replace(PLAIN, seed=99, top_p=0.97)
    return Case("many draws", np.tile(row, (400, 1)), (parameters,) * 400, tuple(range(400)))


def _edges() -> list[Case]:
    flat = np.zeros((len(SETTINGS), 300), np.float32)
    holes = np.stack([logits(700, seed, 3.0) for seed in range(len(SETTINGS))])
    holes[:, ::3] = -np.inf
    single = np.full((len(SETTINGS), 500), -np.inf, np.float32)
    single[:, 77] = -3.0
    signs = np.where(np.arange(300) % 2, 0.0, -0.0).astype(np.float32) * np.ones(
        (len(SETTINGS), 1), np.float32
    )
    steep = np.linspace(0, -2000, 600, dtype=np.float32) * np.ones((len(SETTINGS), 1), np.float32)
    broken = np.stack([logits(400, seed, 3.0) for seed in range(len(SETTINGS))])
    broken[::3, 5] = np.nan
    broken[1::3] = -np.inf
    broken[2, 399] = np.inf
    named = [
        ("all equal", flat),
        ("every third token excluded", holes),
        ("one token left", single),
        ("zeros of both signs", signs),
        ("steep", steep),
        ("not numbers", broken),
    ]
    return [
        Case(name, values, SETTINGS, tuple(range(40, 40 + len(SETTINGS)))) for name, values in named
    ]


CASES = [*_sweep(), _many_draws(), *_edges()]
