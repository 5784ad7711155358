"""Slow down or switch: the truth table."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transport.arbiter import NONE, SLOW, SWITCH, arbitrate


@pytest.mark.parametrize(
    ("active", "congested", "scattered", "verdict"),
    [
        (0, 0, False, NONE),
        (1, 0, False, NONE),
        (1, 1, False, SLOW),
        (2, 0, False, NONE),
        (2, 1, False, SWITCH),
        (2, 2, False, SLOW),
        (3, 1, False, SWITCH),
        (3, 2, False, SLOW),
        (8, 1, False, SWITCH),
        (8, 4, False, SWITCH),
        (8, 5, False, SLOW),
        (8, 8, False, SLOW),
        (4096, 2048, False, SWITCH),
        (4096, 2049, False, SLOW),
        (1, 0, True, SLOW),
        (8, 0, True, SLOW),
        (8, 1, True, SLOW),
        (8, 8, True, SLOW),
    ],
)
def test_truth_table(active, congested, scattered, verdict):
    assert arbitrate(active, congested, scattered) == verdict


@given(st.integers(1, 4096), st.integers(0, 4096), st.booleans())
def test_switching_needs_a_majority_of_paths_to_switch_to(active, congested, scattered):
    if arbitrate(active, min(active, congested), scattered) == SWITCH:
        assert active - congested >= congested > 0


@given(st.integers(1, 4096), st.integers(0, 4095), st.booleans())
def test_more_congestion_never_turns_slow_down_into_something_milder(active, congested, scattered):
    congested = min(congested, active - 1)
    assert arbitrate(active, congested + 1, scattered) >= arbitrate(active, congested, scattered)
