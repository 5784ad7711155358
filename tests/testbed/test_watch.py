"""What is looked at during a run, against figures that can be worked out."""

from __future__ import annotations

import pytest

from testbed import runner, scenario
from testbed.progress import Silent
from testbed.watch import alike

ONE = """
name = "watched"
summary = "one flow through a cable that is slower than its host"
[transport]
cc = "fixed"
cc_parameters = {{ window_bdps = 4.0 }}
[fabric]
kind = "{kind}"
cable_us = 1
queue = "4MB"
ecn = "4MB"
uplink_gbps = 50
spines = 2
hosts_per_leaf = 2
[workload]
kind = "{workload}"
messages = 1
size = 1_000_000
{more}
"""


def metrics(kind: str = "dumbbell", workload: str = "pair", more: str = "") -> dict[str, float | None]:
    text = ONE.format(kind=kind, workload=workload, more=more)
    return runner.run(scenario.parse(text, "watched.toml"), "sim", Silent()).variants[0].metrics


SAMPLED = "[watch]\nevery_us = 1\nstart_us = 40\nend_us = 120\n"


def test_nothing_is_looked_at_unless_it_is_asked_for() -> None:
    found = metrics()
    for name in ("queue_mean_bytes", "window_least_percent", "faulty_cables_percent", "ack_p99_us"):
        assert found[name] is None, name


def test_a_constant_window_is_all_in_flight_and_never_cut() -> None:
    found = metrics(more=SAMPLED)
    assert found["window_least_percent"] == 100
    assert found["in_flight_percent"] == pytest.approx(400, rel=0.05)


def test_the_queue_is_the_one_in_front_of_the_rank_that_receives_most() -> None:
    """Three hosts send to one at twice its rate, as far as their windows go: these stand in front of it."""
    well = metrics("star", more=SAMPLED)
    assert well["queue_max_bytes"] == 0
    full = metrics("star", "incast", "ranks = 3\n" + SAMPLED)
    assert full["queue_mean_bytes"] is not None
    # Two windows of 4 BDP; the links and one packet at each hop hold about one of these.
    bdp = 100e9 * 4e-6 / 8
    assert full["queue_mean_bytes"] == pytest.approx((8 - 1) * bdp, rel=0.2)
    assert full["queue_p99_bytes"] <= full["queue_max_bytes"]  # type: ignore[operator]


def test_packets_on_cables_with_faults_are_counted_once_settled() -> None:
    fault = '[[faults.cable]]\ncables = "*-spine0"\nloss = 0.0\n'
    random = metrics("leaf_spine", "permutation", f"ranks = 8\n[watch]\nsettle_us = 20\n{fault}")
    assert random["faulty_cables_percent"] == pytest.approx(50, abs=10)
    every = fault.replace("spine0", "spine*")
    assert metrics("leaf_spine", "permutation", f"ranks = 8\n[watch]\nsettle_us = 20\n{every}")[
        "faulty_cables_percent"
    ] == 100  # fmt: skip
    late = metrics("leaf_spine", "permutation", f"ranks = 8\n[watch]\nsettle_us = 1000000\n{fault}")
    assert late["faulty_cables_percent"] is None


def test_an_acknowledgement_on_an_idle_way_takes_its_cables_and_itself() -> None:
    """Two cables of 1 us; 64 bytes at 100 Gbit/s on each."""
    found = metrics("star", more="[watch]\nacks = true\n")
    assert found["ack_p99_us"] == pytest.approx(2 + 2 * 64 * 8e-5 / 1, abs=1e-3)


def test_ports_are_alike_that_differ_in_numbers_only() -> None:
    names = ["leaf0>spine0", "leaf10>spine3", "spine0>leaf0", "h0>leaf0"]
    assert alike(names, ["leaf1>spine0"]) == ["leaf0>spine0", "leaf10>spine3"]
