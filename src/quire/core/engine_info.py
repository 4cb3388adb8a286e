"""An engine's description of itself, sent when it is ready: model, memory, adapters and images.

Fixed for the engine's life. ``batch`` holds the messages of each step.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class LayerGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Layers that cache the same kind of block, and their pool.

    ``bytes_per_block`` counts K and V of every layer of the group. ``window``: how many positions
    back a sliding-window group attends. ``num_disk_blocks``: of the tier below the host's.
    """

    kind: Literal["full", "window", "recurrent"] = "full"
    num_blocks: int
    num_host_blocks: int
    bytes_per_block: int
    window: int | None = None
    num_disk_blocks: int = 0


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
    ``rank`` is the largest rank of its modules.

    ``problem``: why it could not be loaded; empty if it was. Messages must not name an adapter with
    a problem.
    """

    name: str
    digest: str
    rank: int
    problem: str = ""


class ImageFraming(msgspec.Struct, frozen=True, kw_only=True):
    """How an image becomes the square of pixels that a model takes. It is resized so that its
    shorter edge is ``shortest_edge``, or to ``size`` squared, with filter ``resample`` (Pillow's
    numbers). Then a centred square of ``crop`` pixels is cut out. None: the step is left out."""

    shortest_edge: int | None
    size: int | None
    resample: int
    crop: int | None


class ImageInput(msgspec.Struct, frozen=True, kw_only=True):
    """The images that a model accepts. ``num_embeds``: input embeddings per image · ``token``:
    placeholder token of one of them in a prompt · ``formats`` of files, by Pillow's names ·
    ``framing``: preprocessing that the sender should do, because the engine would block on it;
    None: the engine takes files only."""

    num_embeds: int
    token: int
    max_bytes: int
    max_pixels: int
    formats: tuple[str, ...]
    framing: ImageFraming | None = None


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """An engine's description of itself, sent when it is ready.

    ``content`` identifies what a token's K and V *are*: weights, dtype, quantisation, the rotation
    at the served length, the number of layers and KV heads and their size. Engines with equal
    contents compute the same K and V, up to rounding, and can exchange them. ``layout`` identifies
    how they *lie in memory*: page size, tiles, KV heads of each rank, backend. Between engines with
    equal contents and layouts, blocks can be copied as they are.

    ``data_address``: the address to which other engines send K and V; empty: it exchanges none.
    ``data_salt``: random bytes of this life of the engine, from which its node makes the keys of
    leases that it opens by itself; it goes no further than the node.
    ``traits`` are those of the model's backend. Messages name ``adapters`` by index. ``images``:
    None if the model takes none.
    """

    model: str
    family: str
    content: str
    layout: str
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
    data_address: str = ""
    data_salt: bytes = b""

    @property
    def lacks(self) -> str:
        """What is missing since the engine started without it; empty if nothing is."""
        missing = (f"without adapter {a.name}: {a.problem}" for a in self.adapters if a.problem)
        return "; ".join(missing)
