"""What commands of the fine tier add to a message: embeds, images, distributions and samples.

Owns the layout of these stages. Most messages have none of them: ``builder`` makes one of these
when the first such command comes.
"""

from __future__ import annotations

import numpy as np

from quire.control.engines.in_flight import CommandItems, MessageStage
from quire.control.engines.int_array import i32
from quire.control.programs.program import Entry
from quire.core.batch import DistRows, EmbedRows, ImageRow, SampleRows
from quire.core.decoding import SamplerSpec

_EMBEDS, _IMAGES, _DISTS, _SAMPLES = (
    MessageStage.EMBEDS,
    MessageStage.IMAGES,
    MessageStage.DISTS,
    MessageStage.SAMPLES,
)
"""Local names, because Python 3.11 resolves an enum member on each access, which takes longer than
its use."""


class FineRows:
    """Each method adds the items of one command, and its part to the ``parts`` of the message."""

    def __init__(self, parts: list[CommandItems]) -> None:
        self._parts = parts
        self.images: list[ImageRow] = []
        self._embed_tokens: list[int] = []
        self._embed_slots: list[int] = []
        self._dist_embeds: list[int] = []
        self._dist_top_k: list[int] = []
        self._sample_embeds: list[int] = []
        self._sample_index: list[int] = []
        self._samplers: list[SamplerSpec] = []
        self._histories: list[list[int]] = []
        self._sample_positions: list[int] = []
        self._sample_token_slots: list[int] = []

    def embed(self, entry: Entry, tokens: list[int], slots: list[int]) -> None:
        start = len(self._embed_tokens)
        self._embed_tokens += tokens
        self._embed_slots += slots
        self._parts.append(CommandItems(entry, _EMBEDS, start, len(self._embed_tokens)))

    def image(self, entry: Entry, file: bytes, slots: list[int]) -> None:
        index = len(self.images)
        self.images.append(ImageRow(file=np.frombuffer(file, np.uint8), embeds=i32(slots)))
        self._parts.append(CommandItems(entry, _IMAGES, index, index + 1, num_tokens=len(slots)))

    def dists(self, entry: Entry, embeds: list[int], top_k: int) -> None:
        start = len(self._dist_embeds)
        self._dist_embeds += embeds
        self._dist_top_k += [top_k] * len(embeds)
        self._parts.append(CommandItems(entry, _DISTS, start, len(self._dist_embeds)))

    def samples(
        self,
        entry: Entry,
        embeds: list[int],
        sampler: SamplerSpec,
        positions: list[int],
        token_slots: list[int],
        history: list[int],
    ) -> None:
        start = len(self._sample_embeds)
        is_new = bool(history) or not self._samplers or self._samplers[-1] != sampler
        if is_new or self._histories[-1]:
            self._samplers.append(sampler)
            self._histories.append(history)
        self._sample_embeds += embeds
        self._sample_index += [len(self._samplers) - 1] * len(embeds)
        self._sample_positions += positions
        self._sample_token_slots += token_slots
        self._parts.append(CommandItems(entry, _SAMPLES, start, len(self._sample_embeds)))

    def embed_rows(self) -> EmbedRows | None:
        if not self._embed_tokens:
            return None
        return EmbedRows(tokens=i32(self._embed_tokens), embeds=i32(self._embed_slots))

    def dist_rows(self) -> DistRows | None:
        if not self._dist_embeds:
            return None
        return DistRows(embeds=i32(self._dist_embeds), top_k=i32(self._dist_top_k))

    def sample_rows(self) -> SampleRows | None:
        if not self._samplers:
            return None
        has_history = any(self._histories)
        return SampleRows(
            embeds=i32(self._sample_embeds),
            sampler_index=i32(self._sample_index),
            samplers=self._samplers,
            positions=i32(self._sample_positions),
            token_slots=i32(self._sample_token_slots),
            histories=[i32(history) for history in self._histories] if has_history else [],
        )
