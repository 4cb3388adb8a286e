"""The kernel chooses the token that the definition gives, on every instruction set."""

from __future__ import annotations

import numpy as np
import pytest
from sampling_reference import Parameters, choose

from quire.engine.cpu.library import INSTRUCTION_SETS, KernelLibrary, kernel_report, load_kernel
from quire.engine.cpu.model_abi import SIGNATURES

PROBLEMS = {state.isa: state.problem for state in kernel_report().states}
NO_TOKEN = -1


@pytest.fixture(params=INSTRUCTION_SETS)
def library(request: pytest.FixtureRequest) -> KernelLibrary:
    if PROBLEMS[request.param] is not None:
        pytest.skip(f"{request.param}: {PROBLEMS[request.param]}")
    loaded = load_kernel(request.param)
    loaded.declare(SIGNATURES)
    return loaded


def chosen(
    library: KernelLibrary, logits: np.ndarray, parameters: Parameters, position: int
) -> int | None:
    token = library.native.quire_choose(
        logits.ctypes.data,
        len(logits),
        int(parameters.greedy),
        1 << 31 if parameters.top_k is None else parameters.top_k,
        1.0 if parameters.temperature is None else parameters.temperature,
        0.0 if parameters.min_p is None else parameters.min_p,
        1.0 if parameters.top_p is None else parameters.top_p,
        parameters.seed,
        position,
    )
    return None if token == NO_TOKEN else int(token)


SAMPLERS = {
    "greedy": Parameters(greedy=True),
    "greedy, warm": Parameters(greedy=True, temperature=1e5),
    "draw": Parameters(seed=3),
    "temperature": Parameters(temperature=0.7, seed=1 << 63),
    "top-k": Parameters(top_k=17, seed=9),
    "top-k of one": Parameters(top_k=1, temperature=3.0),
    "top-p": Parameters(top_p=0.8, temperature=1.3, seed=5),
    "tiny top-p": Parameters(top_p=1e-6, seed=5),
    "min-p": Parameters(min_p=0.05, temperature=0.9, seed=7),
    "all": Parameters(top_k=40, temperature=1.1, min_p=0.01, top_p=0.9, seed=11),
}


@pytest.mark.parametrize("size", [1, 31, 300, 5000])
@pytest.mark.parametrize("parameters", SAMPLERS.values(), ids=SAMPLERS)
def test_choices(library: KernelLibrary, parameters: Parameters, size: int) -> None:
    random = np.random.default_rng(size)
    for position in range(12):
        logits = (random.standard_normal(size) * random.choice([0.1, 2.0, 9.0])).astype(np.float32)
        if position % 3 == 0:  # many ties
            logits = np.round(logits)
        if position % 4 == 0 and size > 1:
            logits[random.permutation(size)[: size // 2]] = -np.inf
        assert chosen(library, logits, parameters, position) == choose(logits, parameters, position)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("place", [0, 40, 299])
def test_logits_that_are_no_numbers_choose_nothing(
    library: KernelLibrary, bad: float, place: int
) -> None:
    logits = np.linspace(-1, 1, 300).astype(np.float32)
    logits[place] = bad
    for parameters in SAMPLERS.values():
        assert chosen(library, logits, parameters, 4) is None
    assert chosen(library, np.full(300, -np.inf, np.float32), SAMPLERS["draw"], 4) is None
