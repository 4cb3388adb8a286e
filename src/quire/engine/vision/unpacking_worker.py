"""The process that unpacks clients' image files. Run by path; the engine takes its values alone.

Owns nothing but its own life: it lowers its memory limit, then answers file after file until its
input closes. It must import nothing of ours, so that it starts fast and stays small; a file that
makes the decoder crash, or explode, ends this process and no other. Pillow is imported here alone:
the resizing that models were trained with is Pillow's, and only its code gives the same pixels.
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
"""Unpacked, an image of so many takes 96 MiB."""
_MAX_ERROR_CHARS = 500


@dataclass(frozen=True, slots=True)
class Resizing:
    """``shortest_edge``: so that the shorter edge has it, else to ``size`` squared (None: not at
    all), with filter ``resample`` (Pillow's numbers)."""

    shortest_edge: int | None
    size: int | None
    resample: int


class ImageRefused(Exception):
    """The file is none that is unpacked; the message is for its sender."""


def unpack(file: bytes, resizing: Resizing) -> tuple[int, int, bytes]:
    """The picture in ``file``: width, height, and row after row of RGB.

    Raises:
        ImageRefused: no PNG or JPEG, damaged, or over a bound.
    """
    image = resized(open_image(file), resizing)
    return image.width, image.height, image.tobytes()


def open_image(file: bytes) -> Image.Image:
    """The picture in ``file``, upright (as its EXIF data says) and in RGB, on white. See
    ``unpack``."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # Pillow warns of what is suspicious
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
    except Exception as exc:  # what a damaged file makes Pillow raise is not one family
        words = str(exc) or type(exc).__name__
        raise ImageRefused(f"the image cannot be read, it may be damaged: {words}") from exc


def resized(image: Image.Image, resizing: Resizing) -> Image.Image:
    """Raises ``ImageRefused``: it would become too large."""
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
    if image.mode.startswith("I"):  # 16 bits of grey, of which Pillow would show 0 to 255 alone
        return image.convert("I").point(lambda value: value * (1 / 256)).convert("L").convert("RGB")
    if "A" not in image.getbands() and image.info.get("transparency") is None:
        return image.convert("RGB")
    white = Image.new("RGBA", image.size, (255, 255, 255, 255))
    return Image.alpha_composite(white, image.convert("RGBA")).convert("RGB")


def main() -> None:
    """Each question is a line of JSON (``num_bytes`` and a ``Resizing``) and the file; each answer
    a line of JSON (``error``, or ``width`` and ``height``) and the pixels."""
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
