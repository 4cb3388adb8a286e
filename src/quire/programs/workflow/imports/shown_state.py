"""The state as a node sees it: a ``dict`` that notes which keys were read.

A key counts as read if another value of it, or its presence, could have shown. Code in C that reads
a ``dict`` past its methods, as pydantic does, is not noticed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any


class ShownState(dict[str, Any]):
    """``known``: the keys that the state may have. ``read``: those that were read so far."""

    def __init__(self, values: Mapping[str, Any], known: Iterable[str]) -> None:
        super().__init__(values)
        self._known = frozenset(known)
        self._original = dict(values)
        self.read: set[str] = set()

    def _read_all(self) -> None:
        self.read |= self._known

    def _read_presence(self) -> None:
        """What has a value keeps one, whatever else is set."""
        self.read |= self._known - self._original.keys()

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.read.add(key)
        return super().get(key, default)

    def pop(self, key: str, *default: Any) -> Any:
        self.read.add(key)
        return super().pop(key, *default)

    def popitem(self) -> tuple[str, Any]:
        self._read_all()
        return super().popitem()

    def setdefault(self, key: str, default: Any = None) -> Any:
        self.read.add(key)
        return super().setdefault(key, default)

    def __contains__(self, key: object) -> bool:
        if key not in self._original and isinstance(key, str):
            self.read.add(key)
        return super().__contains__(key)

    def __iter__(self) -> Iterator[str]:
        self._read_presence()
        return super().__iter__()

    def __reversed__(self) -> Iterator[str]:
        self._read_presence()
        return super().__reversed__()

    def __len__(self) -> int:
        self._read_presence()
        return super().__len__()

    def keys(self) -> Any:
        self._read_presence()
        return super().keys()

    def items(self) -> Any:
        self._read_all()
        return super().items()

    def values(self) -> Any:
        self._read_all()
        return super().values()

    def copy(self) -> dict[str, Any]:
        return self._plain()

    def __eq__(self, other: object) -> bool:
        self._read_all()
        return super().__eq__(other)

    def __ne__(self, other: object) -> bool:
        self._read_all()
        return super().__ne__(other)

    __hash__ = None

    def __or__(self, other: Any) -> Any:
        return self._plain() | other

    def __ror__(self, other: Any) -> Any:
        return other | self._plain()

    def __repr__(self) -> str:
        self._read_all()
        return super().__repr__()

    def __reduce_ex__(self, protocol: Any) -> Any:
        """A copy of any kind is a plain ``dict``."""
        return dict, (self._plain(),)

    def _plain(self) -> dict[str, Any]:
        self._read_all()
        return {key: super(ShownState, self).__getitem__(key) for key in dict.__iter__(self)}
