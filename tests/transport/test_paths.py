"""Paths to one peer: states, floor, round trips, marks; and what they do to a connection's packets."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cc.fixed import Fixed
from cc.signals import AckSignal
from tests.helpers import ALICE, Pair, Wire, data_packets
from transport import selectors
from transport.clock import US
from transport.errors import ConfigError
from transport.packet import CE, DATAGRAM, Packet
from transport.path import BAD, DENIED, GOOD, PROBING, STATE_NAMES, SUSPECT, Path
from transport.paths import TRANSITIONS, PathEvent, PathSet
from transport.placement import Access

RTT = 10 * US
MARKED = (1, 1)
CLEAN = (1, 0)


def path_set(count: int = 8, floor: int = 2, selector: str = "round_robin", seed: int = 1) -> PathSet:
    ports = [0xC000 + index for index in range(count)]
    return PathSet(ports, selectors.make(selector), random.Random(seed), RTT, floor, "peer")


def drain(paths: PathSet) -> list[PathEvent]:
    found = []
    while (event := paths.poll_event()) is not None:
        found.append(event)
    return found


def bring(paths: PathSet, index: int, state: int, now: int = 0) -> None:
    """Bring a GOOD path into `state` by legal events."""
    if state == DENIED:
        paths.deny(now, index)
    if state in (SUSPECT, BAD, PROBING):
        paths.doubted(now, index)
    if state in (BAD, PROBING):
        paths.probe_failed(now, index)
    if state == PROBING:
        paths.back_off_over(now, index)
    assert paths.paths[index].state == state


CAUSES = {
    "late": lambda paths, index: paths.suspected(5, index),
    "delivery": lambda paths, index: paths.delivered(5, index, 100, 1, 0),
    "probe failed": lambda paths, index: paths.probe_failed(5, index),
    "back-off over": lambda paths, index: paths.back_off_over(5, index),
    "recovered": lambda paths, index: paths.recovered(5, index),
    "denied": lambda paths, index: paths.deny(5, index),
    "allowed": lambda paths, index: paths.allow(5, index),
}


@pytest.mark.parametrize("cause", CAUSES)
@pytest.mark.parametrize("state", range(5), ids=STATE_NAMES)
def test_every_event_in_every_state_does_what_the_table_says(state, cause):
    paths = path_set()
    bring(paths, 3, state)
    drain(paths)
    if cause == "denied" and state == DENIED:
        paths.deny(5, 3)  # again: nothing happens
    else:
        CAUSES[cause](paths, 3)
    following = TRANSITIONS.get((state, cause), state)
    assert paths.paths[3].state == following
    expected = [PathEvent(5, "peer", 0xC003, state, following, cause)] if following != state else []
    assert drain(paths) == expected


def test_the_table_has_no_way_around_a_probe_from_bad_to_good():
    assert {new for (old, _), new in TRANSITIONS.items() if old == BAD} == {PROBING, DENIED}
    assert {old for (old, _), new in TRANSITIONS.items() if new == BAD} == {SUSPECT, PROBING}
    assert {old for (old, _), new in TRANSITIONS.items() if new == GOOD} == {SUSPECT, PROBING, DENIED}


steps = st.lists(st.tuples(st.sampled_from(sorted(CAUSES)), st.integers(0, 9), st.booleans()), max_size=80)


def check(paths: PathSet) -> None:
    states = Counter(path.state for path in paths.paths)
    assert len(paths.usable) == max(states[GOOD], paths.floor)
    assert states[GOOD] + states[SUSPECT] >= paths.floor
    assert [path.usable for path in paths.usable] == list(range(len(paths.usable)))
    assert {path.index for path in paths.usable} == {path.index for path in paths.paths if path.usable >= 0}
    assert all(path.state in (GOOD, SUSPECT) for path in paths.usable)
    assert all(path.usable >= 0 for path in paths.paths if path.state == GOOD)
    assert paths.congested_count == sum(path.congested for path in paths.usable)
    if isinstance(paths.selector, selectors.Bitmap):
        assert paths.selector.penalised == sum(path.penalty > 0 for path in paths.usable)
    assert paths.marked_fraction == paths.congested_count / len(paths.usable)
    used = {path.index for path in paths.in_use}
    assert paths.active_count == len(used)
    assert paths.active_congested == sum(paths.paths[index].congested for index in used)
    wanting = list(paths.wanting)
    assert len(set(wanting)) == len(wanting)
    assert {path.index for path in paths.paths if path.wants_probe} == set(wanting)
    assert {path.index for path in paths.paths if path.state == SUSPECT} == set(paths.kept) | set(paths.aside)


@given(steps, st.integers(1, 10), st.sampled_from(selectors.names()))
def test_whatever_happens_the_books_are_right_and_the_floor_holds(plan, floor, selector):
    paths = path_set(10, floor, selector)
    check(paths)
    for step, (cause, index, marked) in enumerate(plan):
        generation, before = paths.generation, [path.index for path in paths.usable]
        if cause == "delivery":
            paths.delivered(step, index, 100, 2, 2 if marked else 0)
        elif cause == "denied":
            try:
                paths.deny(step, index)
            except ConfigError:
                assert paths.paths[index].state in (GOOD, SUSPECT)
        else:
            CAUSES[cause](paths, index)
        if cause == "late" and marked:
            paths.lost(index)
        check(paths)
        if [path.index for path in paths.usable] != before:
            assert paths.generation != generation
        assert paths.paths[paths.select(step, 77, index)].usable >= 0
    for event in drain(paths):
        assert TRANSITIONS[event.old, event.cause] == event.new


@given(steps, st.integers(0, 1 << 55))
def test_the_same_events_at_shifted_times_give_the_same_choices(plan, shift):
    sets = [path_set(10, 3, "reps"), path_set(10, 3, "reps")]
    for paths, origin in zip(sets, (0, shift), strict=True):
        for step, (cause, index, marked) in enumerate(plan):
            now = origin + step * US
            if cause == "delivery":
                paths.delivered(now, index, 100, 1, 1 if marked else 0)
                paths.sampled(now, index, RTT + step)
            elif cause == "late":
                paths.suspected(now, index)
            elif cause == "probe failed":
                paths.probe_failed(now, index)
            elif cause == "back-off over":
                paths.back_off_over(now, index)
    picks = [
        [paths.select(origin + 100 * US + i, 5, -1) for i in range(40)]
        for paths, origin in zip(sets, (0, shift), strict=True)
    ]
    assert picks[0] == picks[1]
    assert [e.time for e in drain(sets[1])] == [e.time + shift for e in drain(sets[0])]


# Floor


def test_a_suspect_path_carries_nothing_while_enough_others_are_good():
    paths = path_set(4, floor=2)
    paths.suspected(0, 1)
    assert {paths.select(0, 0, -1) for _ in range(12)} == {0, 2, 3}


def test_suspect_paths_carry_data_when_too_few_are_good():
    paths = path_set(4, floor=2)
    for index in (0, 1, 2):
        paths.suspected(0, index)
    assert {paths.select(0, 0, -1) for _ in range(12)} == {2, 3}


def test_a_suspect_path_is_set_aside_again_when_a_good_one_returns():
    paths = path_set(4, floor=2)
    for index in (0, 1, 2):
        paths.suspected(0, index)
    paths.delivered(1, 0, 100, 1, 0)
    assert {paths.select(1, 0, -1) for _ in range(12)} == {0, 3}


def test_a_dead_path_at_the_floor_gives_way_to_one_set_aside():
    paths = path_set(4, floor=2)
    for index in (0, 1, 2):
        paths.suspected(0, index)
    paths.probe_failed(1, 2)
    assert paths.paths[2].state == BAD
    assert {paths.select(1, 0, -1) for _ in range(12)} == {1, 3}


def test_the_last_paths_of_the_floor_are_never_bad():
    paths = path_set(4, floor=2)
    for index in range(4):
        paths.suspected(0, index)
        paths.probe_failed(1, index)
    assert Counter(path.state for path in paths.paths) == {BAD: 2, SUSPECT: 2}
    assert len(paths.usable) == 2


def test_a_single_path_is_never_lost():
    paths = path_set(1, floor=0)
    paths.suspected(0, 0)
    paths.probe_failed(0, 0)
    assert paths.select(0, 0, 0) == 0


def test_denying_what_the_floor_needs_is_refused_and_says_why():
    paths = path_set(3, floor=2)
    paths.deny(0, 0)
    with pytest.raises(ConfigError, match=r"deny = 0xc001.*GOOD.*floor keeps 2 paths"):
        paths.deny(0, 1)
    assert {paths.select(0, 0, -1) for _ in range(12)} == {1, 2}
    paths.allow(1, 0)
    assert {paths.select(1, 0, -1) for _ in range(12)} == {0, 1, 2}


# Loss


def test_a_packet_that_another_path_delivered_is_no_reason_for_suspicion_two_in_a_row_are():
    paths = path_set()
    paths.blamed(0, 3)
    paths.delivered(1, 3, 100, *CLEAN)
    paths.blamed(2, 3)
    assert paths.paths[3].state == GOOD
    paths.blamed(3, 3)
    assert paths.paths[3].state == SUSPECT
    assert list(paths.wanting) == [3]


def test_late_data_freezes_reps_and_a_lost_probe_does_not():
    for tell, frozen in ((PathSet.suspected, True), (PathSet.doubted, False)):
        paths = path_set(selector="reps")
        paths.delivered(0, 5, 100, *CLEAN)
        tell(paths, 1, 3)
        picks = {paths.select(2, 0, -1) for _ in range(60)}
        assert (picks == {5}) == frozen


# Selection


def test_the_avoided_path_is_taken_only_if_it_is_the_last():
    paths = path_set(2, floor=1)
    assert {paths.select(0, 0, 1) for _ in range(6)} == {0}
    paths.suspected(0, 0)
    assert {paths.select(0, 0, 1) for _ in range(6)} == {1}


@given(
    st.integers(2, 12), st.integers(0, 11), st.sampled_from(selectors.names()), st.lists(st.integers(0, 11), max_size=5)
)
def test_a_retransmission_leaves_by_another_path(count, avoid, selector, marked):
    paths = path_set(count, 1, selector)
    for index in marked:
        paths.delivered(0, index % count, 100, *MARKED)
    assert all(paths.select(step, 3, avoid % count) != avoid % count for step in range(40))


def test_old_events_give_way_and_are_counted():
    paths = path_set(2, floor=1)
    for step in range(1030 // 2 + 10):
        paths.suspected(2 * step, 0)
        paths.delivered(2 * step + 1, 0, 100, 1, 0)
    found = drain(paths)
    assert len(found) == 1024
    assert found[-1].time == 2 * (1030 // 2 + 9) + 1
    assert paths.events_dropped == 2 * (1030 // 2 + 10) - 1024


# Round trips


def test_round_trips_follow_rfc_6298():
    paths = path_set()
    paths.sampled(0, 2, 1000)
    path = paths.paths[2]
    assert (path.srtt, path.rttvar, path.min_rtt) == (1000, 500, 1000)
    paths.sampled(0, 2, 1800)
    assert (path.srtt, path.rttvar, path.min_rtt, path.latest_rtt) == (1100, 575, 1000, 1800)
    assert (paths.srtt, paths.rttvar, paths.min_rtt) == (1100, 575, 1000)
    paths.sampled(0, 3, 600)
    assert (paths.paths[3].srtt, paths.min_rtt, paths.srtt) == (600, 600, 1037)


def test_lateness_is_known_from_the_path_else_from_the_peer_else_from_the_network():
    paths = path_set()
    assert paths.loss_delay(0) == 10 * RTT
    paths.sampled(0, 1, 1000)
    assert paths.loss_delay(1) == 3000
    assert paths.delay_bound(0) == 3000
    assert paths.loss_delay(0) == 10 * RTT  # slow paths are the last to be sampled
    for _ in range(100):
        paths.sampled(0, 1, 1000)
    assert 1250 <= paths.loss_delay(1) < 1300


@given(st.lists(st.integers(1, 1 << 50), min_size=1, max_size=60))
def test_median_and_spread_are_of_the_latest_sixteen_samples(samples):
    paths = path_set()
    for step, rtt in enumerate(samples):
        paths.sampled(0, step % 8, rtt)
    latest = sorted(samples[-16:])
    assert paths.median_rtt == latest[len(latest) // 2]
    assert paths.spread_rtt == latest[-1] - latest[0]


def test_a_path_that_comes_back_is_measured_anew():
    paths = path_set()
    paths.sampled(0, 3, 50 * RTT)
    for _ in range(8):
        paths.delivered(0, 3, 100, *MARKED)
    bring(paths, 3, PROBING)
    paths.recovered(1, 3)
    assert not paths.paths[3].congested
    paths.sampled(1, 3, RTT)
    assert (paths.paths[3].srtt, paths.paths[3].min_rtt) == (RTT, RTT)


# Marks


def spread_out(paths: PathSet, marked: set[int], rounds: int = 8, start: int = 0) -> None:
    for step in range(rounds):
        for path in paths.paths:
            paths.delivered(start + step, path.index, 100, *(MARKED if path.index in marked else CLEAN))


def test_marks_on_a_minority_mean_switch_and_new_packets_go_elsewhere():
    paths = path_set(8)
    spread_out(paths, {3})
    assert not paths.slow_down()
    assert {paths.select(0, 0, -1) for _ in range(40)} == {0, 1, 2, 4, 5, 6, 7}
    assert paths.marked_fraction == 1 / 8


def test_one_acknowledgement_full_of_marks_is_enough_to_switch():
    paths = path_set(8)
    spread_out(paths, set())
    paths.delivered(9, 3, 100, *MARKED)
    assert not paths.slow_down()


def test_marks_on_most_paths_mean_slow_down_and_paths_stay():
    paths = path_set(8)
    spread_out(paths, set(range(8)))
    assert paths.slow_down()
    assert {paths.select(0, 0, -1) for _ in range(8)} == set(range(8))


def test_marks_on_a_majority_move_no_traffic():
    paths = path_set(8)
    spread_out(paths, {0, 1, 2, 3, 4}, rounds=40)
    assert paths.slow_down()
    assert sorted(paths.select(0, 0, -1) for _ in range(8)) == list(range(8))


def test_scattered_marks_move_no_traffic():
    paths = path_set(8)
    spread_out(paths, set(), rounds=4)
    for index in (0, 1, 2):
        paths.delivered(5, index, 100, *MARKED)
    assert paths.congested_count == 3
    assert paths.slow_down()
    assert sorted(paths.select(0, 0, -1) for _ in range(8)) == list(range(8))


def test_steering_around_marks_looks_for_a_path_that_is_not_avoided_either():
    paths = path_set(8)
    spread_out(paths, {0, 2}, rounds=60)
    assert paths.select(0, 0, 1) == 3


def test_only_the_latest_deliveries_count_as_in_use():
    paths = path_set(8)
    spread_out(paths, {3}, rounds=6)
    for step in range(32):
        paths.delivered(10 + step, step % 3, 100, *CLEAN)
    check(paths)
    assert (paths.active_count, paths.active_congested) == (3, 0)
    paths.delivered(50, 3, 100, *CLEAN)
    check(paths)
    assert (paths.active_count, paths.active_congested) == (4, 1)


def test_marks_thinly_spread_over_all_paths_mean_slow_down():
    paths, rng = path_set(16), random.Random(5)
    hidden = 0
    for step in range(800):
        marked = rng.random() < 0.25
        paths.delivered(step, rng.randrange(16), 100, *(MARKED if marked else CLEAN))
        hidden += marked and step > 100 and not paths.slow_down()
    assert hidden < 10  # of about 175


def test_marks_that_end_are_forgotten():
    paths = path_set(8)
    spread_out(paths, {3})
    spread_out(paths, set(), rounds=40, start=10)
    assert paths.marked_fraction == 0.0
    assert paths.paths[3].ecn == 0.0
    assert {paths.select(0, 0, -1) for _ in range(8)} == set(range(8))


@pytest.mark.parametrize("selector", ["single", "random"])
def test_a_selector_that_does_not_steer_leaves_the_marks_to_the_control(selector):
    paths = path_set(8, selector=selector)
    spread_out(paths, {3})
    assert paths.slow_down()


def test_many_paths_and_few_packets_still_notice_that_all_are_marked():
    paths = path_set(128)
    for index in range(6):
        paths.delivered(index, index, 100, *MARKED)
    assert paths.slow_down()


# With endpoints


class Witness(Fixed):
    """A constant window that notes the marks it is told of."""

    name = "witness"

    def __init__(self, parameters: Any, env: Any) -> None:
        super().__init__(parameters, env)
        self.marks: list[int] = []

    def on_ack(self, now: int, ack: AckSignal) -> None:
        if ack.marked_packets:
            self.marks.append(now)


def stream(pair: Pair, messages: int, size: int = 65536) -> Any:
    """Start a stream of writes from alice, a few at a time."""
    ours, theirs = pair.connect()
    memory = theirs.context.domain.register(size, Access.REMOTE_WRITE | Access.LOCAL_WRITE)
    posted = 0

    def post(*_: Any) -> None:
        nonlocal posted
        if posted < messages:
            posted += 1
            ours.post_write(pair.now, posted, size, memory.address, memory.rkey)

    pair.on_completion = post
    for _ in range(4):
        post()
    return ours


def marking(pair: Pair, ports: set[int], since: int = 0) -> None:
    def touch(now: int, packet: Packet) -> Packet:
        if packet.src == ALICE and packet.entropy in ports and now >= since and packet.ecn:
            packet.ecn = CE
        return packet

    pair.wire.touch = touch


@pytest.mark.parametrize("selector", ["round_robin", "pot", "reps"])
@pytest.mark.parametrize("congested", [(3,), (1, 6)])
def test_marks_on_a_minority_of_paths_move_the_traffic_and_spare_the_control(selector, congested):
    pair = Pair(paths=8, selector=selector, control=Witness, max_run=1)
    ours = stream(pair, 150)
    ports = {pair.alice.endpoint.entropies[index] for index in congested}
    start = pair.now
    marking(pair, ports)
    pair.drive_messages(150)
    later = [packet for packet in data_packets(pair.sent) if packet.sent_at >= start + 3 * RTT]
    assert sum(packet.entropy in ports for packet in later) < 0.05 * len(later)
    assert ours.context.control.marks == []
    assert ours.context.counters.marked_packets > 0


def test_bitmap_goes_around_marks_by_its_own_count_and_spares_the_control():
    pair = Pair(paths=8, selector="bitmap", control=Witness, max_run=1)
    ours = stream(pair, 150)
    port, start = pair.alice.endpoint.entropies[3], pair.now
    marking(pair, {port})
    pair.drive_messages(150)
    later = [packet for packet in data_packets(pair.sent) if packet.sent_at >= start + 3 * RTT]
    share = sum(packet.entropy == port for packet in later) / len(later)
    assert 0.01 < share < 0.75 / 8
    assert ours.context.control.marks == []


class Listener(selectors.RoundRobin):
    """Notes what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[str, int]] = []

    def on_lost(self, path: Path) -> None:
        self.told.append(("lost", path.index))

    def on_timeout(self, path: Path, now: int, rtt: int) -> None:
        self.told.append(("late", path.index))


