"""Rows of the scenario table over the simulated fabric: their bounds are the table's, and each can be missed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from testbed import runner, scenario
from testbed.progress import Silent
from testbed.report import RunResult

#: What the first variant of a row is held to: (metric, at least, at most).
BOUNDS: dict[str, list[tuple[str, float | None, float | None]]] = {
    "s1-one-flow": [("tail_fct_us", None, 176)],
    "s2-incast-15": [("tail_fct_us", None, 2460), ("late_retransmits", None, 99), ("fct_range_percent", None, 5)],
    "s3-incast-127": [("tail_fct_us", None, 20_750), ("late_retransmits", None, 499)],
    "s4-incast-1023": [("tail_fct_us", None, 8500)],
    "s5-outcast": [("victim_fct_ratio", None, 1.1)],
    "s6-permutation-16": [("tail_fct_us", None, 185)],
    "s7-permutation-128": [("tail_fct_us", None, 190)],
    "s8-permutation-1024": [("tail_fct_us", None, 195)],
    "s9-slow-core": [("tail_fct_us", None, 205)],
    "s10-more-paths": [("tail_fct_ratio", None, 1)],
    "s10-more-paths-quick": [("tail_fct_ratio", None, 1)],
    "w1-incast-32": [("tail_fct_us", None, 2632), ("latency_cv", None, 0.008), ("late_retransmits", None, 99)],
    "w2-permutation": [("tail_fct_us", None, 186)],
    "w3-moving-port": [("tail_fct_us", None, 697), ("latency_cv", None, 0.01)],
    "w4-moe-hot": [("cold_max_us", None, 190), ("hot_max_us", None, 675)],
    "w5-long-flows": [("queue_p99_bytes", None, 5 * 4160), ("goodput_percent", 97, None)],
    "w7-dead-cables": [("tail_fct_ratio", None, 0.2)],
    "moving-incast": [
        ("hot_slowdown", None, 1.02), ("cold_p99_us", None, 50), ("late_retransmit_percent", None, 2),
    ],
    "c1-low-variance": [("latency_cv", None, 0.01), ("goodput_percent", 97, None)],
    "c3-switch-path": [("faulty_cables_percent", None, 5), ("window_least_percent", 100, None)],
    "c4-slow-down": [("in_flight_percent", None, 50), ("path_changes_per_rtt", None, 1)],
    "c5-hot-port": [("hot_port_percent", 95, None)],
    "c9-ack-priority": [("ack_p99_ratio", None, 1.5)],
}  # fmt: skip


def run(name: str, *overrides: str, only: tuple[str, ...] = ()) -> RunResult:
    """Over the fabric. only: the variants that are run, all if none is named."""
    loaded = scenario.load(name, overrides)
    variants = tuple(variant for variant in loaded.variants if not only or variant.name in only)
    return runner.run(replace(loaded, variants=variants), "sim", Silent())


def missed(result: RunResult, variant: int = 0) -> set[str]:
    """The metrics whose bounds a variant did not meet."""
    return {verdict.name for verdict in result.variants[variant].expect if not verdict.passed}


def figure(result: RunResult, name: str, variant: int = 0) -> float:
    value = result.variants[variant].metrics[name]
    assert value is not None
    return value


@pytest.mark.parametrize("name", BOUNDS)
def test_the_bounds_of_a_row_are_those_of_the_table(name: str) -> None:
    expect = scenario.load(name).variants[0].expect
    assert [(metric, expect[metric].min, expect[metric].max) for metric, _, _ in BOUNDS[name]] == BOUNDS[name]


C1 = ("size=300_000", "workload.ranks=9")


def test_c1_holds_with_credits_and_not_with_windows_that_nothing_cuts() -> None:
    assert missed(run("c1-low-variance", *C1, only=("8 senders",))) <= {
        "goodput_percent"
    }  # less to send, same round trip
    fixed = run("c1-low-variance", *C1, "transport.cc=fixed", only=("8 senders",))
    assert "latency_cv" in missed(fixed)


C3 = ("ranks=16", "fabric.hosts_per_leaf=4", "fabric.spines=4", "messages=25", "watch.end_us=200")


def test_c3_fails_where_marks_are_ignored_and_a_selector_that_heeds_them_does_better() -> None:
    heeds = run("c3-switch-path", *C3, only=("default",))
    ignores = run("c3-switch-path", *C3, "transport.selector=random", only=("default",))
    assert "faulty_cables_percent" in missed(ignores)
    assert figure(ignores, "faulty_cables_percent") > 1.3 * figure(heeds, "faulty_cables_percent")


def test_c3_fails_for_a_control_that_cuts_its_window() -> None:
    assert "window_least_percent" in missed(run("c3-switch-path", *C3, only=("dctcp",)))


C4 = ("size=300_000", "watch.end_us=350")


def test_c4_holds_for_who_slows_down_and_fails_for_who_does_not() -> None:
    assert missed(run("c4-slow-down", *C4, only=("dctcp",))) == set()
    assert "in_flight_percent" in missed(
        run("c4-slow-down", *C4, "transport.cc=fixed", "fabric.queue=8MB", only=("default",))
    )


def test_c4_fails_for_a_selector_that_leaves_every_marked_path() -> None:
    """REPS takes another path for every packet that came back marked, and here all do."""
    churns = run("c4-slow-down", *C4, "transport.selector=reps", "fabric.ecn=0", only=("dctcp",))
    assert "path_changes_per_rtt" in missed(churns)


C5 = ("layers=4", "hidden=1024")


@pytest.mark.parametrize("variant", ["more attention ranks", "more expert ranks"])
def test_c5_names_the_port_of_the_hot_rank(variant: str) -> None:
    result = run("c5-hot-port", *C5, only=(variant,))
    assert missed(result) == set()
    for row, record in zip(result.to_json()["phases"], result.variants[0].phases, strict=True):
        assert row["hottest_port"].endswith(f">h{row['hottest_rank']}"), record.hot_port


def test_c5_fails_where_the_core_and_not_a_rank_is_the_bottleneck() -> None:
    slow = "faults.cable=[{cables = 'leaf*-spine*', rate = 0.05}]"
    assert "hot_port_percent" in missed(run("c5-hot-port", *C5, slow, only=("more attention ranks",)))


def test_c7_holds_over_a_fabric_as_it_does_over_loopback() -> None:
    result = run("c7-loss", "messages=12", only=("1 percent", "2 percent"))  # 0.1 % of so few packets may be none
    assert [missed(result, number) for number in range(2)] == [set()] * 2
    assert figure(result, "packet_hops") > 2 * 12 * 256


C9 = ("ranks=8", "fabric.hosts_per_leaf=4", "transport.paths=16")


def test_c9_acknowledgements_pass_data_and_without_priority_they_do_not() -> None:
    result = run("c9-ack-priority", *C9)
    assert missed(result, 0) == missed(result, 1) == set()
    late = run("c9-ack-priority", *C9, "fabric.priorities=false", "fabric.trim=false", only=("default", "idle"))
    assert "ack_p99_ratio" in missed(late)


def test_an_outcast_has_a_victim_and_it_is_compared_with_itself_alone() -> None:
    result = run("s5-outcast", only=("default", "alone"))
    rows = result.variants[0].phases[0].messages
    (victim,) = rows[rows[:, 0] == 1]
    assert figure(result, "victim_fct_us") == (victim[4] - victim[3]) / 1e6
    assert figure(result, "victim_fct_ratio") > 1


def test_a_moving_incast_has_a_hot_rank_for_each_move() -> None:
    result = run("moving-incast", "ranks=16", "moves=3", "size=16KiB", only=("default",))
    rows = result.variants[0].phases[0].messages
    assert len(set(rows[:, 3])) == 3
    assert figure(result, "hot_slowdown_max") >= figure(result, "hot_slowdown") > 0.9
    assert figure(result, "cold_p99_us") <= figure(result, "cold_max_us") < figure(result, "hot_max_us")
