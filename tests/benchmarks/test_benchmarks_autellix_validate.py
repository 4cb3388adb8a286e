"""What the validation of the simulator says of runs on a node and in virtual time."""

from __future__ import annotations

import pytest

from benchmarks.autellix import validate
from benchmarks.autellix.validate import Figures, Load, Row
from quire.simulation.message_times import MessageSample
from quire.simulation.profile import FitErrors

LOAD = Load(0.5, validate.chats(3, seed=1), [0.0, 1.0, 2.0])


def row(policy: str, node: Figures, simulated: Figures, own: Figures | None = None) -> Row:
    return validate.row_of(LOAD, policy, node, simulated, own or simulated, late_s=0.0)


def test_what_is_off_with_a_runs_own_costs_stands_beside_and_fails_no_bar() -> None:
    node = Figures(1.0, 2.0, 0.01, 0.02)
    one = row("fcfs", node, node, own=Figures(2.0, 2.0, 0.01, 0.02))
    assert (one["response_mean off"], one["response_mean own off"]) == (0.0, 1.0)
    assert not any(validate.verdicts([one]).values())


def test_the_bars_hold_for_every_mean_and_every_p95() -> None:
    node = Figures(1.0, 2.0, 0.01, 0.02)
    good = row("fcfs", node, Figures(1.09, 2.3, 0.0091, 0.017))
    assert not any(validate.verdicts([good]).values())
    mean = validate.verdicts([good, row("plas", node, Figures(1.0, 2.0, 0.0112, 0.02))])
    assert [*mean.values()] == [
        ["plas at 0.5: latency mean 0.0112 s simulated, 0.01 s on the node (+12 %; with its own "
         "costs +12 %)"], [], [],
    ]  # fmt: skip
    tail = validate.verdicts([good, row("plas", node, Figures(1.0, 1.5, 0.01, 0.02))])
    assert [*tail.values()] == [
        [],
        ["plas at 0.5: response p95 1.5 s simulated, 2 s on the node (-25 %; with its own costs "
         "-25 %)"],
        [],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("fit", "drift", "between", "words"),
    [
        (0.1, 0.01, 0.02, "model's fault"),
        (0.4, 0.01, 0.02, "the profile is doubtful: its costs are off by 40 %"),
        (0.1, -0.3, 0.02, "up to -30 % beside it, what passed between them up to +2 %. Run this"),
        (0.1, 0.01, 0.5, "between them up to +50 %. Run this again with nothing else"),
    ],
)
def test_a_missed_bar_has_a_reason_and_a_remedy(
    fit: float, drift: float, between: float, words: str
) -> None:
    node = Figures(1.0, 2.0, 0.01, 0.02)
    missed = row("fcfs", node, Figures(2.0, 2.0, 0.01, 0.02))
    missed |= {"messages drift": drift, "between drift": between}
    errors = FitErrors(mean=fit, p95=1.0, total=0.0)
    found = validate.verdicts([missed])
    assert any(words in one for one in validate.remedies([missed], errors, found))
    met = {name: [] for name in found}
    assert validate.remedies([missed], errors, met) == []


def test_policies_are_ranked_alike_unless_they_are_equal_on_the_node() -> None:
    def ranked(fcfs: tuple[float, float], plas: tuple[float, float]) -> bool:
        rows = [
            row(name, Figures(node, 1, 1, 1), Figures(simulated, 1, 1, 1))
            for name, (node, simulated) in (("fcfs", fcfs), ("plas", plas))
        ]
        return not validate.verdicts(rows)["policies ranked alike"]

    assert ranked((1.0, 1.0), (0.8, 0.9))
    assert not ranked((1.0, 1.0), (0.8, 1.1))
    assert ranked((1.0, 1.0), (0.97, 1.1))


def test_chats_fit_the_context_of_the_model() -> None:
    plans = validate.chats(400, seed=3)
    longest = [plan.prompt_lengths[-1] + plan.calls[-1].num_output for plan in plans]
    assert max(longest) <= validate.MAX_CONTEXT
    assert max(longest) > validate.MAX_CONTEXT / 2


def test_drift_is_what_messages_took_beyond_the_profile() -> None:
    cost = {
        "message_s": 1.0, "step_s": 0.5, "row_s": 0.25, "context_token_s": 0.125,
        "prompt_s": 2.0, "prompt_token_s": 0.1, "moved_block_s": 0.01,
    }  # fmt: skip
    sample = MessageSample(8.4, 2, 4, 8, 5, 50, 3, None, None)  # 1 + 1 + 1 + 1 + 2 + 0.5 + 0.5
    assert validate.drift_of([sample, sample], cost) == pytest.approx(0.2)
