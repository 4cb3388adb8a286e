"""Trait OutputText: next-token distributions. Served by the engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from quire.core.commands import Dists, GetNextDist
from quire.core.decoding import Dist
from quire.core.errors import InvalidArgument
from quire.core.traits import Trait
from quire.programs.api.handles import Embed, Queue, as_list, check_all
from quire.programs.api.queued import TraitFunctions, queued
from quire.programs.api.reply import Reply


class OutputTextFunctions(TraitFunctions):
    trait = Trait.OUTPUT_TEXT

    @queued
    def get_next_dist(
        self, queue: Queue, emb: Embed | Sequence[Embed], *, top_k: int = 256
    ) -> Reply[Dist]:
        """The next-token distribution after one embed: its ``top_k`` most likely tokens.

        Raises:
            InvalidArgument: not exactly one embed (see ``get_next_dists``).
        """
        embeds = as_list(emb)
        if len(embeds) != 1:
            raise InvalidArgument(
                f"get_next_dist of {len(embeds)} embeds: give one, or call get_next_dists"
            )
        command = self._command(queue, embeds, top_k)
        return self._issuer.submit(queue, command, lambda reply: cast(Dists, reply).dists[0])

    @queued
    def get_next_dists(
        self, queue: Queue, embs: Sequence[Embed], *, top_k: int = 256
    ) -> Reply[list[Dist]]:
        """The next-token distribution after each of ``embs``."""
        command = self._command(queue, as_list(embs), top_k)
        return self._issuer.submit(queue, command, lambda reply: cast(Dists, reply).dists)

    def _command(self, queue: Queue, embeds: list[Embed], top_k: int) -> GetNextDist:
        check_all(self._issuer, embeds, Embed)
        return GetNextDist(
            id=self._issuer.command_id(),
            after=queue.dependencies,
            embeds=[embed.embed_id for embed in embeds],
            top_k=top_k,
        )
