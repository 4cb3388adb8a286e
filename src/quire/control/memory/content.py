"""What a page holds, wherever it resides, and the chain of tokens that a canonical one stands for.

Owns no memory and knows no program. A ``Content`` is shared by every page, export and index entry
that means the same K and V; moving it between tiers is invisible to all of them.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterator, Sequence

from quire.core.ids import BlockId, HostBlockId


class ChainNode:
    """A full canonical page: its tokens behind those of its parent. ``key`` is the SHA-256 of all.

    Immutable. Kept alive by contents and children, so that dropped pages can be computed again.
    """

    __slots__ = ("depth", "key", "parent", "tokens")

    def __init__(self, parent: ChainNode | None, tokens: tuple[int, ...], key: bytes) -> None:
        self.parent = parent
        self.tokens = tokens
        self.key = key
        self.depth: int = 0 if parent is None else parent.depth + 1

    def path(self) -> list[ChainNode]:
        """The nodes from the root to this one."""
        nodes: list[ChainNode] = []
        node: ChainNode | None = self
        while node is not None:
            nodes.append(node)
            node = node.parent
        nodes.reverse()
        return nodes

    def __iter__(self) -> Iterator[ChainNode]:
        return iter(self.path())


def chain_keys(parent_key: bytes, tokens: Sequence[int], page_size: int) -> Iterator[bytes]:
    """The key of each full page of ``tokens``, one behind the other: SHA-256 over the key before it
    and its tokens."""
    numbers = array("q", tokens)
    packed, num_bytes = numbers.tobytes(), numbers.itemsize * page_size
    for end in range(num_bytes, len(packed) + 1, num_bytes):
        parent_key = hashlib.sha256(parent_key + packed[end - num_bytes : end]).digest()
        yield parent_key


class Content:
    """K and V of up to ``page_size`` slots: on the device, on the host, on the way between the two,
    or (lost) nowhere.

    ``num_refs``   pages and exports that mean it; at 0 it is freed, or kept as cached when indexed.
    ``num_pins``   uses that forbid to move or drop it: messages in flight, running decodes.
    ``canonical``  slot i holds plain causal token ``tokens[i]`` behind ``parent``'s tokens.
    ``node``       set once it is full and canonical.
    ``adapter``    which of the engine's adapters computed it (canonical ones only), -1 for none.
    ``block``, ``host_block``  where they may be read, and where they are while they are under way:
                   then ``host_block`` alone is set, and nobody uses it before the transfer's end.
    ``transfer``   the number of the transfer that they are under way in.
    ``is_restoring``  it was lost and is being computed again: not to be used yet.
    ``indexed``    the prefix index maps ``node.key`` to it.
    """

    __slots__ = (
        "adapter",
        "block",
        "canonical",
        "host_block",
        "indexed",
        "is_restoring",
        "node",
        "num_pins",
        "num_refs",
        "parent",
        "tokens",
        "transfer",
    )

    def __init__(self, parent: ChainNode | None, canonical: bool, adapter: int = -1) -> None:
        self.adapter = adapter
        self.block: BlockId | None = None
        self.host_block: HostBlockId | None = None
        self.num_refs = 0
        self.num_pins = 0
        self.parent = parent
        self.canonical = canonical
        self.tokens: list[int] = []
        self.node: ChainNode | None = None
        self.indexed = False
        self.transfer: int | None = None
        self.is_restoring = False

    @property
    def is_lost(self) -> bool:
        return self.block is None and self.host_block is None

    @property
    def is_moving(self) -> bool:
        return self.transfer is not None

    @property
    def depth(self) -> int:
        """How many full pages stand before it in its chain."""
        return 0 if self.parent is None else self.parent.depth + 1

    def forget_tokens_from(self, fill: int) -> None:
        """The owner writes from slot ``fill`` on: what stood there is no longer meant."""
        del self.tokens[fill:]
        self.node = None
