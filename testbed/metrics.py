"""What is measured in a run, under which name and in which unit, and how it is judged.

Definitions are those of docs/scenarios.md. A value that was not measured is None.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from transport.clock import SECOND, US

#: Bytes of IPv4, UDP, BTH, RETH, ImmDt and ICRC around the payload of every data packet.
HEADER_BYTES = 64


class Metric(NamedTuple):
    """One named value of a run. timed: it depends on durations and is judged in virtual
    time only. compares: it is
    measured against the variant's baseline."""

    meaning: str
    timed: bool = False
    compares: bool = False


METRICS: dict[str, Metric] = {
    "duration_us": Metric("sum of the phases' durations, first post to last completion", True),
    "goodput_gbps": Metric("payload delivered at all ranks over the duration", True),
    "goodput_percent": Metric("payload at the hottest receiver, of what its link carries after headers", True),
    "messages_per_s": Metric("messages completed over the duration", True),
    "latency_p50_us": Metric("median of message completion times", True),
    "latency_p99_us": Metric("99th percentile of message completion times", True),
    "latency_cv": Metric("spread of size / completion time over messages, sqrt(1/J - 1) with Jain's index J", True),
    "first_fct_us": Metric("shortest completion time", True),
    "tail_fct_us": Metric("longest completion time", True),
    "fct_range_percent": Metric("longest completion time over the shortest, less one", True),
    "hot_max_us": Metric("longest completion time of messages to the hot rank of their wave", True),
    "cold_p99_us": Metric("99th percentile of completion times of all other messages", True),
    "cold_max_us": Metric("longest completion time of all other messages", True),
    "hot_slowdown": Metric("time of a wave's hot rank over its ideal, mean over waves", True),
    "hot_slowdown_max": Metric("time of a wave's hot rank over its ideal, worst of all waves", True),
    "victim_fct_us": Metric(
        "longest completion time of messages to the hot rank of their wave from ranks that send to nobody else", True
    ),
    "ideal_us": Metric("sum of the phases' ideals", True),
    "slowdown": Metric("duration over ideal", True),
    "latency_p50_change_percent": Metric("median completion time against the baseline, absolute", True, True),
    "latency_p99_change_percent": Metric("99th percentile against the baseline, absolute", True, True),
    "tail_fct_ratio": Metric("longest completion time over the baseline's", True, True),
    "victim_fct_ratio": Metric("victim_fct_us over the baseline's", True, True),
    "ack_p99_ratio": Metric("sim: ack_p99_us over the baseline's", True, True),
    "eviction_us": Metric("slowest eviction of a black-holed path, from the hole's start", True),
    "eviction_share": Metric("slowest eviction of a black-holed path, as a share of max(3 RTT, 1 RTO)", True),
    "evicted_paths": Metric("black-holed paths that were taken out of use"),
    "readmitted_paths": Metric("black-holed paths that came back into use after they healed"),
    "wrong_order": Metric("black-holed paths that came back before they were taken out, or never left"),
    "evictions": Metric("changes of any path to BAD"),
    "messages": Metric("messages completed"),
    "bytes_wrong": Metric("streams of a pair of ranks whose digest was wrong"),
    "requests_failed": Metric("requests that ended in an error"),
    "logical_bytes": Metric("bytes of the messages"),
    "wire_bytes": Metric("data packets with their 64 bytes of headers, retransmissions included"),
    "packets": Metric("data packets sent, retransmissions included"),
    "retransmits": Metric("data packets sent again"),
    "retransmit_percent": Metric("share of the data packets that were sent again"),
    "early_retransmits": Metric("of those, of packets that had left in the first base round trip of their message"),
    "late_retransmits": Metric("the others of those"),
    "late_retransmit_percent": Metric("share of the data packets that were sent again, less the early ones"),
    "spurious": Metric("retransmissions of what had arrived", True),
    "spurious_percent": Metric("share of the data packets that were sent again in vain", True),
    "duplicates": Metric("data packets received again"),
    "timeouts": Metric("retransmission timeouts"),
    "marked_packets": Metric("data packets received with CE"),
    "paths_used": Metric("most paths that one rank used in a phase"),
    "path_changes": Metric("times that a path whose turn it was gave way to another, because of marks or losses"),
    "path_changes_per_rtt": Metric("the same for each message and base round trip that it took", True),
    "packet_hops": Metric("sim: data packets that crossed a link, counted on each"),
    "fabric_marked": Metric("sim: data packets that switches marked"),
    "fabric_trimmed": Metric("sim: data packets that switches trimmed"),
    "fabric_dropped": Metric("sim: frames that queues had no room for"),
    "fabric_lost": Metric("sim: frames that links lost"),
    "pfc_pauses": Metric("sim: times that a port was paused"),
    "hot_port_percent": Metric("sim: phases whose busiest switch port leads to the rank that is to receive most", True),
    "queue_mean_bytes": Metric("sim: mean of what waits in front of the rank that receives most, sampled", True),
    "queue_p99_bytes": Metric("sim: 99th percentile of the same", True),
    "queue_max_bytes": Metric("sim: largest sample of the same", True),
    "window_least_percent": Metric("sim: least window of a flow in samples, of its first one", True),
    "in_flight_percent": Metric("sim: bytes that a flow has in flight, mean of samples, of one BDP", True),
    "faulty_cables_percent": Metric("sim: data packets on cables with faults, of those on all between the same tiers"),
    "ack_p99_us": Metric("sim: 99th percentile of the one-way times of acknowledgements", True),
}


