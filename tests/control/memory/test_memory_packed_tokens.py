"""Tokens as bytes say the same as the list."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from quire.control.memory.packed_tokens import (
    TOKEN_BYTES,
    int_array,
    least_and_most,
    pack_tokens,
    packed_prompt,
    token_array,
    unpack_tokens,
)

tokens = st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=40)


@settings(max_examples=60, deadline=None, database=None)
@given(prompt=tokens, cut=st.integers(0, 40))
def test_bytes_are_the_list(prompt: list[int], cut: int) -> None:
    packed = pack_tokens(prompt)
    assert unpack_tokens(packed) == prompt
    assert packed[: cut * TOKEN_BYTES] == pack_tokens(prompt[:cut])
    assert least_and_most(packed) == (min(prompt), max(prompt))
    sent = token_array(packed)
    assert sent.dtype == np.int32
    assert sent.tolist() == int_array(prompt).tolist() == prompt


def test_a_packed_prompt_is_that_of_this_very_list() -> None:
    prompt = [1, 2, 3]
    packed = packed_prompt(prompt)
    assert packed is not None
    assert packed.tokens is prompt


@pytest.mark.parametrize("token", [None, 1.5, "1", 1 << 63, -(1 << 63) - 1])
def test_what_is_no_token_is_not_packed(token: Any) -> None:
    assert packed_prompt([1, token]) is None