def listening(wire: Wire) -> tuple[Pair, Any, Listener]:
    pair = Pair(1, wire, paths=8, selector="round_robin", max_run=1)
    ours = stream(pair, 60)
    listener = ours.context.paths.selector = Listener()
    return pair, ours, listener


def test_the_selector_is_told_which_path_lost_a_packet():
    pair, _, listener = listening(Wire())
    port, seen = pair.alice.endpoint.entropies[3], 0

    def touch(now: int, packet: Packet) -> Packet | None:
        nonlocal seen
        if packet.src == ALICE and packet.entropy == port and packet.ecn:
            seen += 1
            return None if seen % 5 == 0 else packet
        return packet

    pair.wire.touch = touch
    pair.drive_messages(60)
    assert ("lost", 3) in listener.told
    assert {index for _, index in listener.told} == {3}


def test_the_selector_is_told_which_path_trimmed_a_packet_and_that_path_stays_good():
    pair, ours, listener = listening(Wire())
    pair.drive(lambda: bool(ours.sender.in_flight))
    send = ours.sender.flow.oldest
    assert ours.recovery.trimmed(pair.now, send.first & 0xFFFFFFFF, send.psn)
    assert listener.told == [("lost", send.subflow.path.index)]
    assert send.subflow.path.state == GOOD
    pair.drive_messages(60)


