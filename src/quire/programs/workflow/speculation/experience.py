"""``Experience``: how often suppositions about an application's components were right.

Belongs to an application and lives as long as it; its queries share it. What it has seen can be
kept and recalled (``kept``). Must not know what runs on a supposition.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass

MIN_CHANCE = 0.3
"""The least chance of a supposition that is worth spare time."""
MAX_COUNTED = 64
"""Beyond it the counts are halved, so that suppositions follow recent queries."""


@dataclass(slots=True)
class _Seen:
    """``num_right``: a fraction where only a part was right."""

    num_right: float = 0.0
    num: int = 0

    @property
    def chance(self) -> float:
        return (self.num_right + 1) / (self.num + 2)

    def add(self, right: float) -> None:
        if self.num >= MAX_COUNTED:
            self.num_right, self.num = self.num_right / 2, self.num // 2
        self.num_right += right
        self.num += 1


class Experience:
    """The experience by the name of a component. For any thread."""

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}
        self._is_recalled = False
        self._lock = threading.Lock()

    def branches(self, component: str) -> tuple[bool, ...]:
        """Return the values of a condition that are worth supposing, the likelier first; of an
        unknown condition both are."""
        chance = self.chance(component)
        found = [(chance, True), (1 - chance, False)]
        found.sort(key=lambda one: -one[0])
        return tuple(value for likely, value in found if likely >= MIN_CHANCE)

    def is_worth(self, component: str) -> bool:
        """Whether the order in which a ranking's texts were found is worth supposing."""
        return self.chance(component) >= MIN_CHANCE

    def chance(self, component: str) -> float:
        """Return the chance that a condition is true, or the share of a ranking that was supposed
        rightly."""
        with self._lock:
            seen = self._seen.get(component)
            return 0.5 if seen is None else seen.chance

    def note(self, component: str, right: float) -> None:
        """Note that a condition was true (1) or false (0), or the rightly supposed share of a
        ranking."""
        with self._lock:
            self._seen.setdefault(component, _Seen()).add(right)

    @property
    def is_new(self) -> bool:
        """Whether ``recall`` was not called yet."""
        return not self._is_recalled

    def recall(self, seen: Mapping[str, tuple[float, int]]) -> None:
        """Take over what was kept earlier, except for components that were met meanwhile."""
        with self._lock:
            self._is_recalled = True
            for name, (num_right, num) in seen.items():
                self._seen.setdefault(name, _Seen(num_right, num))

    def seen(self) -> dict[str, tuple[float, int]]:
        """Return how much was right, of how many, by component."""
        with self._lock:
            return {name: (seen.num_right, seen.num) for name, seen in self._seen.items()}

    def chances(self) -> Mapping[str, float]:
        """Return the chances of all components that were met."""
        with self._lock:
            return {name: seen.chance for name, seen in self._seen.items()}
