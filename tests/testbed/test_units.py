"""Sizes as text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.units import MAX_SIZE, parse_size, show_size
from transport.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (0, 0),
        ("64", 64),
        ("64 B", 64),
        ("64KiB", 65536),
        (" 1 MiB ", 1 << 20),
        ("2MB", 2_000_000),
        ("3kB", 3000),
        ("4GiB", 1 << 32),
    ],
)
def test_a_size_with_and_without_unit(text: object, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", [-1, "-5", "5GiB", "1.5MiB", "1MiBs", "mib", "", True, None, 2.0, "0x10"])
def test_what_is_no_size_is_named_with_what_is_allowed(text: object) -> None:
    with pytest.raises(ConfigError, match=r"^length = .*0 to 4 GiB.*KiB"):
        parse_size(text, "length")


@given(st.integers(0, MAX_SIZE))
def test_what_is_shown_is_read_back_exactly(size: int) -> None:
    assert parse_size(show_size(size)) == size
