"""Pixels equal those of transformers' own processors; files are read within bounds."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from PIL import Image
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.llava.image_processing_pil_llava import LlavaImageProcessorPil
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil
from vision_checkpoints import IMAGE_SIZE, PROCESSORS, file_of, picture

from quire.core.batch import F32
from quire.core.errors import InvalidArgument, ModelFormatError, UnsupportedModel
from quire.engine.checkpoint.config_reader import ConfigReader
from quire.engine.vision import unpacking_worker
from quire.engine.vision.config import VisionConfig
from quire.engine.vision.framing import frame, pack
from quire.engine.vision.image_processor import ImageProcessor, read_image_processor
from quire.engine.vision.unpacker import Pixels
from quire.engine.vision.unpacking_worker import ImageRefused, Resizing, open_image

SIZES = [(28, 28), (50, 37), (37, 50), (5, 90), (90, 5), (3, 3), (29, 28), (200, 141)]


def vision(kind: Any = "clip") -> VisionConfig:
    return VisionConfig(
        kind=kind, hidden_size=8, inner_size=8, num_layers=1, num_heads=1, image_size=IMAGE_SIZE,
        patch_size=7, activation="gelu", norm_eps=1e-5, drops_first=True,
        projector_activation="gelu", projector_bias=True, output_size=8, image_token=0,
    )  # fmt: skip


def unpack_here(file: bytes, resizing: Resizing) -> Pixels:
    """The worker's result, without a process."""
    width, height, pixels = unpacking_worker.unpack(file, resizing)
    return np.frombuffer(pixels, np.uint8).reshape(height, width, 3)


def processor(values: dict[str, Any], kind: str = "clip") -> ImageProcessor:
    config = read_image_processor(ConfigReader(values, "a file"), vision(kind))
    return ImageProcessor(config, unpack_here)


def theirs(kind: type[Any], values: dict[str, Any], image: Image.Image) -> F32:
    known = {name: value for name, value in values.items() if name != "image_processor_type"}
    pixels: F32 = kind(**known)(image, return_tensors="np")["pixel_values"][0]
    return pixels


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA"])
def test_pixels_of_clip_and_siglip(size: tuple[int, int], mode: str) -> None:
    image = picture(*size, mode=mode)
    for name, kind in (("clip", CLIPImageProcessorPil), ("siglip", SiglipImageProcessorPil)):
        values = PROCESSORS[name]  # type: ignore[index]
        found = processor(values, name)(file_of(image))
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, theirs(kind, values, image))


@pytest.mark.parametrize(
    "changes",
    [
        {"resample": 2},
        {"do_normalize": False},
        {"do_rescale": False},
        {"size": {"shortest_edge": 20}},
        {"size": {"shortest_edge": 41}},
        {"size": {"height": 35, "width": 35}},
        {"size": {"height": 28, "width": 28}, "do_center_crop": False},
        {"do_resize": False},
    ],
)
def test_every_step_can_be_changed(changes: dict[str, Any]) -> None:
    values = {**PROCESSORS["clip"], **changes}
    for size in ((50, 37), (20, 33)):
        image = picture(*size)
        found = processor(values)(file_of(image))
        np.testing.assert_array_equal(found, theirs(CLIPImageProcessorPil, values, image))


@pytest.mark.parametrize("size", [*SIZES, (28, 28)])
@pytest.mark.parametrize("name", ["clip", "siglip"])
def test_pixels_that_were_framed_elsewhere_have_the_values_of_their_file(
    name: Any, size: tuple[int, int]
) -> None:
    process, file = processor(PROCESSORS[name], name), file_of(picture(*size))
    pixels = pack(frame(file, process.framing, unpack_here))
    assert len(pixels) == len(b"P6 28 28 255\n") + 3 * IMAGE_SIZE**2
    np.testing.assert_array_equal(process(pixels), process(file))


