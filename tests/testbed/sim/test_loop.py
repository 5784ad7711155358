"""Events in order of time, and a seeded order at one time."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from testbed.sim.loop import Event, Loop
from transport.clock import NEVER


class Noted(Event):
    def __init__(self, name: int, fired: list[tuple[int, int]]) -> None:
        Event.__init__(self)
        self.name = name
        self.fired = fired

    def fire(self, now: int) -> None:
        self.fired.append((now, self.name))


def test_events_fire_in_order_of_time_and_each_once() -> None:
    loop, fired = Loop(1), []
    for name, when in enumerate((50, 10, 30, 10, 40)):
        loop.arm(Noted(name, fired), when)
    assert loop.run(35, 100) == 3
    assert loop.now == 30
    assert [when for when, _ in fired] == [10, 10, 30]
    assert loop.next() == 40
    assert loop.run(NEVER, 100) == 2
    assert sorted(name for _, name in fired) == [0, 1, 2, 3, 4]
    assert loop.next() == NEVER


def test_an_event_that_is_armed_again_moves_and_one_that_is_disarmed_stays_away() -> None:
    loop, fired = Loop(1), []
    moved, gone, stays = (Noted(name, fired) for name in range(3))
    for event, when in ((moved, 10), (gone, 20), (stays, 30)):
        loop.arm(event, when)
    loop.arm(moved, 40)
    loop.disarm(gone)
    loop.disarm(gone)
    loop.run(NEVER, 100)
    assert fired == [(30, 2), (40, 0)]


def test_an_event_in_the_past_fires_now() -> None:
    loop, fired = Loop(1, now=100), []
    loop.arm(Noted(0, fired), 5)
    loop.run(NEVER, 10)
    assert fired == [(100, 0)]


def test_events_at_one_time_fire_in_an_order_that_only_the_seed_gives() -> None:
    def order(seed: int) -> list[int]:
        loop, fired = Loop(seed), []
        for name in range(20):
            loop.arm(Noted(name, fired), 7)
        loop.run(NEVER, 100)
        return [name for _, name in fired]

    assert order(1) == order(1)
    assert len({tuple(order(seed)) for seed in range(20)}) == 20
    first = sum(order(seed).index(0) < order(seed).index(1) for seed in range(400))
    assert 150 < first < 250  # of two that meet, neither is favoured


def test_halting_ends_a_run_after_the_event() -> None:
    loop, fired = Loop(1), []

    class Halt(Event):
        def fire(self, now: int) -> None:
            loop.halted = True

    loop.arm(Halt(), 5)
    loop.arm(Noted(0, fired), 6)
    assert loop.run(NEVER, 100) == 1
    assert not fired
    assert loop.run(NEVER, 100) == 1


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(-1, 50)), max_size=200), st.integers(0, 1 << 64))
def test_any_arming_moving_and_disarming_fires_what_is_armed_in_order(steps: list[tuple[int, int]], seed: int) -> None:
    loop, fired = Loop(seed % (1 << 64)), []
    events = [Noted(name, fired) for name in range(10)]
    armed: dict[int, int] = {}
    for name, when in steps:
        if when < 0:
            loop.disarm(events[name])
            armed.pop(name, None)
        else:
            loop.arm(events[name], when)
            armed[name] = when
    loop.run(NEVER, 1000)
    assert [when for when, _ in fired] == sorted(armed.values())
    assert {name: when for when, name in fired} == armed


def test_a_large_heap_keeps_its_order() -> None:
    rng = random.Random(3)
    loop, fired = Loop(1), []
    events = [Noted(name, fired) for name in range(3000)]
    for event in events:
        loop.arm(event, rng.randrange(10_000))
    for event in rng.sample(events, 1500):
        loop.arm(event, rng.randrange(10_000)) if rng.random() < 0.7 else loop.disarm(event)
    loop.run(NEVER, 10_000)
    assert [when for when, _ in fired] == sorted(when for when, _ in fired)
