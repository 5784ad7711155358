"""Puts the Nic of a rank together: the network, faults, and a capture file."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from testbed.job import Job
from testbed.rank import addresses_of
from transport import entropy
from transport.clock import Time
from transport.config import EndpointConfig
from transport.errors import ConfigError
from transport.nic.base import Nic
from transport.nic.dgram import SOCKETS
from transport.nic.faults import ANY, FaultInjector, Faults
from transport.nic.loopback import LoopbackNic, Network
from transport.nic.pcap import PcapWriter
from transport.nic.ports import PortsNic
from transport.nic.udp import UdpNic, free_entropies
from transport.nic.wrapper import Wrapper
from transport.pcapfile import PcapFile
from transport.wire import ID0, OFF, Codec

#: Source ports may be taken by other programs: this many more are tried.
_SPARE = 64


class RankNic(Wrapper):
    """The outermost wrapper of a rank: owns what is inside it, and its capture file."""

    def __init__(self, inner: Nic, faults: FaultInjector | None, file: PcapFile | None) -> None:
        super().__init__(inner)
        self.faults = faults
        self.file = file

    @property
    def plain(self) -> bool:
        """Whether there are neither faults nor a capture."""
        return self.faults is None and self.file is None

    def begin(self, now: Time) -> None:
        """The first phase begins: the times of black holes count from here."""
        if self.faults is not None:
            self.faults.epoch = now

    def close(self) -> None:
        self.inner.close()
        if self.file is not None:
            self.file.close()


def loopback(job: Job, network: Network, rank: int) -> RankNic:
    """A rank's Nic on a network in this process."""
    return _joined([LoopbackNic(network, address) for address in addresses_of(rank, job.ports)], job, rank)


def udp(job: Job, rank: int) -> tuple[RankNic, EndpointConfig]:
    """A rank's Nic over UDP sockets, and the configuration that has the source ports it could bind in it."""
    if job.addresses:
        addresses = list(job.addresses[rank])
    else:
        addresses = [".".join(map(str, address)) for address in addresses_of(rank, job.ports)]
    config = udp_config(job.config, *addresses)
    ports = [udp_nic(config, address, kind=job.nic) for address in addresses]
    return _joined(ports, replace(job, config=config), rank), config


def udp_config(config: EndpointConfig, *addresses: str) -> EndpointConfig:
    """The configuration with source ports that are free on all `addresses`, unless it names them itself."""
    if config.entropies is not None or config.entropy_mask is not None:
        return replace(config, entropies=tuple(config.ports()), entropy_mask=None)
    wanted = dict.fromkeys([*entropy.automatic(config.paths), *entropy.automatic(_SPARE, seed=1)])
    return replace(config, entropies=tuple(free_entropies(addresses, wanted, config.paths)))


def udp_nic(config: EndpointConfig, address: str, busy_poll: bool = False, kind: str = "udp") -> UdpNic:
    """A plain Nic on sockets for a configuration that names its source ports. kind: one of SOCKETS, or ConfigError."""
    if kind not in SOCKETS:
        raise ConfigError(f"nic = {kind!r}: allowed are {', '.join(SOCKETS)}")
    assert config.entropies is not None
    icrc = ID0 if config.icrc else OFF
    sockets = max(256, 2 * len(config.entropies))
    return SOCKETS[kind](
        address, config.entropies, mtu=config.mtu, icrc=icrc, busy_poll=busy_poll, max_run=min(64, config.max_run),
        max_sockets=sockets,
    )  # fmt: skip


def rank_pcap(path: str, rank: int) -> Path:
    """The capture file of one rank process: out.pcap is out.rank3.pcap for rank 3."""
    whole = Path(path)
    return whole.with_name(f"{whole.stem}.rank{rank}{whole.suffix}")


def open_pcap(given: str, path: Path | None = None) -> PcapFile:
    """The capture file `path`, or `given` itself; `given` is what the user named."""
    try:
        return PcapFile(path or given)
    except OSError as error:
        raise ConfigError(f"--pcap {given}: cannot be written: {error.strerror}") from None


def _joined(ports: Sequence[Nic], job: Job, rank: int) -> RankNic:
    nic = ports[0] if len(ports) == 1 else PortsNic(ports)
    return wrapped(nic, [port.address for port in ports], job, rank)


def wrapped(nic: Nic, addresses: Sequence[bytes], job: Job, rank: int) -> RankNic:
    """The Nic of a rank with these addresses. Faults outside the capture: the file has what really left, each packet
    once, at its sender."""
    paths = job.config.ports()
    file = None
    if job.pcap:
        file = open_pcap(job.pcap, rank_pcap(job.pcap, rank))
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
                blackhole=(
                    *(
                        (paths[hole.path % len(paths)], hole.start, hole.end, addresses[hole.path // len(paths)])
                        for hole in plan.holes
                    ),
                    *((ANY, dead.start, dead.end, addresses[dead.plane]) for dead in plan.planes),
                ),
            ),
            f"{job.seed} faults {rank}",
        )  # fmt: skip
    return RankNic(nic, faults, file)