def test_a_path_that_came_back_owes_no_passes():
    paths = path_set(8, selector="bitmap")
    bring(paths, 3, PROBING)
    paths.lost(3)
    assert paths.paths[3].penalty == 4
    paths.recovered(5, 3)
    assert paths.paths[3].penalty == 0
    assert {paths.select(6, 0, -1) for _ in range(8)} == set(range(8))


@pytest.mark.parametrize("selector", selectors.names())
def test_marks_on_every_path_reach_the_control_and_leave_the_paths_alone(selector):
    pair = Pair(paths=8, selector=selector, control=Witness, max_run=1)
    ours = stream(pair, 60)
    generation = ours.context.paths.generation
    start = pair.now
    marking(pair, set(pair.alice.endpoint.entropies))
    pair.drive_messages(60)
    marks = ours.context.control.marks
    assert marks[0] <= start + 3 * RTT
    assert len(marks) > 20
    assert ours.context.paths.generation == generation
    assert pair.alice.endpoint.poll_event() is None


def test_acknowledgements_that_return_by_another_path_do_not_move_the_marks():
    pair = Pair(paths=2, selector="round_robin", floor=1, control=Witness)
    a, b = pair.alice.endpoint.entropies
    ours = stream(pair, 40)

    def touch(now: int, packet: Packet) -> Packet:
        if packet.src == ALICE and packet.entropy == a and packet.ecn:
            packet.ecn = CE
        elif packet.src != ALICE and packet.kind == DATAGRAM:
            packet.entropy = b
        return packet

    pair.wire.touch = touch
    pair.drive_messages(40)
    path_a, path_b = ours.context.paths.paths
    assert path_a.congested
    assert path_b.ecn == 0.0
    late = data_packets(pair.sent)[-100:]
    assert {packet.entropy for packet in late} == {b}


