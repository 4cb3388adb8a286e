"""The memory view of ``quire top``: each engine's blocks by tier, and its messages in flight.

Draws given values; must not know where they come from.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.table import Table

from quire.cli.console import escaped
from quire.cli.top.state import Row

BAR_CHARS = 40
_MESSAGE_CHARS = 33
"""What is about one message has room."""
LINES = 4
"""The most lines of one engine: its three tiers, and its messages."""
HELD, CACHED, FREE = "█", "▒", "·"


def memory_table(engines: Sequence[Row], width: int) -> Table:
    """Return a bar for each tier of each of ``engines``: blocks that programs hold, cached ones,
    free ones."""
    listed = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for column in ("engine", "tier"):
        listed.add_column(column, no_wrap=True, overflow="ellipsis", max_width=20)
    bar_chars = max(10, min(BAR_CHARS, width - 52))
    listed.add_column(
        f"{HELD} held  {CACHED} cached  {FREE} free",
        no_wrap=True,
        overflow="ellipsis",
        max_width=max(bar_chars, _MESSAGE_CHARS),  # several messages must not squeeze the names
    )
    listed.add_column("blocks", no_wrap=True, overflow="ellipsis")
    for engine in engines:
        name = escaped(engine["engine"])
        for tier, (num_held, num_cached, num_blocks) in _tiers(engine):
            num_free = num_blocks - num_held - num_cached
            drawn = bar((num_held, num_cached, num_free), bar_chars)
            listed.add_row(name, tier, drawn, f"{num_held} + {num_cached} of {num_blocks}")
            name = ""
        listed.add_row("", "messages", messages_of(engine))
    return listed


def _tiers(engine: Row) -> Iterator[tuple[str, tuple[int, int, int]]]:
    """Yield name, and held, cached and all blocks; a tier that the engine does not have is left
    out."""
    yield "device", (engine["num_held_blocks"], engine["num_cached_blocks"], engine["num_blocks"])
    for tier in ("host", "disk"):
        num_blocks = engine[f"num_{tier}_blocks"]
        if num_blocks:
            num_cached = engine[f"num_cached_{tier}_blocks"]
            num_held = num_blocks - engine[f"num_free_{tier}_blocks"] - num_cached
            yield tier, (num_held, num_cached, num_blocks)


def bar(amounts: Sequence[int], num_chars: int) -> str:
    """Return a bar of held, cached and free blocks; each amount above 0 has at least one
    character."""
    total = max(1, sum(amounts))
    chars = [max(1, amount * num_chars // total) if amount > 0 else 0 for amount in amounts]
    chars[chars.index(max(chars))] += num_chars - sum(chars)
    signs = zip((HELD, CACHED, FREE), chars, strict=True)
    return "".join(sign * num for sign, num in signs)


def messages_of(engine: Row) -> str:
    """Return the content of the messages that the engine has now."""
    said = [
        f"decodes {one['num_decodes']}, chunks {one['num_chunks']}, tokens {one['num_tokens']}"
        for one in engine["messages"]
    ]
    return "; ".join(said) or "none"
