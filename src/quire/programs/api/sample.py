"""Trait Sample: draws tokens on the engine, where the logits are. Served by the engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from quire.core.commands import Sample as SampleCommand
from quire.core.commands import Sampled
from quire.core.decoding import SamplerSpec
from quire.core.errors import InvalidArgument
from quire.core.traits import Trait
from quire.programs.api.handles import Embed, Queue, TokenSlot, as_list, check_all
from quire.programs.api.queued import TraitFunctions, queued
from quire.programs.api.reply import Reply
from quire.programs.api.specs import check_sampler

GREEDY = SamplerSpec()


class SampleFunctions(TraitFunctions):
    trait = Trait.SAMPLE

    @queued
    def alloc_token_slot(self, queue: Queue, num_slots: int) -> list[TokenSlot]:
        """Allocate names for tokens that stay on the device, so that they can be embedded before
        the host has seen them."""
        return self._issuer.new_token_slots(queue, num_slots)

    @queued
    def sample(
        self,
        queue: Queue,
        embs: Embed | Sequence[Embed],
        sampler: SamplerSpec = GREEDY,
        *,
        positions: Sequence[int] | None = None,
        token_slots: TokenSlot | Sequence[TokenSlot] | None = None,
        history: Sequence[int] | None = None,
    ) -> Reply[list[int]]:
        """Sample one token after each of ``embs``.

        ``positions``: those of the sampled tokens, on which the random numbers depend (default:
        after each embed). ``token_slots``: also keep the tokens on the device. ``history``: tokens
        for penalties.
        """
        embeds = as_list(embs)
        check_all(self._issuer, embeds, Embed)
        check_sampler(sampler)
        slots = None if token_slots is None else as_list(token_slots)
        if slots is not None:
            check_all(self._issuer, slots, TokenSlot)
        chosen = _behind(embeds) if positions is None else list(positions)
        if len(chosen) != len(embeds) or (slots is not None and len(slots) != len(embeds)):
            raise InvalidArgument(
                f"sample after {len(embeds)} embeds with {len(chosen)} positions and "
                f"{len(slots or ())} token slots: give one for each embed"
            )
        command = SampleCommand(
            id=self._issuer.command_id(),
            after=queue.dependencies,
            embeds=[embed.embed_id for embed in embeds],
            sampler=sampler,
            positions=chosen,
            token_slots=None if slots is None else [slot.slot_id for slot in slots],
            history=None if history is None else list(history),
        )
        return self._issuer.submit(queue, command, lambda reply: cast(Sampled, reply).token_ids)


def _behind(embeds: Sequence[Embed]) -> list[int]:
    positions: list[int] = []
    for embed in embeds:
        if embed.position is None:
            raise InvalidArgument(
                f"embed {embed.id} has not been written: forward comes before sample"
            )
        positions.append(embed.position + 1)
    return positions
