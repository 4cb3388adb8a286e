"""Checks that the things a command names are its program's: held pages and embeds, and new ids.

Owns the checks of handles and the bounds of how many a program may have. Raises ``QuireError``s.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter

from quire.control.commands.checks import distinct
from quire.control.memory.blocks import num_reserved
from quire.control.programs.families import require_room
from quire.control.programs.program import CommandQueue, Program
from quire.core.engine_info import EngineInfo
from quire.core.errors import InvalidArgument, NeverFits, QuotaExceeded, UnknownHandle
from quire.core.ids import EmbedId, PageId

MAX_PAGES = 1 << 20
"""The most pages of one program without a quota: an empty page has no block, but control remembers
it (some 300 bytes). In pages of 16 slots they hold 16 million tokens."""

MAX_EMBEDS = 1 << 18
"""The most embeds of one program without a quota. An engine has far fewer; the others are those
that queued commands wait for."""


def check_new_pages(pages: list[PageId], program: Program) -> None:
    """Check that ``pages`` are ids that ``program`` may give to new pages."""
    distinct("pages", pages)
    if pages and min(pages) < 0:
        raise InvalidArgument(f"page {min(pages)}: ids below 0 are control's own: choose 0 or more")
    if len(program.pages) + len(pages) > MAX_PAGES:
        raise QuotaExceeded(
            f"{len(program.pages)} pages are held and {len(pages)} more are asked for; no "
            f"program has more than {MAX_PAGES}: free some first",
            max_pages=MAX_PAGES,
        )
    account = program.account
    account.require("max_pages", account.num_pages, len(pages), "pages are held")
    if not program.pages.keys().isdisjoint(pages):
        page = next(page for page in pages if page in program.pages)
        raise InvalidArgument(f"page {page} is in use: choose a new id")


def check_held_pages(pages: Sequence[PageId], queue: CommandQueue) -> None:
    """Check that the program holds ``pages``, on the engine of ``queue``."""
    engine = queue.engine
    for page_id, page in zip(pages, map(queue.program.pages.get, pages), strict=True):
        if page is None or page.is_released:
            raise UnknownHandle(
                f"page {page_id} is not held by this program: allocate or import it first, "
                "and free it once",
                page=page_id,
            )
        if page.engine != engine:
            raise InvalidArgument(
                f"page {page_id} lives on engine {page.engine}, this queue on {engine}: "
                "export and import it there"
            )


def check_new_embeds(embeds: list[EmbedId], program: Program, info: EngineInfo) -> None:
    """Check that ``embeds`` are ids that ``program`` may give to new embeds of the engine."""
    distinct("embeds", embeds)
    for embed in embeds:
        if embed in program.embeds:
            raise InvalidArgument(f"embed {embed} is in use: choose a new id")
    most = info.pool.num_embeds - num_reserved(info.pool.num_embeds)
    if len(embeds) > most:
        raise NeverFits(
            f"{len(embeds)} embeds are asked for; the engine has {info.pool.num_embeds} and "
            f"one program {most} at most: embed and run the prompt in parts",
            num_embeds=info.pool.num_embeds,
        )
    if len(program.embeds) + len(embeds) > MAX_EMBEDS:
        raise QuotaExceeded(
            f"{len(program.embeds)} embeds are held or waited for and {len(embeds)} more are "
            f"asked for; no program has more than {MAX_EMBEDS}: free some first",
            max_embeds=MAX_EMBEDS,
        )
    account = program.account
    account.require("max_embeds", account.num_embeds, len(embeds), "embeds are held")
    require_room(
        program, "max_embeds", len(embeds), "embeds are held", attrgetter("num_held_embeds")
    )


def check_held_embeds(embeds: Iterable[EmbedId], queue: CommandQueue) -> None:
    """Check that the program holds ``embeds``, on the engine of ``queue``."""
    for embed_id in embeds:
        embed = queue.program.embeds.get(embed_id)
        if embed is None or embed.is_released:
            raise UnknownHandle(
                f"embed {embed_id} is not held by this program: allocate it first, and free "
                "it once",
                embed=embed_id,
            )
        if embed.engine != queue.engine:
            raise InvalidArgument(
                f"embed {embed_id} lives on engine {embed.engine}, this queue on "
                f"{queue.engine}: allocate one there"
            )


def check_context_and_output(
    context: list[PageId], output: list[PageId], queue: CommandQueue
) -> None:
    """Check that the program holds both, and that each list names a page once."""
    distinct("context pages", context)
    check_held_pages(context, queue)
    if output != context:  # a loop over one list of pages names it for both
        distinct("output pages", output)
        check_held_pages(output, queue)
