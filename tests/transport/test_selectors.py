"""Selectors: which of the usable paths the next send takes."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transport import selectors
from transport.clock import US
from transport.errors import ConfigError
from transport.path import Path

RTT = 10 * US


def healthy(count: int) -> list[Path]:
    paths = [Path(index, 0xC000 + index) for index in range(count)]
    for place, path in enumerate(paths):
        path.usable = place
    return paths


class Tape(random.Random):
    """A generator that counts what is drawn from it."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.draws = 0

    def random(self) -> float:
        self.draws += 1
        return super().random()

    def getrandbits(self, k: int) -> int:
        self.draws += 1
        return super().getrandbits(k)


def test_the_known_selectors():
    assert selectors.names() == ["bitmap", "mixed", "pot", "random", "reps", "round_robin", "single"]
    assert {type(selectors.make(name)).name for name in selectors.names()} == set(selectors.names())


@pytest.mark.parametrize("name", ["", "ecmp", "POT", None, 3])
def test_an_unknown_selector_is_refused_with_the_known_ones(name):
    with pytest.raises(ConfigError, match="bitmap, mixed, pot, random, reps, round_robin, single"):
        selectors.check(name)


@pytest.mark.parametrize("name", selectors.names())
@given(st.integers(1, 300), st.integers(0, (1 << 31) - 1), st.integers(0, 1 << 60), st.integers(0, 1 << 32))
def test_any_choice_is_a_place_in_the_list_and_depends_on_nothing_but_what_is_handed_in(name, count, flow, now, seed):
    first, second = selectors.make(name), selectors.make(name)
    paths, one, two = healthy(count), random.Random(seed), random.Random(seed)
    first.bind(paths)
    second.bind(paths)
    for _ in range(20):
        place = first.choose(paths, one, now, flow)
        assert 0 <= place < count
        assert second.choose(paths, two, now + 5 * US, flow) == place
        first.on_delivered(paths[place], 0)
        second.on_delivered(paths[place], 0)


@pytest.mark.parametrize(
    ("name", "draws"), [(name, 0 if name in ("single", "round_robin") else 1) for name in selectors.names()]
)
def test_randomness_comes_from_the_generator_handed_in(name, draws):
    tape = Tape(1)
    selector, paths = selectors.make(name), healthy(8)
    selector.bind(paths)
    selector.choose(paths, tape, 0, 5)
    assert tape.draws == draws


@given(st.integers(1, 100), st.integers(1, 5))
def test_round_robin_takes_each_path_once_per_pass(count, passes):
    selector, paths, rng = selectors.make("round_robin"), healthy(count), random.Random(1)
    for _ in range(passes):
        assert sorted(selector.choose(paths, rng, 0, 7) for _ in range(count)) == list(range(count))


def test_round_robin_goes_on_when_the_list_has_shrunk():
    selector, paths, rng = selectors.make("round_robin"), healthy(8), random.Random(1)
    for _ in range(7):
        selector.choose(paths, rng, 0, 0)
    assert selector.choose(paths[:3], rng, 0, 0) == 0


def test_single_stays_on_one_path_for_each_flow():
    selector, paths, rng = selectors.make("single"), healthy(16), random.Random(1)
    selector.bind(paths)
    chosen = {flow: {selector.choose(paths, rng, now, flow) for now in range(50)} for flow in range(64)}
    assert all(len(places) == 1 for places in chosen.values())
    assert len(set.union(*chosen.values())) == 16


def test_single_moves_no_flow_but_those_of_the_path_that_is_out():
    selector, paths, rng = selectors.make("single"), healthy(16), random.Random(1)
    selector.bind(paths)
    before = {flow: paths[selector.choose(paths, rng, 0, flow)] for flow in range(1000)}
    out, usable = paths[3], [path for path in paths if path.index != 3]
    out.usable = -1
    for place, path in enumerate(usable):
        path.usable = place
    after = {flow: usable[selector.choose(usable, rng, 0, flow)] for flow in range(1000)}
    moved = {flow for flow in before if before[flow] is not after[flow]}
    assert moved == {flow for flow in before if before[flow] is out}
    assert len({after[flow].index for flow in moved}) > 3


