"""Hypothesis profiles of the state machines: ``machines`` (default) and ``machines-heavy``.

The default is bounded: the same examples every time, and a failure is shown as it was found. The
heavy one (``--hypothesis-profile machines-heavy``) looks further and makes failures small.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, settings

COMMON = {
    "deadline": None,
    "print_blob": False,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large],
}

settings.register_profile(
    "machines",
    max_examples=25,
    stateful_step_count=40,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    **COMMON,
)
settings.register_profile("machines-heavy", max_examples=600, stateful_step_count=80, **COMMON)


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--hypothesis-profile", None) is None:
        settings.load_profile("machines")
