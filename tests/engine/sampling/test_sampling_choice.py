"""The choice of a token: equal to the reference in every case, and correctly distributed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from sampling_cases import CASES, Case
from sampling_reference import mass, processors, uniform
from sampling_rows import CPU, chosen, processed, row, spec

from quire.core.decoding import Params
from quire.engine.sampling import mass as engine_mass
from quire.engine.sampling.candidates import Candidates, invert
from quire.engine.sampling.plan import SamplingPlan
from quire.engine.sampling.random import seed_words, uniforms
from quire.engine.sampling.selection import top_k


def rows_of(case: Case) -> list:
    return [row(spec(processors(one), greedy=one.greedy, seed=one.seed)) for one in case.parameters]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_case_is_the_reference(case: Case) -> None:
    logits = torch.from_numpy(case.logits_SV)
    before = logits.clone()
    plan = SamplingPlan(rows_of(case), logits.shape[1], CPU)
    tokens, ok = plan.sample(logits, np.array(case.positions))
    actual = [token if good else None for token, good in zip(tokens.tolist(), ok, strict=True)]
    assert actual == case.expected()
    assert torch.equal(logits.nan_to_num(), before.nan_to_num())


@pytest.mark.parametrize("case", CASES[::7], ids=lambda case: case.name)
def test_every_row_alone_is_the_reference(case: Case) -> None:
    """Other block sizes and other groups give the same choice."""
    rows, logits = rows_of(case), torch.from_numpy(case.logits_SV)
    for place, wanted in enumerate(case.expected()):
        plan = SamplingPlan([rows[place]], logits.shape[1], CPU)
        tokens, ok = plan.sample(logits[place : place + 1], np.array(case.positions[place])[None])
        assert (int(tokens[0]) if ok[0] else None) == wanted


def test_the_common_subset_as_columns() -> None:
    rows = [
        row(
            spec(
                [("top_k", {"k": 5}), ("temperature", {"temperature": 0.5})], greedy=False, seed=-1
            )
        ),
        row(spec()),
        row(spec([("min_p", {"p": 0.1}), ("top_p", {"p": 0.9})], greedy=False, seed=3)),
    ]
    common = SamplingPlan(rows, 100, CPU).common
    assert common is not None
    assert common.greedy.tolist() == [False, True, False]
    assert common.top_k.tolist() == [5, 1 << 31, 1 << 31]
    assert common.temperature.tolist() == [0.5, 1.0, 1.0]
    assert common.min_p.tolist() == [0.0, 0.0, 0.1]
    assert common.top_p.tolist() == [1.0, 1.0, 0.9]
    assert common.seeds.tolist() == [2**64 - 1, 0, 3]


@pytest.mark.parametrize(
    "named",
    [
        ("presence_penalty", {"penalty": 0.1}),
        ("logit_bias", {"tokens": [], "biases": []}),
        ("bad_words", {"tokens": [3]}),
        ("typical", {"p": 0.5}),
        ("dry", {"multiplier": 1.0}),
    ],
    ids=lambda named: named[0],
)
def test_what_is_beyond_the_common_subset(named: tuple[str, Params]) -> None:
    assert SamplingPlan([row(spec()), row(spec([named]))], 100, CPU).common is None


def test_another_order_is_outside_the_common_subset_and_obeyed() -> None:
    """After a temperature of 4 the best two are at most a factor e apart, so all pass min-p;
    before, not."""
    logits = torch.tensor([[4.0, 0.0]]).expand(200, 2)
    hot, floor = ("temperature", {"temperature": 4.0}), ("min_p", {"p": 0.3})
    drawn = {
        order: chosen([row(spec(order_, greedy=False, seed=1))] * 200, logits, range(200))
        for order, order_ in [("hot first", [hot, floor]), ("floor first", [floor, hot])]
    }
    assert set(drawn["hot first"]) == {0, 1}
    assert set(drawn["floor first"]) == {0}
    rows = [row(spec([floor, hot], greedy=False, seed=1))]
    assert SamplingPlan(rows, 2, CPU).common is None


def test_masses_are_the_exponentials() -> None:
    scores = np.linspace(-30, 5, 5000, dtype=np.float32)
    found = engine_mass.masses(torch.from_numpy(scores[None]))[0].double().numpy()
    assert np.array_equal(found, mass(scores))
    exact = np.exp(scores.astype(np.float64) - 5.0) * 2.0**32
    assert np.max(np.abs(found - exact) / (exact + 1e6)) < 2e-6
    assert found.max() == engine_mass.MAX_MASS
    assert np.all(np.diff(found) >= 0)


def test_masses_do_not_depend_on_how_they_are_chunked() -> None:
    scores = torch.randn(9, 70_000) * 4
    together = engine_mass.masses(scores)
    for place in range(9):
        assert torch.equal(together[place], engine_mass.masses(scores[place : place + 1])[0])


@pytest.mark.parametrize("num_values", [5, 2048, 2049, 5000, 20_011])
@pytest.mark.parametrize("k", [1, 2, 7, 50, 400, 5000])
@pytest.mark.parametrize("levels", [3, 200, 0])
def test_top_k_is_a_stable_sort(num_values: int, k: int, levels: int) -> None:
    """``levels``: few different values, so that ties cross every boundary; 0: all different."""
    if k > num_values:
        return
    numbers = torch.from_numpy(np.random.default_rng(k).normal(size=(3, num_values)))
    values = numbers.to(torch.float32)
    if levels:
        values = (values * levels / 4).round() / 2
    values[1, num_values // 2 :] = -torch.inf
    best, columns = top_k(values, k)
    wanted, order = values.sort(dim=-1, descending=True, stable=True)
    assert torch.equal(best, wanted[:, :k])
    assert torch.equal(columns, order[:, :k])


def test_ties_go_to_the_lower_id() -> None:
    tied = torch.zeros(2, 600)
    tied[0, [500, 20, 300]] = 4.0
    assert top_k(tied, 5)[1].tolist() == [[20, 300, 500, 0, 1], [0, 1, 2, 3, 4]]
    assert Candidates(tied).choose_best()[0].tolist() == [20, 0]


def test_inversion_never_picks_a_token_of_mass_zero() -> None:
    masses = torch.zeros(3, 1000)
    masses[0, [5, 999]] = 2.0**31
    masses[1, 640] = 1.0
    masses[2, [0, 127, 128]] = torch.tensor([1.0, 1.0, 2.0])
    for number, wanted in [
        (0.0, [5, 640, 0]),
        (0.25, [5, 640, 127]),
        (0.5, [999, 640, 128]),
        (1 - 2**-53, [999, 640, 128]),
    ]:
        columns, totals = invert(masses, torch.full((3,), number, dtype=torch.float64))
        assert columns.tolist() == wanted
    assert totals.tolist() == [2.0**32, 1.0, 4.0]


@pytest.mark.parametrize(
    "named",
    [
        (),
        (("temperature", {"temperature": 1.7}),),
        (("top_k", {"k": 12}),),
        (("typical", {"p": 0.7}),),
        (("temperature", {"temperature": 2.0}), ("min_p", {"p": 0.01}), ("top_p", {"p": 0.8})),
    ],
    ids=["plain", "temperature", "top_k", "typical", "min_p and top_p"],
)
def test_draws_follow_the_distribution(named: Sequence[tuple[str, Params]]) -> None:
    """Chi-square over 8000 positions of one seed, at the 0.1 % level."""
    count, vocab_size = 8000, 600
    normal = np.random.default_rng(8).normal(size=(1, vocab_size)) * 2
    logits = torch.from_numpy(normal.astype(np.float32))
    scores = processed(logits, [(name, [params]) for name, params in named])[0]
    probs = np.exp(scores - scores.max())
    probs /= probs.sum()
    rows = [row(spec(named, greedy=False, seed=42))] * count
    observed = np.bincount(
        chosen(rows, logits.expand(count, vocab_size), range(count)), minlength=vocab_size
    )
    assert observed[probs == 0].sum() == 0
    large = probs * count >= 5
    cells = np.append(observed[large], observed[~large].sum())
    wanted = np.append(probs[large], probs[~large].sum()) * count
    cells, wanted = cells[wanted > 0], wanted[wanted > 0]
    statistic = ((cells - wanted) ** 2 / wanted).sum()
    freedom = len(cells) - 1
    # Wilson and Hilferty's approximation of the quantile at 99.9 %
    limit = freedom * (1 - 2 / (9 * freedom) + 3.09 * np.sqrt(2 / (9 * freedom))) ** 3
    assert statistic < limit


def numbers_of(seeds: Sequence[int], positions: Sequence[int]) -> np.ndarray:
    words = torch.from_numpy(seed_words(list(seeds)).view(np.int64))
    return uniforms(words, torch.tensor(positions)).numpy()


def test_uniform_numbers_equal_the_definition() -> None:
    seeds = [0, 1, -1, 2**63, 2**64 - 1, 12345678901234567890, 7]
    positions = [0, 1, 2**31, 5, 77, 131071, 2**40]
    wanted = [uniform(seed, place) for seed, place in zip(seeds, positions, strict=True)]
    assert numbers_of(seeds, positions).tolist() == wanted


def test_uniform_numbers_are_uniform_and_independent() -> None:
    seeds, positions = np.meshgrid(np.arange(200), np.arange(200), indexing="ij")
    numbers = numbers_of(seeds.ravel().tolist(), positions.ravel().tolist())
    assert numbers.min() >= 0
    assert numbers.max() < 1
    histogram = np.histogram(numbers, bins=100, range=(0, 1))[0]
    assert ((histogram - 400) ** 2 / 400).sum() < 148.2
    grid = numbers.reshape(200, 200)
    for a, b in [(grid[:, :-1], grid[:, 1:]), (grid[:-1], grid[1:])]:
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 0.02


def test_seeds_of_any_size_and_sign_are_seeds() -> None:
    assert len(set(numbers_of([0, -1, 2**64 + 5, 2**63], [0] * 4))) == 4
    assert seed_words([2**64 + 5])[0] == seed_words([5])[0]
