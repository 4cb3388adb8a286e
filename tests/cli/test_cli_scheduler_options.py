"""The options of policies with queues: what they mean, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from quire.cli.scheduler_options import WITH_LEVELS, scheduler_config
from quire.control.policies import LevelQueues, create_policy
from quire.core.errors import ConfigError
from quire.core.scheduler_config import LevelsConfig

NONE: dict[str, Any] = {"thresholds": None, "quanta": None, "unit": None, "beta": None}


def test_what_is_not_given_is_the_default() -> None:
    assert scheduler_config("plas", "tenant", **NONE).levels == LevelsConfig()


def test_every_option_is_obeyed() -> None:
    config = scheduler_config(
        "atlas", "node", thresholds="1,2.5", quanta="3, 4", unit="seconds", beta=0.0
    )
    assert config.policy == "atlas"
    assert config.priority_scope == "node"
    assert config.levels == LevelsConfig(
        thresholds=(1, 2.5), quanta=(3, 4), unit="seconds", beta=None
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"thresholds": "64,x"}, "'64,x': give numbers with commas"),
        ({"thresholds": ""}, "give numbers with commas"),
        ({"thresholds": "64,64"}, "each has to be above the one before"),
        ({"thresholds": "256,64"}, r"\[256.0, 64.0\]: each has to be above"),
        ({"thresholds": "nan"}, "finite number above 0"),
        ({"thresholds": "-1"}, "finite number above 0"),
        ({"quanta": "1"}, "1 quanta for 5 thresholds"),
        ({"thresholds": "1,2", "quanta": "0,1"}, "choose finite numbers above 0"),
        ({"thresholds": "1,2", "quanta": "inf,1"}, "choose finite numbers above 0"),
        ({"beta": -1.0}, "beta is -1.0"),
        ({"beta": float("nan")}, "beta is nan"),
    ],
)
def test_figures_that_make_no_queues_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        scheduler_config("plas", "tenant", **NONE | given)


def test_other_policies_refuse_what_they_do_not_have() -> None:
    with pytest.raises(ConfigError, match=r"--policy-quanta, --policy-unit: not for --policy fcfs"):
        scheduler_config("fcfs", "tenant", **NONE | {"unit": "tokens", "quanta": "1"})
    with pytest.raises(ConfigError, match=r"--policy-beta: not for --policy round_robin; choose"):
        scheduler_config("round_robin", "tenant", **NONE | {"beta": 2.0})
    with pytest.raises(ConfigError, match=r"--policy-thresholds: not for --policy quire"):
        scheduler_config("quire", "tenant", **NONE | {"thresholds": "1,2"})
    assert scheduler_config("quire", "tenant", **NONE | {"beta": 2.0}).levels.beta == 2.0


def test_shares_of_promoted_calls_are_checked() -> None:
    for share in (0.0, 1.5):
        with pytest.raises(ConfigError, match="promoted_share"):
            LevelsConfig(promoted_share=share)
    with pytest.raises(ConfigError, match="unit"):
        LevelsConfig(unit="bytes")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", WITH_LEVELS)
def test_the_policies_that_have_queues_are_these(name: str) -> None:
    assert isinstance(create_policy(name), LevelQueues)
