"""Images in the engine against transformers' LLaVA, and their processor against its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from engine_driver import Driver, i32
from numpy.typing import NDArray
from transformers import LlavaForConditionalGeneration
from vision_checkpoints import (
    IMAGE_TOKEN,
    Tower,
    file_of,
    make_llava,
    picture,
    reference_pixels,
    rename_tensors,
)

from quire.core.batch import DistRows, EmbedRows, ForwardRows, ImageRow
from quire.core.config import EngineConfig
from quire.core.errors import InvalidArgument, from_record
from quire.core.ids import ModelId
from quire.core.traits import Trait
from quire.engine.engine import Engine

TOWERS: list[Tower] = ["clip", "siglip"]
PROMPT = [0, 17, *[IMAGE_TOKEN] * 16, 40, 5, 61]
Floats = NDArray[np.float64]


def driver_of(path: Path, backend: str = "torch", **settings: object) -> Driver:
    config = EngineConfig(
        source=str(path), name=ModelId("llava"), backend=backend, num_blocks=32, page_size=4,
        num_embeds=64, num_threads=1, max_batch_tokens=64, **{"dtype": "float32", **settings},
    )  # fmt: skip
    return Driver(Engine(config))


def reference(path: Path, tower: Tower, image: bytes) -> Floats:
    """Log probabilities ``[T, V]`` of transformers over ``PROMPT`` with the image."""
    model = LlavaForConditionalGeneration.from_pretrained(path, dtype=torch.float32).eval()
    with torch.inference_mode():
        logits = model(
            input_ids=torch.tensor([PROMPT]), pixel_values=reference_pixels(tower, image)
        ).logits[0]
    return logits.double().log_softmax(-1).numpy()


def logprobs(driver: Driver, image: bytes) -> Floats:
    """The same through a message: text and image into embeds, then one row over them."""
    places = np.flatnonzero(np.array(PROMPT) == IMAGE_TOKEN)
    text = np.flatnonzero(np.array(PROMPT) != IMAGE_TOKEN)
    count = len(PROMPT)
    result = driver.good(
        embeds=EmbedRows(tokens=i32([PROMPT[i] for i in text]), embeds=i32(text)),
        images=[ImageRow(file=np.frombuffer(image, np.uint8), embeds=i32(places))],
        forward=ForwardRows(
            row_starts=i32([0, count]),
            tables=i32([-1]),
            sequences=i32([-1]),
            tokens=i32([0] * count),
            embeds=i32(range(count)),
            positions=i32([range(count)]),
            slots=i32([[-1] * count]),
            outputs=i32(range(32, 32 + count)),
        ),
        dists=DistRows(
            embeds=i32(range(32, 32 + count)), top_k=i32([driver.info.vocab_size] * count)
        ),
    )
    found = np.empty((count, driver.info.vocab_size))
    ids = result.dist_ids.reshape(found.shape).astype(np.int64)
    np.put_along_axis(found, ids, np.log(result.dist_probs.reshape(found.shape)), axis=1)
    return found


@pytest.mark.parametrize("tower", TOWERS)
def test_logits_with_an_image(tower: Tower, llava: Callable[[Tower], Path], backend: str) -> None:
    path, image = llava(tower), file_of(picture(50, 37))
    driver = driver_of(path, backend)
    assert Trait.INPUT_IMAGE in driver.info.traits
    assert driver.info.images is not None
    assert (driver.info.images.num_embeds, driver.info.images.token) == (16, IMAGE_TOKEN)
    wanted = reference(path, tower, image)
    found = logprobs(driver, image)
    np.testing.assert_allclose(found, wanted, atol=1e-4)
    other = logprobs(driver, file_of(picture(50, 37, seed=1)))
    assert np.abs(other - found).max() > 0.01


def test_names_of_older_exports(tmp_path: Path) -> None:
    make_llava("clip", tmp_path)
    image = file_of(picture(28, 28))
    wanted = reference(tmp_path, "clip", image)
    rename_tensors(tmp_path, "vision_tower.", "vision_tower.vision_model.")
    np.testing.assert_allclose(logprobs(driver_of(tmp_path), image), wanted, atol=1e-4)


@pytest.mark.parametrize("layer", [-1, 1])
def test_features_of_another_layer_with_the_class_token(layer: int, tmp_path: Path) -> None:
    changes = {"vision_feature_layer": layer, "vision_feature_select_strategy": "full"}
    make_llava("clip", tmp_path, **changes)
    driver = driver_of(tmp_path)
    assert driver.info.images is not None
    assert driver.info.images.num_embeds == 17
    image = file_of(picture(30, 60))
    model = LlavaForConditionalGeneration.from_pretrained(tmp_path, dtype=torch.float32)
    pixels = reference_pixels("clip", image)
    with torch.inference_mode():
        wanted = model.get_image_features(pixels).pooler_output[0]
    engine = driver.engine
    assert isinstance(engine, Engine)
    driver.good(images=[ImageRow(file=np.frombuffer(image, np.uint8), embeds=i32(range(17)))])
    found = engine._step._embeds.read(i32(range(17)))  # type: ignore[union-attr]
    np.testing.assert_allclose(found.numpy(), wanted.numpy(), atol=1e-4)


def test_a_bad_image_fails_alone(llava: Callable[[Tower], Path], backend: str) -> None:
    driver = driver_of(llava("clip"), backend)
    good = np.frombuffer(file_of(picture(9, 9)), np.uint8)
    cases = [
        (np.frombuffer(b"GIF89a" + bytes(64), np.uint8), range(16), "no PNG or JPEG"),
        (good[:60], range(16), "cannot be read"),
        (good, range(15), "takes 16"),
        (good, range(50, 66), "takes 16"),
        (good, range(16), None),
    ]
    result = driver.send(images=[ImageRow(file=file, embeds=i32(span)) for file, span, _ in cases])
    assert [(one.stage, one.index) for one in result.failures] == [("images", i) for i in range(4)]
    for failure, (_, _, message) in zip(result.failures, cases, strict=False):
        with pytest.raises(InvalidArgument, match=message):
            raise from_record(failure.error)


def test_a_model_without_a_tower_refuses_images(make_driver: Callable[..., Driver]) -> None:
    driver = make_driver("llama")
    assert driver.info.images is None
    assert Trait.INPUT_IMAGE not in driver.info.traits
    file = np.frombuffer(file_of(picture(9, 9)), np.uint8)
    result = driver.send(images=[ImageRow(file=file, embeds=i32(range(16)))])
    assert "sees no images" in result.failures[0].error.message
