"""A completion with images on a real engine equals transformers' greedy generation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import LlavaForConditionalGeneration
from vision_checkpoints import IMAGE_TOKEN, Tower, file_of, picture, reference_pixels

from quire.core.config import EngineConfig, NodeConfig
from quire.core.errors import InvalidArgument
from quire.core.ids import EngineId, ModelId, TenantId
from quire.engine.engine import Engine
from quire.node import Node
from quire.programs.api import connect_api
from quire.programs.builtin import CompletionRequest, PromptImage, complete
from quire.testing import LocalNode

NUM_NEW = 12


@pytest.mark.parametrize("tower", ["clip", "siglip"])
@pytest.mark.parametrize("num_choices", [1, 2])
async def test_greedy_tokens_equal_those_of_transformers(
    tower: Tower, num_choices: int, llava: Callable[[Tower], Path], backend: str
) -> None:
    """Two images, in chunks, with text before, between and after them."""
    files = [file_of(picture(40, 30, seed)) for seed in (5, 6)]
    prompt = [0, 17, 9, *[IMAGE_TOKEN] * 16, 40, *[IMAGE_TOKEN] * 16, 5, 61]
    engine = Engine(
        EngineConfig(
            source=str(llava(tower)), name=ModelId("llava"), backend=backend, dtype="float32",
            page_size=4, num_blocks=64, num_embeds=64, num_threads=1, max_batch_tokens=24,
        )
    )  # fmt: skip
    request = CompletionRequest(
        prompt=tuple(prompt),
        max_tokens=NUM_NEW,
        num_choices=num_choices,
        ignore_eos=True,
        images=(PromptImage(3, 16, files[0]), PromptImage(20, 16, files[1])),
    )
    said: dict[int, list[int]] = {index: [] for index in range(num_choices)}
    async with LocalNode({EngineId("llava"): engine}) as local:
        api = connect_api(local.connect())
        async for chunk in complete(api, request):
            said[chunk.index] += chunk.token_ids
        api.close()
        await local.idle()
        assert local.controller.statistics().engines[0].pool.num_held == 0
    model = LlavaForConditionalGeneration.from_pretrained(llava(tower), dtype=torch.float32).eval()
    with torch.inference_mode():
        wanted = model.generate(
            input_ids=torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
            pixel_values=torch.cat([reference_pixels(tower, file) for file in files]),
            max_new_tokens=NUM_NEW,
            min_new_tokens=NUM_NEW,
            do_sample=False,
            eos_token_id=None,
        )[0, len(prompt) :].tolist()
    assert list(said.values()) == [wanted] * num_choices


class Unused:
    """Replaces the engine's own."""

    def __call__(self, *_: object) -> None:
        raise AssertionError("an engine that unpacks a file lets everybody wait")

    def close(self) -> None: ...


async def test_a_node_unpacks_images_before_its_engine_hears_of_them(
    llava: Callable[[Tower], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tokens equal those of an engine that gets the files; a damaged file is refused."""
    engine = EngineConfig(
        source=str(llava("clip")), name=ModelId("llava"), backend="torch", dtype="float32",
        page_size=4, kv_cache_bytes=1 << 20, host_cache_bytes=0, num_threads=1,
    )  # fmt: skip
    files = [file_of(picture(40, 30, seed)) for seed in (5, 6)]
    prompt = (0, 17, 9, *[IMAGE_TOKEN] * 16, 40, *[IMAGE_TOKEN] * 16, 5, 61)

    def request(*files: bytes) -> CompletionRequest:
        images = (PromptImage(3, 16, files[0]), PromptImage(20, 16, files[1]))
        return CompletionRequest(prompt=prompt, max_tokens=NUM_NEW, ignore_eos=True, images=images)

    async with LocalNode({EngineId("llava"): Engine(engine)}) as local:
        api = connect_api(local.connect())
        wanted = [
            token async for chunk in complete(api, request(*files)) for token in chunk.token_ids
        ]
        api.close()
        await local.idle()
    monkeypatch.setattr("quire.engine.vision.encoder.Unpacker", Unused)
    node = Node(NodeConfig(engines=(engine,), engine_process=False))
    await node.start()
    try:
        tenant = TenantId("default")
        call = node.session(tenant, "s").call(complete, request(*files))
        assert [token async for chunk in call for token in chunk.token_ids] == wanted
        damaged = node.session(tenant, "s").call(complete, request(files[0], files[1][:-40]))
        with pytest.raises(InvalidArgument, match="may be damaged"):
            _ = [chunk async for chunk in damaged]
    finally:
        await node.stop()
