"""The names of numpy that messages between control and engines are defined with.

Programs see none of those messages, but the module that defines them also says what an engine is.
"""

from __future__ import annotations

from typing import Any


class Flags:
    writeable = True


class ndarray:  # noqa: N801 - numpy's own name
    def __init__(self) -> None:
        self.flags = Flags()

    def __class_getitem__(cls, _: Any) -> type[ndarray]:
        return cls


NDArray = ndarray
int32 = int64 = uint64 = uint8 = float32 = object


def empty(shape: object, dtype: object) -> ndarray:
    """A default of a message."""
    return ndarray()