def test_loss_at_random_evicts_no_path():
    for seed, selector in enumerate(("round_robin", "random", "pot", "reps", "bitmap", "mixed")):
        pair = Pair(seed, Wire(loss=0.05), paths=16, selector=selector, max_run=1)
        stream(pair, 80, 32768)
        pair.drive_messages(80)
        events = []
        while (event := pair.alice.endpoint.poll_event()) is not None:
            events.append(event)
        assert any(event.new == SUSPECT for event in events)
        assert [event for event in events if event.new == BAD] == []


# Planes


def two_planes(count: int = 4, floor: int = 2, selector: str = "round_robin") -> PathSet:
    ports = [0xC000 + index for index in range(count)]
    return PathSet(ports, selectors.make(selector), random.Random(1), RTT, floor, "peer", 2)


def test_equal_source_ports_on_two_planes_are_two_paths_and_events_tell_them_apart():
    paths = two_planes()
    assert [(path.plane, path.entropy - 0xC000) for path in paths.paths] == [(p, i) for p in (0, 1) for i in range(4)]
    assert [path.index for path in paths.paths] == list(range(8))
    paths.doubted(3, 6)
    assert drain(paths) == [PathEvent(3, "peer", 0xC002, GOOD, SUSPECT, "late", 1)]
    assert paths.paths[2].state == GOOD
    assert [paths.name(index) for index in (2, 6)] == ["49154 of plane 0", "49154 of plane 1"]
    assert path_set().name(2) == "49154"


