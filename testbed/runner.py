"""Runs a scenario, variant by variant, on the network asked for, and judges it."""

from __future__ import annotations

import heapq
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from testbed import launched, nics, processes, simulated, virtual
from testbed.job import Hole, Job, PathChange
from testbed.metrics import HEADER_BYTES, PhaseRecord, compare, judge, summarize
from testbed.progress import Watcher
from testbed.ready import VIRTUAL, Ready, ready
from testbed.record import recorder
from testbed.record.recorder import RecordPlan
from testbed.report import RunResult, VariantResult, installed_version
from testbed.scenario import Scenario, ScenarioFile, Variant
from testbed.sim.fabric import Fabric
from testbed.workloads.base import Message, Phase, Workload, received_by, sent_by
from transport import pcapfile
from transport.clock import SECOND, US, Time, transmit_time
from transport.errors import ConfigError
from transport.group import Group
from transport.nic.loopback import Network


def run(
    scenario: Scenario, on: str, watcher: Watcher, pcap: str = "", group: Group | None = None,
    record: RecordPlan | None = None,
) -> RunResult:  # fmt: skip
    """All variants, over `on`. Whatever keeps a run from its end is an exception; a missed limit is in the result.
    group: the ranks' processes that a launcher started, of which this is rank 0. record: on sim, what goes on is
    recorded."""
    if record is not None and on != "sim":
        raise ConfigError(f"--record: allowed with --on sim only, --on {on} has no fabric to look into")
    variants = ready(scenario, on)
    results: dict[str, VariantResult] = {}
    about = {"scenario": scenario.name, "seed": str(scenario.seed), "version": installed_version()}
    with recorder.opened(record, about) as taken:
        for item in variants:
            variant = item.variant
            name = pcap
            if pcap and len(scenario.variants) > 1:
                path = Path(pcap)
                name = str(path.with_name(f"{path.stem}.{variant.name.replace(' ', '-')}{path.suffix}"))
            rows = None if taken is None else recorder.VariantRecorder(taken, variant.name)
            results[variant.name] = _run_variant(item, on, watcher, name, group, rows)
    for variant in scenario.variants:
        result = results[variant.name]
        if variant.baseline is not None:
            compare(result.metrics, results[variant.baseline].metrics)
        result.expect = judge(variant.expect, result.metrics, timed=on in VIRTUAL)
    return RunResult(scenario.name, on, scenario.seed, list(results.values()))


def _run_variant(
    item: Ready, on: str, watcher: Watcher, pcap: str, group: Group | None, rows: recorder.VariantRecorder | None
) -> VariantResult:  # fmt: skip
    if on == "sim":
        result = _run_simulated(item, watcher, pcap, rows)
    elif on in VIRTUAL:
        result = _run_loopback(item, watcher, pcap)
    else:
        result = _run_over_sockets(item, on, watcher, pcap, group)
    if pcap:
        _merge_captures(pcap, item.workload.ranks)
    return result


def _run_over_sockets(item: Ready, on: str, watcher: Watcher, pcap: str, group: Group | None) -> VariantResult:
    """Every rank a process. The rate is measured, in a phase before the others."""
    variant, workload, config = item.variant, item.workload, item.config
    settings = variant.settings
    notes = list(workload.notes)
    measured = workload.ranks > 2
    phases = ((_measurement(workload),) if measured else ()) + workload.phases
    ports = settings.transport.ports
    if config is not variant.config:
        notes.append(f"cc {config.control}: none was named, and dgram sockets show no CE marks, which dctcp needs")
    job = Job(
        phases, workload.ranks, settings.seed, config, settings.faults.plan(settings.udp.time_scale), pcap, ports,
        launched.addresses(group, workload.ranks, ports) if group is not None else (), on,
    )  # fmt: skip
    records, events = processes.run(job, settings.timeout_s, watcher, group)
    if measured:
        rate = _measured_rate(records.pop(0))
        notes.append(_rate_note(rate, phases[0].messages[0].src))
        for record, phase in zip(records, workload.phases, strict=True):
            record.ideal = shared_floor(phase, workload.ranks, rate)
    return _result(variant, job, records, events, notes, None)


