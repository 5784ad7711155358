"""Probes: when a path is probed, evicted and readmitted."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import ALICE, CAPS, Pair, Wire, data_packets
from transport import selectors
from transport.clock import NEVER, US
from transport.completion import Status
from transport.control import Probe
from transport.packet import CE, CLASS_DATA, ECT_0, Packet
from transport.path import BAD, GOOD, PROBING, SUSPECT
from transport.paths import PathEvent, PathSet
from transport.placement import Access
from transport.probes import Prober

RTT = 10 * US


class Bench:
    """A prober on a fake network: replies come after a round trip, except on dead paths; data flows on `busy` ones."""

    def __init__(self, count: int = 8, floor: int = 2, start: int = 0, seed: int = 1) -> None:
        rng = random.Random(seed)
        ports = [0xC000 + index for index in range(count)]
        self.paths = PathSet(ports, selectors.make("round_robin"), rng, RTT, floor, "peer")
        self.prober = Prober(self.paths, rng)
        self.start = self.now = start
        self.dead: set[int] = set()
        self.busy: set[int] = set(range(count))
        self.delay: dict[int, int] = {}
        self.replies: list[tuple[int, int, int]] = []
        self.log: list[tuple[int, int]] = []
        for index in range(count):
            for _ in range(20):
                self.paths.sampled(start, index, RTT)

    def run(self, rtts: float, flowing: bool = True) -> Bench:
        """Let time pass in steps of a quarter of a round trip; each brings an acknowledgement on every busy path."""
        for _ in range(int(4 * rtts)):
            self.now += RTT // 4
            for reply in [item for item in self.replies if item[0] <= self.now]:
                self.replies.remove(reply)
                path = self.paths.paths[reply[2]]
                assert self.prober.reply(self.now, reply[1], path.entropy, 0, False, path.plane)
            if flowing:
                for index in self.busy - self.dead:
                    self.paths.delivered(self.now, index, 4096, 1, 0)
                self.prober.activity(self.now)
            if flowing or self.prober.next_timeout() <= self.now:
                self.prober.handle_timeout(self.now)
                while (index := self.prober.poll(self.now)) >= 0:
                    nonce = self.prober.sent(self.now, index)
                    self.log.append((self.now - self.start, index))
                    if index not in self.dead:
                        self.replies.append((self.now + self.delay.get(index, RTT), nonce, index))
        return self

    def state(self, index: int) -> int:
        return self.paths.paths[index].state

    def events(self) -> list[PathEvent]:
        found = []
        while (event := self.paths.poll_event()) is not None:
            found.append(event)
        return found


def test_a_path_that_answers_its_probe_is_good_again():
    bench = Bench()
    bench.busy = {0, 1, 2, 4, 5, 6, 7}
    bench.paths.suspected(bench.now, 3)
    bench.run(2)
    assert bench.state(3) == GOOD


def test_a_path_that_answers_none_of_its_volley_is_bad():
    bench = Bench()
    bench.dead = {3}
    bench.paths.suspected(bench.now, 3)
    bench.run(10)
    assert bench.state(3) in (BAD, PROBING)
    assert [(event.old, event.new) for event in bench.events()][:2] == [(GOOD, SUSPECT), (SUSPECT, BAD)]
    assert len([index for at, index in bench.log if index == 3 and at < 5 * RTT]) == 5


def test_a_volley_is_over_well_within_a_retransmission_timeout():
    bench = Bench()
    bench.dead = {3}
    bench.paths.suspected(bench.now, 3)
    bench.run(30)
    bad = next(event for event in bench.events() if event.new == BAD)
    assert bad.time <= 10 * RTT


def test_one_lost_probe_evicts_nothing():
    bench = Bench()
    bench.busy = set(range(8)) - {3}
    bench.dead = {3}
    bench.paths.suspected(bench.now, 3)
    bench.run(0.25)
    assert [index for _, index in bench.log] == [3]
    bench.dead = set()
    bench.run(12)
    assert bench.state(3) == GOOD
    assert [event.new for event in bench.events()] == [SUSPECT, GOOD]


def test_probes_of_an_earlier_suspicion_do_not_count():
    bench = Bench()
    bench.dead = {3}
    bench.paths.suspected(bench.now, 3)
    bench.run(1)
    bench.paths.delivered(bench.now, 3, 100, 1, 0)
    sent = bench.now
    bench.paths.suspected(bench.now, 3)
    bench.run(20)
    bad = next(event for event in bench.events() if event.new == BAD)
    assert bad.time >= sent + 5 * RTT


def test_a_peer_that_is_silent_as_a_whole_evicts_nothing():
    bench = Bench()
    bench.run(4)
    bench.dead = set(range(8))
    bench.paths.suspected(bench.now, 3)
    bench.paths.suspected(bench.now, 5)
    bench.run(60)
    assert [(event.entropy, event.new) for event in bench.events()] == [(0xC003, SUSPECT), (0xC005, SUSPECT)]
    bench.dead = {3}
    bench.run(20)
    assert bench.state(5) == GOOD
    assert bench.state(3) in (BAD, PROBING)


def test_a_silent_peer_is_probed_ever_more_rarely_and_at_once_again_when_it_is_heard():
    bench = Bench()
    bench.dead = set(range(8))
    bench.paths.suspected(bench.now, 3)
    bench.run(1000)
    counts = [len([at for at, _ in bench.log if begin <= at / RTT < begin + 100]) for begin in range(0, 1000, 100)]
    assert counts[0] > 20
    assert counts[0] > 2 * counts[4]
    assert counts[9] <= 10
    bench.dead, bench.busy = {3}, set(range(8)) - {3}
    bench.run(400)
    assert bench.state(3) in (BAD, PROBING)


def test_a_witness_is_asked_when_no_data_tells_whether_the_peer_lives():
    bench = Bench()
    bench.run(4)
    bench.busy = set()
    bench.dead = {3}
    bench.paths.suspected(bench.now, 3)
    bench.run(14)
    assert any(event.new == BAD for event in bench.events())


def test_a_path_that_has_become_slow_comes_back_by_late_replies():
    bench = Bench()
    bench.busy = set(range(8)) - {3}
    bench.dead = {3}
    bench.paths.suspected(bench.now, 3)
    bench.run(8)
    assert bench.state(3) in (BAD, PROBING)
    bench.dead = set()
    bench.delay = {3: 12 * RTT}  # longer than a probe is waited for
    bench.run(80)
    assert bench.state(3) == GOOD
    assert bench.paths.paths[3].srtt > 11 * RTT


def test_the_back_off_doubles_up_to_its_limit():
    bench = Bench()
    bench.dead = {3}
    bench.paths.suspected(bench.now, 3)
    bench.run(900)
    times = [at for at, index in bench.log if index == 3][5:]
    gaps = [(b - a) / RTT for a, b in pairwise(times)]
    assert gaps[:4] == pytest.approx([13, 21, 37, 69], abs=2)
    assert gaps[4:] == pytest.approx([105] * len(gaps[4:]), abs=2)
    assert len(gaps) >= 8


def test_two_replies_in_a_row_bring_a_path_back():
    bench = Bench()
    bench.dead = {3}
    bench.paths.suspected(bench.now, 3)
    bench.run(8)
    assert bench.state(3) == BAD
    bench.dead = set()
    bench.busy = set(range(8)) - {3}
    before = bench.now
    bench.run(14)
    back = [(event.old, event.new) for event in bench.events() if event.time > before]
    assert back == [(BAD, PROBING), (PROBING, GOOD)]
    assert len([index for at, index in bench.log if index == 3 and at > before]) == 2


def test_a_path_that_answers_once_and_then_dies_again_stays_away():
    bench = Bench()
    bench.dead = {3}
    bench.busy = set(range(8)) - {3}
    bench.paths.suspected(bench.now, 3)
    bench.run(8)
    bench.dead = set()
    while not bench.replies:
        bench.run(0.25)
    bench.dead = {3}
    bench.run(8)
    assert bench.state(3) == BAD
    bench.dead = set()  # it answers once more, which makes two, but not in a row
    while not bench.replies:
        bench.run(0.25)
    bench.dead = {3}
    bench.run(4)
    assert all(event.new != GOOD for event in bench.events())
    assert bench.state(3) in (BAD, PROBING)


def test_old_data_that_arrives_during_a_probe_of_a_bad_path_does_not_end_its_probing():
    bench = Bench()
    bench.dead = {3}
    bench.paths.suspected(bench.now, 3)
    while bench.state(3) != PROBING:
        bench.run(1)
    bench.paths.delivered(bench.now, 3, 100, 1, 0)  # an acknowledgement held up for long
    bench.run(20)
    bench.dead = set()
    bench.run(110)
    assert bench.state(3) == GOOD


def test_a_denied_path_is_not_probed_and_begins_anew_when_allowed():
    bench = Bench()
    bench.dead = {3}
    bench.paths.suspected(bench.now, 3)
    bench.run(8)
    bench.paths.deny(bench.now, 3)
    bench.busy = {0, 1}
    before = len(bench.log)
    bench.run(200)
    assert 3 not in {index for _, index in bench.log[before:]}
    bench.paths.allow(bench.now, 3)
    bench.paths.suspected(bench.now, 3)
    bench.run(10)
    assert bench.state(3) in (BAD, PROBING)


def test_the_floor_keeps_dead_paths_and_they_are_asked_again_and_again():
    bench = Bench(count=4, floor=3)
    bench.dead = {1, 2}
    for index in (1, 2):
        bench.paths.suspected(bench.now, index)
    bench.run(40)
    assert sorted((bench.state(1), bench.state(2)))[0] == SUSPECT
    assert len(bench.paths.usable) == 3
    kept = next(index for index in (1, 2) if bench.state(index) == SUSPECT)
    before = len(bench.log)
    bench.run(40)
    assert [index for _, index in bench.log[before:]].count(kept) >= 20
    bench.dead = set()
    bench.run(110)
    assert {bench.state(index) for index in range(4)} == {GOOD}


# Silent paths


def test_silent_paths_are_measured_while_data_flows_and_busy_ones_are_not_probed():
    bench = Bench()
    bench.busy = {0, 1}
    bench.run(120)
    assert {index for _, index in bench.log} == {2, 3, 4, 5, 6, 7}
    assert len(bench.log) <= 30


def test_a_silent_dead_path_is_found_without_losing_data_on_it():
    bench = Bench()
    bench.busy = {0, 1}
    bench.dead = {6}
    bench.run(120)
    assert bench.state(6) in (BAD, PROBING)


def test_nothing_is_probed_before_data_flows_and_soon_after_it_stops():
    bench = Bench()
    bench.run(100, flowing=False)
    assert bench.log == []
    assert bench.prober.next_timeout() == NEVER
    bench.busy = {0}
    bench.dead = {4}
    bench.run(40)
    stopped = bench.now
    bench.run(300, flowing=False)
    assert max(at for at, _ in bench.log) <= stopped + 65 * RTT
    assert bench.prober.next_timeout() == NEVER
    bench.run(40)
    assert max(at for at, _ in bench.log) > stopped + 300 * RTT


def test_asking_for_a_probe_while_no_data_flows_gives_none():
    bench = Bench()
    bench.paths.suspected(bench.now, 3)
    assert bench.prober.poll(bench.now) == -1
    bench.prober.activity(bench.now)
    assert bench.prober.poll(bench.now + 65 * RTT) == -1
    assert bench.prober.poll(bench.now + 66 * RTT) == -1
    bench.prober.activity(bench.now + 67 * RTT)
    assert bench.prober.poll(bench.now + 67 * RTT) == 3


@given(st.integers(1, 64), st.sets(st.integers(0, 63)), st.integers(0, 100))
def test_probes_are_few(count, suspects, seed):
    bench = Bench(count, floor=1, seed=seed)
    bench.dead = {index for index in suspects if index < count}
    for index in bench.dead:
        bench.paths.suspected(bench.now, index)
    bench.run(12)
    assert len(bench.log) <= 8 * 12 + 1


# Replies


def ask(bench: Bench, index: int = 3) -> int:
    bench.prober.activity(bench.now)
    bench.paths.suspected(bench.now, index)
    assert bench.prober.poll(bench.now) == index
    return bench.prober.sent(bench.now, index)


def test_a_reply_measures_its_path_without_the_time_the_peer_held_it():
    bench = Bench()
    nonce = ask(bench)
    assert bench.prober.reply(bench.now + 3 * RTT, nonce, 0xC003, 2 * RTT, False)
    assert bench.paths.paths[3].latest_rtt == RTT


def test_a_reply_that_claims_to_have_been_held_longer_than_it_was_away_measures_nothing():
    bench = Bench()
    nonce = ask(bench)
    assert bench.prober.reply(bench.now + RTT, nonce, 0xC003, 5 * RTT, False)
    assert bench.paths.paths[3].min_rtt == RTT


def test_a_marked_reply_marks_its_path():
    bench = Bench()
    assert bench.prober.reply(bench.now + RTT, ask(bench), 0xC003, 0, True)
    assert bench.paths.paths[3].congested


@pytest.mark.parametrize("twist", [(1, 0), (0, 1)], ids=["nonce", "entropy"])
def test_a_reply_to_nothing_that_was_asked_changes_nothing_but_a_count(twist):
    bench = Bench()
    nonce = ask(bench)
    assert not bench.prober.reply(bench.now + RTT, (nonce + twist[0]) & 0xFFFFFFFF, 0xC003 + twist[1], 0, False)
    assert bench.prober.unknown_replies == 1
    assert bench.state(3) == SUSPECT
    assert bench.paths.paths[3].heard_at == -1


def test_a_second_reply_to_one_probe_is_unknown():
    bench = Bench()
    nonce = ask(bench)
    assert bench.prober.reply(bench.now + RTT, nonce, 0xC003, 0, False)
    assert not bench.prober.reply(bench.now + RTT, nonce, 0xC003, 0, False)


plans = st.lists(
    st.tuples(st.sampled_from(["suspect", "die", "heal", "run", "quiet", "busy"]), st.integers(0, 7)), max_size=25
)


def play(plan: list[tuple[str, int]], start: int) -> Bench:
    bench = Bench(start=start)
    for step, index in plan:
        if step == "suspect":
            bench.paths.suspected(bench.now, index)
        elif step == "die":
            bench.dead.add(index)
        elif step == "heal":
            bench.dead.discard(index)
        elif step == "busy":
            bench.busy ^= {index}
        else:
            bench.run(3 * index, step == "run")
    return bench


@given(plans, st.integers(0, 1 << 55))
def test_the_same_at_shifted_times_is_the_same(plan, shift):
    one, two = play(plan, 0), play(plan, shift)
    assert one.log == two.log
    assert [(e.time + shift, e.entropy, e.new) for e in one.events()] == [
        (e.time, e.entropy, e.new) for e in two.events()
    ]


@given(plans)
def test_when_all_have_healed_and_data_flows_all_are_good_again(plan):
    bench = play(plan, 0)
    bench.dead = set()
    bench.run(130)
    assert {path.state for path in bench.paths.paths} == {GOOD}
    assert len(bench.prober.outstanding) <= 64
    assert bench.prober.recovering == {}


# With endpoints

LEAST_RTO = 20 * CAPS.base_rtt


def stream(pair: Pair, messages: int, size: int = 65536, depth: int = 4) -> Any:
    ours, theirs = pair.connect()
    memory = theirs.context.domain.register(size, Access.REMOTE_WRITE | Access.LOCAL_WRITE)
    posted = 0

    def post(*_: Any) -> None:
        nonlocal posted
        if posted < messages:
            posted += 1
            ours.post_write(pair.now, posted, size, memory.address, memory.rkey)

    pair.on_completion = post
    for _ in range(depth):
        post()
    return ours


def black_hole(pair: Pair, port: int, start: int, end: int) -> list[int]:
    """Alice's packets from `port` vanish from `start` to `end` after now. Returns the times at which one did."""
    begun, swallowed = pair.now, []

    def touch(now: int, packet: Packet) -> Packet | None:
        if packet.src == ALICE and packet.entropy == port and start <= now - begun < end:
            swallowed.append(now)
            return None
        return packet

    pair.wire.touch = touch
    return swallowed


