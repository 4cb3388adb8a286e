"""The names of numpy with which messages between control and engines are defined.

Programs get none of those messages, but the module that defines them also describes engines.
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
    """An array for the default of a message's field."""
    return ndarray()
