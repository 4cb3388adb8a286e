"""Scheduling policies by name: each orders ready commands, nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from quire.control.policies.fcfs import FirstComeFirstServed
from quire.control.policies.round_robin import RoundRobin
from quire.core.errors import ConfigError
from quire.core.interfaces import Policy

POLICIES: Mapping[str, Callable[[], Policy]] = MappingProxyType(
    {"fcfs": FirstComeFirstServed, "round_robin": RoundRobin}
)


def create_policy(name: str) -> Policy:
    """A new policy object.

    Raises:
        ConfigError: no policy has this name.
    """
    if name not in POLICIES:
        raise ConfigError(
            f"no scheduling policy is called {name!r}: choose from {sorted(POLICIES)}"
        )
    return POLICIES[name]()


__all__ = ["POLICIES", "FirstComeFirstServed", "RoundRobin", "create_policy"]
