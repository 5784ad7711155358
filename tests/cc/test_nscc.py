from __future__ import annotations

from statistics import mean
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cc.base import Environment
from cc.registry import make, resolve
from cc.signals import LossSignal
from tests.cc.loop import US, Bottleneck, ack, drive, environment

SEGMENT = 4096
START = 7_000 * US
BASE = 12 * US
BDP = 150_000  #: also the reference network's: all scalings are 1
MOST = 225_000
PERIOD = 2 * BASE  #: of quick adapt: base round trip and target
HIGH = BASE + BASE  #: a round trip at the target
CLEAR = BASE


def nscc(now: int = START, **values: object) -> Any:
    return make(resolve("nscc"), values, Environment(SEGMENT, 100_000_000_000, BASE, 8 << 20, now))


def narrowed(window: int = BDP // 2, **values: object) -> Any:
    """One that has room to grow."""
    control = nscc(**values)
    control.cwnd, control.window = float(window), window
    return control


def lost(size: int, sent_at: int = START, in_flight: int = 0, trimmed: bool = False) -> LossSignal:
    signal = LossSignal()
    signal.lost_bytes, signal.lost_packets = size, -(-size // SEGMENT)
    signal.sent_at, signal.in_flight, signal.trimmed = sent_at, in_flight, trimmed
    return signal


def one_round_trip(control: Any, rtt: int, now: int = START, marked: bool = False, parts: int = 16) -> None:
    """A window comes back in `parts` within a base round trip from `now`."""
    window = control.window
    for part in range(parts):
        signal = ack(window // parts, rtt=rtt, in_flight=window, marked=marked)
        control.on_ack(now + (part + 1) * BASE // parts, signal)


def test_it_begins_with_its_largest_window_of_one_and_a_half_bdp() -> None:
    assert nscc().window == MOST
    small = Environment(SEGMENT, 100_000_000_000, BASE, 10 * SEGMENT, START)
    assert make(resolve("nscc"), None, small).window == 10 * SEGMENT


def test_no_growth_passes_the_largest_window_and_no_decrease_one_segment() -> None:
    control = nscc()
    for step in range(20):
        one_round_trip(control, CLEAR, START + step * BASE)
    assert control.window == MOST
    control.on_loss(START + 20 * BASE, lost(10 * MOST))
    assert control.window == SEGMENT


# The four cases


@pytest.mark.parametrize(("share", "segments"), [(0.5, 2.0), (0.75, 1.0), (0.9, 0.4)])
def test_unmarked_below_the_target_it_grows_in_proportion_to_what_is_missing(share: float, segments: float) -> None:
    control = narrowed(eta=0.0)
    before = control.window
    one_round_trip(control, BASE + int(share * BASE))
    assert control.window - before == pytest.approx(segments * SEGMENT, rel=0.05)


def test_unmarked_above_the_target_every_window_grows_by_the_same_bytes() -> None:
    grown = []
    for window in (40_000, 120_000):
        control = narrowed(window, eta=0.0)
        one_round_trip(control, HIGH)
        grown.append(control.window - window)
    assert grown == pytest.approx([5 * SEGMENT] * 2, rel=0.2)


def test_marked_above_the_target_it_falls_by_the_relative_excess_once_per_base_round_trip() -> None:
    control = narrowed()
    control.on_ack(START + PERIOD, ack(SEGMENT, rtt=BASE + 3 * BASE // 2, marked=True))
    cut = BDP / 2 * (1 - 0.8 / 3)
    assert control.cwnd == pytest.approx(cut, abs=SEGMENT)
    after = control.window
    for part in range(1, 5):
        control.on_ack(START + PERIOD + part * BASE // 4, ack(SEGMENT, rtt=BASE + 3 * BASE // 2, marked=True))
    assert after <= control.window < after + SEGMENT
    control.on_ack(START + PERIOD + BASE + 1, ack(SEGMENT, rtt=BASE + 3 * BASE // 2, marked=True))
    assert control.window < 0.75 * after


def test_no_decrease_by_marks_takes_more_than_max_md_jump() -> None:
    control = narrowed(max_md_jump=0.7, qa_threshold=0.0)
    control.on_ack(START + PERIOD, ack(SEGMENT, rtt=1000 * BASE, marked=True))
    assert control.cwnd == pytest.approx(0.7 * BDP / 2, abs=SEGMENT)


def test_marked_below_the_target_nothing_happens() -> None:
    control = narrowed(eta=0.0)
    for step in range(5):
        one_round_trip(control, BASE + BASE // 2, START + step * BASE, marked=True)
    assert control.window == BDP // 2


def test_a_high_sample_does_not_cut_while_the_average_is_low() -> None:
    control = narrowed(eta=0.0)
    control.on_ack(START, ack(SEGMENT, rtt=CLEAR))
    before = control.window
    control.on_ack(START + BASE // 4, ack(SEGMENT, rtt=BASE + 2 * BASE, marked=True))
    assert control.window == before


def test_an_ack_for_marked_and_unmarked_packets_counts_as_one_for_each() -> None:
    control, other = narrowed(eta=0.0), narrowed(eta=0.0)
    signal = ack(8 * SEGMENT, rtt=BASE + BASE // 2)
    signal.marked_bytes = 4 * SEGMENT
    control.on_ack(START + BASE, signal)
    other.on_ack(START + BASE, ack(4 * SEGMENT, rtt=BASE + BASE // 2))
    assert control.window == other.window > BDP // 2


def test_each_round_trip_adds_eta() -> None:
    control = narrowed(eta=2.0)
    for step in range(1, 4):
        control.on_ack(START + step * BASE, ack(SEGMENT, rtt=BASE + BASE // 2, marked=True))
    assert control.window == BDP // 2 + 6 * SEGMENT


def test_the_median_of_the_paths_outweighs_the_latest_sample() -> None:
    control = narrowed()
    before = control.window
    control.on_ack(START + PERIOD, ack(SEGMENT, rtt=CLEAR, median=3 * BASE, marked=True))
    assert control.window < before


def test_without_any_round_trip_nothing_moves() -> None:
    control = narrowed()
    control.on_ack(START + BASE, ack(SEGMENT))
    control.on_ack(START + 3 * BASE, ack(SEGMENT, marked=True))
    assert control.window == BDP // 2


def test_a_sender_without_more_to_send_does_not_grow() -> None:
    control = narrowed()
    for step in range(40):
        signal = ack(BDP // 8, rtt=CLEAR)
        signal.window_limited = False
        control.on_ack(START + step * BASE // 4, signal)
    assert control.window == BDP // 2


# Fast increase


def test_fast_increase_begins_once_a_whole_window_met_no_delay_and_ends_with_the_first_that_did() -> None:
    control = narrowed(eta=0.0, alpha=0.0)
    window = control.window
    for _ in range(8):
        control.on_ack(START, ack(window // 8, rtt=CLEAR))
    assert control.window == window
    control.on_ack(START, ack(SEGMENT, rtt=CLEAR))
    assert control.window == pytest.approx(window + SEGMENT / 4, abs=1)
    window = control.window
    control.on_ack(START, ack(SEGMENT, rtt=BASE + US))
    control.on_ack(START, ack(SEGMENT, rtt=CLEAR))
    assert control.window == window


def test_fast_increase_takes_a_segment_to_the_line_rate_in_twenty_round_trips() -> None:
    control = narrowed(SEGMENT)
    for step in range(20):
        one_round_trip(control, CLEAR, START + step * BASE, parts=1)
    assert control.window > BDP


@pytest.mark.parametrize("trimmed", [False, True])
def test_a_loss_ends_fast_increase(trimmed: bool) -> None:
    control = narrowed(eta=0.0, alpha=0.0)
    for _ in range(2):
        control.on_ack(START, ack(control.window, rtt=CLEAR))
    control.on_loss(START, lost(SEGMENT, trimmed=trimmed))
    window = control.window
    control.on_ack(START, ack(SEGMENT, rtt=CLEAR))
    assert control.window == window


# Losses and quick adapt


@pytest.mark.parametrize("trimmed", [False, True])
def test_a_lost_packet_takes_its_own_bytes_off_the_window(trimmed: bool) -> None:
    control = nscc()
    control.on_loss(START, lost(3 * SEGMENT, trimmed=trimmed))
    assert control.window == MOST - 3 * SEGMENT


def adapted(got_through: int, **signals: Any) -> Any:
    """A period in which that many bytes were acknowledged and a packet may have been lost, and the ACK that ends it."""
    control = nscc()
    control.on_ack(START, ack(SEGMENT, rtt=CLEAR, in_flight=MOST))
    control.on_ack(START + US, ack(got_through - SEGMENT, rtt=CLEAR, in_flight=MOST))
    if signals.get("losing"):
        control.on_loss(START + 2 * US, lost(SEGMENT, in_flight=MOST))
    control.on_ack(START + PERIOD, ack(SEGMENT, rtt=signals.get("rtt", CLEAR), in_flight=8 * SEGMENT))
    return control


def test_heavy_loss_sets_the_window_to_what_got_through() -> None:
    assert adapted(5 * SEGMENT, losing=True).window == 5 * SEGMENT


def test_a_delay_beyond_four_targets_sets_the_window_to_what_got_through() -> None:
    assert adapted(5 * SEGMENT, rtt=BASE + 4 * BASE + 1).window == 5 * SEGMENT
    assert adapted(5 * SEGMENT, rtt=BASE + 4 * BASE).window == MOST


def test_nothing_is_adapted_where_an_eighth_of_the_largest_window_got_through_or_nothing_was_lost() -> None:
    assert adapted(MOST // 8 + SEGMENT, losing=True).window == pytest.approx(MOST, abs=SEGMENT)
    assert adapted(5 * SEGMENT).window == MOST


def test_nothing_that_got_through_leaves_one_segment() -> None:
    control = nscc()
    control.on_ack(START, ack(SEGMENT, rtt=CLEAR, in_flight=MOST))
    for step in range(10):
        control.on_loss(START + (step + 1) * PERIOD // 10, lost(SEGMENT, in_flight=MOST))
    assert control.window == SEGMENT


def test_what_was_in_flight_at_a_quick_adapt_was_answered_by_it() -> None:
    control = adapted(5 * SEGMENT, losing=True)
    now = START + PERIOD + US
    for _ in range(4):
        control.on_ack(now, ack(SEGMENT, rtt=BASE + 3 * BASE, marked=True))
        control.on_loss(now, lost(SEGMENT))
    window = control.window
    assert window >= 5 * SEGMENT
    control.on_ack(now + 2 * BASE, ack(SEGMENT, rtt=BASE + 3 * BASE, marked=True))
    assert control.window < window


def test_quick_adapt_does_not_raise_the_window() -> None:
    control = narrowed(2 * SEGMENT, eta=0.0, alpha=0.0)
    for _ in range(3):
        control.on_ack(START, ack(2 * SEGMENT, rtt=BASE + 2 * US))
    control.on_loss(START + US, lost(1))
    control.on_ack(START + PERIOD, ack(SEGMENT, rtt=BASE + 2 * US))
    assert control.window == 2 * SEGMENT - 1


def test_a_timeout_leaves_one_segment() -> None:
    control = nscc()
    control.on_timeout(START + 50 * BASE)
    assert control.window == SEGMENT


def test_what_got_through_is_not_counted_over_an_idle_time() -> None:
    control = nscc()
    control.on_ack(START, ack(SEGMENT, rtt=CLEAR))
    control.on_idle(START + 100 * BASE, 99 * BASE)
    control.on_loss(START + 101 * BASE, lost(SEGMENT))
    assert control.window == MOST - SEGMENT


# What follows from what


def answer(delay: int, marked: bool, average: int = BASE) -> int:
    """The window after a round trip at one delay, begun from the same state."""
    control = narrowed(qa_threshold=0.0)
    control.on_ack(START, ack(SEGMENT, rtt=BASE + average, marked=True))
    one_round_trip(control, BASE + delay, START + BASE, marked=marked)
    return int(control.window)


def test_more_delay_means_less_growth_below_the_target_and_deeper_cuts_above_it() -> None:
    """Not so across the target: just below it there is hardly any growth, above it fair increase."""
    below = [answer(delay, marked=False) for delay in range(US, BASE, US)]
    assert below == sorted(below, reverse=True)
    assert below[0] > below[-1]
    above = [answer(delay, marked=False) for delay in range(BASE, 6 * BASE, US)]
    assert len(set(above)) == 1
    cuts = [answer(delay, marked=True) for delay in range(0, 8 * BASE, US)]
    assert cuts == sorted(cuts, reverse=True)
    assert cuts[0] > cuts[-1]


@given(st.integers(0, 20 * BASE), st.integers(0, 20 * BASE))
def test_a_mark_never_means_a_larger_window(delay: int, average: int) -> None:
    assert answer(delay, marked=True, average=average) <= answer(delay, marked=False, average=average)


events = st.lists(
    st.tuples(
        st.sampled_from(["ack", "ack", "ack", "mark", "loss", "trim", "timeout", "idle", "paths"]),
        st.integers(0, 2 * BASE),
        st.integers(0, 8 * BASE),
        st.integers(1, BDP),
    ),
    max_size=60,
)


@given(events, st.integers(1, 1 << 60))
def test_the_same_events_at_shifted_times_give_the_same_windows(plan: list[tuple[str, int, int, int]], by: int) -> None:
    windows = []
    for origin in (0, by):
        control, now = nscc(origin), origin
        windows.append([control.window])
        for kind, step, delay, size in plan:
            now += step
            if kind in ("ack", "mark"):
                control.on_ack(now, ack(size, rtt=BASE + delay, in_flight=size, marked=kind == "mark"))
            elif kind in ("loss", "trim"):
                control.on_loss(now, lost(size, max(now - delay, origin), size, kind == "trim"))
            elif kind == "timeout":
                control.on_timeout(now)
            elif kind == "idle":
                control.on_idle(now, step)
            else:
                control.on_path_change(now)
            windows[-1].append(control.window)
            assert SEGMENT <= control.window <= MOST
    assert windows[0] == windows[1]


@pytest.mark.parametrize("senders", [2, 8, 16])
@pytest.mark.parametrize("target", [0.75, 1.0])
def test_a_shared_queue_that_marks_is_held_at_the_target_and_the_link_busy(senders: int, target: float) -> None:
    link = Bottleneck(mark_above=60_000)
    controls = [make(resolve("nscc"), {"target": target}, environment(link)) for _ in range(senders)]
    tail = drive(controls, link, 400)[200:]
    assert mean(r.delay for r in tail) == pytest.approx((1 + target) * link.base_rtt, rel=0.1)
    assert mean(min(1.0, sum(r.shares) / link.bdp) for r in tail) > 0.95


def test_a_late_joiner_gets_its_share() -> None:
    link = Bottleneck(mark_above=60_000)
    first, second = (make(resolve("nscc"), None, environment(link)) for _ in range(2))
    drive([first], link, 50)
    second.window = SEGMENT
    second.cwnd = float(SEGMENT)  # type: ignore[attr-defined]
    tail = drive([first, second], link, 300, now=123_456_789 + 51 * link.base_rtt)[250:]
    assert mean(r.shares[1] / sum(r.shares) for r in tail) == pytest.approx(0.5, abs=0.1)
