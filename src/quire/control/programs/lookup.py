"""The pages and embeds that a command names, found when the command starts.

Owns the errors for handles whose things are not there. What a command may name is checked when it
is issued (``commands.validation``); what happened since then is seen here.
"""

from __future__ import annotations

from quire.control.memory.embeds import Embed
from quire.control.memory.pages import Page
from quire.control.programs.program import Entry
from quire.core.errors import InvalidArgument, PageLost, UnknownHandle
from quire.core.ids import EmbedId, PageId


def find_pages(entry: Entry, page_ids: list[PageId]) -> list[Page]:
    """The pages that a command names, when it starts.

    Raises:
        UnknownHandle: what was to create it did not, as an import that mapped fewer pages than were
            offered.
        PageLost: the page's content was lost with an engine and cannot be computed again.
    """
    pages: list[Page] = []
    held = entry.program.pages
    for page_id in page_ids:
        page = held[page_id]
        if page.is_lost:
            if page.is_void:
                raise UnknownHandle(
                    f"page {page_id} does not exist: the command that was to create it did not",
                    page=page_id,
                )
            raise PageLost(
                f"page {page_id} was lost with its engine and cannot be computed again: "
                "write it anew",
                page=page_id,
            )
        pages.append(page)
    return pages


def find_embeds(entry: Entry, embed_ids: list[EmbedId], *, written: bool) -> list[Embed]:
    """The embeds that a command names, when it starts.

    Raises:
        UnknownHandle: the command that was to create one failed.
        PageLost: its value was lost with an engine.
        InvalidArgument: it was never written, but is to be read.
    """
    embeds = []
    for embed_id in embed_ids:
        embed = entry.program.embeds.get(embed_id)
        if embed is None or embed.slot is None:
            raise UnknownHandle(
                f"embed {embed_id} does not exist: the command that was to create it did not",
                embed=embed_id,
            )
        if written and embed.is_lost:
            raise PageLost(f"embed {embed_id} was lost with its engine: write it anew")
        if written and not embed.is_written:
            raise InvalidArgument(
                f"embed {embed_id} is read before anything was written to it: embed a token or "
                "forward into it first"
            )
        embeds.append(embed)
    return embeds


def slot_of(embed: Embed) -> int:
    assert embed.slot is not None
    return embed.slot
