"""The receiver's record of what arrived, and the bitmaps it tells."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transport.control import Ack
from transport.ledger import DUPLICATE, NEW, OUTSIDE, Ledger
from transport.sequence import unwrap

#: First sequence numbers: anywhere, and where 32 bits wrap.
FIRST = st.one_of(st.integers(0, 0xFFFFFFFF), st.integers(0xFFFFFF00, 0xFFFFFFFF))


class Model:
    """What a ledger should know: a set, and the marks."""

    def __init__(self, first: int, window: int) -> None:
        self.first = first
        self.window = window
        self.arrived: set[int] = set()
        self.marked: set[int] = set()

    @property
    def edge(self) -> int:
        edge = self.first
        while edge in self.arrived:
            edge += 1
        return edge

    @property
    def top(self) -> int:
        return max(self.arrived, default=self.first - 1) + 1

    def classify(self, sequence: int) -> int:
        if not -self.window <= sequence - self.edge < self.window:
            return OUTSIDE
        return DUPLICATE if sequence < self.first or sequence in self.arrived else NEW


def told(ack: Ack, near: int) -> tuple[set[int], set[int], int]:
    """The sequences an ACK says arrived and those it says were marked, and its base."""
    base = unwrap(ack.base, near)
    arrived = {base + i for i in range(ack.bits) if ack.received[i >> 3] >> (i & 7) & 1}
    marked = {base + i for i in range(ack.bits) if ack.marked[i >> 3] >> (i & 7) & 1}
    return arrived, marked, base


arrivals = st.lists(
    st.one_of(
        st.tuples(st.just("data"), st.integers(-60, 60), st.booleans()),  # distance from the edge
        st.tuples(st.just("ack"), st.just(0), st.just(False)),
    ),
    max_size=120,
)


@given(first=FIRST, window=st.sampled_from([16, 24, 50]), plan=arrivals)
def test_any_order_and_repetition_is_recorded_and_told_exactly(first, window, plan):
    ledger, model = Ledger(first, window), Model(first, window)
    limit = window * 3 // 2
    untold: dict[int, int] = {}  # marked sequence -> ACKs that told its mark
    for step, distance, marked in plan:
        if step == "data":
            sequence = model.edge + distance
            kind = ledger.classify(sequence)
            assert kind == model.classify(sequence)
            if kind == NEW:
                ledger.record(sequence, 100, marked)
                model.arrived.add(sequence)
                if marked:
                    model.marked.add(sequence)
                    untold[sequence] = 0
            elif kind == DUPLICATE:
                ledger.record_duplicate(sequence)
        else:
            ack = Ack()
            ledger.fill(ack, limit)
            arrived, marks, base = told(ack, model.edge)
            assert ack.edge == model.edge & 0xFFFFFFFF
            assert ack.bits <= limit
            assert base <= model.edge
            assert base + ack.bits == model.top
            assert arrived == {sequence for sequence in model.arrived if sequence >= base}
            assert marks <= model.marked
            for sequence in marks & untold.keys():
                untold[sequence] += 1
            if model.top - base < limit:  # nothing was cut off: the last two ACKs tell every mark
                assert all(told for told in untold.values())
                untold = {sequence: times for sequence, times in untold.items() if times < 2}
            else:
                untold.clear()
        assert ledger.edge == model.edge
        assert ledger.top == model.top
    assert ledger.marked_packets == len(model.marked)
    assert ledger.marked_bytes == 100 * len(model.marked)


@given(first=FIRST, order=st.permutations(range(16)), lost=st.integers(0, 7), marks=st.sets(st.integers(0, 15)))
def test_the_marks_of_any_one_lost_ack_are_told_again(first, order, lost, marks):
    ledger = Ledger(first, 16)
    seen: set[int] = set()
    for number in range(8):
        for offset in order[2 * number : 2 * number + 2]:
            ledger.record(first + offset, 1, offset in marks)
        ack = Ack()
        ledger.fill(ack, 24)
        if number != lost:
            seen |= told(ack, first)[1]
    ack = Ack()
    ledger.fill(ack, 24)
    seen |= told(ack, first)[1]
    assert seen == {first + offset for offset in marks}


def test_the_window_moves_with_the_edge():
    ledger = Ledger(100, 16)
    assert ledger.classify(115) == NEW
    assert ledger.classify(116) == OUTSIDE
    ledger.record(101, 1, False)
    assert ledger.classify(116) == OUTSIDE
    ledger.record(100, 1, False)
    assert ledger.classify(117) == NEW
    assert ledger.classify(118) == OUTSIDE


def test_asking_changes_nothing():
    ledger = Ledger(100, 16)
    ledger.record(103, 1, True)
    for _ in range(2):
        assert [ledger.classify(sequence) for sequence in (99, 100, 103, 115, 116)] == [
            DUPLICATE, NEW, DUPLICATE, NEW, OUTSIDE,
        ]  # fmt: skip


@pytest.mark.parametrize("first", [0, 0xFFFFFFFA])
def test_an_empty_ledger_tells_an_empty_bitmap(first):
    ack = Ack()
    Ledger(first, 16).fill(ack, 24)
    assert (ack.edge, ack.base, ack.bits, ack.received, ack.marked) == (first, first, 0, b"", b"")
