"""Checks the places of an engine's contents, which must hold at any time.

Owns no state: reads that of ``memory``, for tests and the idle loop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from quire.control.memory.blocks import NumberPool
from quire.control.memory.content import Content
from quire.control.memory.lower_tier import LowerTier
from quire.control.memory.transfers import Tier, Transfer


def check_places(
    contents: Iterable[Content],
    transfers: Iterable[Transfer],
    device: NumberPool,
    lower_tiers: Sequence[LowerTier],
) -> None:
    """Assert that each content is in one place and its block is taken. ``contents``: all that
    pages, exports or the index refer to, once each."""
    contents, transfers = list(contents), list(transfers)
    moving = {id(t.content) for t in transfers if t.content is not None}
    assert all(c.is_moving == (id(c) in moving) for c in contents), (
        "a content does not know whether it is under way"
    )
    assert not any(c.is_moving and c.block is not None for c in contents), (
        "a content under way can be read"
    )
    assert all(_num_places(c) <= 1 for c in contents), "a content is in two places"
    _check_tier(Tier.DEVICE, transfers, device, (c.block for c in contents))
    for tier in lower_tiers:
        resting = (tier.block_of(c) for c in contents if not c.is_moving)
        _check_tier(tier.tier, transfers, tier.pool, resting)


def _num_places(content: Content) -> int:
    places = content.block, content.host_block, content.disk_block
    return sum(place is not None for place in places)


def _check_tier(
    tier: Tier, transfers: Iterable[Transfer], pool: NumberPool, resting: Iterable[int | None]
) -> None:
    places = [place for t in transfers for place in (t.source, t.target)]
    blocks = Counter([place.block for place in places if place.tier is tier])
    blocks.update(block for block in resting if block is not None)
    assert blocks.total() == len(blocks), f"two contents share a {tier} block"
    assert all(pool.has_holder(block) for block in blocks), f"a held {tier} block is free"
