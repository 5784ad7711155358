"""Addresses of ranks."""

from __future__ import annotations

import pytest

from testbed.rank import address_of


@pytest.mark.parametrize(
    ("rank", "address"),
    [(0, (127, 0, 0, 1)), (253, (127, 0, 0, 254)), (255, (127, 0, 1, 0)), (999, (127, 0, 3, 232))],
)
def test_ranks_count_on_through_the_loopback_network(rank: int, address: tuple[int, ...]) -> None:
    assert tuple(address_of(rank)) == address


def test_no_two_ranks_have_the_same_address() -> None:
    assert len({address_of(rank) for rank in range(2000)}) == 2000
