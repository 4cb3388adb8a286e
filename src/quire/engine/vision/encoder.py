"""A loaded tower with its image processor: image files to embeddings, one at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from quire.core.engine_info import ImageFraming, ImageInput
from quire.engine.vision.image_processor import ImageProcessor, ImageProcessorConfig
from quire.engine.vision.tower import VisionTower
from quire.engine.vision.unpacker import MAX_IMAGE_BYTES, Unpacker
from quire.engine.vision.unpacking_worker import FORMATS, MAX_IMAGE_PIXELS


class ImageEncoder:
    """Owned by one engine, which closes it. ``num_threads``: for the tower's products on a CPU."""

    def __init__(
        self,
        tower: VisionTower,
        processor: ImageProcessorConfig,
        device: torch.device,
        num_threads: int,
    ) -> None:
        self._tower = tower
        self._unpacker = Unpacker()
        self._processor = ImageProcessor(processor, self._unpacker)
        self._device = device
        self._num_threads = num_threads

    @property
    def info(self) -> ImageInput:
        """The engine's description of the images that it takes."""
        return ImageInput(
            num_embeds=self._tower.config.num_embeds,
            token=self._tower.config.image_token,
            max_bytes=MAX_IMAGE_BYTES,
            max_pixels=MAX_IMAGE_PIXELS,
            formats=FORMATS,
            framing=self._framing(),
        )

    def _framing(self) -> ImageFraming | None:
        """The preprocessing for senders; None if the pixels would exceed the size limit of a
        command."""
        edge = self._tower.config.image_size
        return self._processor.framing if 3 * edge * edge < MAX_IMAGE_BYTES - 32 else None

    def close(self) -> None:
        """End the process that decodes files. Idempotent."""
        self._unpacker.close()

    def __call__(self, file: bytes) -> Tensor:
        """Embeddings ``[E, H]`` of a file, or of pixels that were preprocessed before.

        Raises:
            InvalidArgument: the file is not a readable image (see ``ImageProcessor``).
        """
        pixels = torch.from_numpy(self._processor(file)).to(self._device)
        with _threads(self._num_threads):
            embeddings: Tensor = self._tower(pixels[None])[0]
        return embeddings


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """PyTorch's thread count within the body: outside, the CPU kernel has its own threads and
    PyTorch one."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