def test_pixels_of_another_size_and_bytes_that_resemble_pixels_are_refused() -> None:
    process = processor(PROCESSORS["clip"])
    with pytest.raises(InvalidArgument, match="30 x 28 pixels; this model takes 28 x 28"):
        process(pack(np.zeros((28, 30, 3), np.uint8)))
    good = pack(np.zeros((28, 28, 3), np.uint8))
    for bad in (good[:-1], good + b"x", good.replace(b"255", b"256"), b"P6 99999 99999 255\n"):
        with pytest.raises(ImageRefused, match="no PNG or JPEG"):
            process(bad)


def test_defaults_of_keys_that_a_directory_omits() -> None:
    """As in LLaVA 1.5's directory; the processor's defaults are for another size."""
    image = picture(61, 40)
    values = {"size": {"shortest_edge": 28}, "crop_size": {"height": 28, "width": 28}}
    found = processor({})(file_of(image))
    np.testing.assert_array_equal(found, theirs(LlavaImageProcessorPil, values, image))
    found = processor({"size": 28, "crop_size": 28})(file_of(image))
    np.testing.assert_array_equal(found, theirs(CLIPImageProcessorPil, values, image))


def test_files_of_several_kinds() -> None:
    """JPEG in several modes, palettes with a transparent colour, 16 bits, an image on its side."""
    image = picture(40, 30)
    assert open_image(file_of(image.convert("CMYK"), "JPEG")).mode == "RGB"
    assert open_image(file_of(image.convert("L"), "JPEG")).mode == "RGB"
    palette = image.convert("P")
    see_through = open_image(file_of(palette, transparency=palette.getpixel((3, 4))))
    assert see_through.getpixel((3, 4)) == (255, 255, 255)
    greys = np.array([[0, 255, 256, 0x80FF], [0x7F00, 0xFE80, 0xFF00, 0xFFFF]], np.uint16)
    for options in ({}, {"transparency": 0}):
        deep = np.asarray(open_image(file_of(Image.fromarray(greys), **options)))
        assert (deep == (greys >> 8)[..., None]).all(), "the upper eight of sixteen bits"
    exif = Image.Exif()
    exif[0x0112] = 6
    assert open_image(file_of(image, "JPEG", exif=exif)).size == (30, 40)


def header(width: int, height: int) -> bytes:
    """A PNG that claims this size, with almost no data."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(100)))


def test_bombs_are_refused_by_their_header() -> None:
    for size in ((60_000, 60_000), (1 << 20, 33), (2**31 - 1, 2**31 - 1)):
        with pytest.raises(ImageRefused, match=r"at most 33554432 are unpacked|damaged"):
            open_image(header(*size))
    with pytest.raises(ImageRefused, match="cannot be read"):
        open_image(header(30, 30))
    with pytest.raises(ImageRefused, match="less narrow"):
        processor(PROCESSORS["clip"])(file_of(picture(1, 60_000, mode="L")))


def test_other_files_are_refused() -> None:
    good = file_of(picture(20, 20), "JPEG")
    out = io.BytesIO()
    picture(20, 20).save(out, "BMP")
    for bad in (b"", b"\x89PNG\r\n\x1a\n", b"hello" * 9, out.getvalue(), good[: len(good) // 2]):
        with pytest.raises(ImageRefused, match=r"no PNG or JPEG|cannot be read"):
            open_image(bad)


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"do_pad": True}, UnsupportedModel),
        ({"crop_size": {"height": 28, "width": 14}}, UnsupportedModel),
        ({"crop_size": 14}, ModelFormatError),
        ({"do_center_crop": False}, ModelFormatError),
        ({"image_std": [0.0, 1.0, 1.0]}, ModelFormatError),
        ({"image_mean": [0.5]}, ModelFormatError),
        ({"size": {"shortest_edge": 1 << 30}}, ModelFormatError),
        ({"resample": 17}, ModelFormatError),
    ],
)
def test_bad_processors_are_refused(values: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        processor({**PROCESSORS["clip"], **values})