def path_events(pair: Pair) -> list[PathEvent]:
    found = []
    while (event := pair.alice.endpoint.poll_event()) is not None:
        found.append(event)
    return found


@pytest.mark.parametrize("run", [1, 16])
@pytest.mark.parametrize("start", [0, 300 * US], ids=["from_birth", "midway"])
@pytest.mark.parametrize("selector", selectors.names())
def test_a_dead_path_is_evicted_within_a_timeout_and_readmitted_when_it_has_healed(selector, start, run):
    # The path that dies must be one in use: single has one a flow, reps and mixed keep to the few that they recycle.
    rehearsal = Pair(7, paths=32, selector=selector, max_run=run)
    stream(rehearsal, 700)
    begin = rehearsal.now + start
    rehearsal.drive(lambda: rehearsal.now >= begin and bool(data_packets(rehearsal.sent)))
    dead = data_packets(rehearsal.sent)[-1].entropy
    pair = Pair(7, paths=32, selector=selector, max_run=run)
    stream(pair, 700)
    healed = pair.now + start + 400 * US
    swallowed = black_hole(pair, dead, start, start + 400 * US)
    pair.drive_messages(700)
    assert all(item.status == Status.SUCCESS for item in pair.alice.completions)
    events = path_events(pair)
    assert {event.entropy for event in events if event.new == BAD} == {dead}
    bad = next(event for event in events if event.new == BAD)
    assert bad.time - swallowed[0] <= max(3 * RTT, LEAST_RTO)
    good = next(event for event in events if event.new == GOOD and event.time > healed)
    assert good.old == PROBING
    assert good.time - healed <= 2 * 400 * US
    assert len([event for event in events if event.new == GOOD and event.old == PROBING]) == 1


