"""What an engine says of itself when it is ready: its model, its memory, its adapters and images.

Fixed for the engine's life. What it is sent step by step stands in ``batch``.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class LayerGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Layers that cache the same kind of block, and their pool.

    ``bytes_per_block`` counts K and V of every layer of the group. ``window`` is the number of
    positions that a sliding-window group still sees.
    """

    kind: Literal["full", "window", "recurrent"] = "full"
    num_blocks: int
    num_host_blocks: int
    bytes_per_block: int
    window: int | None = None


class PoolSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The sizes of an engine's memory, fixed for its life."""

    page_size: int
    groups: tuple[LayerGroup, ...]
    num_embeds: int
    num_token_slots: int
    max_sequences: int
    max_batch_tokens: int


class AdapterInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A LoRA adapter that an engine has loaded. ``digest`` identifies its weights and scaling,
    ``rank`` is the largest of its modules.

    ``problem``: why it could not be loaded; empty for one that is there. Messages do not name one
    that is not.
    """

    name: str
    digest: str
    rank: int
    problem: str = ""


class ImageFraming(msgspec.Struct, frozen=True, kw_only=True):
    """How a picture becomes the square of pixels that a model takes: resized so that its shorter
    edge has ``shortest_edge``, or to ``size`` squared, with filter ``resample`` (Pillow's numbers);
    then ``crop`` squared is cut from its middle. None: left out."""

    shortest_edge: int | None
    size: int | None
    resample: int
    crop: int | None


class ImageInput(msgspec.Struct, frozen=True, kw_only=True):
    """The images that a model sees. ``num_embeds``: input embeddings that each becomes ·
    ``token``: stands for one of them in a prompt · ``formats`` of files, by Pillow's names ·
    ``framing``: what a file's sender had better do to it, because the engine, which can, does
    nothing else meanwhile; None: it takes files alone."""

    num_embeds: int
    token: int
    max_bytes: int
    max_pixels: int
    formats: tuple[str, ...]
    framing: ImageFraming | None = None


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What an engine says of itself when it is ready.

    ``digest`` identifies weights, dtypes and KV layout: pages of engines with equal digests are
    interchangeable. ``traits`` are those of the model's backend. Messages name ``adapters`` by
    index. ``images``: None if the model sees none.
    """

    model: str
    family: str
    digest: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    max_model_len: int
    dtype: str
    device: str
    backend: str
    num_parameters: int
    pool: PoolSpec
    traits: list[str]
    extra: dict[str, Any] = msgspec.field(default_factory=dict)
    adapters: tuple[AdapterInfo, ...] = ()
    images: ImageInput | None = None

    @property
    def lacks(self) -> str:
        """What it is up without."""
        missing = (f"without adapter {a.name}: {a.problem}" for a in self.adapters if a.problem)
        return "; ".join(missing)
