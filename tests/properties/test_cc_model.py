"""One operation-sequence model over every congestion control: legal but nasty events in any order.

Three instances take the same events: the control, one that sees every time shifted, and one that sees exactly the same.
"Never stuck" is a property of the engine with its timers, not of a control.
"""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from cc.base import Control, Environment, Parameters
from cc.registry import BUILT_IN, make, resolve
from cc.signals import AckSignal, LossSignal
from tests.cc.example import write_example

US = 1_000_000
SECOND = 1_000_000_000_000

#: Bytes and packets per event: none, one, a window, and far more than any window.
SIZES = st.sampled_from([0, 1, 64, 4096, 61_440, 1 << 20, 1 << 40]) | st.integers(0, 1 << 24)
#: Round trips: not measured, none at all, below any base, ordinary, and hours.
ROUND_TRIPS = st.sampled_from([-1, 0, 1, US, 12 * US, 50 * US, SECOND, 3600 * SECOND]) | st.integers(-1, 10_000 * US)
STEPS = st.sampled_from([0, 0, 1, US, 12 * US, 1000 * US]) | st.integers(0, 50 * US)


class ControlModel(RuleBasedStateMachine):
    """Subclasses set `control_class`."""

    control_class: type[Control]

    @initialize(
        segment=st.sampled_from([1, 256, 1024, 4096, 9000]),
        segments=st.sampled_from([1, 37, 2048, 2048, 2048, 1 << 27]),
        rate=st.sampled_from([1, 10**10, 10**11, 10**11, 8 * 10**11]),
        base_rtt=st.sampled_from([1, 12 * US, 12 * US, 200 * US, SECOND]),
        start=st.sampled_from([0, 0, 0, 1 << 59]),
        shift=st.sampled_from([137 * US, 3600 * SECOND, 1 << 60]) | st.integers(1, 1 << 60),
        order=st.permutations(["ack", "mark", "loss", "timeout"]),
        step=st.sampled_from([0, 1, US]),
    )  # fmt: skip
    def begin(
        self, segment: int, segments: int, rate: int, base_rtt: int, start: int, shift: int, order: list[str], step: int
    ) -> None:
        """A clock that starts at 0 beside one that does not, and every kind of event soon after: what takes a time for
        absolute shows there."""
        self.now = start
        self.shift = shift
        self.env = Environment(segment, rate, base_rtt, segment * segments, start)
        moved = Environment(segment, rate, base_rtt, segment * segments, start + self.shift)
        self.control = make(self.control_class, None, self.env)
        self.shifted = make(self.control_class, None, moved)
        self.repeated = make(self.control_class, None, self.env)
        for event in order:
            self.compare()
            if event == "loss":
                self.loss(step, segment, segment, trimmed=False, age=0)
            elif event == "timeout":
                self.timeout(step, 1)
            else:
                marks = 1.0 if event == "mark" else 0.0
                self.ack(step, segment, marks, base_rtt, -1, base_rtt, segment, limited=True, fraction=marks, copies=1)

    @rule(
        step=STEPS, acked=SIZES, marks=st.sampled_from([0.0, 0.0, 0.01, 0.5, 1.0]), rtt=ROUND_TRIPS, median=ROUND_TRIPS,
        least=ROUND_TRIPS, in_flight=SIZES, limited=st.booleans(), fraction=st.sampled_from([0.0, 0.0, 0.25, 1.0]),
        copies=st.integers(1, 3),
    )  # fmt: skip
    def ack(
        self, step: int, acked: int, marks: float, rtt: int, median: int, least: int, in_flight: int, limited: bool,
        fraction: float, copies: int,
    ) -> None:  # fmt: skip
        """An ACK with or without marks, perhaps told several times at one instant."""
        self.now += step
        for _, (control, offset) in itertools.product(range(copies), self.instances()):
            signal = AckSignal()
            signal.acked_bytes, signal.marked_bytes = acked, int(acked * marks)
            signal.acked_packets = -(-acked // self.env.segment)
            signal.marked_packets = -(-signal.marked_bytes // self.env.segment)
            signal.rtt, signal.median_rtt, signal.min_rtt = rtt, median, least
            signal.spread_rtt = max(-1, rtt - max(0, least))
            signal.in_flight, signal.window_limited, signal.marked_fraction = in_flight, limited, fraction
            control.on_ack(self.now + offset, signal)

    @rule(step=STEPS, size=SIZES, in_flight=SIZES, trimmed=st.booleans(), age=STEPS)
    def loss(self, step: int, size: int, in_flight: int, trimmed: bool, age: int) -> None:
        self.now += step
        for control, offset in self.instances():
            signal = LossSignal()
            signal.lost_bytes, signal.lost_packets = size, -(-size // self.env.segment)
            signal.in_flight, signal.trimmed = in_flight, trimmed
            signal.sent_at = max(self.now - age, self.env.now) + offset
            control.on_loss(self.now + offset, signal)

    @rule(step=STEPS, times=st.integers(1, 8))
    def timeout(self, step: int, times: int) -> None:
        for _ in range(times):
            self.now += step
            for control, offset in self.instances():
                control.on_timeout(self.now + offset)

    @rule(idle=st.sampled_from([0, 1, US, SECOND, 3600 * SECOND]))
    def idle(self, idle: int) -> None:
        self.now += idle
        for control, offset in self.instances():
            control.on_idle(self.now + offset, idle)

    @rule(step=STEPS)
    def path_change(self, step: int) -> None:
        self.now += step
        for control, offset in self.instances():
            control.on_path_change(self.now + offset)

    @rule(jump=st.integers(SECOND, 1 << 52))
    def clock_jump(self, jump: int) -> None:
        self.now += jump

    def instances(self) -> list[tuple[Control, int]]:
        return [(self.control, 0), (self.shifted, self.shift), (self.repeated, 0)]

    @invariant()
    def it_may_send_within_its_bounds(self) -> None:
        window, rate = self.control.window, self.control.rate
        assert type(window) is int, f"window {window!r} is no integer"
        assert type(rate) is int, f"rate {rate!r} is no integer"
        assert rate >= 0, f"rate {rate} is negative"
        assert window >= self.env.segment or rate > 0, f"window {window} below a segment, and no rate"
        assert 0 <= window <= self.env.max_window, f"window {window} out of bounds"

    @invariant()
    def every_number_in_it_is_finite(self) -> None:
        for name in dir(self.control):
            value = getattr(self.control, name)
            assert not isinstance(value, float) or math.isfinite(value), f"{name} is {value}"

    @invariant()
    def shifted_times_and_the_same_events_give_the_same_answers(self) -> None:
        self.compare()

    def compare(self) -> None:
        answer = (self.control.window, self.control.rate)
        shifted = (self.shifted.window, self.shifted.rate)
        assert shifted == answer, f"shifted by {self.shift}: {shifted} is not {answer}"
        repeated = (self.repeated.window, self.repeated.rate)
        assert repeated == answer, f"not deterministic: {repeated} is not {answer}"


def check(control_class: type[Control], **options: Any) -> None:
    model = type("Model", (ControlModel,), {"control_class": control_class})
    run_state_machine_as_test(model, settings=settings(settings.default, **options))


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_built_in_control_survives_any_sequence_of_events(name: str) -> None:
    check(resolve(name))


def test_the_base_class_survives_any_sequence_of_events() -> None:
    check(Control)


def test_a_control_in_a_users_file_survives_any_sequence_of_events(tmp_path: Path) -> None:
    check(resolve(write_example(tmp_path)))


class AbsoluteTime(Control):
    """Adjusts once per round trip, the last time at the beginning of time."""

    def __init__(self, parameters: Parameters, env: Environment) -> None:
        super().__init__(parameters, env)
        self.env, self.adjusted = env, 0

    def on_ack(self, now: int, ack: AckSignal) -> None:
        if now - self.adjusted > self.env.base_rtt:
            self.adjusted = now
            self.window = max(self.window // 2, self.env.segment)


class Shut(Control):
    """Halves without a floor."""

    def on_timeout(self, now: int) -> None:
        self.window //= 2


class Boundless(Control):
    """Grows without a ceiling."""

    def on_ack(self, now: int, ack: AckSignal) -> None:
        self.window += ack.acked_bytes


class NotANumber(Control):
    """Divides the share of marks by nothing."""

    share = 0.0

    def on_ack(self, now: int, ack: AckSignal) -> None:
        self.share = ack.marked_bytes / ack.acked_bytes if ack.acked_bytes else math.nan


class NegativeRate(Control):
    """Takes a round trip that was not measured for one."""

    def on_ack(self, now: int, ack: AckSignal) -> None:
        self.rate = min(ack.rtt, 10**9)


class Moody(Control):
    """Draws from a source all instances share."""

    moods = itertools.cycle([1, 2, 3, 4])

    def on_path_change(self, now: int) -> None:
        self.rate = next(self.moods)


class DividesByTime(Control):
    """Expects time to pass between events."""

    def __init__(self, parameters: Parameters, env: Environment) -> None:
        super().__init__(parameters, env)
        self.last = env.now

    def on_ack(self, now: int, ack: AckSignal) -> None:
        self.rate = abs(ack.acked_bytes * 8 // (now - self.last)) + 1
        self.last = now


@pytest.mark.parametrize(
    ("broken", "error", "told"),
    [
        (AbsoluteTime, AssertionError, "shifted by"),
        (Shut, AssertionError, "below a segment, and no rate"),
        (Boundless, AssertionError, "out of bounds"),
        (NotANumber, AssertionError, "share is nan"),
        (NegativeRate, AssertionError, "is negative"),
        (Moody, AssertionError, "is not"),
        (DividesByTime, ZeroDivisionError, "zero"),
    ],
)
def test_the_model_catches_a_broken_control(broken: type[Control], error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=told):
        check(
            broken,
            derandomize=True,
            database=None,
            phases=[Phase.generate],
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        )
