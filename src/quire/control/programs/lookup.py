"""Finds the pages and embeds that a command names, when the command starts.

Owns the errors for handles without a usable page or embed. ``commands.validation`` checks the
handles when the command is issued; this module sees what happened since then.
"""

from __future__ import annotations

from collections.abc import Sequence

from quire.control.memory.embeds import HeldEmbed
from quire.control.memory.pages import Page
from quire.control.programs.program import Entry
from quire.core.errors import InvalidArgument, PageLost, UnknownHandle
from quire.core.ids import EmbedId, PageId


def find_pages(entry: Entry, page_ids: list[PageId]) -> list[Page]:
    """The pages that a starting command names.

    Raises:
        UnknownHandle: the command that should have created the page did not, as an import that
            mapped fewer pages than were offered.
        PageLost: the page's content was lost, with an engine or on its disk, and cannot be
            recomputed.
    """
    return usable(list(map(entry.program.pages.__getitem__, page_ids)))


def usable(pages: Sequence[Page]) -> list[Page]:
    """``pages``, which a starting command names.

    Raises:
        UnknownHandle, PageLost: as ``find_pages``.
    """
    for page in pages:
        if page.is_void and page.is_lost:
            raise UnknownHandle(
                f"page {page.id} does not exist: the command that should have created it did not",
                page=page.id,
            )
        if page.is_lost:
            raise PageLost(
                f"page {page.id} was lost, with its engine or on the disk, and cannot be "
                "recomputed: write it again",
                page=page.id,
            )
    return list(pages)


def find_embeds(entry: Entry, embed_ids: list[EmbedId], *, written: bool) -> list[HeldEmbed]:
    """The embeds that a starting command names. ``written``: the command reads them.

    Raises:
        UnknownHandle: the command that should have created the embed failed.
        PageLost: its value was lost with an engine.
        InvalidArgument: it is read but was never written.
    """
    embeds = []
    for embed_id in embed_ids:
        embed = entry.program.embeds.get(embed_id)
        if embed is None or embed.slot is None:
            raise UnknownHandle(
                f"embed {embed_id} does not exist: the command that should have created it failed",
                embed=embed_id,
            )
        if written and embed.is_lost:
            raise PageLost(f"embed {embed_id} was lost with its engine: write it again")
        if written and not embed.is_written:
            raise InvalidArgument(
                f"embed {embed_id} is read before anything was written to it: embed a token or "
                "forward into it first"
            )
        embeds.append(embed)
    return embeds


def slot_of(embed: HeldEmbed) -> int:
    assert embed.slot is not None
    return embed.slot
