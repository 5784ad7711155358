"""The M:N exchange: sizes, both directions, rounding, and the bound."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.metrics import PhaseRecord
from testbed.report import hot
from testbed.workloads.base import received_by, sent_by
from testbed.workloads.exchange import bound, m2n, matrix
from transport.clock import US


def test_a_row_is_tokens_times_weight_times_vector() -> None:
    assert matrix([10, 20], np.array([0.5, 1.5]), 4096 * 2 / 4).tolist() == [[10_240, 30_720], [20_480, 61_440]]


@given(
    batch=st.lists(st.integers(1, 500), min_size=1, max_size=8),
    shares=st.lists(st.floats(0.0, 1.0), min_size=1, max_size=8).filter(lambda found: sum(found) > 0.01),
    top_k=st.integers(1, 8),
    vector=st.integers(1, 5000),
)
def test_what_a_rank_sends_is_exact_though_its_parts_are_rounded(
    batch: list[int], shares: list[float], top_k: int, vector: int
) -> None:
    weights = top_k * np.array(shares) / sum(shares)
    table = matrix(batch, weights, vector)
    assert (table >= 0).all()
    assert table.sum(axis=1).tolist() == [tokens * top_k * vector for tokens in batch]
    exact = np.outer(batch, weights) * vector
    assert np.abs(table - exact).max() <= 1.001


def test_both_directions_are_one_phase_and_no_rank_sends_to_its_own_side() -> None:
    workload = m2n([3, 4, 5], [np.array([1.0, 1.0])], 100, "write")
    (phase,) = workload.phases
    out = {(m.src, m.dst): m.size for m in phase.messages if m.src < 3}
    back = {(m.dst, m.src): m.size for m in phase.messages if m.src >= 3}
    assert workload.ranks == 5
    assert out == back
    assert set(out) == {(i, j) for i in range(3) for j in (3, 4)}
    assert (sent_by(phase.messages, 5) == received_by(phase.messages, 5)).all()


@pytest.mark.parametrize(
    ("senders", "weights", "hottest"), [(6, [0.5, 1.5], 7), (2, [0.4, 0.3, 0.2, 0.1], 0), (3, [3.0], 3)]
)
def test_the_hottest_receiver_is_named_where_m_is_not_n(senders: int, weights: list[float], hottest: int) -> None:
    (phase,) = m2n([8] * senders, [np.array(weights)], 1000, "write").phases
    ranks = senders + len(weights)
    received = received_by(phase.messages, ranks)
    record = PhaseRecord(phase.name, ranks, np.zeros((0, 5), dtype=np.int64), {}, received, None)
    assert hot(record) == (hottest, pytest.approx(100 * received[hottest] / received.sum()))


@pytest.mark.parametrize(("receivers", "us"), [(8, 41.9), (16, 83.9), (32, 167.8)])
def test_e2_one_to_n_of_128_kib_at_200_gbit(receivers: int, us: float) -> None:
    assert bound(1, receivers, 128 << 10, 200_000_000_000) / US == pytest.approx(us, abs=0.05)


def test_the_larger_side_bounds_the_exchange() -> None:
    assert bound(8, 2, 1000, 10**9) == bound(2, 8, 1000, 10**9) == bound(8, 8, 1000, 10**9) == 64 * US