def test_probes_meet_what_data_meets():
    pair = Pair(1, paths=32)
    stream(pair, 40)
    black_hole(pair, pair.alice.endpoint.entropies[5], 0, NEVER)
    pair.drive_messages(40)
    probes = [packet for packet in pair.sent if isinstance(packet.control, Probe)]
    assert probes
    assert {(packet.priority, packet.ecn) for packet in probes} <= {(CLASS_DATA, ECT_0), (CLASS_DATA, CE)}


def probes_of(pair: Pair) -> int:
    return pair.alice.endpoint.counters()["probes_sent"] + pair.bob.endpoint.counters()["probes_sent"]


def test_an_idle_connection_sends_no_probes_and_they_stop_when_data_stops():
    pair = Pair(1, paths=32, selector="single")
    ours, theirs = pair.connect()
    pair.drive()
    assert probes_of(pair) == 0
    black_hole(pair, pair.alice.endpoint.entropies[5], 0, NEVER)
    memory = theirs.context.domain.register(1 << 22, Access.REMOTE_WRITE | Access.LOCAL_WRITE)
    ours.post_write(pair.now, 1, 1 << 22, memory.address, memory.rkey)
    pair.drive_messages(1)
    assert probes_of(pair) > 0
    stopped = pair.now
    pair.drive()
    sent = [packet for packet in pair.sent if isinstance(packet.control, Probe)]
    number = len(sent)
    assert pair.now < stopped + 200 * RTT  # nothing is left to happen, not even a probe of the dead path
    pair.now += 10_000 * RTT
    pair.drive()
    assert len([packet for packet in pair.sent if isinstance(packet.control, Probe)]) == number


