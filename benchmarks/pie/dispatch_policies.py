"""Implements the baselines of Pie's Table 5: dispatch policies other than Quire's own."""

from __future__ import annotations

from dataclasses import dataclass

K_ONLY_PATIENCE_S = 0.1
"""``k_only`` sends fewer than k commands after this time. With fewer than k programs alive it would
otherwise wait for ever, which Pie's description leaves open."""


@dataclass(frozen=True, slots=True)
class Eager:
    """Send each command by itself, without waiting for others."""

    name: str = "eager"
    max_commands: int | None = 1
    is_adaptive: bool = False

    def ready_at_s(self, num_ready: int, oldest_ready_s: float, now_s: float) -> float | None:
        return now_s


@dataclass(frozen=True, slots=True)
class KOnly:
    """Send when ``k`` commands are ready."""

    k: int
    name: str = "k_only"
    is_adaptive: bool = False

    @property
    def max_commands(self) -> int | None:
        return self.k

    def ready_at_s(self, num_ready: int, oldest_ready_s: float, now_s: float) -> float | None:
        return now_s if num_ready >= self.k else oldest_ready_s + K_ONLY_PATIENCE_S


@dataclass(frozen=True, slots=True)
class TOnly:
    """Send when the oldest ready command has waited ``t_s`` seconds."""

    t_s: float
    name: str = "t_only"
    max_commands: int | None = None
    is_adaptive: bool = False

    def ready_at_s(self, num_ready: int, oldest_ready_s: float, now_s: float) -> float | None:
        return oldest_ready_s + self.t_s
