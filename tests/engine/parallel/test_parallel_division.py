"""What ranks cannot share is refused before any rank is started."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from parallel_engines import tiny

from quire.core.errors import ConfigError
from quire.engine.engine import Engine
from quire.engine.parallel.group import RankGroup


@pytest.fixture(autouse=True)
def no_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(config: object) -> RankGroup:
        raise AssertionError("a rank was started")

    monkeypatch.setattr(RankGroup, "start", start)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tensor_parallel": 3}, "4 attention heads and 2 KV heads, which 3 ranks cannot share"),
        ({"tensor_parallel": 64}, "which 64 ranks cannot share: choose 1, 2, 4"),
        ({"backend": "cpu"}, "backend 'cpu' does not split a model over 2 ranks: choose torch"),
    ],
)
def test_no_rank_is_started(
    changes: dict[str, object], words: str, checkpoint: Callable[[str], Path]
) -> None:
    with pytest.raises(ConfigError, match=words):
        Engine(tiny(str(checkpoint("llama")), **changes))


def test_ranks_that_can_share_it_are_started(checkpoint: Callable[[str], Path]) -> None:
    with pytest.raises(AssertionError, match="a rank was started"):
        Engine(tiny(str(checkpoint("llama"))))
