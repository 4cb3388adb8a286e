"""The process that decodes clients' image files. Run by path; the engine imports only its constants
and types.

It lowers its memory limit, then answers file after file until its input closes. It must not import
Quire, so that it starts fast and stays small; a file that crashes the decoder, or expands without
bound, ends only this process. Pillow is imported only here: models were trained with Pillow's
resizing, and only its code gives the same pixels.
"""

from __future__ import annotations

import io
import json
import math
import resource
import sys
import warnings
from dataclasses import dataclass

from PIL import Image, ImageOps, UnidentifiedImageError

FORMATS = ("PNG", "JPEG")
MAX_IMAGE_PIXELS = 32 << 20
"""Decoded, an image of this size takes 96 MiB."""
_MAX_ERROR_CHARS = 500


@dataclass(frozen=True, slots=True)
class Resizing:
    """``shortest_edge``: resize so that the shorter edge has this length, else to ``size`` squared
    (None: no resizing), with filter ``resample`` (Pillow's numbers)."""

    shortest_edge: int | None
    size: int | None
    resample: int


class ImageRefused(Exception):
    """The file is not accepted; the message is for its sender."""


def unpack(file: bytes, resizing: Resizing) -> tuple[int, int, bytes]:
    """The image in ``file``: width, height, and RGB row by row.

    Raises:
        ImageRefused: no PNG or JPEG, damaged, or over a bound.
    """
    image = resized(open_image(file), resizing)
    return image.width, image.height, image.tobytes()


def open_image(file: bytes) -> Image.Image:
    """The image in ``file``, upright (by its EXIF data) and in RGB, on white. See ``unpack``."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # Pillow warns about suspicious files
            image = Image.open(io.BytesIO(file), formats=FORMATS)
            if math.prod(image.size) > MAX_IMAGE_PIXELS:
                raise ImageRefused(
                    f"the image has {image.width} x {image.height} pixels; at most "
                    f"{MAX_IMAGE_PIXELS} are unpacked: make it smaller"
                )
            return _in_rgb(ImageOps.exif_transpose(image))
    except ImageRefused:
        raise
    except UnidentifiedImageError as exc:
        raise ImageRefused("the file is no PNG or JPEG image: convert it to one") from exc
    except Exception as exc:  # Pillow raises unrelated types for damaged files
        words = str(exc) or type(exc).__name__
        raise ImageRefused(f"the image cannot be read, it may be damaged: {words}") from exc


def resized(image: Image.Image, resizing: Resizing) -> Image.Image:
    """Return ``image`` resized. Raises ``ImageRefused``: the result would be too large."""
    width, height = image.size
    if resizing.size is not None:
        width = height = resizing.size
    elif resizing.shortest_edge is not None:
        short, long = sorted((width, height))
        longer = int(resizing.shortest_edge * long / short)
        portrait = (resizing.shortest_edge, longer)
        width, height = portrait if width <= height else portrait[::-1]
    if width * height > MAX_IMAGE_PIXELS:
        raise ImageRefused(
            f"an image of {image.width} x {image.height} pixels would be resized to {width} x "
            f"{height}: send one that is less narrow"
        )
    return image.resize((width, height), Image.Resampling(resizing.resample))


def _in_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):  # 16-bit grey, of which Pillow keeps 0 to 255
        return image.convert("I").point(lambda value: value * (1 / 256)).convert("L").convert("RGB")
    if "A" not in image.getbands() and image.info.get("transparency") is None:
        return image.convert("RGB")
    white = Image.new("RGBA", image.size, (255, 255, 255, 255))
    return Image.alpha_composite(white, image.convert("RGBA")).convert("RGB")


def main() -> None:
    """Each request is a line of JSON (``num_bytes`` and a ``Resizing``) and the file; each answer a
    line of JSON (``error``, or ``width`` and ``height``) and the pixels."""
    max_memory_bytes = int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_AS, (max_memory_bytes, max_memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    questions, answers = sys.stdin.buffer, sys.stdout.buffer
    for line in questions:
        question = json.loads(line)
        file = questions.read(question.pop("num_bytes"))
        pixels = b""
        try:
            width, height, pixels = unpack(file, Resizing(**question))
            answer: dict[str, object] = {"width": width, "height": height}
        except ImageRefused as exc:
            answer = {"error": str(exc)[:_MAX_ERROR_CHARS]}
        except MemoryError:
            answer = {"error": "the image takes too much memory to resize: make it smaller"}
        answers.write(json.dumps(answer).encode() + b"\n")
        answers.write(pixels)
        answers.flush()


if __name__ == "__main__":
    main()
