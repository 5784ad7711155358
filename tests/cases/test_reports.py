"""Figures carry their unit, and what was not measured is a dash or null, never 0.00.

Known from other stacks: a bandwidth without unit, read as Gb/s where it was MiB/s; zeros for what nobody measured.
"""

from __future__ import annotations

import io
import re

import numpy as np
import pytest
from rich.console import Console

from testbed import runner, scenario, stats
from testbed.dump import Dump
from testbed.metrics import METRICS, PhaseRecord, summarize
from testbed.perf import client
from testbed.perf.plan import Plan
from testbed.progress import Silent
from testbed.report import RunResult, VariantResult, show
from testbed.units import show_us
from tests.helpers import Pair
from transport.snapshot import snapshot

#: Ends of the keys of figures that have a unit. A figure without one is a count, a ratio or a share of 1.
UNITS = re.compile(r"_(us|gbps|bytes|percent|per_s)$")
UNITLESS = {name for name in METRICS if not UNITS.search(name)}


def printed(write) -> str:
    stream = io.StringIO()
    write(Console(file=stream, width=220, no_color=True, highlight=False, markup=False))
    return stream.getvalue()


def test_the_tables_of_perf_name_their_units():
    bandwidth = printed(lambda console: client._show_header(Plan.make("64KiB", 1.0, False, "write"), console))
    latency = printed(lambda console: client._show_header(Plan.make("64", 1.0, True, "write"), console))
    assert "BW average[Gb/sec]" in bandwidth
    assert "MsgRate[Mpps]" in bandwidth
    assert all(f"{name}[usec]" in latency for name in ("P50", "P99", "P99.9"))


@pytest.mark.parametrize("latency", [True, False])
def test_a_row_of_perf_shows_only_columns_that_its_kind_measures(latency):
    row = {
        "size_bytes": 64, "messages": 1000, "goodput_gbps": None if latency else 10.5,
        "messages_per_s": 250_000.0, **dict.fromkeys(("latency_p50_us", "latency_p99_us", "latency_p999_us"), None),
    }  # fmt: skip
    if latency:
        row |= {"latency_p50_us": 1.5, "latency_p99_us": 2.5, "latency_p999_us": 3.5}
    plan = Plan.make("64", 1.0, latency, "write")
    header = printed(lambda console: client._show_header(plan, console)).splitlines()[-1].split()
    shown = printed(lambda console: client._show_row(plan, row, console)).split()
    assert shown == (["64", "1000", "1.50", "2.50", "3.50"] if latency else ["64", "1000", "10.500", "0.250000"])
    assert len(shown) == len(re.sub("BW average", "BW", " ".join(header)).split())


def test_every_figure_of_a_result_that_has_a_unit_says_it_in_its_key():
    """Whoever adds a metric of time, rate or size is asked for a unit here; bytes_wrong counts streams."""
    assert {
        "ack_p99_ratio", "bytes_wrong", "duplicates", "early_retransmits", "evicted_paths", "eviction_share",
        "evictions", "fabric_dropped", "fabric_lost", "fabric_marked", "fabric_trimmed", "hot_slowdown",
        "hot_slowdown_max", "late_retransmits", "latency_cv", "marked_packets", "messages", "packet_hops", "packets",
        "path_changes", "path_changes_per_rtt", "paths_used", "pfc_pauses", "readmitted_paths", "requests_failed",
        "retransmits", "slowdown", "spurious", "tail_fct_ratio", "timeouts", "victim_fct_ratio", "wrong_order",
    } == UNITLESS  # fmt: skip


def test_a_table_of_phases_has_a_unit_at_every_figure_that_needs_one():
    result = runner.run(scenario.load("pair", ["size=65536", "messages=3"]), "loopback", Silent())
    lines = printed(lambda console: show(result, console)).splitlines()
    head = next(number for number, line in enumerate(lines) if line.startswith("phase"))
    row = lines[head + 1]
    assert len(re.findall(r"\d (?:B|kB|MB)(?: |$)", row)) == 2  # logical, wire
    assert len(re.findall(r"\d (?:us|ms|s)(?: |$)", row)) == 4  # duration, ideal, P50, P99
    assert any(re.search(r"\d Gbit/s", line) for line in lines)


def test_what_a_phase_without_time_did_not_measure_is_a_dash_in_the_table_and_null_in_the_json():
    phase = PhaseRecord.__new__(PhaseRecord)
    phase.__dict__ |= {
        "name": "silent", "messages": np.zeros((0, 5), dtype=np.int64), "counters": {}, "received": np.zeros(2),
        "duration": 0, "ideal": 0, "paths_used": None, "wrong": [],
    }  # fmt: skip
    values = summarize([phase], None, 4096)
    variant = VariantResult("only", [phase], values, [], [], None, 4096)
    unmeasured = ("duration_us", "goodput_gbps", "latency_p50_us", "latency_p99_us", "latency_cv", "ideal_us")
    assert all(values[name] is None for name in unmeasured)
    assert all(variant.to_json()["phases"][0][name] is None for name in unmeasured)
    lines = printed(lambda console: show(RunResult("none", "loopback", 1, [variant]), console)).splitlines()
    row = next(line for line in lines if line.startswith("silent")).split()
    assert row.count("-") == 8
    assert "0.00" not in " ".join(lines)


def test_what_was_not_measured_is_a_dash_and_a_measured_zero_is_none():
    assert show_us(None) == "-"
    assert show_us(0.0) == "0.0 us"


class Still:
    """A Nic whose clock stands."""

    def __init__(self, time: int) -> None:
        self.time = time

    def now(self) -> int:
        return self.time


def state_of(pair: Pair) -> str:
    """What `polyroce stats` prints of alice."""
    picture = {"name": "alice", **snapshot(pair.alice.endpoint, Still(pair.now))}
    dump = {"version": 1, "pid": 1, "serial": 1, "time_s": 0.0, "failure": None, "endpoints": [picture]}
    return printed(lambda console: stats.show(Dump.model_validate(dump), console))


@pytest.mark.parametrize(("control", "paced"), [("fixed", False), ("dctcp", False), ("swift", True), ("nscc", False)])
def test_a_control_that_does_not_pace_shows_a_dash_and_not_a_rate_of_nothing(control, paced):
    pair = Pair(control=control, paths=2)
    ours, _ = pair.connect()
    if paced:
        ours.context.control.rate = 12_345_000_000
    text = state_of(pair)
    assert "0.000 Gbit/s" not in text
    assert ("12.345 Gbit/s" in text) == paced


def test_paths_that_nobody_measured_show_dashes():
    pair = Pair(control="fixed", paths=2)
    pair.connect()
    text = state_of(pair)
    assert not re.search(r"\b0 us", text)
    rows = [line.split() for line in text.splitlines() if re.match(r" *\d{5} ", line)]
    assert len(rows) == 2
    assert all(row[3:5] == ["-", "-"] and row[-1] == "-" for row in rows)
