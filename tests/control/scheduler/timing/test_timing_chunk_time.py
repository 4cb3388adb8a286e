"""How long a prompt's chunk may be next to decodes."""

from __future__ import annotations

import pytest

from quire.control.scheduler.timing.chunk_time import ChunkTime

PASS_S, TOKEN_S = 0.010, 0.0001
"""A pass takes at least as long as 100 tokens."""


def passes(chunks: ChunkTime, rows_s: float, num_messages: int = 300) -> None:
    """Messages with chunks as long as allowed, and every third with the rest of a prompt, on an
    engine whose passes have a least time; their decodes take ``rows_s`` of it."""
    for number in range(num_messages):
        limit = chunks.limit(PASS_S) or 512
        num_tokens = limit if number % 3 else max(32, limit // 2)
        elapsed_s = max(PASS_S, rows_s + num_tokens * TOKEN_S)
        chunks.observe(elapsed_s, num_tokens, PASS_S, has_decodes=True)


def observed(chunk_steps: float = 1.0, token_s: float = 0.001) -> ChunkTime:
    chunks = ChunkTime(chunk_steps)
    chunks.observe(100 * token_s, 100, None, has_decodes=False)
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
    chunks.observe(0.15, 100, 0.05, has_decodes=True)
    assert chunks.limit(0.05) == 50


def test_a_handful_of_tokens_says_nothing_of_a_chunk() -> None:
    chunks = ChunkTime(1.0)
    chunks.observe(5.0, 31, None, has_decodes=False)
    assert chunks.token_s is None
    chunks.observe(0.032, 32, None, has_decodes=False)
    assert chunks.limit(0.05) == 50


@pytest.mark.parametrize("rows_s", [0.003, 0.005, 0.009])
def test_the_least_time_of_a_pass_makes_no_chunk_longer(rows_s: float) -> None:
    chunks = ChunkTime(0.8)
    passes(chunks, rows_s)
    assert chunks.limit(PASS_S) == pytest.approx(80, rel=0.1)
    assert chunks.token_s == pytest.approx(TOKEN_S, rel=0.1)


def test_beside_few_decodes_a_chunk_fills_the_pass() -> None:
    chunks = ChunkTime(0.8)
    passes(chunks, rows_s=0.0)
    limit = chunks.limit(PASS_S)
    assert limit is not None
    assert 80 <= limit <= 120


def test_a_short_prompt_that_came_first_makes_no_chunk_shorter_for_ever() -> None:
    chunks = ChunkTime(0.8)
    chunks.observe(PASS_S, 40, None, has_decodes=False)
    assert chunks.limit(PASS_S) == 32
    passes(chunks, rows_s=0.003)
    assert chunks.limit(PASS_S) == pytest.approx(80, rel=0.1)


def test_a_short_prompt_that_comes_later_says_only_what_a_token_takes_at_most() -> None:
    chunks = observed(0.8, TOKEN_S)
    chunks.observe(PASS_S, 40, PASS_S, has_decodes=False)
    assert chunks.token_s == TOKEN_S
    chunks.observe(0.012, 150, PASS_S, has_decodes=False)
    assert chunks.token_s == 0.012 / 150


def test_where_times_add_up_chunks_of_any_size_say_the_same() -> None:
    chunks = ChunkTime(0.8)
    for num_tokens in (400, 40, 64, 90, 400, 55):
        chunks.observe(0.05 + 0.001 * num_tokens, num_tokens, 0.05, has_decodes=True)
        assert chunks.token_s == pytest.approx(0.001)
        chunks.observe(0.001 * num_tokens, num_tokens, 0.05, has_decodes=False)
        assert chunks.token_s == pytest.approx(0.001)


def test_what_chunks_of_one_size_have_added_is_taken_for_their_time() -> None:
    chunks = ChunkTime(0.8)
    for _ in range(10):
        chunks.observe(0.014, 100, PASS_S, has_decodes=True)
    assert chunks.token_s == pytest.approx(0.00004)


@pytest.mark.parametrize(
    ("short_s", "long_s", "least_s", "most_s"),
    [(0.030, 0.020, 0.0001, 0.0004), (0.012, 0.090, 0.0004, 0.00052)],
)
def test_a_slope_is_bounded_by_what_messages_have_taken(
    short_s: float, long_s: float, least_s: float, most_s: float
) -> None:
    """Where other work of the machine has lengthened one of two messages, of 90 and 110 tokens."""
    chunks = ChunkTime(0.8)
    for _ in range(40):
        chunks.observe(short_s, 90, PASS_S, has_decodes=True)
        chunks.observe(long_s, 110, PASS_S, has_decodes=True)
    assert chunks.token_s is not None
    assert least_s < chunks.token_s < most_s
