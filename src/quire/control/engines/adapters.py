"""The adapters of an engine, by name."""

from __future__ import annotations

from quire.core.engine_info import EngineInfo
from quire.core.errors import InvalidArgument


def find_adapter(name: str, info: EngineInfo) -> int:
    """The index of the engine's adapter ``name``.

    Raises:
        InvalidArgument: the engine has no adapter of that name, or could not load it.
    """
    names = [adapter.name for adapter in info.adapters]
    if name not in names:
        raise InvalidArgument(
            f"model {info.model} has no adapter {name!r}; it has {', '.join(names) or 'none'}: "
            "load it when the engine starts, or name another"
        )
    index = names.index(name)
    if problem := info.adapters[index].problem:
        raise InvalidArgument(
            f"adapter {name!r} could not be loaded when model {info.model} restarted: {problem}"
        )
    return index
