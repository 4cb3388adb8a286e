"""How many tokens a model has room for, as programs and the edge ask it."""

from __future__ import annotations

import pytest

from quire.core.engine_info import EngineInfo, LayerGroup, PoolSpec
from quire.core.errors import PromptTooLong
from quire.core.ids import ModelId
from quire.core.interfaces import ServedModel
from quire.testing import FakeTokenizer

CONTEXT = 100


def model_of(*groups: LayerGroup) -> ServedModel:
    pool = PoolSpec(
        page_size=4,
        groups=groups,
        num_embeds=8,
        num_token_slots=8,
        max_sequences=8,
        max_batch_tokens=64,
    )
    info = EngineInfo(
        model="m", family="f", content="c", layout="l", vocab_size=128, hidden_size=1, num_layers=1,
        max_model_len=CONTEXT, dtype="float32", device="cpu", backend="torch", num_parameters=1,
        pool=pool, traits=[],
    )  # fmt: skip
    return ServedModel(ModelId("m"), ModelId("m"), info, FakeTokenizer())


def group(num_blocks: int, window: int | None = None) -> LayerGroup:
    return LayerGroup(num_blocks=num_blocks, num_host_blocks=0, bytes_per_block=1, window=window)


def test_a_sequence_has_the_context_or_the_pool() -> None:
    assert model_of(group(1000)).max_tokens == CONTEXT
    assert model_of(group(10)).max_tokens == 40
    assert model_of(group(30), group(20)).max_tokens == 80
    assert model_of(group(30), group(2, window=4)).max_tokens == CONTEXT, (
        "a window frees its blocks"
    )


def test_room_behind_a_prompt() -> None:
    model = model_of(group(10))
    assert model.room_behind(39) == 1
    assert model.room_behind(40, least=0) == 0
    for num_tokens, least in ((40, 1), (41, 0), (38, 3)):
        with pytest.raises(PromptTooLong, match=f"{num_tokens} tokens.*holds 40: shorten"):
            model.room_behind(num_tokens, least=least)
