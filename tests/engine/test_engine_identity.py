"""What identifies K and V (``EngineInfo.content``) and their place in memory (``layout``)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quire.core.config import EngineConfig
from quire.core.engine_info import EngineInfo
from quire.core.ids import ModelId
from quire.engine.engine import Engine

Checkpoint = Callable[[str], Path]


def describe(path: Path, **changes: Any) -> EngineInfo:
    settings = {"dtype": "float32", "num_blocks": 8, "host_cache_bytes": 0, "num_threads": 1}
    config = EngineConfig(source=str(path), name=ModelId("m"), **{**settings, **changes})  # type: ignore[arg-type]
    engine = Engine(config)
    engine.close()
    return engine.info


def test_equal_engines_are_equal(checkpoint: Checkpoint) -> None:
    one, two = describe(checkpoint("llama")), describe(checkpoint("llama"))
    assert (one.content, one.layout) == (two.content, two.layout)


@pytest.mark.parametrize(
    "changes",
    [{"page_size": 8}, {"backend": "torch"}],
    ids=["page size", "backend"],
)
def test_where_k_and_v_lie_is_layout(checkpoint: Checkpoint, changes: dict[str, Any]) -> None:
    one = describe(checkpoint("llama"), backend="cpu")
    two = describe(checkpoint("llama"), **{"backend": "cpu", **changes})
    assert one.content == two.content
    assert one.layout != two.layout


@pytest.mark.parametrize(
    "changes", [{"dtype": "bfloat16"}, {"weights": "int8"}], ids=["dtype", "quantisation"]
)
def test_what_k_and_v_are_is_content(checkpoint: Checkpoint, changes: dict[str, Any]) -> None:
    one = describe(checkpoint("llama"), backend="cpu")
    assert describe(checkpoint("llama"), **{"backend": "cpu", **changes}).content != one.content


@pytest.mark.parametrize(
    ("model", "rotates_by_length"),
    [
        ("llama-rope-dynamic", True),  # made for 16 tokens
        ("llama-rope-dynamic-within", False),  # made for 64
        ("phi3-longrope", True),
        ("llama", False),
    ],
)
def test_the_rotation_at_the_served_length_is_content(
    checkpoint: Checkpoint, model: str, rotates_by_length: bool
) -> None:
    """Dynamic NTK stretches its base, and LongRoPE changes its factors, with the length that the
    engine serves; within the length that the model was made for, the rotation is the same."""
    short, long = (describe(checkpoint(model), max_model_len=n) for n in (16, 64))
    assert (short.content != long.content) == rotates_by_length
    assert short.layout == long.layout