@dataclass
class PhaseRecord:
    """Raw results of one phase. Times are picoseconds of one clock.

    messages: a row (src, dst, size, posted, completed) for each. counters: what the endpoints' counters grew by, added
    up. received: bytes at each rank. ideal: the least time it could take, 0 if not known; base_rtt: of the idle
    network, likewise. starts: when messages are due after the beginning of the phase, in order. hot_port: the switch
    port that was busiest, None if not known; hot_port_right: it leads to a rank that receives most.
    """

    name: str
    ranks: int
    messages: npt.NDArray[np.int64]
    counters: Mapping[str, int]
    received: npt.NDArray[np.int64]
    paths_used: int | None
    wrong: list[str] = field(default_factory=list)
    ideal: int = 0
    base_rtt: int = 0
    starts: tuple[int, ...] = (0,)
    hot_port: str | None = None
    hot_port_right: bool | None = None

    @property
    def duration(self) -> int:
        if not len(self.messages):
            return 0
        return int(self.messages[:, 4].max() - self.messages[:, 3].min())


@dataclass(frozen=True)
class Wave:
    """Messages that were due at one moment. rows: theirs, as in PhaseRecord. hot: of each, whether it goes to the rank
    that receives most of them; victims: of these, those whose rank sends to nobody else."""

    rows: npt.NDArray[np.int64]
    hot: npt.NDArray[np.bool_]
    victims: npt.NDArray[np.bool_]

    def slowdown(self, rate: int, mtu: int, base_rtt: int) -> float:
        """From the first post to the last completion at the hot rank, over the least that it could be: its wire bytes
        at `rate` (bits per second), and one base round trip."""
        sizes = self.rows[self.hot, 2]
        wire = int((sizes + HEADER_BYTES * np.maximum(1, -(-sizes // mtu))).sum())
        took = int(self.rows[self.hot, 4].max() - self.rows[:, 3].min())
        return took / (wire * 8 * SECOND / rate + base_rtt)


def waves(phase: PhaseRecord) -> list[Wave]:
    """The waves of a phase. A message that waited for others counts to the one that was due last before it."""
    rows = phase.messages
    if not len(rows):
        return []
    since = rows[:, 3] - rows[:, 3].min() + phase.starts[0]
    numbers = np.searchsorted(np.array(phase.starts, dtype=np.int64), since, side="right") - 1
    found = []
    for number in np.unique(numbers):
        of_wave = rows[numbers == number]
        _, place = np.unique(of_wave[:, 1], return_inverse=True)
        hot = place == np.bincount(place, weights=of_wave[:, 2]).argmax()
        targets: dict[int, set[int]] = {}
        for src, dst in of_wave[:, :2].tolist():
            targets.setdefault(src, set()).add(dst)
        alone = np.array([len(targets[src]) == 1 for src in of_wave[:, 0].tolist()])
        found.append(Wave(of_wave, hot, hot & alone))
    return found


def _hot_and_cold(phases: Sequence[PhaseRecord], rate: int | None, mtu: int) -> dict[str, float | None]:
    """Messages to hot ranks apart from the others, wave by wave."""
    values: dict[str, float | None] = {}
    found = [(wave, phase.base_rtt) for phase in phases for wave in waves(phase)]
    times = [wave.rows[:, 4] - wave.rows[:, 3] for wave, _ in found]
    hot = np.concatenate([own[wave.hot] for own, (wave, _) in zip(times, found, strict=True)])
    cold = np.concatenate([own[~wave.hot] for own, (wave, _) in zip(times, found, strict=True)])
    victims = np.concatenate([own[wave.victims] for own, (wave, _) in zip(times, found, strict=True)])
    values["hot_max_us"] = int(hot.max()) / US
    if len(cold):
        values["cold_p99_us"] = float(np.percentile(cold, 99)) / US
        values["cold_max_us"] = int(cold.max()) / US
    if len(victims):
        values["victim_fct_us"] = int(victims.max()) / US
    if rate and all(base_rtt for _, base_rtt in found):
        slowdowns = [wave.slowdown(rate, mtu, base_rtt) for wave, base_rtt in found]
        values["hot_slowdown"] = float(np.mean(slowdowns))
        values["hot_slowdown_max"] = max(slowdowns)
    return values


def spread(sizes: npt.NDArray[np.int64], times: npt.NDArray[np.int64]) -> float:
    """CV across flows: sqrt(1/J - 1) with J = (sum x)^2 / (n sum x^2), x = size / completion time."""
    x = sizes / np.maximum(times, 1)
    square = float((x**2).sum())
    if square == 0.0:
        return 0.0
    jain = float(x.sum()) ** 2 / (len(x) * square)
    return float(np.sqrt(max(0.0, 1.0 / jain - 1.0)))


def summarize(phases: Sequence[PhaseRecord], rate: int | None, mtu: int) -> dict[str, float | None]:
    """The metrics of one phase or of several in a row. rate: bits per second of a receiver's link, None if unknown."""
    values: dict[str, float | None] = dict.fromkeys(METRICS)
    counters: dict[str, int] = {}
    for phase in phases:
        for name, count in phase.counters.items():
            counters[name] = counters.get(name, 0) + count
    rows = np.concatenate([phase.messages for phase in phases])
    duration = sum(phase.duration for phase in phases)
    ideal = sum(phase.ideal for phase in phases)
    packets = counters.get("data_packets_sent", 0)
    used = [phase.paths_used for phase in phases if phase.paths_used is not None]
    values |= {
        "messages": len(rows),
        "bytes_wrong": sum(len(phase.wrong) for phase in phases),
        "requests_failed": counters.get("requests_failed", 0),
        "logical_bytes": int(rows[:, 2].sum()),
        "wire_bytes": counters.get("data_bytes_sent", 0) + HEADER_BYTES * packets,
        "packets": packets,
        "retransmits": counters.get("retransmits", 0),
        "early_retransmits": counters.get("early_retransmits", 0),
        "late_retransmits": counters.get("retransmits", 0) - counters.get("early_retransmits", 0),
        "spurious": counters.get("spurious", 0),
        "duplicates": counters.get("duplicates", 0),
        "timeouts": counters.get("timeouts", 0),
        "marked_packets": counters.get("marked_packets", 0),
        "paths_used": max(used) if used else None,
        "path_changes": counters.get("path_changes", 0),
    }
    named = [phase.hot_port_right for phase in phases if phase.hot_port_right is not None]
    if named:
        values["hot_port_percent"] = 100.0 * sum(named) / len(named)
    if packets:
        values["retransmit_percent"] = 100.0 * counters.get("retransmits", 0) / packets
        values["late_retransmit_percent"] = 100.0 * (values["late_retransmits"] or 0) / packets
        values["spurious_percent"] = 100.0 * counters.get("spurious", 0) / packets
    if not duration:
        return values
    times = rows[:, 4] - rows[:, 3]
    seconds = duration / SECOND
    values |= {
        "duration_us": duration / US,
        "goodput_gbps": float(rows[:, 2].sum()) * 8e-9 / seconds,
        "messages_per_s": len(rows) / seconds,
        "latency_p50_us": float(np.percentile(times, 50)) / US,
        "latency_p99_us": float(np.percentile(times, 99)) / US,
        "latency_cv": spread(rows[:, 2], times),
        "first_fct_us": int(times.min()) / US,
        "tail_fct_us": int(times.max()) / US,
        "fct_range_percent": 100.0 * (int(times.max()) / max(1, int(times.min())) - 1.0),
        **_hot_and_cold(phases, rate, mtu),
    }
    round_trips = sum(
        float((phase.messages[:, 4] - phase.messages[:, 3]).sum()) / phase.base_rtt
        for phase in phases
        if phase.base_rtt
    )
    if round_trips:
        values["path_changes_per_rtt"] = counters.get("path_changes", 0) / round_trips
    if ideal:
        values["ideal_us"] = ideal / US
        values["slowdown"] = duration / ideal
    if rate:
        hottest = sum(int(phase.received.max()) for phase in phases)
        values["goodput_percent"] = 100.0 * hottest * 8 / seconds / (rate * mtu / (mtu + HEADER_BYTES))
    return values


def compare(values: dict[str, float | None], baseline: Mapping[str, float | None]) -> None:
    """Fill in the metrics that are measured against a baseline."""
    for name in ("latency_p50", "latency_p99"):
        ours, theirs = values[f"{name}_us"], baseline[f"{name}_us"]
        if ours is not None and theirs:
            values[f"{name}_change_percent"] = abs(100.0 * (ours - theirs) / theirs)
    for name in ("tail_fct", "victim_fct", "ack_p99"):
        ours, theirs = values.get(f"{name}_us"), baseline.get(f"{name}_us")
        if ours is not None and theirs:
            values[f"{name}_ratio"] = ours / theirs


class Bound(Protocol):
    """A limit that can be asked: testbed.scenario.Limit."""

    def holds(self, value: float) -> bool: ...
    def model_dump(self, *, exclude_none: bool) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Verdict:
    """An expectation and how it came out. passed: None if it was not judged, since it speaks of times and the clock
    was real."""

    name: str
    value: float | None
    limit: Mapping[str, float]
    passed: bool | None


def judge(expect: Mapping[str, Bound], values: Mapping[str, float | None], timed: bool) -> list[Verdict]:
    """Hold the values to the limits. timed: whether durations count. A value that is missing has failed."""
    verdicts = []
    for name, limit in expect.items():
        value = values.get(name)
        passed = None if METRICS[name].timed and not timed else value is not None and limit.holds(value)
        verdicts.append(Verdict(name, value, limit.model_dump(exclude_none=True), passed))
    return verdicts