def _run_loopback(item: Ready, watcher: Watcher, pcap: str) -> VariantResult:
    """All ranks in this process, one link in front of each receiver."""
    variant, workload = item.variant, item.workload
    settings = variant.settings
    fabric = settings.fabric
    job = _virtual_job(item, pcap)
    rate = round(fabric.rate_gbps * 1e9)
    network = Network(
        rate, round(fabric.delay_us * US), fabric.queue, fabric.ecn, mtu=settings.transport.mtu, start=US
    )  # fmt: skip
    records, events = virtual.run(job, network, settings.timeout_s, watcher)
    rate *= job.ports  # of all links to a rank
    for record, phase in zip(records, workload.phases, strict=True):
        _ideals(record, phase, workload.ranks, rate, settings.transport.mtu, network.caps.base_rtt)
    result = _result(variant, job, records, events, list(workload.notes), rate)
    result.metrics["eviction_share"] = _eviction_share(settings, result.metrics)
    return result


def _run_simulated(
    item: Ready, watcher: Watcher, pcap: str, rows: recorder.VariantRecorder | None
) -> VariantResult:  # fmt: skip
    """All ranks in this process, over a whole fabric."""
    variant, workload, fabric = item.variant, item.workload, item.fabric
    assert fabric is not None
    settings = variant.settings
    notes = list(workload.notes)
    if fabric.phantom:
        notes.append("bytes: only their number was carried, and compared with the number placed")
    job = replace(_virtual_job(item, pcap), phantom=fabric.phantom)
    world = simulated.World(job, fabric.spec, fabric.changes, settings.timeout_s, watcher, settings.watch.plan(), rows)
    records, events = world.run()
    rate = world.fabric.rate * job.ports
    for record, phase in zip(records, workload.phases, strict=True):
        _ideals(record, phase, workload.ranks, rate, settings.transport.mtu, world.fabric.base_rtt)
    result = _result(variant, job, records, events, notes, rate)
    result.metrics["eviction_share"] = _eviction_share(settings, result.metrics)
    result.metrics |= fabric_metrics(world.fabric) | world.watched()
    return result


def _virtual_job(item: Ready, pcap: str) -> Job:
    settings, workload = item.variant.settings, item.workload
    return Job(
        workload.phases, workload.ranks, settings.seed, item.config, settings.faults.plan(1.0), pcap,
        settings.transport.ports,
    )  # fmt: skip


def fabric_metrics(fabric: Fabric) -> dict[str, float | None]:
    """What the switches of a simulated fabric counted."""
    counted = fabric.counters()
    return {
        "packet_hops": counted["packets"],
        "fabric_marked": counted["marked"],
        "fabric_trimmed": counted["trimmed"],
        "fabric_dropped": counted["dropped"] + counted["control_dropped"] + counted["headroom_drops"],
        "fabric_lost": counted["lost_on_links"],
        "pfc_pauses": counted["pauses"],
    }


def _result(
    variant: Variant, job: Job, records: list[PhaseRecord], events: list[PathChange], notes: list[str], rate: int | None
) -> VariantResult:  # fmt: skip
    """rate: of all links to a rank, None if it is not known."""
    values = summarize(records, rate, job.config.mtu)
    values |= path_metrics(job, records, events)
    return VariantResult(variant.name, records, values, [], notes, rate, job.config.mtu)


def _ideals(record: PhaseRecord, phase: Phase, ranks: int, rate: int, mtu: int, base_rtt: Time) -> None:
    """Tell the record what the phase could have done on links of `rate`, and when its messages were due."""
    record.ideal = link_floor(phase, ranks, rate, mtu, base_rtt)
    record.base_rtt = base_rtt
    record.starts = tuple(sorted({message.start for message in phase.messages}))


