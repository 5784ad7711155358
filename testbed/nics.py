"""Puts the Nic of a rank together: the network, faults, a capture file, and a meter of the paths in use."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from testbed.job import Job
from testbed.rank import address_of
from transport import entropy
from transport.clock import NEVER, Time
from transport.config import EndpointConfig
from transport.errors import ConfigError
from transport.nic.base import Nic
from transport.nic.faults import FaultInjector, Faults
from transport.nic.loopback import LoopbackNic, Network
from transport.nic.pcap import PcapWriter
from transport.nic.udp import UdpNic, free_entropies
from transport.nic.wrapper import Wrapper
from transport.packet import DATA, Packet
from transport.pcapfile import PcapFile
from transport.wire import ID0, OFF, Codec

#: Source ports may be taken by other programs: this many more are tried.
_SPARE = 64


class Meter(Wrapper):
    """Notes which source ports data left by. The outermost wrapper of a rank; owns its capture file."""

    def __init__(self, inner: Nic, faults: FaultInjector | None, file: PcapFile | None) -> None:
        super().__init__(inner)
        self.faults = faults
        self.file = file
        self._used: set[int] = set()

    def send(self, packets: Sequence[Packet]) -> int:
        taken = self.inner.send(packets)
        for packet in packets[:taken]:
            if packet.kind == DATA:
                self._used.add(packet.entropy)
        return taken

    def begin(self, now: Time) -> None:
        """The first phase begins: the times of black holes count from here."""
        if self.faults is not None:
            self.faults.epoch = now

    def paths_used(self) -> int:
        """Source ports that data left by since this was asked last."""
        used, self._used = self._used, set()
        return len(used)

    def close(self) -> None:
        self.inner.close()
        if self.file is not None:
            self.file.close()


def loopback(job: Job, network: Network, rank: int) -> Meter:
    """A rank's Nic on a network in this process."""
    return _wrapped(LoopbackNic(network, address_of(rank)), job, rank, ports(job.config))


def udp(job: Job, rank: int) -> tuple[Meter, EndpointConfig]:
    """A rank's Nic over UDP sockets, and the configuration that has the source ports it could bind in it."""
    address = ".".join(map(str, address_of(rank)))
    config = udp_config(job.config, address)
    assert config.entropies is not None
    return _wrapped(udp_nic(config, address), job, rank, config.entropies), config


def udp_config(config: EndpointConfig, address: str) -> EndpointConfig:
    """The configuration with source ports that are free on `address`, unless it names them itself."""
    if config.entropies is not None or config.entropy_mask is not None:
        return replace(config, entropies=tuple(config.ports()), entropy_mask=None)
    wanted = dict.fromkeys([*entropy.automatic(config.paths), *entropy.automatic(_SPARE, seed=1)])
    return replace(config, entropies=tuple(free_entropies(address, wanted, config.paths)))


def udp_nic(config: EndpointConfig, address: str, busy_poll: bool = False) -> UdpNic:
    """A plain UDP Nic for a configuration that names its source ports."""
    assert config.entropies is not None
    icrc = ID0 if config.icrc else OFF
    sockets = max(256, 2 * len(config.entropies))
    return UdpNic(
        address, config.entropies, mtu=config.mtu, icrc=icrc, busy_poll=busy_poll, max_run=min(64, config.max_run),
        max_sockets=sockets,
    )  # fmt: skip


def ports(config: EndpointConfig) -> tuple[int, ...]:
    """Source ports of the paths by number, as an endpoint with this configuration has them."""
    return tuple(config.ports())


def rank_pcap(path: str, rank: int) -> Path:
    """The capture file of one rank process: out.pcap is out.rank3.pcap for rank 3."""
    whole = Path(path)
    return whole.with_name(f"{whole.stem}.rank{rank}{whole.suffix}")


def _wrapped(nic: Nic, job: Job, rank: int, paths: Sequence[int]) -> Meter:
    """Faults outside the capture: the file has what really left, and each packet once, at its sender."""
    file = None
    if job.pcap:
        try:
            file = PcapFile(rank_pcap(job.pcap, rank))
        except OSError as error:
            raise ConfigError(f"--pcap {job.pcap}: cannot be written: {error.strerror}") from None
        nic = PcapWriter(nic, file, Codec(ID0 if job.config.icrc else OFF), received=False)
    faults = None
    plan = job.faults
    if plan != type(plan)():
        rng = random.Random(f"{job.seed} path delays")
        delays = tuple((port, rng.randrange(plan.jitter + 1)) for port in paths) if plan.fifo else ()
        faults = nic = FaultInjector(
            nic,
            Faults(
                loss=plan.loss, corrupt=plan.corrupt, duplicate=plan.duplicate, mark=plan.mark,
                jitter_ps=0 if plan.fifo else plan.jitter, reorder=plan.reorder, reorder_ps=plan.reorder_delay,
                entropy_delay=delays,
                blackhole=tuple((paths[hole.path], hole.start, min(hole.end, NEVER)) for hole in plan.holes),
            ),
            f"{job.seed} faults {rank}",
        )  # fmt: skip
    return Meter(nic, faults, file)