def test_random_takes_all_paths_alike():
    selector, paths, rng = selectors.make("random"), healthy(8), random.Random(1)
    seen = Counter(selector.choose(paths, rng, 0, 0) for _ in range(8000))
    assert min(seen.values()) > 850
    assert max(seen.values()) < 1150


def shares(selector: selectors.Selector, paths: list[Path], rounds: int = 4000) -> Counter[int]:
    rng = random.Random(1)
    return Counter(selector.choose(paths, rng, 0, 0) for _ in range(rounds))


def test_power_of_two_prefers_the_path_with_less_in_flight():
    paths = healthy(4)
    for path in paths:
        path.srtt = RTT
        path.in_flight = 100_000
    paths[2].in_flight = 0
    seen = shares(selectors.make("pot"), paths)
    assert seen[2] > 1.5 * max(seen[0], seen[1], seen[3])
    assert min(seen.values()) > 0


def test_power_of_two_prefers_the_quick_path():
    paths = healthy(4)
    for path in paths:
        path.srtt = RTT
        path.in_flight = 8192
    paths[1].srtt = 10 * RTT
    seen = shares(selectors.make("pot"), paths)
    assert seen[1] < 0.1 * sum(seen.values())  # only when it is drawn twice: 1 in 16


def test_power_of_two_compares_bytes_in_flight_where_a_path_is_not_measured():
    paths = healthy(2)
    paths[0].srtt = RTT
    paths[0].in_flight = 8192
    seen = shares(selectors.make("pot"), paths)
    assert seen[1] > 2.5 * seen[0]
    paths[1].in_flight = 100_000
    seen = shares(selectors.make("pot"), paths)
    assert seen[0] > 2.5 * seen[1]


def test_power_of_two_bears_a_path_with_a_huge_product_of_bytes_and_delay():
    paths = healthy(2)
    for path in paths:
        path.srtt = 1 << 50
        path.in_flight = 1 << 33
    paths[1].in_flight = 1 << 34
    seen = shares(selectors.make("pot"), paths)
    assert seen[0] > seen[1] > 0


def test_reps_recycles_the_ports_of_unmarked_deliveries_oldest_first():
    selector, paths, tape = selectors.make("reps"), healthy(8), Tape(1)
    for index in (5, 2, 7):
        selector.on_delivered(paths[index], 0)
    assert [selector.choose(paths, tape, 0, 0) for _ in range(3)] == [5, 2, 7]
    assert tape.draws == 0


def test_reps_explores_when_nothing_is_in_store():
    selector, paths, tape = selectors.make("reps"), healthy(8), Tape(1)
    assert len({selector.choose(paths, tape, 0, 0) for _ in range(200)}) == 8
    assert tape.draws == 200


def test_reps_does_not_recycle_a_marked_port():
    selector, paths, tape = selectors.make("reps"), healthy(8), Tape(1)
    selector.on_delivered(paths[3], 1)
    selector.choose(paths, tape, 0, 0)
    assert tape.draws == 1


def test_reps_forgets_a_port_that_is_not_usable_any_more():
    selector, paths, tape = selectors.make("reps"), healthy(8), Tape(1)
    selector.on_delivered(paths[7], 0)
    selector.on_delivered(paths[3], 0)
    paths[7].usable = -1
    selector.on_delivered(paths[7], 0)
    assert selector.choose(paths[:7], tape, 0, 0) == 3
    selector.choose(paths[:7], tape, 0, 0)
    assert tape.draws == 1


def test_reps_keeps_no_room_for_ports_that_are_not_usable():
    selector, paths, tape = selectors.make("reps"), healthy(16), Tape(1)
    for path in paths[8:]:
        path.usable = -1
        selector.on_delivered(path, 0)
    selector.on_delivered(paths[3], 0)
    assert selector.choose(paths[:8], tape, 0, 0) == 3
    assert tape.draws == 0


def test_reps_stores_no_more_than_its_depth():
    selector, paths, tape = selectors.make("reps"), healthy(16), Tape(1)
    for path in paths:
        selector.on_delivered(path, 0)
    assert [selector.choose(paths, tape, 0, 0) for _ in range(8)] == list(range(8))
    selector.choose(paths, tape, 0, 0)
    assert tape.draws == 1


