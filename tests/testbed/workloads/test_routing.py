"""Choices of experts: different ones for a token, as often as wanted, on few nodes where that is asked."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.workloads.moe import sends
from testbed.workloads.routing import Floats, choose, choose_within, gini, weights_of


def rng(key: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=key))


def test_gini_of_equal_and_of_single_values() -> None:
    assert gini([3, 3, 3, 3]) == pytest.approx(0.0)
    assert gini([0, 0, 0, 5]) == pytest.approx(0.75)


def test_a_token_chooses_different_experts_and_never_one_without_weight() -> None:
    weights = np.array([0.0, 1.0, -np.inf, 3.0, 0.5])
    chosen = choose(weights, 500, 3, rng(1))
    assert chosen.shape == (500, 3)
    assert all(len(set(row)) == 3 for row in chosen.tolist())
    assert 2 not in chosen


def test_a_token_goes_once_to_a_rank_however_many_of_its_experts_are_there() -> None:
    assert sends(np.array([[0, 1, 5], [4, 5, 6]]), 4, 2, each=False).tolist() == [1, 2]


def test_a_token_goes_to_each_of_its_experts_where_that_is_asked() -> None:
    assert sends(np.array([[0, 1, 5], [4, 5, 6]]), 4, 2, each=True).tolist() == [2, 4]


def linear(experts: int) -> Floats:
    found: Floats = np.arange(1.0, experts + 1)
    return found / found.sum()


@pytest.mark.parametrize(("experts", "top_k"), [(8, 2), (16, 4), (32, 4), (64, 2), (256, 8)])
def test_experts_are_chosen_as_often_as_their_share_says(experts: int, top_k: int) -> None:
    shares = linear(experts)
    chosen = choose(weights_of(shares, top_k), 30_000, top_k, rng(4))
    found = np.bincount(chosen.ravel(), minlength=experts) / chosen.size
    assert np.abs(found - shares).max() < 0.006
    assert gini(found) == pytest.approx(gini(shares), abs=0.01)


def test_an_expert_without_share_is_never_chosen() -> None:
    shares = np.concatenate([[0.0], np.full(63, 1 / 63)])
    assert 0 not in choose(weights_of(shares, 2), 500, 2, rng(1))


@given(
    nodes=st.sampled_from([2, 4, 8, 16]),
    most=st.integers(1, 8),
    top_k=st.integers(1, 8),
    key=st.integers(0, 1000),
)
def test_experts_of_a_token_are_on_so_many_nodes_at_most(nodes: int, most: int, top_k: int, key: int) -> None:
    most = min(most, nodes)
    chosen = choose_within(np.log(linear(128)), 50, top_k, nodes, most, rng(key))
    assert chosen.shape == (50, top_k)
    for row in chosen:
        assert len(set(row.tolist())) == top_k
        assert len(set((row // (128 // nodes)).tolist())) <= most


def test_nodes_are_picked_by_the_sum_of_their_best_experts() -> None:
    weights = np.full(16, -1e6)
    weights[[0, 4, 5, 8, 9]] = [1000, 700, 700, 650, 650]
    # 4 nodes of 4 experts, 2 nodes and 4 experts a token: node 0 has the best expert and the third best pair only.
    chosen = choose_within(weights, 20, 4, 4, 2, rng(1))
    assert {tuple(sorted(row)) for row in chosen.tolist()} == {(4, 5, 8, 9)}


def test_a_limit_of_all_nodes_limits_nothing() -> None:
    weights = np.log(linear(64))
    assert (
        np.sort(choose_within(weights, 99, 8, 8, 8, rng(3))).tolist()
        == np.sort(choose(weights, 99, 8, rng(3))).tolist()
    )
