"""Statistics of a run and how they are judged."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.metrics import METRICS, PhaseRecord, compare, judge, spread, summarize, waves
from testbed.scenario import Limit
from transport.clock import MS, US


def record(rows: list[tuple[int, int, int, int, int]], received: list[int], **more: Any) -> PhaseRecord:
    counters = {"data_packets_sent": 100, "data_bytes_sent": 4096 * 100, "retransmits": 3, "spurious": 1}
    messages = np.array(rows, dtype=np.int64).reshape(-1, 5)
    return PhaseRecord("one", len(received), messages, counters, np.array(received), 4, **more)


def test_durations_run_from_the_first_post_to_the_last_completion() -> None:
    values = summarize([record([(0, 1, 1000, 5 * US, 9 * US), (0, 1, 3000, 6 * US, 25 * US)], [0, 4000])], None, 4096)
    assert values["duration_us"] == 20
    assert values["first_fct_us"] == 4
    assert values["tail_fct_us"] == 19
    assert values["goodput_gbps"] == pytest.approx(4000 * 8 / 20e-6 / 1e9)
    assert values["goodput_percent"] is None


def test_wire_bytes_have_64_bytes_of_headers_for_every_packet() -> None:
    values = summarize([record([(0, 1, 10, 0, US)], [0, 10])], None, 4096)
    assert values["wire_bytes"] == 4096 * 100 + 64 * 100
    assert values["retransmit_percent"] == 3


def test_goodput_percent_is_of_what_the_hottest_link_carries_after_headers() -> None:
    rate = 100_000_000_000
    size = 1 << 20
    exact = size // 4096 * (4096 + 64) * 80  # picoseconds at 80 a byte
    values = summarize(
        [record([(0, 1, size, 0, exact), (0, 2, size // 2, 0, exact)], [0, size, size // 2])], rate, 4096
    )
    assert values["goodput_percent"] == pytest.approx(100)


def test_phases_add_up_and_the_pause_between_them_does_not_count() -> None:
    first = record([(0, 1, 10, 0, US)], [0, 10], ideal=US // 2)
    second = record([(1, 0, 30, 500 * MS, 500 * MS + 3 * US)], [30, 0], ideal=US // 2)
    values = summarize([first, second], None, 4096)
    assert values["duration_us"] == 4
    assert values["logical_bytes"] == 40
    assert values["slowdown"] == 4
    assert values["packets"] == 200


def test_a_phase_without_messages_has_no_times() -> None:
    values = summarize([record([], [0, 0])], 1, 4096)
    assert values["messages"] == 0
    assert values["latency_p50_us"] is None


def test_every_metric_has_a_value_or_none() -> None:
    assert summarize([record([(0, 1, 10, 0, US)], [0, 10])], None, 4096).keys() == METRICS.keys()


def test_spread_of_equal_flows_is_zero_and_of_one_that_gets_everything_is_not() -> None:
    assert spread(np.array([5, 10]), np.array([1, 2])) == 0
    assert spread(np.array([1000, 0, 0, 0]), np.array([1, 1, 1, 1])) == pytest.approx(3**0.5)
    assert spread(np.array([0]), np.array([1])) == 0


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=20), st.integers(1, 1000))
def test_spread_is_the_coefficient_of_variation_and_has_no_unit(times: list[int], scale: int) -> None:
    sizes = np.full(len(times), 10**6)
    speeds = sizes / np.array(times)
    wanted = float(np.std(speeds) / np.mean(speeds))
    assert spread(sizes, np.array(times)) == pytest.approx(wanted, abs=1e-6)
    assert spread(sizes, np.array(times) * scale) == pytest.approx(wanted, abs=1e-6)


def test_a_change_against_the_baseline_is_absolute() -> None:
    ours: dict[str, float | None] = {"latency_p50_us": 9.0, "latency_p99_us": 11.0}
    compare(ours, {"latency_p50_us": 10.0, "latency_p99_us": 10.0})
    assert ours["latency_p50_change_percent"] == pytest.approx(10)
    assert ours["latency_p99_change_percent"] == pytest.approx(10)


@pytest.mark.parametrize(
    ("limit", "value", "passed"),
    [
        (Limit(max=2.0), 2.0, True),
        (Limit(max=2.0), 2.01, False),
        (Limit(min=97.0), 96.9, False),
        (Limit(min=1.0, max=2.0), 1.5, True),
        (Limit(equals=1.0), 1.0, True),
        (Limit(equals=1.0), 2.0, False),
        (Limit(max=0.0), None, False),
    ],
)
def test_limits(limit: Limit, value: float | None, passed: bool) -> None:
    assert [verdict.passed for verdict in judge({"retransmits": limit}, {"retransmits": value}, timed=False)] == [
        passed
    ]


def test_times_are_not_judged_on_a_real_clock() -> None:
    limits = {"tail_fct_us": Limit(max=1.0), "retransmits": Limit(max=1.0)}
    values: dict[str, float | None] = {"tail_fct_us": 9.0, "retransmits": 9}
    assert [verdict.passed for verdict in judge(limits, values, timed=False)] == [None, False]
    assert [verdict.passed for verdict in judge(limits, values, timed=True)] == [False, False]


def test_waves_are_what_is_due_at_one_moment_and_each_has_its_hot_rank() -> None:
    rows = [
        (0, 1, 500, 10 * US, 20 * US), (2, 1, 500, 10 * US, 30 * US), (0, 2, 400, 10 * US, 12 * US),
        (1, 0, 900, 110 * US, 150 * US), (0, 1, 800, 115 * US, 119 * US),
    ]  # fmt: skip
    first, second = waves(record(rows, [900, 1800, 400], starts=(5 * US, 105 * US)))
    assert first.rows[:, 0].tolist() == [0, 2, 0]
    assert first.hot.tolist() == [True, True, False]
    assert first.victims.tolist() == [False, True, False]  # rank 0 has somebody else to send to
    assert second.hot.tolist() == [True, False]


def test_hot_messages_are_told_apart_from_cold_ones_and_compared_with_what_the_link_could_do() -> None:
    rate, size = 100_000_000_000, 4096 * 100
    wire = 100 * (4096 + 64) * 80  # picoseconds
    rows = [(0, 1, size, 0, 3 * wire), (2, 1, size, 0, 2 * wire + 4 * US), (1, 0, size, 0, wire)]
    values = summarize([record(rows, [size, 2 * size, 0], base_rtt=4 * US)], rate, 4096)
    assert values["hot_max_us"] == 3 * wire / US
    assert values["cold_max_us"] == values["cold_p99_us"] == wire / US
    assert values["hot_slowdown"] == values["hot_slowdown_max"] == pytest.approx(3 * wire / (2 * wire + 4 * US))
    assert summarize([record(rows[:1], [0, size])], rate, 4096)["cold_max_us"] is None


def test_retransmissions_of_the_first_round_trip_are_apart_from_the_others() -> None:
    one = record([(0, 1, 10, 0, US)], [0, 10])
    one.counters = {**one.counters, "early_retransmits": 2}
    values = summarize([one], None, 4096)
    assert [values[f"{kind}retransmits"] for kind in ("", "early_", "late_")] == [3, 2, 1]
    assert values["late_retransmit_percent"] == 1


def test_path_changes_are_for_each_base_round_trip_that_messages_took() -> None:
    one = record([(0, 1, 10, 0, 20 * US), (2, 1, 10, 0, 20 * US)], [0, 20], base_rtt=10 * US)
    one.counters = {**one.counters, "path_changes": 6}
    assert summarize([one], None, 4096)["path_changes_per_rtt"] == 1.5


def test_ratios_are_ours_over_the_baselines() -> None:
    ours = summarize([record([(0, 1, 10, 0, 3 * US)], [0, 10])], None, 4096)
    compare(ours, summarize([record([(0, 1, 10, 0, 2 * US)], [0, 10])], None, 4096))
    assert ours["tail_fct_ratio"] == ours["victim_fct_ratio"] == 1.5
    assert ours["ack_p99_ratio"] is None


def test_a_wave_of_messages_without_bytes_has_a_hot_rank_too() -> None:
    values = summarize([record([(0, 1, 0, 0, US)], [0, 0])], None, 4096)
    assert values["hot_max_us"] == 1
