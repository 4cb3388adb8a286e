"""When a message is sent (Pie 5.2 and 6.1; the baselines of its Table 5).

Owns no state. ``adaptive`` is work-conserving: a busy engine gathers work, an idle one gets all of
it at once.
"""

from __future__ import annotations

from dataclasses import dataclass

from quire.core.config import SchedulerConfig
from quire.core.errors import ConfigError
from quire.core.interfaces import DispatchPolicy

K_ONLY_PATIENCE_S = 0.1
"""``k_only`` sends fewer than k commands after so long: with fewer than k programs alive it would
otherwise wait for ever, which Pie's description leaves open."""


@dataclass(frozen=True, slots=True)
class Adaptive:
    """Send whatever is ready as soon as the engine is idle."""

    name: str = "adaptive"
    max_commands: int | None = None
    is_adaptive: bool = True

    def ready_at_s(
        self, num_ready: int, oldest_ready_s: float, num_in_flight: int, now_s: float
    ) -> float | None:
        return now_s if num_in_flight == 0 and num_ready else None


@dataclass(frozen=True, slots=True)
class Eager:
    """Send each command by itself, without waiting for others."""

    name: str = "eager"
    max_commands: int | None = 1
    is_adaptive: bool = False

    def ready_at_s(
        self, num_ready: int, oldest_ready_s: float, num_in_flight: int, now_s: float
    ) -> float | None:
        return now_s if num_in_flight == 0 and num_ready else None


@dataclass(frozen=True, slots=True)
class KOnly:
    """Send when ``k`` commands are ready."""

    k: int
    name: str = "k_only"
    is_adaptive: bool = False

    @property
    def max_commands(self) -> int | None:
        return self.k

    def ready_at_s(
        self, num_ready: int, oldest_ready_s: float, num_in_flight: int, now_s: float
    ) -> float | None:
        if num_in_flight or not num_ready:
            return None
        return now_s if num_ready >= self.k else oldest_ready_s + K_ONLY_PATIENCE_S


@dataclass(frozen=True, slots=True)
class TOnly:
    """Send when the oldest ready command has waited ``t_s`` seconds."""

    t_s: float
    name: str = "t_only"
    max_commands: int | None = None
    is_adaptive: bool = False

    def ready_at_s(
        self, num_ready: int, oldest_ready_s: float, num_in_flight: int, now_s: float
    ) -> float | None:
        return None if num_in_flight or not num_ready else oldest_ready_s + self.t_s


def create_dispatch_policy(config: SchedulerConfig) -> DispatchPolicy:
    """The dispatch policy that ``config`` names.

    Raises:
        ConfigError: no such policy, or a parameter out of range.
    """
    if config.k < 1 or config.t_s < 0:
        raise ConfigError(f"k is {config.k} and t_s {config.t_s}: choose k >= 1 and t_s >= 0")
    policies: dict[str, DispatchPolicy] = {
        "adaptive": Adaptive(),
        "eager": Eager(),
        "k_only": KOnly(config.k),
        "t_only": TOnly(config.t_s),
    }
    if config.dispatch not in policies:
        raise ConfigError(
            f"no dispatch policy is called {config.dispatch!r}: choose from {sorted(policies)}"
        )
    return policies[config.dispatch]
