"""Trait InputText: token embeddings. Served by the engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from quire.core.commands import EmbedText
from quire.core.errors import InvalidArgument
from quire.core.ids import TokenSlotId
from quire.core.traits import Trait
from quire.programs.api.handles import Embed, Queue, TokenSlot, as_list, check_all
from quire.programs.api.issuer import nothing
from quire.programs.api.queued import TraitFunctions, queued
from quire.programs.api.reply import Reply

_ONE_TOKEN = (int, TokenSlot)
TextTokens = int | TokenSlot | Sequence[int] | Sequence[TokenSlot]


class InputTextFunctions(TraitFunctions):
    trait = Trait.INPUT_TEXT

    @queued
    def embed_txt(
        self,
        queue: Queue,
        tok: TextTokens,
        pos: int | Sequence[int],
        embs: Embed | Sequence[Embed],
    ) -> Reply[None]:
        """Write the embeddings of ``tok`` at positions ``pos`` into ``embs``, all of one length.

        ``tok``: token ids, or token slots that an earlier ``sample`` fills (the host need not have
        seen the tokens yet); not both in one call.

        Raises:
            InvalidArgument: lengths differ, a negative id or position, ids and slots mixed.
        """
        tokens, slots = self._split(tok)
        positions = [pos] if isinstance(pos, int) else list(pos)
        embeds = as_list(embs)
        check_all(self._issuer, embeds, Embed)
        num_tokens = len(tokens) if slots is None else len(slots)
        if not num_tokens == len(positions) == len(embeds) or not embeds:
            raise InvalidArgument(
                f"embed_txt of {num_tokens} tokens at {len(positions)} positions into "
                f"{len(embeds)} embeds: give as many of each, at least one"
            )
        if min(positions) < 0 or min(tokens, default=0) < 0:
            raise InvalidArgument("embed_txt: token ids and positions are 0 or more")
        for embed, position in zip(embeds, positions, strict=True):
            embed.position = position
        command = EmbedText(
            id=self._issuer.command_id(),
            after=queue.dependencies,
            tokens=tokens if slots is None else [0] * len(slots),
            positions=positions,
            embeds=[embed.embed_id for embed in embeds],
            token_slots=slots,
        )
        return self._issuer.submit(queue, command, nothing)

    def _split(self, tok: TextTokens) -> tuple[list[int], list[TokenSlotId] | None]:
        given: list[int | TokenSlot]
        given = [tok] if isinstance(tok, _ONE_TOKEN) else list(tok)
        slots = [entry for entry in given if isinstance(entry, TokenSlot)]
        if not slots:
            return cast(list[int], given), None
        tokens = [entry for entry in given if not isinstance(entry, TokenSlot)]
        if tokens:
            raise InvalidArgument(
                f"embed_txt got {len(tokens)} ids and {len(slots)} token slots: issue one call "
                "for each"
            )
        check_all(self._issuer, slots, TokenSlot)
        return [], [slot.slot_id for slot in slots]