def test_half_of_the_paths_die_and_all_messages_complete_on_the_others():
    pair = Pair(1, Wire(loss=0.01), paths=16, selector="random", max_run=1)
    stream(pair, 80)
    dead = set(pair.alice.endpoint.entropies[::2])
    touch: Callable[[int, Packet], Packet | None] = lambda now, packet: (  # noqa: E731
        None if packet.src == ALICE and packet.entropy in dead else packet
    )
    pair.wire.touch = touch
    pair.drive_messages(80)
    assert all(item.status == Status.SUCCESS for item in pair.alice.completions)
    assert {event.entropy for event in path_events(pair) if event.new == BAD} == dead


# Planes


def two_planes(count: int, busy: set[int]) -> Bench:
    """A bench with `count` paths on each of two planes."""
    bench = Bench(count)
    ports = [path.entropy for path in bench.paths.paths]
    bench.paths = PathSet(ports, selectors.make("round_robin"), bench.prober.rng, RTT, 2, "peer", 2)
    bench.prober = Prober(bench.paths, bench.prober.rng)
    bench.busy = busy
    for index in range(2 * count):
        bench.paths.sampled(bench.now, index, RTT)
    return bench


def test_a_reply_by_the_other_plane_answers_nothing():
    bench = two_planes(4, set())
    bench.prober.activity(bench.now)
    nonce = bench.prober.sent(bench.now, 6)
    assert not bench.prober.reply(bench.now + RTT, nonce, 0xC002, 0, False, 0)
    assert bench.paths.paths[6].heard_at == bench.paths.paths[2].heard_at == -1
    assert bench.prober.reply(bench.now + RTT, nonce, 0xC002, 0, False, 1)
    assert bench.paths.paths[6].heard_at == bench.now + RTT


