"""Resizes and crops an image to the square of pixels that a model's tower takes, and encodes it.

Also used in the node, without torch, so that the engine, which all programs wait for, need not wait
for the decoding of one sender's file.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from quire.core.engine_info import ImageFraming
from quire.engine.vision.unpacker import Pixels, Unpack

_HEADER = re.compile(rb"P6 (\d{1,5}) (\d{1,5}) 255\n")
"""Netpbm's header for plain RGB, a format that needs no decoding process."""


def frame(file: bytes, framing: ImageFraming, unpack: Unpack) -> Pixels:
    """Pixels ``[S, S, 3]`` of a file; of another shape if ``framing`` does neither.

    Raises:
        InvalidArgument: see ``unpack``.
    """
    from quire.engine.vision.unpacking_worker import (
        Resizing,
    )  # imports Pillow

    resizing = Resizing(framing.shortest_edge, framing.size, framing.resample)
    pixels = unpack(file, resizing)
    return pixels if framing.crop is None else _center_crop(pixels, framing.crop)


def pack(pixels: Pixels) -> bytes:
    """The pixels as bytes for ``read_pixels``."""
    height, width, _ = pixels.shape
    return b"P6 %d %d 255\n" % (width, height) + pixels.tobytes()


def read_pixels(image: bytes) -> Pixels | None:
    """The pixels in ``image``, ``[height, width, 3]``; None if the bytes are not from ``pack``."""
    header = _HEADER.match(image)
    if header is None:
        return None
    width, height = int(header[1]), int(header[2])
    values = np.frombuffer(image, np.uint8, offset=header.end())
    return values.reshape(height, width, 3) if values.size == width * height * 3 else None


def _center_crop(pixels: NDArray[np.uint8], edge: int) -> NDArray[np.uint8]:
    """The square in the middle; black outside of the image."""
    height, width, _ = pixels.shape
    top, left = (height - edge) // 2, (width - edge) // 2
    if top >= 0 and left >= 0:
        return pixels[top : top + edge, left : left + edge]
    new_height, new_width = max(edge, height), max(edge, width)
    padded = np.zeros((new_height, new_width, 3), pixels.dtype)
    first_row, first_column = -((height - new_height) // 2), -((width - new_width) // 2)
    padded[first_row : first_row + height, first_column : first_column + width] = pixels
    top, left = max(0, top + first_row), max(0, left + first_column)
    return padded[top : top + edge, left : left + edge]
