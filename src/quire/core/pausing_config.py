"""When programs are paused for lack of memory. Built by the CLI, read by control."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

from quire.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class PausingConfig:
    """Programs are paused between two calls while the working sets of those that go on take more
    than ``above`` of memory: of the device, and of what is swapped out to the host (0: never). They
    go on again where they leave no more than ``resume_below`` taken. One that is paused for
    ``max_s`` takes the place of others that were left in peace for as long.

    ``max_hold_s``: the longest that room is kept for one that waits for a tool or a person, while
    others are paused for lack of it; 0: none is.

    Raises:
        ConfigError: shares that are none, or in the wrong order, or no time.
    """

    above: float = 0.95
    resume_below: float = 0.85
    max_s: float = 60.0
    max_hold_s: float = 60.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.above <= 1.0:
            raise ConfigError(
                f"programs are paused above {self.above:g} of memory: choose a share above 0 and "
                "at most 1, or 0 for never"
            )
        if self.above and not 0.0 < self.resume_below <= self.above:
            raise ConfigError(
                f"programs are paused above {self.above:g} of memory and go on below "
                f"{self.resume_below:g}: choose above 0 for the second, and not more than the first"
            )
        if not (isfinite(self.max_s) and self.max_s > 0):
            raise ConfigError(f"a program is paused for {self.max_s:g} s: choose seconds above 0")
        if not (isfinite(self.max_hold_s) and self.max_hold_s >= 0):
            raise ConfigError(
                f"room is kept for {self.max_hold_s:g} s: choose seconds above 0, or 0 for never"
            )
