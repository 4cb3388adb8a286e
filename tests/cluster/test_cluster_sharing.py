"""The share of prompts that generating engines compute, by load: where it goes, and that it stays
there."""

from __future__ import annotations

from contextlib import ExitStack
from itertools import pairwise
from random import Random

import pytest

from quire.cluster.engines.trial import TrialEngine
from quire.cluster.strategies import Balanced
from quire.cluster.strategies.sharing import ShareByLoad

NUM_REQUESTS = 2000


def settled(rate: float, num_answers: int, cost: float = 1.0, most: float = 0.5) -> list[float]:
    """The last shares of requests that come ``rate`` times in the time of a whole prompt, to a
    sender that computes one after the other."""
    random, shares = Random(1), ShareByLoad(most)
    found: list[float] = []
    ends: list[float] = []
    now = 0.0
    for _ in range(NUM_REQUESTS):
        now += random.expovariate(rate)
        waiting = [one for one in ends if one > now]
        share = shares.next(len(waiting), num_answers, cost=cost)
        found.append(share)
        ends = [*waiting, max([now, *waiting]) + 1 - share]
    return found[NUM_REQUESTS // 2 :]


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def test_a_sender_with_time_computes_all() -> None:
    assert max(settled(0.3, num_answers=4)) < 0.02


def test_the_share_is_where_a_token_costs_the_same_on_both_sides() -> None:
    """At rate 1 and share 0.29 the sender is busy for 0.71 of its time, and a token less there
    saves 1 + 0.71 * 1.29 / 2 / 0.29**2 = 6.4 tokens' times; one more at the receiver takes
    1 + 4 / (1 - 0.29) = 6.6."""
    assert mean(settled(1.0, num_answers=4)) == pytest.approx(0.29, abs=0.05)


def test_it_grows_with_what_comes_and_falls_with_what_is_answered() -> None:
    by_rate = [mean(settled(rate, num_answers=4)) for rate in (0.6, 0.8, 1.0, 1.2)]
    assert by_rate == sorted(by_rate)
    assert by_rate[-1] > by_rate[0] + 0.3
    by_answers = [mean(settled(1.0, num_answers=number)) for number in (0, 4, 16)]
    assert by_answers == sorted(by_answers, reverse=True)
    assert by_answers[0] > by_answers[-1] + 0.1


def test_a_slow_receiver_gets_less_and_the_most_is_the_most() -> None:
    assert mean(settled(1.0, 4, cost=3.0)) < mean(settled(1.0, 4)) - 0.05
    assert max(settled(1.5, num_answers=0, most=0.3)) <= 0.3


def test_it_changes_slowly() -> None:
    found = settled(1.0, num_answers=4)
    assert max(abs(one - other) for one, other in pairwise(found)) < 0.01


def deviations(num_more: float, num_answers: int) -> float:
    """How far the share of one request lies from that of the request before it, if it finds
    ``num_more`` and ``num_answers`` where others found 1 and 4."""
    shares = ShareByLoad(0.5)
    for _ in range(NUM_REQUESTS):
        usual = shares.next(2, 4, 1.0)
    return shares.next(2, num_answers, num_more) - usual


def test_a_request_levels_what_it_finds() -> None:
    assert deviations(1.0, 4) == pytest.approx(0, abs=0.01)
    assert deviations(1.25, 4) == pytest.approx(0.4 * 0.25, abs=0.01)
    assert deviations(0.75, 4) == pytest.approx(-0.4 * 0.25, abs=0.01)
    assert deviations(1.0, 6) == pytest.approx(-0.4 * 2 * 0.15, abs=0.02)


def test_levelling_is_within_the_limits_too() -> None:
    shares = ShareByLoad(0.5)
    assert 0 < shares.next(2, 4) < 0.5
    assert shares.next(2, 4, 9.0) == 0.5
    assert shares.next(2, 4, -9.0) == 0


def test_levelling_leaves_the_mean_share_as_it_is() -> None:
    random = Random(2)
    level, bursts = ShareByLoad(0.5), ShareByLoad(0.5)
    without = [level.next(2, 4) for _ in range(NUM_REQUESTS)][NUM_REQUESTS // 2 :]
    with_it = [bursts.next(2, 4, random.uniform(-0.3, 0.3)) for _ in range(NUM_REQUESTS)]
    assert mean(with_it[NUM_REQUESTS // 2 :]) == pytest.approx(mean(without), abs=0.01)


def test_what_both_engines_owe_decides_how_a_prompt_is_levelled() -> None:
    sender, receiver = TrialEngine("p"), TrialEngine("d")

    def share(owed: int, num_own: int) -> float:
        balanced = Balanced(ratio=-1.0)
        balanced.num_sending[sender.name] = 2
        receiver.load = 4  # type: ignore[misc]
        for _ in range(100):
            balanced.share(sender, receiver, 1000)
        with balanced.owed.owing(sender, owed), balanced.owed.owing(receiver, num_own):
            return balanced.share(sender, receiver, 1000)

    usual = share(0, 0)
    assert share(200, 0) == pytest.approx(usual + 0.4 * 0.2, abs=0.01)
    assert share(200, 200) == pytest.approx(usual, abs=0.01)
    assert share(0, 200) == pytest.approx(usual - 0.4 * 0.2, abs=0.01)


def test_a_strategy_asks_with_what_it_has_sent_and_what_engines_tell() -> None:
    balanced = Balanced(ratio=-1.0)
    sender, receiver = TrialEngine("p"), TrialEngine("d")
    sender.prompt_token_s = 1e-3
    with ExitStack() as owing:
        for _ in range(3):
            owing.enter_context(balanced.sending(sender, receiver, 100))
        equal = Balanced(ratio=-1.0, max_ratio=0.5)
        equal.num_sending, receiver.prompt_token_s = balanced.num_sending, 1e-3
        same = equal.share(sender, receiver)
        receiver.prompt_token_s = 8e-3
        slow = balanced.share(sender, receiver)
    assert 0 < slow < same
    assert not any(balanced.owed.values())
    assert not any(balanced.num_sending.values())
    assert not any(balanced.num_awaited.values())


def test_requests_that_wait_for_their_tokens_are_no_answers_of_the_receiver() -> None:
    sender, receiver = TrialEngine("p"), TrialEngine("d")

    def share(num_answers: int, num_awaited: int) -> float:
        balanced = Balanced(ratio=-1.0)
        balanced.num_sending[sender.name] = 3
        balanced.num_awaited[receiver.name] = num_awaited
        receiver.load = num_answers + num_awaited  # type: ignore[misc]
        return balanced.share(sender, receiver)

    assert share(4, 0) == share(4, 3) < share(1, 3)


def test_fixed_shares_are_at_most_all() -> None:
    engine = TrialEngine("e")
    assert Balanced(ratio=0.2).share(engine, engine) == 0.2
    assert Balanced(ratio=7.0).share(engine, engine) == 1.0