@given(st.integers(-(1 << 60), 1 << 60))
def test_reps_freezes_after_a_timeout_and_explores_nothing_until_it_is_over(start):
    selector, paths, tape = selectors.make("reps"), healthy(16), Tape(1)
    for index in (4, 9, 11):
        selector.on_delivered(paths[index], 0)
    selector.on_timeout(paths[1], start, RTT)
    assert [selector.choose(paths, tape, start + RTT, 0) for _ in range(7)] == [4, 9, 11, 4, 9, 11, 4]
    assert selector.choose(paths, tape, start + 16 * RTT - 1, 0) == 9
    assert tape.draws == 0
    for _ in range(8):  # it begins anew: what was cycled is not in store any more
        selector.choose(paths, tape, start + 16 * RTT, 0)
    assert tape.draws == 8


def test_reps_with_nothing_in_store_has_nothing_to_freeze():
    selector, paths, tape = selectors.make("reps"), healthy(16), Tape(1)
    selector.on_timeout(paths[1], 0, RTT)
    selector.on_delivered(paths[3], 0)
    assert selector.choose(paths, tape, RTT, 0) == 3
    selector.choose(paths, tape, RTT, 0)
    assert tape.draws == 1


def one_pass(selector: selectors.Selector, paths: list[Path], count: int, rng: random.Random) -> list[int]:
    return [paths[selector.choose(paths, rng, 0, 7)].index for _ in range(count)]


@pytest.mark.parametrize("name", ["bitmap", "mixed"])
@given(st.integers(1, 300), st.integers(1, 5), st.integers(0, 1 << 32))
def test_a_rotation_takes_each_path_once_per_pass(name, count, passes, seed):
    selector, paths, rng = selectors.make(name), healthy(count), random.Random(seed)
    for _ in range(passes):
        assert sorted(one_pass(selector, paths, count, rng)) == list(range(count))


def test_a_rotation_draws_a_new_order_for_every_pass():
    selector, paths, rng = selectors.make("bitmap"), healthy(31), random.Random(1)
    assert len({tuple(one_pass(selector, paths, 31, rng)) for _ in range(20)}) > 15


