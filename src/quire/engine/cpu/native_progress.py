"""The kernel's count of layers (``csrc/layer_progress.h``). Waiting holds no lock of Python's."""

from __future__ import annotations

import weakref

from quire.engine.cpu.library import KernelLibrary


class NativeProgress:
    """Implements ``LayerProgress``. ``handle``: the library's object."""

    def __init__(self, library: KernelLibrary) -> None:
        self._native = library.native
        self.handle = self._native.quire_progress_create()
        if self.handle is None:
            raise MemoryError("the kernel's count of layers")
        weakref.finalize(self, self._native.quire_progress_destroy, self.handle)

    def reach(self, count: int) -> None:
        self._native.quire_progress_reach(self.handle, count)

    def wait(self, count: int) -> None:
        self._native.quire_progress_wait(self.handle, count)