def test_the_first_dead_path_of_a_silent_plane_makes_its_others_suspect_at_once():
    bench = two_planes(8, set(range(8)))
    bench.dead = set(range(8, 16))
    bench.paths.suspected(bench.now, 11)
    for _ in range(80):
        bench.run(0.25)
        if bench.paths.paths[11].state == BAD:
            break
    states = [path.state for path in bench.paths.paths]
    assert states == [GOOD] * 8 + [SUSPECT] * 3 + [BAD] + [SUSPECT] * 4
    bench.run(20)
    assert {path.state for path in bench.paths.paths[8:]} <= {BAD, PROBING}


def test_a_dead_path_of_a_plane_that_was_heard_says_nothing_about_its_others():
    bench = two_planes(8, set(range(9)))
    bench.dead = {11}
    bench.paths.suspected(bench.now, 11)
    bench.run(20)
    assert [path.index for path in bench.paths.paths if path.state != GOOD] == [11]


@pytest.mark.parametrize("planes", [1, 2])
def test_each_plane_has_its_own_allowance_of_probes(planes):
    bench = Bench(32) if planes == 1 else two_planes(32, set())
    bench.dead = set(range(32 * planes))
    bench.busy = set()
    for index in range(32 * planes):
        bench.paths.suspected(bench.now, index)
    begin = bench.now
    bench.prober.activity(bench.now)
    while bench.now < begin + RTT:
        while (index := bench.prober.poll(bench.now)) >= 0:
            bench.prober.sent(bench.now, index)
            bench.log.append((bench.now, index))
        bench.now += RTT // 64
    assert len(bench.log) == 8 * planes
