"""Deadlines of an endpoint."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from transport.clock import NEVER
from transport.timers import Timed, Timers


class Alarm(Timed):
    """Notes when it goes off; may set itself again."""

    def __init__(self, timers: Timers, log: list[tuple[int, int]], number: int, again: int = 0) -> None:
        super().__init__()
        self.timers = timers
        self.log = log
        self.number = number
        self.again = again

    def expire(self, now: int) -> None:
        self.log.append((self.number, now))
        if self.again:
            self.timers.arm(self, now + self.again)


steps = st.lists(
    st.one_of(
        st.tuples(st.just("arm"), st.integers(0, 4), st.integers(0, 1000)),
        st.tuples(st.just("unset"), st.integers(0, 4), st.just(0)),
        st.tuples(st.just("run"), st.just(0), st.integers(0, 300)),
        st.tuples(st.just("look"), st.just(0), st.just(0)),
    ),
    max_size=60,
)


@given(steps)
def test_each_expires_when_it_is_due_and_once(plan):
    timers, log = Timers(), []
    alarms = [Alarm(timers, log, number) for number in range(5)]
    deadlines: dict[int, int] = {}
    now = 0
    for step, number, value in plan:
        if step == "arm":
            deadlines[number] = now + value
            timers.arm(alarms[number], now + value)
        elif step == "unset":
            deadlines.pop(number, None)
            timers.arm(alarms[number], NEVER)
        elif step == "look":
            assert timers.next() <= min(deadlines.values(), default=NEVER)
        else:
            now += value
            del log[:]
            timers.run(now)
            due = {number for number, deadline in deadlines.items() if deadline <= now}
            assert sorted(number for number, _ in log) == sorted(due)
            assert all(at == now for _, at in log)
            for item in due:
                del deadlines[item]
    assert timers.next() <= min(deadlines.values(), default=NEVER)
    while timers.next() < NEVER:  # following `next` ends, and misses nothing
        now = max(now, timers.next())
        timers.run(now)
    assert {alarm.deadline for alarm in alarms} == {NEVER}


def test_equal_deadlines_fire_in_the_order_they_were_set():
    timers, log = Timers(), []
    for number in (3, 1, 2):
        timers.arm(Alarm(timers, log, number), 10)
    timers.run(10)
    assert log == [(3, 10), (1, 10), (2, 10)]


def test_nothing_fires_early():
    timers, log = Timers(), []
    timers.arm(Alarm(timers, log, 0), 10)
    timers.run(9)
    assert log == []
    assert timers.next() == 10


def test_a_deadline_moved_later_does_not_fire_at_the_old_time():
    timers, log = Timers(), []
    alarm = Alarm(timers, log, 0)
    timers.arm(alarm, 10)
    timers.arm(alarm, 30)
    timers.run(20)
    assert log == []
    timers.run(30)
    assert log == [(0, 30)]


def test_a_deadline_moved_earlier_fires_once():
    timers, log = Timers(), []
    alarm = Alarm(timers, log, 0)
    timers.arm(alarm, 30)
    timers.arm(alarm, 10)
    timers.run(10)
    timers.run(30)
    assert log == [(0, 10)]
    assert timers.next() == NEVER


def test_what_sets_itself_again_for_now_waits_for_the_next_run():
    timers, log = Timers(), []
    timers.arm(Alarm(timers, log, 0, again=-5), 10)
    timers.run(10)
    assert log == [(0, 10)]
    timers.run(10)
    assert log == [(0, 10), (0, 10)]


def test_moving_a_deadline_later_again_and_again_costs_no_memory():
    timers, log = Timers(), []
    alarm = Alarm(timers, log, 0)
    for deadline in range(10, 5000):
        timers.arm(alarm, deadline)
    timers.run(4998)
    assert log == []
    timers.run(4999)
    assert log == [(0, 4999)]


def test_a_deadline_far_away_does_not_disturb_near_ones():
    timers, log = Timers(), []
    timers.arm(Alarm(timers, log, 0), NEVER - 1)
    timers.arm(Alarm(timers, log, 1), 5)
    assert timers.next() == 5
    timers.run(5)
    assert log == [(1, 5)]
    assert timers.next() == NEVER - 1
