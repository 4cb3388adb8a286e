"""The processor suite notices faulty processors: each fails the test meant for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from quire.core.decoding import Params
from quire.engine.sampling.declarations import Number
from quire.engine.sampling.protocol import History, Rows
from quire.engine.sampling.trial import Trial
from quire.testing.conformance import ProcessorSuite

Change = Callable[[Tensor, History, Tensor, dict[str, Tensor]], Tensor]


class Adds:
    """Adds ``amount`` to the score of each row's last token, or does what a test wants."""

    name = "adds"
    protocol_version = 1
    parameters = {"amount": Number(0, 10)}  # noqa: RUF012
    needs_history = True

    def __init__(self, change: Change) -> None:
        self.change = change

    def bind(self, params: Sequence[Params], rows: Rows) -> Callable[[Tensor, History], Tensor]:
        amount_S1 = torch.tensor([[float(one["amount"])] for one in params])  # type: ignore[arg-type]
        kept: dict[str, Tensor] = {}
        return lambda scores_SV, history: self.change(scores_SV, history, amount_S1, kept)


def right(scores: Tensor, history: History, amount: Tensor, kept: dict[str, Tensor]) -> Tensor:
    last = history.last(1)
    return scores.scatter_add(1, last.clamp(min=0), torch.where(last < 0, 0.0, amount))


def nothing(scores: Tensor, history: History, amount: Tensor, kept: dict[str, Tensor]) -> Tensor:
    return scores.clone()


def in_place(scores: Tensor, history: History, amount: Tensor, kept: dict[str, Tensor]) -> Tensor:
    return scores.add_(amount)


def widened(scores: Tensor, history: History, amount: Tensor, kept: dict[str, Tensor]) -> Tensor:
    return scores.double() + amount


def of_neighbours(
    scores: Tensor, history: History, amount: Tensor, kept: dict[str, Tensor]
) -> Tensor:
    return scores + amount * scores[:, :1].amax()


def at_random(scores: Tensor, history: History, amount: Tensor, kept: dict[str, Tensor]) -> Tensor:
    # the same for all rows, so that only determinism fails
    return scores + torch.rand(1).item()


def revived(scores: Tensor, history: History, amount: Tensor, kept: dict[str, Tensor]) -> Tensor:
    return torch.nan_to_num(scores, neginf=-50.0) + amount


def remembering(
    scores: Tensor, history: History, amount: Tensor, kept: dict[str, Tensor]
) -> Tensor:
    kept["steps"] = kept.get("steps", torch.zeros(1)) + 1
    return scores + amount * kept["steps"]


class Suite(ProcessorSuite):
    __test__ = False
    params = ({"amount": 1}, {"amount": 2.5})
    refused = ({"amount": -1},)

    def __init__(self, change: Change) -> None:
        self.change = change

    def make_trial(self) -> Trial:
        return Trial(Adds(self.change))


TESTS = [name for name in dir(ProcessorSuite) if name.startswith("test_")]


def failing(suite: ProcessorSuite) -> set[str]:
    failed = set()
    for name in TESTS:
        try:
            getattr(suite, name)()
        except AssertionError:
            failed.add(name)
    return failed


def test_a_right_one_passes() -> None:
    assert failing(Suite(right)) == set()


@pytest.mark.parametrize(
    ("change", "test"),
    [
        (nothing, "test_it_changes_something"),
        (in_place, "test_inputs_are_not_written_to"),
        (widened, "test_scores_are_float32_of_the_same_shape"),
        (of_neighbours, "test_rows_are_independent"),
        (at_random, "test_it_is_deterministic"),
        (revived, "test_excluded_tokens_stay_excluded"),
        (remembering, "test_it_is_rebuilt_from_history"),
    ],
)
def test_a_wrong_one_fails(change: Change, test: str) -> None:
    assert test in failing(Suite(change))


def test_wrong_parameters_are_noticed() -> None:
    suite = Suite(right)
    suite.refused = ({"amount": 3},)
    assert failing(suite) == {"test_parameters_are_checked"}
    suite.refused, suite.params = (), ({"amount": 1}, {"amount": 11})
    assert failing(suite) == {"test_parameters_are_checked"}
