"""The options of policies with queues: what they mean, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from quire.cli.options.scheduler import WITH_LEVELS, LevelsOptions
from quire.control.policies import LevelQueues, create_policy
from quire.core.errors import ConfigError
from quire.core.scheduler_config import LevelsConfig


def test_what_is_not_given_is_the_default() -> None:
    assert LevelsOptions().config(["plas"]) == LevelsConfig()


def test_every_option_is_obeyed() -> None:
    given = LevelsOptions(
        policy_thresholds="1,2.5", policy_quanta="3, 4", policy_unit="seconds", policy_beta="never"
    )
    assert given.config(["atlas"]) == LevelsConfig(
        thresholds=(1, 2.5), quanta=(3, 4), unit="seconds", beta=None
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"policy_thresholds": "64,x"}, "'64,x': give numbers with commas"),
        ({"policy_thresholds": ""}, "give numbers with commas"),
        ({"policy_thresholds": "64,64"}, "each has to be above the one before"),
        ({"policy_thresholds": "256,64"}, r"\[256.0, 64.0\]: each has to be above"),
        ({"policy_thresholds": "nan"}, "finite number above 0"),
        ({"policy_thresholds": "-1"}, "finite number above 0"),
        ({"policy_quanta": "1"}, "1 quanta for 5 thresholds"),
        ({"policy_thresholds": "1,2", "policy_quanta": "0,1"}, "choose finite numbers above 0"),
        ({"policy_thresholds": "1,2", "policy_quanta": "inf,1"}, "choose finite numbers above 0"),
        ({"policy_beta": "-1"}, "--policy-beta is -1: choose a finite number above 0, or never"),
        ({"policy_beta": "0"}, "--policy-beta is 0: choose"),
        ({"policy_beta": "nan"}, "--policy-beta is nan: choose"),
        ({"policy_beta": "inf"}, "--policy-beta is inf: choose"),
        ({"policy_beta": "often"}, "--policy-beta is often: choose"),
    ],
)
def test_figures_that_make_no_queues_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LevelsOptions(**given).config(["plas"])


def test_other_policies_refuse_what_they_do_not_have() -> None:
    with pytest.raises(ConfigError, match=r"--policy-quanta, --policy-unit: not for --policy fcfs"):
        LevelsOptions(policy_unit="tokens", policy_quanta="1").config(["fcfs"])
    with pytest.raises(ConfigError, match=r"--policy-beta: not for --policy round_robin; choose"):
        LevelsOptions(policy_beta="2").config(["round_robin"])
    with pytest.raises(ConfigError, match=r"--policy-thresholds: not for --policy quire"):
        LevelsOptions(policy_thresholds="1,2").config(["quire"])
    assert LevelsOptions(policy_beta="2").config(["quire"]).beta == 2.0


def test_shares_of_promoted_calls_are_checked() -> None:
    for share in (0.0, 1.5):
        with pytest.raises(ConfigError, match="promoted_share"):
            LevelsConfig(promoted_share=share)
    with pytest.raises(ConfigError, match="unit"):
        LevelsConfig(unit="bytes")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", WITH_LEVELS)
def test_the_policies_that_have_queues_are_these(name: str) -> None:
    assert isinstance(create_policy(name), LevelQueues)
