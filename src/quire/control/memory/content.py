"""What a page holds, on whichever tier, and the chain of tokens that identifies a canonical page.

Owns no memory and does not know programs. All pages, exports and index entries with the same K and
V share one ``Content``; moving it between tiers is invisible to them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

from quire.control.memory.packed_tokens import pack_tokens, unpack_tokens
from quire.core.ids import BlockId, DiskBlockId, HostBlockId, ProgramId, TenantId


class ChainNode:
    """A full canonical page: its tokens, which follow those of its parent. ``key``: the SHA-256 of
    the whole chain. ``packed``: the tokens, packed: as bytes they are compared at once.

    Immutable. Contents and child nodes keep it alive, so that dropped pages can be recomputed.
    """

    __slots__ = ("depth", "key", "packed", "parent")

    def __init__(self, parent: ChainNode | None, packed: bytes, key: bytes) -> None:
        self.parent = parent
        self.packed = packed
        self.key = key
        self.depth: int = 0 if parent is None else parent.depth + 1

    @property
    def tokens(self) -> list[int]:
        return unpack_tokens(self.packed)

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


def root_key(kv_content: str, tenant: TenantId, adapter_digest: str | None) -> bytes:
    """The key before a prompt's first page. ``kv_content``: ``EngineInfo.content``."""
    salt = hashlib.sha256(b"tenant\0" + tenant.encode()).digest()
    digest = hashlib.sha256(kv_content.encode()).digest()
    used = "none" if adapter_digest is None else adapter_digest
    return hashlib.sha256(digest + salt + b"adapter:" + used.encode()).digest()


def page_key(parent_key: bytes, tokens: Sequence[int]) -> bytes:
    """The key of one full page: SHA-256 of the preceding key and the page's tokens."""
    return packed_page_key(parent_key, pack_tokens(tokens))


def packed_page_key(parent_key: bytes, packed: bytes) -> bytes:
    """``page_key`` of tokens that are packed already."""
    return hashlib.sha256(parent_key + packed).digest()


def prompt_keys(root: bytes, page_size: int, tokens: Sequence[int]) -> list[bytes]:
    """The keys of the full pages of a prompt, in order."""
    keys: list[bytes] = []
    for end in range(page_size, len(tokens) + 1, page_size):
        root = page_key(root, tokens[end - page_size : end])
        keys.append(root)
    return keys


class PromptKeys:
    """The keys of the first pages of a prompt, as far as they have been computed. ``packed``: its
    tokens. ``root``: the key before them."""

    __slots__ = ("keys", "packed", "root")

    def __init__(self, packed: bytes, root: bytes) -> None:
        self.packed = packed
        self.root = root
        self.keys: list[bytes] = []


class Content:
    """K and V of up to ``page_size`` slots: on the device, on the host, on the disk, in transfer
    between two of them, or lost.

    ``num_refs``   pages and exports that refer to it; at 0 it is freed, or cached if indexed.
    ``num_pins``   uses during which it may not be moved or dropped: messages in flight, running
                   decodes.
    ``canonical``  slot i holds plain causal token ``tokens[i]``; the tokens follow those of
                   ``parent``.
    ``node``       its chain node, once it is full and canonical.
    ``adapter``    index of the adapter that computed it (canonical contents only), -1 for none.
    ``block``, ``host_block``, ``disk_block``  its place: one of them. During a transfer it is that
                   of the lower tier, and is not used before the transfer's end.
    ``transfer``   the number of its current transfer, or None.
    ``is_cut``     its holder has cut it while commands read it: it is copied before it is written.
    ``is_restoring``  it was lost and is being recomputed: it may not be read yet.
    ``indexed``    the prefix index maps ``node.key`` to it.
    ``latest``     the content that was indexed last behind it, while both are indexed.
    ``turn``       its place in the order of eviction, which alone sets it; 0: it has none.
    ``family``     the first family that wrote or mapped it; ``is_shared``: others have, too.
    """

    __slots__ = (
        "adapter",
        "block",
        "canonical",
        "disk_block",
        "family",
        "host_block",
        "indexed",
        "is_cut",
        "is_restoring",
        "is_shared",
        "latest",
        "node",
        "num_pins",
        "num_refs",
        "parent",
        "tokens",
        "transfer",
        "turn",
    )

    def __init__(self, parent: ChainNode | None, canonical: bool, adapter: int = -1) -> None:
        self.adapter = adapter
        self.block: BlockId | None = None
        self.host_block: HostBlockId | None = None
        self.disk_block: DiskBlockId | None = None
        self.num_refs = 0
        self.num_pins = 0
        self.parent = parent
        self.canonical = canonical
        self.tokens: list[int] = []
        self.node: ChainNode | None = None
        self.indexed = False
        self.latest: Content | None = None
        self.turn = 0
        self.transfer: int | None = None
        self.is_cut = False
        self.is_restoring = False
        self.family: ProgramId | None = None
        self.is_shared = False

    def note_family(self, family: ProgramId) -> None:
        """Note that a program of ``family`` uses it."""
        if self.family is None:
            self.family = family
        elif self.family != family:
            self.is_shared = True

    @property
    def is_lost(self) -> bool:
        return self.block is None and self.host_block is None and self.disk_block is None

    @property
    def is_moving(self) -> bool:
        return self.transfer is not None

    @property
    def depth(self) -> int:
        """The number of full pages before it in its chain."""
        return 0 if self.parent is None else self.parent.depth + 1

    def forget_tokens_from(self, fill: int) -> None:
        """Forget the tokens from slot ``fill`` on, which the owner writes anew."""
        del self.tokens[fill:]
        self.node = None
