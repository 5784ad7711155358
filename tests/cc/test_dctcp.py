from __future__ import annotations

from statistics import mean
from typing import Any

import pytest

from cc.base import Environment
from cc.registry import make, resolve
from cc.signals import AckSignal, LossSignal
from tests.cc.loop import US, Bottleneck, ack, drive, environment

SEGMENT = 4096
START = 7_000 * US


def dctcp(now: int = START, **values: object) -> Any:
    env = Environment(SEGMENT, 100_000_000_000, 12 * US, 8 << 20, now)
    return make(resolve("dctcp"), values, env)


def lost(sent_at: int, in_flight: int = 0, trimmed: bool = False) -> LossSignal:
    signal = LossSignal()
    signal.lost_bytes, signal.lost_packets = SEGMENT, 1
    signal.sent_at, signal.in_flight, signal.trimmed = sent_at, in_flight, trimmed
    return signal


def one_window(control: Any, marked: int, of: int) -> None:
    """A window of `of` segments comes back one by one, the last `marked` of them with CE; as much is sent anew."""
    for index in range(of):
        control.on_ack(START, ack(SEGMENT, in_flight=of * SEGMENT, marked=index >= of - marked))


@pytest.mark.parametrize("marked", [0, 1, 4, 16])
def test_alpha_converges_to_the_share_of_marked_bytes(marked: int) -> None:
    control = dctcp()
    for _ in range(200):
        one_window(control, marked, of=16)
    assert control.alpha == pytest.approx(marked / 16, abs=0.01)


def test_alpha_moves_by_g_once_per_window() -> None:
    control = dctcp(initial_alpha=0.0)
    control.on_ack(START, ack(SEGMENT, in_flight=8 * SEGMENT))
    before = control.alpha
    for _ in range(7):
        control.on_ack(START, ack(SEGMENT, in_flight=8 * SEGMENT, marked=True))
    assert control.alpha == before
    control.on_ack(START, ack(SEGMENT, in_flight=8 * SEGMENT, marked=True))
    assert control.alpha == pytest.approx(1 / 16)


def test_marks_cut_once_per_window() -> None:
    control = dctcp()
    first = control.window
    control.on_ack(START, ack(SEGMENT, in_flight=10 * SEGMENT, marked=True))
    cut = control.window
    assert cut == pytest.approx(first / 2, abs=1)
    for _ in range(9):
        control.on_ack(START, ack(SEGMENT, in_flight=10 * SEGMENT, marked=True))
    assert control.window == cut
    control.on_ack(START, ack(SEGMENT, in_flight=10 * SEGMENT, marked=True))
    assert control.window < cut


def test_few_marks_cut_little() -> None:
    control = dctcp(initial_alpha=0.1)
    control.on_ack(START, ack(SEGMENT, in_flight=SEGMENT))
    before, alpha = control.window, control.alpha
    control.on_ack(START, ack(SEGMENT // 2, in_flight=SEGMENT, marked=True))
    assert control.window == pytest.approx(before * (1 - alpha / 2), abs=2)


def test_slow_start_doubles_until_the_first_mark() -> None:
    control = dctcp(initial_window=0.1)
    start = control.window
    control.on_ack(START, ack(start, in_flight=start))
    assert control.window == 2 * start
    control.on_ack(START, ack(2 * start, in_flight=2 * start, marked=True))
    after = control.window
    control.on_ack(START, ack(2 * start, in_flight=after))
    control.on_ack(START, ack(after, in_flight=after))
    assert after < control.window <= after + 2 * SEGMENT


def test_congestion_avoidance_adds_one_segment_per_round_trip() -> None:
    control = dctcp()
    control.on_loss(START, lost(START))
    window = control.window
    for _ in range(10):
        control.on_ack(START, ack(window // 10, in_flight=window))
    assert control.window == pytest.approx(window + SEGMENT, abs=SEGMENT / 10)


def test_a_sender_without_more_to_send_does_not_grow() -> None:
    control = dctcp()
    window = control.window
    unlimited: AckSignal = ack(window, in_flight=0)
    unlimited.window_limited = False
    control.on_ack(START, unlimited)
    assert control.window == window


@pytest.mark.parametrize("trimmed", [False, True])
def test_losses_of_one_window_halve_once(trimmed: bool) -> None:
    control = dctcp()
    window = control.window
    control.on_loss(START + 20 * US, lost(START + 5 * US, window // 2, trimmed))
    half = control.window
    assert half == window // 2
    control.on_loss(START + 25 * US, lost(START + 19 * US, window // 2, trimmed))
    assert control.window == half
    control.on_loss(START + 40 * US, lost(START + 21 * US, window // 2, trimmed))
    assert control.window == half // 2


def test_a_loss_of_the_first_packet_counts() -> None:
    control = dctcp()
    window = control.window
    control.on_loss(START + 20 * US, lost(START))
    assert control.window == window // 2


def test_after_timeouts_it_slow_starts_to_half_of_the_window_before_the_first() -> None:
    control = dctcp()
    window = control.window
    for step in range(3):
        control.on_timeout(START + step * 1000 * US)
        assert control.window == SEGMENT
    for _ in range(4):
        control.on_ack(START, ack(control.window, in_flight=control.window))
    assert control.window == 16 * SEGMENT
    control.on_ack(START, ack(control.window, in_flight=control.window))
    assert control.window == window // 2


def test_late_acks_of_an_older_window_after_a_timeout_do_no_more_than_double() -> None:
    control = dctcp()
    control.on_timeout(START)
    control.on_ack(START, ack(4 << 20, in_flight=0))
    assert control.window == 2 * SEGMENT


def test_a_large_window_is_not_kept_over_a_long_idle_time() -> None:
    control = dctcp()
    initial = control.window
    for _ in range(4):
        control.on_ack(START, ack(control.window, in_flight=control.window))
    grown = control.window
    control.on_idle(START, 99 * 12 * US)
    assert control.window == grown
    control.on_idle(START, 101 * 12 * US)
    assert control.window == initial


@pytest.mark.parametrize("senders", [1, 2, 16, 32])
def test_a_marking_queue_is_kept_at_its_threshold_and_the_link_busy(senders: int) -> None:
    link = Bottleneck(mark_above=100_000)
    controls = [make(resolve("dctcp"), None, environment(link)) for _ in range(senders)]
    tail = drive(controls, link, 400)[200:]
    assert mean(min(1.0, sum(r.shares) / link.bdp) for r in tail) > 0.95
    assert mean(r.queue for r in tail) < 100_000 + senders * 2 * SEGMENT
