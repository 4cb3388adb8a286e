"""Chunks: their tokens, overlaps and number."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.core.errors import InvalidArgument
from quire.programs.workflow import chunker
from quire.programs.workflow.chunker import chunks, num_chunks, with_surroundings


def test_a_chunk_is_a_piece_of_its_text() -> None:
    text = "One, two\n three. Four"
    assert list(chunks(text, 3, 1)) == ["One, two", "two\n three.", ". Four"]
    assert list(chunks("", 3, 1)) == []
    assert list(chunks("  ", 3, 1)) == []
    assert list(chunks("One two", 9, 8)) == ["One two"]


@given(st.integers(0, 60), st.integers(1, 12), st.data())
def test_every_token_is_in_a_chunk_and_each_overlaps_the_one_before(
    num: int, size: int, data: st.DataObject
) -> None:
    overlap = data.draw(st.integers(0, size - 1))
    tokens = [f"t{n}" for n in range(num)]
    cut = [piece.split() for piece in chunks(" ".join(tokens), size, overlap)]
    assert len(cut) == num_chunks(" ".join(tokens), size, overlap)
    joined = [token for n, piece in enumerate(cut) for token in piece[overlap if n else 0 :]]
    assert joined == tokens
    assert all(len(piece) == size for piece in cut[:-1])
    assert all(len(piece) > overlap for piece in cut[1:])


def test_a_chunk_is_surrounded_by_its_neighbours() -> None:
    surrounded = list(with_surroundings("a b. c\nd e f", 1, 0, 2))
    assert [chunk for chunk, _ in surrounded] == ["a", "b", ".", "c", "d", "e", "f"]
    assert [text for _, text in surrounded] == [
        "a b.", "a b.", "b. c", ". c\nd", "c\nd e", "d e f", "d e f"
    ]  # fmt: skip
    assert list(with_surroundings("a b c", 2, 1, 4)) == [("a b", "a b c"), ("b c", "a b c")]
    assert list(with_surroundings(" ", 2, 1, 4)) == []


@given(st.integers(0, 40), st.integers(1, 6), st.integers(1, 7), st.data())
def test_surroundings_have_the_chunk_and_so_many_neighbours_as_there_are(
    num: int, size: int, neighbours: int, data: st.DataObject
) -> None:
    overlap = data.draw(st.integers(0, size - 1))
    text = " ".join(f"t{n}" for n in range(num))
    cut = list(chunks(text, size, overlap))
    surrounded = list(with_surroundings(text, size, overlap, neighbours))
    assert [chunk for chunk, _ in surrounded] == cut
    for chunk, around in surrounded:
        assert f" {chunk} " in f" {around} "
        assert sum(f" {one} " in f" {around} " for one in cut) >= min(neighbours + 1, len(cut))


@pytest.mark.parametrize("char", ["a", "字", " "])
def test_a_long_word_and_white_space_are_cut(char: str) -> None:
    text = f"x {char * 1000}. y"
    cut = list(chunks(text, 4, 0))
    assert "".join(cut).replace(" ", "") == text.replace(" ", "")
    assert len(cut) == num_chunks(text, 4, 0) > 3
    assert max(map(len, cut)) <= 4 * (chunker.MAX_TOKEN_CHARS + 1)
    digest = "0" * chunker.MAX_TOKEN_CHARS
    assert list(chunks(f"a {digest} b", 2, 0)) == [f"a {digest}", "b"]


def test_too_many_chunks_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunker, "MAX_CHUNKS", 3)
    with pytest.raises(InvalidArgument, match="4 tokens has 4 chunks; at most 3"):
        num_chunks("a b c d", 1, 0)