def link_floor(phase: Phase, ranks: int, rate: int, mtu: int, base_rtt: Time) -> Time:
    """The least time of a phase where every rank has a link of `rate`: wire bytes at the hot rank, one round trip."""
    wire = [
        Message(m.src, m.dst, m.size + HEADER_BYTES * max(1, -(-m.size // mtu)), m.op) for m in phase.messages
    ]  # fmt: skip
    hot = int(received_by(wire, ranks).max())
    if not rate:
        return base_rtt
    whole, rest = divmod(hot, 1 << 20)
    return whole * transmit_time(1 << 20, rate) + transmit_time(rest, rate) + base_rtt


def shared_floor(phase: Phase, ranks: int, rate: int) -> Time:
    """The least time of a phase where all ranks share one machine. `rate` is what one pair of ranks reaches alone, a
    sender on one core and a receiver on another: no rank moves its bytes faster, and all together no faster than as
    many pairs as there are pairs of cores."""
    hot = max(int(received_by(phase.messages, ranks).max()), int(sent_by(phase.messages, ranks).max()))
    pairs = max(1, len(os.sched_getaffinity(0)) // 2)
    seconds = max(hot, phase.logical_bytes / pairs) * 8 / rate
    return round(seconds * SECOND)


def _measurement(workload: Workload) -> Phase:
    """One flow from rank 0 to a rank that it talks to anyway (if to none, between two others that do), big enough for a
    rate and small beside the rest."""
    biggest = max(phase.logical_bytes for phase in workload.phases)
    size = max(4096, min(1 << 20, biggest // 64))
    pairs = [(m.src, m.dst) for phase in workload.phases for m in phase.messages]
    src, dst = next(((0, a + b) for a, b in pairs if 0 in (a, b)), pairs[0])
    return Phase("loopback rate", (Message(src, dst, size, "write"),) * 16)


def _measured_rate(record: PhaseRecord) -> int:
    """Bits per second of payload."""
    return max(1, round(float(np.sum(record.messages[:, 2])) * 8 * SECOND / max(1, record.duration)))


def _rate_note(rate: int, src: int) -> str:
    return (
        f"ideal: at {rate / 1e9:.3f} Gbit/s, measured first, with one flow from rank {src} to one other over the same "
        "transport while all else was idle"
    )


def path_metrics(job: Job, records: Sequence[PhaseRecord], events: Sequence[PathChange]) -> dict[str, float | None]:
    """What became of the paths that were black-holed, alone or with their plane, at each rank that sends data."""
    values: dict[str, float | None] = {"evictions": sum(change.state == "BAD" for change in events)}
    count = len(job.config.ports())
    holes = list(job.faults.holes)
    for dead in job.faults.planes:
        holes += [Hole(path, dead.start, dead.end) for path in range(dead.plane * count, (dead.plane + 1) * count)]
    if not holes or not records:
        return values
    begin = int(records[0].messages[:, 3].min())
    senders = sorted({int(src) for record in records for src in record.messages[:, 0]})
    evicted = readmitted = wrong = 0
    slowest: Time | None = None
    for hole in holes:
        for rank in senders:
            mine = [change for change in events if (change.rank, change.path) == (rank, hole.path)]
            left = left_use([change for change in mine if change.time >= begin + hole.start])
            if left is None:
                wrong += 1
                continue
            evicted += 1
            slowest = max(slowest or 0, left - begin - hole.start)
            came_back = [change.time for change in mine if change.state == "GOOD" and change.time > left]
            readmitted += any(time >= begin + hole.end for time in came_back)
            wrong += any(time < begin + hole.end for time in came_back)
    return {
        **values,
        "evicted_paths": evicted,
        "readmitted_paths": readmitted,
        "wrong_order": wrong,
        "eviction_us": None if slowest is None else slowest / US,
    }


def left_use(changes: Sequence[PathChange]) -> Time | None:
    """When a path was taken out of use: the move to SUSPECT, which ends new data on it while enough others are usable,
    that a move to BAD confirmed. None if that did not happen."""
    left = None
    for change in changes:
        if change.state == "SUSPECT":
            left = change.time
        elif change.state == "GOOD":
            left = None
        elif change.state == "BAD":
            return change.time if left is None else left
    return None


def _eviction_share(settings: ScenarioFile, values: Mapping[str, float | None]) -> float | None:
    """The slowest eviction as a share of max(3 RTT, 1 RTO) of the loopback network."""
    slowest = values["eviction_us"]
    base_rtt = max(2 * settings.fabric.delay_us, 1.0)
    rto = settings.transport.rto_min_us or 20 * base_rtt
    return None if slowest is None else slowest / max(3 * base_rtt, rto)


def _merge_captures(path: str, ranks: int) -> None:
    """One file out of those of the ranks, in order of time."""
    parts = [nics.rank_pcap(path, rank) for rank in range(ranks)]
    try:
        with pcapfile.PcapFile(path) as whole:
            for time, frame in heapq.merge(*(pcapfile.read(part)[1] for part in parts)):
                whole.write(time, frame)
        for part in parts:
            part.unlink()
    except OSError as error:
        raise ConfigError(f"--pcap {path}: cannot be written: {error.strerror}") from None
