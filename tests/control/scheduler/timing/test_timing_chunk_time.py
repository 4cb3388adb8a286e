"""How long a prompt's chunk may be next to decodes."""

from __future__ import annotations

from quire.control.scheduler.timing.chunk_time import ChunkTime


def observed(chunk_steps: float = 1.0, token_s: float = 0.001) -> ChunkTime:
    chunks = ChunkTime(chunk_steps)
    chunks.observe(100 * token_s, 100, step_s=0.0)
    return chunks


def test_without_any_figure_there_is_no_bound() -> None:
    assert ChunkTime(1.0).limit(0.05) is None
    assert observed().limit(None) is None


def test_a_chunk_takes_as_long_as_the_steps_it_may_take() -> None:
    assert observed(1.0).limit(0.05) == 50
    assert observed(2.0).limit(0.05) == 100


def test_it_never_gets_too_short_to_come_to_an_end() -> None:
    assert observed(token_s=1.0).limit(0.001) == 16


def test_the_steps_of_the_decodes_are_not_the_prompts_cost() -> None:
    chunks = ChunkTime(1.0)
    chunks.observe(0.15, 100, step_s=0.05)
    assert chunks.limit(0.05) == 50


def test_a_handful_of_tokens_says_nothing_of_a_chunk() -> None:
    chunks = ChunkTime(1.0)
    chunks.observe(5.0, 31, step_s=0.0)
    assert chunks.token_s is None
    chunks.observe(0.032, 32, step_s=0.0)
    assert chunks.limit(0.05) == 50
