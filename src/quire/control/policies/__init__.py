"""Scheduling policies by name: each orders ready commands, nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from quire.control.policies.atlas import ThreadAttainedService
from quire.control.policies.critical_path import LongestRemaining
from quire.control.policies.fcfs import FirstComeFirstServed
from quire.control.policies.invocation import InvocationsTogether
from quire.control.policies.levels import LevelQueues
from quire.control.policies.mlfq import MultiLevelFeedback
from quire.control.policies.plas import ProgramAttainedService
from quire.control.policies.program_fcfs import ProgramFirstComeFirstServed
from quire.control.policies.quire import LeastLeft
from quire.control.policies.round_robin import RoundRobin
from quire.control.policies.topology import DeepestFirst
from quire.core.errors import ConfigError
from quire.core.policy import Policy
from quire.core.scheduler_config import LevelsConfig

_PLAIN: Mapping[str, Callable[[], Policy]] = MappingProxyType(
    {
        "fcfs": FirstComeFirstServed,
        "program_fcfs": ProgramFirstComeFirstServed,
        "round_robin": RoundRobin,
        "topology": DeepestFirst,
        "invocation": InvocationsTogether,
        "critical_path": LongestRemaining,
    }
)
_LEVELS: Mapping[str, Callable[[LevelsConfig], Policy]] = MappingProxyType(
    {
        "mlfq": MultiLevelFeedback,
        "plas": ProgramAttainedService,
        "atlas": ThreadAttainedService,
        "quire": LeastLeft,
    }
)
POLICIES = (*_PLAIN, *_LEVELS)


def create_policy(name: str, levels: LevelsConfig | None = None) -> Policy:
    """Create a policy. ``levels``: the configuration of policies with queues.

    Raises:
        ConfigError: no policy has this name.
    """
    if name in _LEVELS:
        return _LEVELS[name](levels or LevelsConfig())
    if name not in _PLAIN:
        raise ConfigError(
            f"no scheduling policy is called {name!r}: choose from {', '.join(sorted(POLICIES))}"
        )
    return _PLAIN[name]()


__all__ = [
    "POLICIES",
    "DeepestFirst",
    "FirstComeFirstServed",
    "InvocationsTogether",
    "LeastLeft",
    "LevelQueues",
    "LongestRemaining",
    "MultiLevelFeedback",
    "ProgramAttainedService",
    "ProgramFirstComeFirstServed",
    "RoundRobin",
    "ThreadAttainedService",
    "create_policy",
]
