"""The content-addressed prefix index: full canonical pages by their chain of tokens.

Owns the map from key to content and the order in which unreferenced contents are evicted. Does not
know programs; the root key includes the tenant, so tenants never share pages.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from itertools import islice, takewhile

from quire.control.memory.chain_heads import ChainHeads
from quire.control.memory.content import ChainNode, Content, PromptKeys, page_key, root_key
from quire.control.memory.index_journal import IndexChanges, IndexJournal
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

    Most prompts continue as an earlier one did. So behind each page the index remembers the page
    that was indexed last: to compare its tokens takes less time than to compute its key.
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
        self._latest: dict[bytes, ChainNode] = {}
        self._cached: OrderedDict[bytes, Content] = OrderedDict()
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
        return ChainNode(parent, tuple(tokens), page_key(parent_key, tokens))

    def next_key(self, parent_key: bytes, tokens: list[int]) -> bytes:
        """The key of a full page of ``tokens`` behind the page with ``parent_key``."""
        latest = self._latest.get(parent_key)
        if latest is not None and latest.tokens == tuple(tokens):
            return latest.key
        return page_key(parent_key, tokens)

    def keys(self, parent_key: bytes, tokens: list[int]) -> Iterator[bytes]:
        """The keys of the full pages of ``tokens``, in order."""
        size = self._page_size
        for end in range(size, len(tokens) + 1, size):
            parent_key = self.next_key(parent_key, tokens[end - size : end])
            yield parent_key

    def match(
        self,
        tenant: TenantId,
        parent: ChainNode | None,
        tokens: list[int],
        max_pages: int,
        adapter: int = -1,
        known: PromptKeys | None = None,
    ) -> list[Content]:
        """The longest indexed run of full pages that holds a prefix of ``tokens``, at most
        ``max_pages``. ``known``: the keys of the first of them, if they were computed before."""
        size = self._page_size
        keys = PromptKeys(tokens, self.root_key(tenant, adapter) if parent is None else parent.key)
        if known is not None and known.root == keys.root:
            keys.keys += known.keys
        num_found = self.num_found(keys, min(max_pages, len(tokens) // size))
        found = [self._contents[key] for key in keys.keys[:num_found]]
        self._num_query_tokens += len(tokens)
        self._num_hit_tokens += len(found) * size
        self._num_host_hit_tokens += sum([content.block is None for content in found]) * size
        return found

    def num_found(self, prompt: PromptKeys, num_pages: int) -> int:
        """The number of the prompt's first ``num_pages`` full pages that are indexed. Missing keys
        are computed and added to ``prompt``, up to that of the first page that is not indexed. Not
        counted as a query."""
        contents, keys, tokens, size = self._contents, prompt.keys, prompt.tokens, self._page_size
        key, num_known = prompt.root, len(prompt.keys)
        for number in range(num_pages):
            if number < num_known:
                key = keys[number]
            else:
                key = self.next_key(key, tokens[number * size : number * size + size])
                keys.append(key)
            if key not in contents:
                return number
        return num_pages

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
        else:
            self._latest[node.parent.key] = node
        content.indexed = True
        if self._journal.is_on:
            self._journal.note(node.key, is_new=True)
        return True

    def remove(self, content: Content) -> None:
        assert content.indexed
        node = content.node
        assert node is not None
        del self._contents[node.key]
        self._cached.pop(node.key, None)
        self._priced.pop(node.key, None)
        self._prices.drop(node.key)
        if node.parent is None:
            self._heads.remove(node.key, self._engine)
        elif self._latest.get(node.parent.key) is node:
            del self._latest[node.parent.key]
        content.indexed = False
        if self._journal.is_on:
            self._journal.note(node.key, is_new=False)

    def cache(self, content: Content) -> None:
        """Keep ``content``, which has no references and is on the device, until its memory is
        needed."""
        assert content.node is not None
        key = content.node.key
        if self._prices.has(key):
            self._priced[key] = content
        else:
            self._cached[key] = content

    def uncache(self, content: Content) -> None:
        """Note that ``content`` has a reference again."""
        assert content.node is not None
        if self._cached.pop(content.node.key, None) is None and self._priced:
            self._priced.pop(content.node.key, None)

    def set_price(self, keys: Sequence[bytes], price: float, ends_s: float) -> int:
        """Evict those of ``keys`` that are indexed after all others of a lower price, until
        ``ends_s``; return how many from the first on have the price (see ``PriceList.set``)."""
        here = list(takewhile(self._contents.__contains__, keys))
        num_set, lost = self._prices.set(here, price, ends_s)
        self._note_unpriced(lost)
        for key in here[:num_set]:
            if key in self._cached and key in self._prices:
                self._priced[key] = self._cached.pop(key)
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
                self._cached[key] = self._priced.pop(key)

    def touch(self, content: Content) -> None:
        """If ``content`` is on the device and has no holder, evict it last."""
        assert content.node is not None
        if content.node.key in self._cached:
            self._cached.move_to_end(content.node.key)

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
            elif node.key in self._cached:
                self._cached.move_to_end(node.key, last=False)
        return away

    def least_recent(self, num_contents: int) -> list[Content]:
        """The contents that are evicted next, in order; at most ``num_contents``."""
        return [one for one in islice(self._cached.values(), num_contents) if not one.num_pins]

    @property
    def num_cached(self) -> int:
        return len(self._cached) + len(self._priced)

    def pop_least_recent(self) -> Content | None:
        """Evict the cached content that was released longest ago and is not pinned; if all have a
        price, the cheapest."""
        for content in self._cached.values():
            if not content.num_pins:
                return self._evict(content)
        free = [key for key, content in self._priced.items() if not content.num_pins]
        if not free:
            return None
        # Unprice many at once, so that thousands of evictions do not search all keys each time.
        cheapest = nsmallest(1 + len(free) // 16, free, key=self._prices.price)
        for key in cheapest:
            self._prices.drop(key)
        self._note_unpriced(cheapest)
        return self._evict(self._cached[cheapest[0]])

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
            content.indexed = False
            if content.node is not None and content.node.parent is None:
                self._heads.remove(content.node.key, self._engine)
        cached = [*self._cached.values(), *self._priced.values()]
        self._contents.clear()
        self._priced.clear()
        self._prices.clear()
        self._latest.clear()
        self._cached.clear()
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
            is_cached = key in self._cached or key in self._priced
            assert not is_unused or is_cached or is_below, "an unreferenced entry is not cached"
            assert not content.num_refs or not is_cached, "a held entry is cached"
        assert self._cached.keys() <= self._contents.keys()
        assert self._priced.keys() <= self._contents.keys()
        self._prices.check_invariants()
        heads = {key for key, one in self._contents.items() if one.node and not one.node.parent}
        assert heads == self._heads.of(self._engine), "a balancer would look for other first pages"
        for key in self._cached:
            assert key not in self._prices, "a price is not regarded"
        assert all(key in self._prices for key in self._priced)
        assert all(node.key in self._contents for node in self._latest.values()), (
            "what was indexed behind a page is remembered beyond its end"
        )
