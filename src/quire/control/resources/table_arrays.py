"""The entries of a page table as arrays. Owns nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from quire.control.resources.pages import Page
from quire.core.batch import I32, U64


def table_arrays(pages: Sequence[Page], visible: Callable[[Page], int]) -> tuple[I32, U64]:
    """Blocks and visibility words of ``pages``.

    A page without a block shows nothing: any block may stand for it.
    """
    blocks = [0 if p.content is None or p.content.block is None else p.content.block for p in pages]
    return np.array(blocks, np.int32), np.array([visible(page) for page in pages], np.uint64)


__all__ = ["table_arrays"]