@given(st.integers(2, 60), st.data())
def test_a_marked_minority_is_skipped_once_and_the_others_are_taken_once(count, data):
    selector, paths, rng = selectors.make("bitmap"), healthy(count), random.Random(1)
    marked = data.draw(st.sets(st.integers(0, count - 1), max_size=count // 2))
    for index in marked:
        selector.on_delivered(paths[index], 1)
    assert sorted(one_pass(selector, paths, count - len(marked), rng)) == sorted(set(range(count)) - marked)
    # What is last in its order may be skipped when the next pass has begun to be asked for.
    seen = Counter(one_pass(selector, paths, 3 * count, rng))
    assert sum(path.penalty for path in paths) == selector.penalised == 0
    assert max(seen.values()) - min(seen.values()) <= 1


@given(st.integers(1, 60), st.data())
def test_nothing_is_skipped_while_more_than_half_are_marked_and_the_marks_are_forgotten(count, data):
    selector, paths, rng = selectors.make("bitmap"), healthy(count), random.Random(1)
    marked = data.draw(st.sets(st.integers(0, count - 1), min_size=count // 2 + 1))
    for index in marked:
        selector.on_delivered(paths[index], 1)
    for _ in range(count):
        minority = 2 * selector.penalised <= count
        before = [path.penalty for path in paths]
        taken = paths[selector.choose(paths, rng, 0, 0)]
        assert minority or sum(before) - sum(path.penalty for path in paths) == (before[taken.index] > 0)
    one_pass(selector, paths, count, rng)
    assert sum(path.penalty for path in paths) == selector.penalised == 0


@pytest.mark.parametrize(
    ("feedback", "passes"),
    [
        ([("on_delivered", 1)], 1),
        ([("on_delivered", 9)], 1),
        ([("on_delivered", 1)] * 3, 3),
        ([("on_lost",)], 4),
        ([("on_timeout", 0, RTT)], 15),
        ([("on_lost",), ("on_timeout", 0, RTT), ("on_delivered", 1)], 15),
        ([("on_delivered", 0)], 0),
    ],
    ids=str,
)
def test_marks_losses_and_lateness_cost_their_passes(feedback, passes):
    selector, paths, rng = selectors.make("bitmap"), healthy(8), random.Random(1)
    for call, *arguments in feedback:
        getattr(selector, call)(paths[3], *arguments)
    for _ in range(passes):
        assert 3 not in one_pass(selector, paths, 7, rng)
    assert 3 in one_pass(selector, paths, 8, rng)


def test_a_path_that_keeps_losing_gets_a_small_share():
    selector, paths, rng = selectors.make("bitmap"), healthy(8), random.Random(1)
    seen: Counter[int] = Counter()
    for _ in range(4000):
        taken = paths[selector.choose(paths, rng, 0, 0)]
        seen[taken.index] += 1
        if taken.index == 5:
            selector.on_lost(taken)
    assert seen[5] < 0.25 * seen[1]
    assert seen[5] > 0


def test_a_penalty_on_a_path_that_is_not_usable_counts_when_it_is_back():
    selector, paths, rng = selectors.make("bitmap"), healthy(4), random.Random(1)
    for path in paths[2:]:
        path.usable = -1
        selector.on_usable(path)
        selector.on_timeout(path, 0, RTT)
    assert selector.penalised == 0
    selector.on_delivered(paths[0], 1)
    assert selector.choose(paths[:2], rng, 0, 0) == 1
    paths[2].usable = 2
    selector.on_usable(paths[2])
    assert selector.penalised == 1
    assert 2 not in one_pass(selector, paths[:3], 6, rng)


def test_no_pass_costs_more_than_twice_its_choices():
    """The work is bounded on average: what is visited is taken or, at most as often, skipped."""
    selector, paths, rng = selectors.make("bitmap"), healthy(64), random.Random(1)
    visited = 0
    for step in range(6400):
        left = selector.left
        taken = paths[selector.choose(paths, rng, 0, 0)]
        visited += (left - selector.left) % 64 or 64
        if step % 2:
            selector.on_timeout(taken, 0, RTT)
    assert visited <= 2 * 6400 + 64


def test_mixed_recycles_unmarked_deliveries_oldest_first_and_rotates_without():
    selector, paths, tape = selectors.make("mixed"), healthy(8), Tape(1)
    for index in (5, 2, 7):
        selector.on_delivered(paths[index], 0)
    assert [selector.choose(paths, tape, 0, 0) for _ in range(3)] == [5, 2, 7]
    assert tape.draws == 0
    assert sorted(selector.choose(paths, tape, 0, 0) for _ in range(8)) == list(range(8))


def test_mixed_recycles_no_path_that_was_marked_or_lost_or_is_not_usable():
    selector, paths, tape = selectors.make("mixed"), healthy(8), Tape(1)
    for index in (0, 1, 2, 3, 4):
        selector.on_delivered(paths[index], 0)
    selector.on_delivered(paths[0], 1)
    selector.on_lost(paths[1])
    selector.on_timeout(paths[2], 0, RTT)
    paths[3].usable = -1
    selector.on_delivered(paths[0], 0)
    assert selector.choose(paths, tape, 0, 0) == 4
    assert tape.draws == 0
    assert selector.choose(paths, tape, 0, 0) not in (0, 1, 2)
    assert tape.draws == 1


def test_mixed_stores_no_more_than_its_depth():
    selector, paths, tape = selectors.make("mixed"), healthy(16), Tape(1)
    for path in paths:
        selector.on_delivered(path, 0)
    assert [selector.choose(paths, tape, 0, 0) for _ in range(8)] == list(range(8))
    selector.choose(paths, tape, 0, 0)
    assert tape.draws == 1


def test_a_selector_counts_the_paths_that_it_passes_over():
    bitmap, reps, blind = (selectors.make(name) for name in ("bitmap", "reps", "round_robin"))
    paths, rng = healthy(8), random.Random(1)
    for selector in (bitmap, reps, blind):
        one_pass(selector, paths, 8, rng)
        assert selector.turns == 0
        selector.on_delivered(paths[3], 1)
    one_pass(bitmap, paths, 7, rng)
    assert [selector.turns for selector in (bitmap, reps, blind)] == [1, 1, 0]


def test_a_stored_path_that_got_a_penalty_gives_way():
    mixed, paths, rng = selectors.make("mixed"), healthy(8), random.Random(1)
    mixed.on_delivered(paths[3], 0)
    mixed.on_lost(paths[3])
    assert mixed.choose(paths, rng, 0, 0) != 3
    assert mixed.turns >= 1
