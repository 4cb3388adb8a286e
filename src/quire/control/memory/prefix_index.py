"""The content-addressed prefix index: full canonical pages by their chain of tokens.

Owns the map from key to content and the order in which unreferenced contents are evicted. Does not
know programs; the root key includes the tenant, so tenants never share pages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from itertools import islice, takewhile

from quire.control.memory.chain_heads import ChainHeads
from quire.control.memory.content import (
    ChainNode,
    Content,
    PromptKeys,
    packed_page_key,
    root_key,
)
from quire.control.memory.eviction_order import EvictionOrder
from quire.control.memory.index_journal import IndexChanges, IndexJournal
from quire.control.memory.packed_tokens import TOKEN_BYTES, pack_tokens
from quire.control.memory.price_list import PriceList
from quire.core.ids import EngineId, TenantId

MAX_PRICED_SHARE = 0.25
"""The share of an engine's blocks whose pages may have a price: the rest is evicted by its last
use."""


@dataclass(frozen=True, slots=True)
class PrefixStatistics:
    """Figures of one index. ``num_cached``: contents on the device without a holder;
    ``num_host_hit_tokens``: tokens that were found, but not on the device."""

    num_indexed: int
    num_cached: int
    num_query_tokens: int
    num_hit_tokens: int
    num_host_hit_tokens: int
    num_evicted: int


class PrefixIndex:
    """SHA-256 chains over (the model's K and V, tenant salt, adapter digest, tokens).

    ``kv_content``: ``EngineInfo.content``. ``adapter_digests``: those of the engine's adapters, by
    index; index -1 means no adapter. ``journal``: notes each key that is added or removed while it
    is read. ``num_blocks``: device blocks of ``engine``; ``heads`` notes the first pages of prompts
    that it has.

    Most prompts continue as an earlier one did. So each content knows the one that was indexed last
    behind it: to compare its tokens takes less time than to compute its key and to look that up.
    """

    def __init__(
        self,
        kv_content: str,
        page_size: int,
        adapter_digests: Sequence[str] = (),
        journal: IndexJournal | None = None,
        num_blocks: int = 0,
        engine: EngineId | None = None,
        heads: ChainHeads | None = None,
    ) -> None:
        self._kv_content = kv_content
        self._page_size = page_size
        self._adapter_digests = tuple(adapter_digests)
        self._journal = IndexJournal() if journal is None else journal
        self._engine = EngineId("") if engine is None else engine
        self._heads = ChainHeads() if heads is None else heads
        self._roots: dict[tuple[TenantId, int], bytes] = {}
        self._contents: dict[bytes, Content] = {}
        self._cached = EvictionOrder()
        self._priced: dict[bytes, Content] = {}
        """Cached contents whose keys have a price: evicted when no other is left."""
        self._prices = PriceList(int(num_blocks * MAX_PRICED_SHARE))
        self._num_query_tokens = 0
        self._num_hit_tokens = 0
        self._num_host_hit_tokens = 0
        self._num_evicted = 0

    def root_key(self, tenant: TenantId, adapter: int = -1) -> bytes:
        key = self._roots.get((tenant, adapter))
        if key is None:
            used = None if adapter < 0 else self._adapter_digests[adapter]
            key = self._roots[tenant, adapter] = root_key(self._kv_content, tenant, used)
        return key

    def child(
        self,
        tenant: TenantId,
        parent: ChainNode | None,
        tokens: Sequence[int],
        adapter: int = -1,
    ) -> ChainNode:
        """The node of one full page of ``tokens`` after ``parent``, which was computed with the
        same adapter."""
        parent_key = self.root_key(tenant, adapter) if parent is None else parent.key
        assert len(tokens) == self._page_size, "a node is a full page"
        packed = pack_tokens(tokens)
        return ChainNode(parent, packed, packed_page_key(parent_key, packed))

    def keys(self, parent_key: bytes, packed: bytes) -> list[bytes]:
        """The keys of the full pages of ``packed`` tokens, in order."""
        prompt, width = PromptKeys(packed, parent_key), self._page_size * TOKEN_BYTES
        num_pages = len(packed) // width
        self._walk(prompt, num_pages)
        for start in range(len(prompt.keys) * width, num_pages * width, width):
            key = prompt.keys[-1] if prompt.keys else parent_key
            prompt.keys.append(packed_page_key(key, packed[start : start + width]))
        return prompt.keys

    def match(
        self,
        tenant: TenantId,
        parent: ChainNode | None,
        packed: bytes,
        max_pages: int,
        adapter: int = -1,
        known: PromptKeys | None = None,
    ) -> list[Content]:
        """The longest indexed run of full pages that holds a prefix of ``packed`` tokens, at most
        ``max_pages``. ``known``: the keys of the first of them, if they were computed before."""
        size, num_tokens = self._page_size, len(packed) // TOKEN_BYTES
        root = self.root_key(tenant, adapter) if parent is None else parent.key
        keys = PromptKeys(packed, root) if known is None or known.root != root else known
        found = self._walk(keys, min(max_pages, num_tokens // size))
        self._num_query_tokens += num_tokens
        self._num_hit_tokens += len(found) * size
        self._num_host_hit_tokens += sum([content.block is None for content in found]) * size
        return found

    def num_found(self, prompt: PromptKeys, num_pages: int) -> int:
        """The number of the prompt's first ``num_pages`` full pages that are indexed. Missing keys
        are computed and added to ``prompt``, up to that of the first page that is not indexed. Not
        counted as a query."""
        return len(self._walk(prompt, num_pages))

    def _walk(self, prompt: PromptKeys, num_pages: int) -> list[Content]:
        """The contents of ``num_found``. Passes each page of a long prompt, so look-ups are made
        only where the prompt does not go on as the latest one did."""
        contents, keys, packed = self._contents, prompt.keys, prompt.packed
        width, num_known = self._page_size * TOKEN_BYTES, len(prompt.keys)
        found: list[Content] = []
        key, content = prompt.root, self._contents.get(prompt.root)
        for number in range(num_pages):
            latest = None if content is None else content.latest
            node = None if latest is None else latest.node
            if number < num_known:
                key = keys[number]
                content = latest if node is not None and node.key is key else contents.get(key)
            else:
                page = packed[number * width : number * width + width]
                if node is not None and node.packed == page:
                    key, content = node.key, latest
                else:
                    key = packed_page_key(key, page)
                    content = contents.get(key)
                keys.append(key)
            if content is None:
                break
            found.append(content)
        return found

    def find(self, key: bytes) -> Content | None:
        """The page with this chain key. Not counted as a query."""
        return self._contents.get(key)

    def lookup(self, node: ChainNode) -> Content | None:
        return self._contents.get(node.key)

    def insert(self, content: Content) -> bool:
        """Index a full canonical content; returns False if its key already has another content."""
        node = content.node
        assert node is not None
        assert content.canonical
        if node.key in self._contents:
            return False
        self._contents[node.key] = content
        if node.parent is None:
            self._heads.add(node.key, self._engine)
        elif (before := self._contents.get(node.parent.key)) is not None:
            before.latest = content
        content.indexed = True
        if self._journal.is_on:
            self._journal.note(node.key, is_new=True)
        return True

    def remove(self, content: Content) -> None:
        assert content.indexed
        node = content.node
        assert node is not None
        del self._contents[node.key]
        if content.turn:
            self._cached.remove(content)
        self._priced.pop(node.key, None)
        self._prices.drop(node.key)
        if node.parent is None:
            self._heads.remove(node.key, self._engine)
        else:
            before = self._contents.get(node.parent.key)
            if before is not None and before.latest is content:
                before.latest = None
        content.latest = None
        content.indexed = False
        if self._journal.is_on:
            self._journal.note(node.key, is_new=False)

    def cache(self, content: Content) -> None:
        """Keep ``content``, which has no references and is on the device, until its memory is
        needed."""
        assert content.node is not None
        if self._prices.has(content.node.key):
            self._priced[content.node.key] = content
        elif not content.turn:
            self._cached.add(content)

    def uncache(self, content: Content) -> None:
        """Note that ``content`` has a reference again."""
        if content.turn:
            self._cached.remove(content)
        elif self._priced:
            assert content.node is not None
            self._priced.pop(content.node.key, None)

    def set_price(self, keys: Sequence[bytes], price: float, ends_s: float) -> int:
        """Evict those of ``keys`` that are indexed after all others of a lower price, until
        ``ends_s``; return how many from the first on have the price (see ``PriceList.set``)."""
        here = list(takewhile(self._contents.__contains__, keys))
        num_set, lost = self._prices.set(here, price, ends_s)
        self._note_unpriced(lost)
        for key in here[:num_set]:
            content = self._contents[key]
            if content.turn and key in self._prices:
                self._cached.remove(content)
                self._priced[key] = content
        return num_set

    def expire_prices(self, now_s: float) -> None:
        self._note_unpriced(self._prices.expire(now_s))

    @property
    def num_priced(self) -> int:
        """The number of keys that have a price."""
        return len(self._prices)

    def _note_unpriced(self, keys: Sequence[bytes]) -> None:
        """Evict contents of ``keys`` in their turn from now on, as they have no price."""
        for key in keys:
            if key in self._priced:
                self._cached.add(self._priced.pop(key))

    def touch(self, content: Content) -> None:
        """If ``content`` is on the device and has no holder, evict it last."""
        if content.turn:
            self._cached.remove(content)
            self._cached.add(content)

    def offer(self, leaf: ChainNode) -> list[Content]:
        """Evict the unreferenced contents of this chain before all others, its end first; contents
        that other families have mapped too keep their turn. Returns those that are on no device, in
        the same order."""
        away: list[Content] = []
        for node in leaf.path():
            content = self._contents.get(node.key)
            if content is None or content.is_shared:
                continue
            if content.block is None:
                away.append(content)
            elif content.turn:
                self._cached.remove(content)
                self._cached.put_first(content)
        return away

    def least_recent(self, num_contents: int) -> list[Content]:
        """The contents that are evicted next, in order; at most ``num_contents``."""
        return [one for one in islice(self._cached.contents(), num_contents) if not one.num_pins]

    def beginnings(self, num_contents: int) -> list[Content]:
        """At most ``num_contents`` of those that are evicted next, prompts from their beginning."""
        return self._cached.beginnings(num_contents)

    @property
    def num_cached(self) -> int:
        return len(self._cached) + len(self._priced)

    def pop_least_recent(self) -> Content | None:
        """Evict the cached content that was released longest ago and is not pinned; if all have a
        price, the cheapest."""
        content = self._cached.first_free()
        if content is not None:
            return self._evict(content)
        free = [key for key, content in self._priced.items() if not content.num_pins]
        if not free:
            return None
        # Unprice many at once, so that thousands of evictions do not search all keys each time.
        cheapest = nsmallest(1 + len(free) // 16, free, key=self._prices.price)
        for key in cheapest:
            self._prices.drop(key)
        self._note_unpriced(cheapest)
        return self._evict(self._contents[cheapest[0]])

    def _evict(self, content: Content) -> Content:
        self.remove(content)
        self._num_evicted += 1
        return content

    def note_evicted(self) -> None:
        """Count a content that is about to be removed because its memory is needed."""
        self._num_evicted += 1

    def contents(self) -> Iterator[Content]:
        return iter(self._contents.values())

    def clear(self) -> list[Content]:
        """Remove everything, because the engine's memory is gone; returns the contents that were
        only cached."""
        for content in self._contents.values():
            content.indexed, content.latest = False, None
            if content.node is not None and content.node.parent is None:
                self._heads.remove(content.node.key, self._engine)
        cached = [*self._cached.clear(), *self._priced.values()]
        self._contents.clear()
        self._priced.clear()
        self._prices.clear()
        self._journal.forget()
        return cached

    def changes(self, since: int | None) -> IndexChanges:
        """The changes behind number ``since``; all that is indexed, if ``since`` is None or too
        old. The reader is expected to read again."""
        journal = self._journal
        if since is not None and journal.has(since):
            return journal.since(since)
        journal.begin()
        keys = self._contents
        return IndexChanges(None, journal.number, b"".join(keys), b"\1" * len(keys))

    def statistics(self) -> PrefixStatistics:
        return PrefixStatistics(
            num_indexed=len(self._contents),
            num_cached=self.num_cached,
            num_query_tokens=self._num_query_tokens,
            num_hit_tokens=self._num_hit_tokens,
            num_host_hit_tokens=self._num_host_hit_tokens,
            num_evicted=self._num_evicted,
        )

    def check_invariants(self) -> None:
        for key, content in self._contents.items():
            assert content.indexed, "an index entry does not know that it is indexed"
            assert content.node is not None
            assert content.node.key == key
            is_unused = not (content.num_refs or content.num_pins or content.is_moving)
            is_below = content.block is None and not content.is_lost
            is_cached = bool(content.turn) or key in self._priced
            assert not is_unused or is_cached or is_below, "an unreferenced entry is not cached"
            assert not content.num_refs or not is_cached, "a held entry is cached"
        self._cached.check_invariants()
        assert self._priced.keys() <= self._contents.keys()
        self._prices.check_invariants()
        heads = {key for key, one in self._contents.items() if one.node and not one.node.parent}
        assert heads == self._heads.of(self._engine), "a balancer would look for other first pages"
        for content in self._cached.contents():
            assert content.indexed, "what is evicted next is not indexed"
            assert content.node is not None
            assert content.node.key not in self._prices, "a price is not regarded"
        assert all(key in self._prices for key in self._priced)
        for content in self._contents.values():
            self._check_latest(content)

    def _check_latest(self, content: Content) -> None:
        latest = content.latest
        if latest is not None:
            assert content.node is not None
            assert latest.node is not None
            assert self._contents.get(latest.node.key) is latest, "it is remembered beyond its end"
            assert latest.node.parent is not None
            assert latest.node.parent.key == content.node.key, "it stands behind another page"
