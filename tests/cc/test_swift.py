from __future__ import annotations

import random
from statistics import mean
from typing import Any

import pytest

from cc.base import Control, Environment
from cc.registry import make, resolve
from cc.signals import LossSignal
from tests.cc.loop import US, Bottleneck, ack, drive, environment

SEGMENT = 4096
START = 7_000 * US
BASE = 12 * US
SLOW = 2 * BASE  #: above any target of a large window, below what small ones may have


def swift(**values: object) -> Any:
    return make(resolve("swift"), values, Environment(SEGMENT, 100_000_000_000, BASE, 8 << 20, START))


def fleet(count: int, link: Bottleneck, **values: object) -> list[Control]:
    return [make(resolve("swift"), values, environment(link)) for _ in range(count)]


def lost(sent_at: int) -> LossSignal:
    signal = LossSignal()
    signal.lost_bytes, signal.lost_packets, signal.sent_at = SEGMENT, 1, sent_at
    return signal


def test_below_target_it_adds_ai_per_round_trip() -> None:
    control = swift(ai=2.0)
    window = control.window
    for _ in range(10):
        control.on_ack(START, ack(window // 10, rtt=BASE))
    assert control.window == pytest.approx(window + 2 * SEGMENT, abs=SEGMENT / 10)


def test_one_ack_for_much_adds_no_more_than_a_round_trip_would() -> None:
    control = swift()
    window = control.window
    control.on_ack(START, ack(1 << 30, rtt=BASE))
    assert control.window <= window + SEGMENT


def test_above_target_it_cuts_once_per_round_trip_by_the_relative_excess() -> None:
    control = swift(fs_range=0.0)
    before = control.cwnd
    control.on_ack(START + SLOW, ack(SEGMENT, rtt=SLOW))
    assert control.cwnd == pytest.approx(before * (1 - 0.8 * (2 - 1.5) / 2))
    cut = control.cwnd
    control.on_ack(START + 2 * SLOW - 1, ack(SEGMENT, rtt=SLOW))
    assert control.cwnd == cut
    control.on_ack(START + 2 * SLOW, ack(SEGMENT, rtt=SLOW))
    assert control.cwnd < cut


def test_no_round_trip_cuts_more_than_max_mdf() -> None:
    control = swift(max_mdf=0.3)
    before = control.cwnd
    control.on_ack(START + 1000 * BASE, ack(SEGMENT, rtt=1000 * BASE))
    assert control.cwnd == pytest.approx(before * 0.7)


def test_the_median_of_the_paths_outweighs_the_latest_sample() -> None:
    control = swift()
    before = control.cwnd
    control.on_ack(START + 100 * BASE, ack(SEGMENT, rtt=50 * BASE, median=BASE))
    assert control.cwnd > before
    before = control.cwnd
    control.on_ack(START + 200 * BASE, ack(SEGMENT, rtt=BASE, median=50 * BASE))
    assert control.cwnd < before


def test_without_any_delay_sample_nothing_moves() -> None:
    control = swift()
    before = control.cwnd
    control.on_ack(START, ack(SEGMENT))
    assert control.cwnd == before


def test_small_windows_get_a_higher_target() -> None:
    control = swift()
    targets = []
    for cwnd in (200.0, 100.0, 10.0, 1.0, 0.1):
        control.cwnd = cwnd
        targets.append(control.target() / BASE)
    assert targets[0] == targets[1] == pytest.approx(1.5)
    assert targets[-1] == pytest.approx(5.5)
    assert targets[1:] == sorted(set(targets))


def test_below_one_segment_the_window_stays_and_segments_leave_rtt_over_w_apart() -> None:
    control = swift(unmoved_rounds=0)
    now = START
    while control.cwnd >= 0.5:
        now += 100 * BASE
        control.on_ack(now, ack(SEGMENT, rtt=100 * BASE))
    assert control.window == SEGMENT
    gap = SEGMENT * 8e12 / control.rate
    assert gap == pytest.approx(100 * BASE / control.cwnd, rel=1e-3)


def test_pacing_ends_when_delay_falls() -> None:
    control = swift()
    for _ in range(5):
        control.on_timeout(START + BASE)
    assert control.cwnd == pytest.approx(0.1)
    assert control.rate > 0
    control.on_ack(START + 2 * BASE, ack(SEGMENT, rtt=BASE))
    assert (control.window, control.rate) == (pytest.approx(1.1 * SEGMENT, abs=1), 0)


def test_losses_of_one_round_trip_cut_once() -> None:
    control = swift()
    before = control.cwnd
    control.on_loss(START + 20 * US, lost(START))
    control.on_loss(START + 25 * US, lost(START + 19 * US))
    assert control.cwnd == pytest.approx(before / 2)
    control.on_loss(START + 40 * US, lost(START + 21 * US))
    assert control.cwnd == pytest.approx(before / 4)


def test_timeouts_in_a_row_reset_and_an_ack_between_them_does_not() -> None:
    control = swift()
    for step in range(1, 5):
        control.on_timeout(START + step * 100 * BASE)
    control.on_ack(START + 401 * BASE, ack(SEGMENT, rtt=BASE))
    control.on_timeout(START + 600 * BASE)
    assert control.cwnd > 1.0
    for step in range(7, 11):
        control.on_timeout(START + step * 100 * BASE)
    assert control.cwnd == pytest.approx(0.1)


@pytest.mark.parametrize("senders", [1, 2, 16, 32, 200, 1000])
def test_a_shared_queue_is_held_at_the_target(senders: int) -> None:
    link = Bottleneck()
    controls = fleet(senders, link)
    tail = drive(controls, link, 120)[80:]
    target = mean(c.target() for c in controls)  # type: ignore[attr-defined]
    assert mean(r.delay for r in tail) == pytest.approx(target, rel=0.15)
    assert mean(r.delay for r in tail) <= 5.5 * link.base_rtt
    assert mean(min(1.0, sum(r.shares) / link.bdp) for r in tail) > 0.95


def test_senders_that_join_one_by_one_do_not_pass_for_delay_that_nobody_makes() -> None:
    link = Bottleneck()
    controls: list[Control] = []
    now = START
    for _ in range(64):
        controls += [make(resolve("swift"), None, environment(link, now=now))]
        history = drive(controls, link, 1, now)
        now += history[-1].delay
        assert history[-1].delay < 10 * link.base_rtt
    assert drive(controls, link, 50, now)[-1].delay < 5.5 * link.base_rtt


@pytest.mark.parametrize(("median", "spread"), [(10, 0.3), (50, 0.5), (100, 0.8)])
def test_a_host_that_schedules_late_does_not_starve_it(median: int, spread: float) -> None:
    link = Bottleneck(rate=10_000_000_000, base_rtt=100 * US)
    noise = random.Random(1)

    def delay(_: int) -> int:
        return int(link.base_rtt * max(0.5, median * noise.lognormvariate(0, spread)))

    tail = drive(fleet(1, link), link, 400, delay_of=delay)[100:]
    plain = drive(fleet(1, link, unmoved_rounds=0), link, 400, delay_of=delay)[100:]
    assert mean(sum(r.shares) for r in tail) > link.bdp / 2
    assert mean(sum(r.shares) for r in plain) < link.bdp / 10


def test_a_mark_proves_a_queue_and_ends_the_tolerance_of_delay() -> None:
    control = swift()
    now = START
    for _ in range(10):
        now += 60 * BASE
        control.on_ack(now, ack(SEGMENT, rtt=60 * BASE))
    assert control.target() >= 60 * BASE
    control.on_ack(now + 1, ack(SEGMENT, rtt=60 * BASE, marked=True))
    assert control.target() < 6 * BASE


def test_cuts_that_an_idle_time_interrupts_are_taken_back() -> None:
    control = swift()
    before, now = control.cwnd, START
    for _ in range(2):
        now += 60 * BASE
        control.on_ack(now, ack(SEGMENT, rtt=60 * BASE))
    control.on_idle(now, BASE)
    assert control.cwnd == pytest.approx(before / 4)
    control.on_idle(now + 100 * BASE, 100 * BASE)
    assert control.cwnd == pytest.approx(before)
