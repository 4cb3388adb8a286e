"""Image files to pixels, with the preprocessing that a model's directory configures.

Equal, value for value, to the PIL processors of transformers for CLIP, SigLIP and LLaVA. Files are
decoded and resized outside of the engine's process (``unpacker``), within bounds on the format, on
the size in the header before anything is decoded, and on the size after resizing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from quire.core.batch import F32
from quire.core.engine_info import ImageFraming
from quire.core.errors import InvalidArgument, ModelFormatError, UnsupportedModel
from quire.engine.checkpoint.config_reader import ConfigReader
from quire.engine.vision.config import VisionConfig
from quire.engine.vision.framing import frame, read_pixels
from quire.engine.vision.unpacker import Unpack

_CLIP_MEAN, _CLIP_STD = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]
_HALF = [0.5, 0.5, 0.5]
_BICUBIC = 3


@dataclass(frozen=True, slots=True)
class ImageProcessorConfig:
    """``shortest_edge``: resize so that the shorter edge has this length, else to ``size`` squared
    (None: no resizing) with filter ``resample`` (Pillow's numbers) · ``crop``: cut this square
    from the middle · then multiply by ``rescale``, subtract ``mean``, divide by ``std`` (None:
    skipped)."""

    shortest_edge: int | None
    size: int | None
    resample: int
    crop: int | None
    rescale: float | None
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None


def read_image_processor(config: ConfigReader, vision: VisionConfig) -> ImageProcessorConfig:
    """Reads ``preprocessor_config.json``; defaults are those of the tower's kind.

    Raises:
        ModelFormatError: a value out of bounds, or images of another size than the tower's.
        UnsupportedModel: it pads images, or crops them to a shape that is not square.
    """
    is_clip = vision.kind == "clip"
    if config.flag("do_pad", False):
        raise UnsupportedModel(f"{config.where} pads images, which is not served")
    edge, size = _resized(config, vision.image_size, default_to_edge=is_clip)
    crop = None
    if config.flag("do_center_crop", is_clip):
        crop = _square(config, "crop_size", vision.image_size)
    if (crop or size) != vision.image_size:
        raise ModelFormatError(
            f"{config.where} makes images of {crop or size} pixels an edge, and the tower takes "
            f"{vision.image_size}: they do not belong together"
        )
    mean, std = (_CLIP_MEAN, _CLIP_STD) if is_clip else (_HALF, _HALF)
    config = config.over({"image_mean": mean, "image_std": std})
    normalizes = config.flag("do_normalize", True)
    return ImageProcessorConfig(
        shortest_edge=edge,
        size=size,
        resample=config.integer("resample", 5, low=0, default=_BICUBIC),
        crop=crop,
        rescale=config.number("rescale_factor", low=0.0, high=1.0, default=1 / 255)
        if config.flag("do_rescale", True)
        else None,
        mean=config.numbers("image_mean", 3, low=-1e3, high=1e3) if normalizes else None,
        std=config.numbers("image_std", 3, low=1e-6, high=1e3) if normalizes else None,
    )


def _resized(
    config: ConfigReader, image_size: int, *, default_to_edge: bool
) -> tuple[int | None, int | None]:
    """(shortest edge, size): at most one is set."""
    if not config.flag("do_resize", True):
        return None, None
    section = config.raw("size")
    if isinstance(section, dict) and "shortest_edge" in section:
        return ConfigReader(section, f"{config.where}: size").integer(
            "shortest_edge", 1 << 14
        ), None
    if default_to_edge and (section is None or isinstance(section, int)):
        return config.integer("size", 1 << 14, default=image_size), None
    return None, _square(config, "size", image_size)


def _square(config: ConfigReader, name: str, default: int) -> int:
    value = config.raw(name)
    if not isinstance(value, dict):
        return config.integer(name, 1 << 14, default=default)
    section = ConfigReader(value, f"{config.where}: {name}")
    edges = {section.integer(edge, 1 << 14) for edge in ("height", "width")}
    if len(edges) != 1:
        raise UnsupportedModel(f"{section.where} is no square, which is not served")
    return edges.pop()


class ImageProcessor:
    """Files, or preprocessed pixels, to values ``[3, S, S]``, float32. ``unpack`` decodes and
    resizes files."""

    def __init__(self, config: ImageProcessorConfig, unpack: Unpack) -> None:
        self.config = config
        self._unpack = unpack

    @property
    def framing(self) -> ImageFraming:
        """The preprocessing that a sender of pixels must have applied."""
        config = self.config
        return ImageFraming(
            shortest_edge=config.shortest_edge,
            size=config.size,
            resample=config.resample,
            crop=config.crop,
        )

    def __call__(self, image: bytes) -> F32:
        """The values of one image, ``[3, S, S]``.

        Raises:
            InvalidArgument: no PNG or JPEG, damaged, or over a bound; pixels of another size.
        """
        config = self.config
        pixels = read_pixels(image)
        if pixels is None:
            pixels = frame(image, self.framing, self._unpack)
        edge = config.crop or config.size
        if pixels.shape != (edge, edge, 3):
            height, width, _ = pixels.shape
            raise InvalidArgument(
                f"an image of {width} x {height} pixels; this model takes {edge} x {edge}"
            )
        values = pixels.astype(np.float32)
        if config.rescale is not None:
            values = (pixels.astype(np.float64) * config.rescale).astype(np.float32)
        if config.mean is not None and config.std is not None:
            mean, std = (np.array(one, np.float32) for one in (config.mean, config.std))
            values = (values - mean) / std
        return np.ascontiguousarray(values.transpose(2, 0, 1))
