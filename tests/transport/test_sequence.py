"""32-bit sequence numbers on the wire, 63 bits inside."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transport.sequence import unwrap

NUMBERS = st.integers(0, 1 << 61)


@given(reference=NUMBERS, distance=st.integers(-(1 << 31), (1 << 31) - 1))
def test_a_number_less_than_half_the_space_away_is_found_again(reference, distance):
    number = reference + distance
    assert unwrap(number & 0xFFFFFFFF, reference) == number


@given(wire=st.integers(0, 0xFFFFFFFF), reference=NUMBERS)
def test_the_nearest_number_is_chosen(wire, reference):
    number = unwrap(wire, reference)
    assert number & 0xFFFFFFFF == wire
    assert -(1 << 31) <= number - reference < 1 << 31


@pytest.mark.parametrize(
    ("wire", "reference", "number"),
    [
        (0, 0xFFFFFFFF, 0x100000000),
        (1, 0xFFFFFFFE, 0x100000001),
        (0xFFFFFFFF, 0x100000000, 0xFFFFFFFF),
        (0xFFFFFFFF, 0, -1),
        (0x80000000, 0, -0x80000000),
        (0x7FFFFFFF, 0, 0x7FFFFFFF),
        (5, 0x500000005, 0x500000005),
    ],
)
def test_the_wrap_by_example(wire, reference, number):
    assert unwrap(wire, reference) == number
