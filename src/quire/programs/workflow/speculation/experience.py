"""``Experience``: how often what is supposed of an application's components was right.

Belongs to an application and lives as long; shared by its queries. What it has seen can be kept
and recalled (``kept``). Must not know what is run on a supposition.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass

MIN_CHANCE = 0.3
"""Of a supposition that is worth spare time."""
MAX_COUNTED = 64
"""Beyond it old queries are forgotten by halves, so that what is supposed follows what is asked."""


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
    """By the name of a component. For any thread."""

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}
        self._is_recalled = False
        self._lock = threading.Lock()

    def branches(self, component: str) -> tuple[bool, ...]:
        """The values of a condition that are worth supposing, the likelier first. Of one that
        nobody has met yet, both are."""
        chance = self.chance(component)
        found = [(chance, True), (1 - chance, False)]
        found.sort(key=lambda one: -one[0])
        return tuple(value for likely, value in found if likely >= MIN_CHANCE)

    def is_worth(self, component: str) -> bool:
        """Whether the order in which a ranking's texts were found is worth supposing."""
        return self.chance(component) >= MIN_CHANCE

    def chance(self, component: str) -> float:
        """That a condition is true, or the share of a ranking that was supposed rightly."""
        with self._lock:
            seen = self._seen.get(component)
            return 0.5 if seen is None else seen.chance

    def note(self, component: str, right: float) -> None:
        """A condition was true (1) or false (0), or this share of a ranking was as supposed."""
        with self._lock:
            self._seen.setdefault(component, _Seen()).add(right)

    @property
    def is_new(self) -> bool:
        """Whether nobody has recalled what was kept of it."""
        return not self._is_recalled

    def recall(self, seen: Mapping[str, tuple[float, int]]) -> None:
        """What was kept of an earlier life; of components that were met meanwhile this goes on."""
        with self._lock:
            self._is_recalled = True
            for name, (num_right, num) in seen.items():
                self._seen.setdefault(name, _Seen(num_right, num))

    def seen(self) -> dict[str, tuple[float, int]]:
        """By component how much was right, of how many."""
        with self._lock:
            return {name: (seen.num_right, seen.num) for name, seen in self._seen.items()}

    def chances(self) -> Mapping[str, float]:
        """Of all components that were met."""
        with self._lock:
            return {name: seen.chance for name, seen in self._seen.items()}