def test_a_pass_alternates_between_planes():
    paths = two_planes()
    assert [paths.paths[paths.select(0, 0, -1)].plane for _ in range(8)] == [0, 1] * 4


@pytest.mark.parametrize("selector", selectors.names())
@given(avoid=st.integers(0, 7), flow=st.integers(0, 1 << 31))
def test_a_retransmission_leaves_by_another_plane(selector, avoid, flow):
    paths = two_planes(selector=selector)
    assert paths.paths[paths.select(0, flow, avoid)].plane != paths.paths[avoid].plane


def test_a_retransmission_stays_on_the_plane_if_nothing_on_the_other_is_usable():
    paths = two_planes(floor=1)
    for index in range(4, 8):
        bring(paths, index, BAD)
    for _ in range(8):
        chosen = paths.select(0, 0, 1)
        assert chosen != 1
        assert paths.paths[chosen].plane == 0


@pytest.mark.parametrize("floor", [1, 4])
def test_a_whole_plane_may_be_evicted_whatever_floor_is_allowed(floor):
    """The floor is at most the paths of one plane (EndpointConfig)."""
    paths = two_planes(4, floor)
    for index in range(4, 8):
        bring(paths, index, BAD)
    assert {path.index for path in paths.usable} == {0, 1, 2, 3}
    for index in range(4):
        paths.doubted(9, index)
        paths.probe_failed(9, index)
    assert len(paths.usable) == floor


def test_the_way_across_is_the_same_source_port_or_one_of_the_next():
    paths = two_planes()
    assert [paths.across(index, 1) for index in range(8)] == [4, 5, 6, 7, 0, 1, 2, 3]
    bring(paths, 7, BAD)
    bring(paths, 4, BAD)
    assert [paths.across(index, 1) for index in range(4)] == [5, 5, 6, 5]
