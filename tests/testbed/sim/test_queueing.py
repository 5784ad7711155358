"""The port against queueing theory: what a simulator must get right before anything that it says is believed."""

from __future__ import annotations

import random

import pytest

from testbed.sim.loop import Event
from tests.testbed.sim.bench import Bench

#: Frames of each run.
COUNT = 200_000
#: Picoseconds that stand for a unit of time: a frame of 1000 bytes takes 0.8 of it, which is a service rate of 1.25.
UNIT = 1_000_000


class Arrivals(Event):
    """Frames with random or constant gaps and sizes. waits: how long each was in queue and service."""

    def __init__(self, bench: Bench, gap, size) -> None:  # type: ignore[no-untyped-def]
        Event.__init__(self)
        self.bench, self.gap, self.size = bench, gap, size
        self.came: list[int] = []
        bench.loop.arm(self, 0)

    def fire(self, now: int) -> None:
        self.bench.send(len(self.came), self.size())
        self.came.append(now)
        if len(self.came) < COUNT:
            self.bench.loop.arm(self, now + self.gap())


def times_in_system(gap, size) -> list[float]:  # type: ignore[no-untyped-def]
    """Units of time that each frame spent at the port."""
    bench = Bench(rate=8 * 1000 * 1_000_000_000_000 // (8 * UNIT // 10))
    arrivals = Arrivals(bench, gap, size)
    return [(when - arrivals.came[seq]) / UNIT for when, seq in bench.run()]


def test_m_m_1() -> None:
    rng = random.Random(1)
    took = times_in_system(
        lambda: round(rng.expovariate(0.5) * UNIT), lambda: max(0, round(rng.expovariate(1) * 100_000) // 100 - 64)
    )
    time = sum(took) / COUNT
    assert time == pytest.approx(4 / 3, rel=0.03)
    assert 0.5 * time == pytest.approx(2 / 3, rel=0.03)  # in system, by Little's law


def test_m_d_1_waits_half_of_m_m_1() -> None:
    rng = random.Random(2)
    took = times_in_system(lambda: round(rng.expovariate(0.5) * UNIT), lambda: 936)
    assert sum(took) / COUNT - 0.8 == pytest.approx((4 / 3 - 0.8) / 2, rel=0.03)


def test_d_d_1_does_not_wait() -> None:
    assert set(times_in_system(lambda: 2 * UNIT, lambda: 936)) == {0.8}


def test_kingman_for_gaps_and_sizes_of_little_variance() -> None:
    """rho/(1 - rho) * (ca^2 + cs^2)/2 * tau is exact for M/G/1: ca = 1, and cs of sizes spread evenly over 500 to 1500
    bytes is 1/(2 sqrt 3)."""
    rng = random.Random(3)
    took = times_in_system(lambda: round(rng.expovariate(0.5) * UNIT), lambda: rng.randrange(436, 1437))
    wait = 0.4 / 0.6 * (1 + 1 / 12) / 2 * 0.8
    assert sum(took) / COUNT - 0.8 == pytest.approx(wait, rel=0.03)
