"""The plain patterns and the collectives: who sends how much to whom, in how many steps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.workloads import basic, collectives
from testbed.workloads.base import received_by, sent_by
from testbed.workloads.basic import Flow
from testbed.workloads.moving import moving_incast

FLOW = Flow(2, 1000, "write", 4)


def test_one_to_n_and_incast_are_each_other_backwards() -> None:
    out, back = basic.one_to_n(5, FLOW), basic.incast(5, FLOW)
    assert sorted((m.src, m.dst) for m in out.phases[0].messages) == sorted(
        (m.dst, m.src) for m in back.phases[0].messages
    )
    assert sent_by(out.phases[0].messages, 5).tolist() == [8000, 0, 0, 0, 0]
    assert received_by(out.phases[0].messages, 5).tolist() == [0, 2000, 2000, 2000, 2000]


@pytest.mark.parametrize("ranks", [2, 5, 100])
def test_in_an_alltoall_every_pair_has_the_same_bytes(ranks: int) -> None:
    (phase,) = basic.alltoall(ranks, FLOW).phases
    sizes: dict[tuple[int, int], int] = {}
    for m in phase.messages:
        sizes[m.src, m.dst] = sizes.get((m.src, m.dst), 0) + m.size
    assert set(sizes) == {(i, j) for i in range(ranks) for j in range(ranks) if i != j}
    assert set(sizes.values()) == {2000}


@pytest.mark.parametrize("ranks", [2, 64, 200])
def test_a_permutation_is_one_cycle(ranks: int) -> None:
    (phase,) = basic.permutation(ranks, Flow(1, 10, "write", 1), seed=5).phases
    to = {m.src: m.dst for m in phase.messages}
    seen = [0]
    while to[seen[-1]] != 0:
        seen.append(to[seen[-1]])
    assert sorted(seen) == list(range(ranks))


def test_e1_a_ring_of_256_ranks_takes_510_steps_and_a_tree_16() -> None:
    assert len(collectives.ring(256, 1 << 20, "write").phases) == 510
    assert len(collectives.tree(256, 1 << 20, "write").phases) == 16


@given(ranks=st.integers(2, 40), data=st.data())
def test_a_ring_leaves_every_chunk_on_every_rank(ranks: int, data: st.DataObject) -> None:
    size = data.draw(st.integers(ranks, 5000))
    workload = collectives.ring(ranks, size, "write")
    assert len(workload.phases) == 2 * (ranks - 1)
    chunks = [collectives.chunk(size, ranks, number) for number in range(ranks)]
    assert sum(chunks) == size
    assert max(chunks) - min(chunks) <= 1
    for phase in workload.phases:
        assert sorted(m.src for m in phase.messages) == list(range(ranks))
        assert all(m.dst == (m.src + 1) % ranks for m in phase.messages)
        # In each step all chunks are on their way, so no byte is lost however uneven they are.
        assert sorted(m.size for m in phase.messages) == sorted(chunks)


def test_a_ring_reduces_each_chunk_over_all_ranks_and_then_spreads_it() -> None:
    ranks = 5
    size = 1 + 2 + 3 + 4 + 5
    workload = collectives.ring(ranks, size * ranks, "write")
    # Chunk sizes are equal here, so follow the schedule itself: what rank r sends in step s is what it got in s - 1.
    sums = [[{rank} for _ in range(ranks)] for rank in range(ranks)]
    for step, phase in enumerate(workload.phases):
        ahead, local = (0, step) if step < ranks - 1 else (1, step - ranks + 1)
        moved = []
        for m in phase.messages:
            number = (m.src + ahead - local) % ranks
            assert m.size == collectives.chunk(size * ranks, ranks, number)
            moved.append((m.dst, number, sums[m.src][number] | (sums[m.dst][number] if ahead == 0 else set())))
        for dst, number, union in moved:
            sums[dst][number] = union
    assert all(chunk == set(range(ranks)) for rank in sums for chunk in rank)


@given(ranks=st.integers(2, 300))
def test_a_tree_takes_every_rank_in_once_and_brings_it_back(ranks: int) -> None:
    workload = collectives.tree(ranks, 77, "write")
    steps = (ranks - 1).bit_length()
    up, down = workload.phases[:steps], workload.phases[steps:]
    have = {rank: {rank} for rank in range(ranks)}
    for phase in up:
        before = {rank: set(what) for rank, what in have.items()}
        for m in phase.messages:
            have[m.dst] |= before[m.src]
    assert have[0] == set(range(ranks))
    told = {0}
    for phase in down:
        assert all(m.src in told and m.dst not in told for m in phase.messages)
        told |= {m.dst for m in phase.messages}
    assert told == set(range(ranks))
    assert all(m.size == 77 for phase in workload.phases for m in phase.messages)
    assert sum(len(phase.messages) for phase in workload.phases) == 2 * (ranks - 1)


def test_a_moving_incast_has_another_hot_rank_every_time_and_it_sends_nothing() -> None:
    (phase,) = moving_incast(8, 8, 400, 4, 1000, 0.25, 1).phases
    hot = []
    for move in range(8):
        messages = [m for m in phase.messages if m.start == 400 * move]
        sent = sent_by(messages, 8)
        (silent,) = [rank for rank in range(8) if not sent[rank]]
        assert sorted(sent)[1:] == [4000] * 7
        assert all(m.src != m.dst for m in messages)
        assert len({(m.src, m.dst) for m in messages}) == len(messages)
        hot.append(silent)
    assert sorted(hot) == list(range(8))


def test_the_share_of_a_moving_incast_goes_to_the_hot_rank() -> None:
    workload = moving_incast(64, 40, 1, 4, 1, 0.25, 2)
    received = 0
    for move in range(40):
        messages = [m for m in workload.phases[0].messages if m.start == move]
        received += int(received_by(messages, 64).max())
    # A quarter, and of the rest one in 63.
    assert received / (40 * 63 * 4) == pytest.approx(0.25 + 0.75 / 63, abs=0.02)
    assert all(m.dst == m.src ^ 1 for m in moving_incast(2, 2, 1, 4, 1, 0.0, 1).phases[0].messages)
    assert workload != moving_incast(64, 40, 1, 4, 1, 0.25, 3)
