"""The asyncio shell around the I/O-free core: control thread, engines, program hosts, sessions.

An edge needs ``Node`` and the values of ``quire.node.edge``, whose names this package has too;
nothing here imports torch. They are imported when the first of them is used: the processes that a
node starts have their main modules in this package and need a tenth of it; the rest would be a
quarter of the processor time in which an engine starts.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quire.node.edge import *  # noqa: F403 - all of its names, and no others
    from quire.node.edge import __all__ as __all__
else:

    def __getattr__(name: str) -> object:
        if name == "__all__" or not name.startswith("__"):  # the import system asks for its own
            edge = import_module(f"{__name__}.edge")
            if name in ("__all__", *edge.__all__):
                globals().update((one, getattr(edge, one)) for one in ("__all__", *edge.__all__))
                return globals()[name]
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
