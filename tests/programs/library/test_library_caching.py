"""What is computed once and used again."""

from __future__ import annotations

import pytest
from library_run import run


@pytest.mark.parametrize("page_size", [1, 4, 16])
async def test_prefix_caching_shows_its_figures(page_size: int) -> None:
    prefix = "A prefix that is long enough for pages. "
    result, _, _ = await run("prefix_caching", prefix, "One?", "Two?", page_size=page_size)
    num_shared = 1 + len(prefix) + 2  # <|system|>, the text, <|end|><|user|>
    assert [answer["num_prompt_tokens"] for answer in result] == [num_shared + 6] * 2
    assert result[0]["num_cached_tokens"] == 0
    assert result[1]["num_cached_tokens"] == num_shared // page_size * page_size
