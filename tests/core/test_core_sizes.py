"""Sizes as people write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.core.errors import ConfigError
from quire.core.sizes import format_size, parse_size


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("1", 1),
        ("4096", 4096),
        ("512MiB", 512 << 20),
        ("512mb", 512 << 20),
        ("2G", 2 << 30),
        (" 1.5 GiB ", 3 << 29),
        ("1T", 1 << 40),
        ("10k", 10240),
    ],
)
def test_sizes_that_people_write(text: str, num_bytes: int) -> None:
    assert parse_size(text) == num_bytes


@pytest.mark.parametrize("text", ["", "0", "-1", "1X", "GiB", "1 2", "1e9", "0.1", "ten"])
def test_other_text_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match="512MiB") as caught:
        parse_size(text)
    assert repr(text) in caught.value.message


@given(st.integers(1, 1 << 50))
def test_formatting_loses_at_most_one_part_in_ten(num_bytes: int) -> None:
    text = format_size(num_bytes)
    assert abs(parse_size(text) - num_bytes) <= num_bytes / 10
    assert len(text) <= len("1023 MiB")


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (256 << 20, "256 MiB"),
        (3 << 29, "1.5 GiB"),
        (7, "7 B"),
        (102_348, "99.9 KiB"),
        (102_349, "100 KiB"),
    ],
)
def test_formatting(num_bytes: int, text: str) -> None:
    assert format_size(num_bytes) == text
