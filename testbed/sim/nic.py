"""A host's port on a simulated fabric, behind the Nic interface: it carries the Packet records themselves.

It takes data as long as it has less than `room` bytes waiting, and control always. Who sends must come back when
`drained` says that there is room. Payload is not copied: a buffer that the application uses again after its completion
cannot be seen any more by a copy that is still on its way, since the receiver places nothing twice.
"""

from __future__ import annotations

from collections.abc import Sequence

import cython

from testbed.sim.frame import Frame, Frames
from testbed.sim.loop import Loop
from testbed.sim.mix import mix
from testbed.sim.port import HEADER_BYTES, Node, Port, Waiting
from transport.clock import NEVER, Time
from transport.errors import NicError
from transport.nic.base import NicCaps
from transport.packet import CLASS_CONTROL, Packet, Packets

#: Data bytes waiting in front of a host's serializer from which it takes no more: a packet is enough to keep it busy,
#: and what leaves next is decided late.
ROOM = 4096


class Attachment:
    """Where a host port is: the number of its switch among the edges, and the slot there."""

    def __init__(self, edge: int, slot: int) -> None:
        self.edge = edge
        self.slot = slot


class Owner:
    """Who is at host ports."""

    def arrived(self, packet: Packet, now: cython.longlong) -> None:
        """A packet has come in."""

    def room(self, now: cython.longlong) -> None:
        """A port has room again."""


class HostPort(Waiting):
    """Where the frames of a host enter and leave its fabric. number: among all host ports. others: where every host
    port is attached, by number: those of all hosts on the first plane, then on the second, and so on; hosts: on a
    plane. address: of its host there. one_class: control waits in line with data. owner: is told of what
    happens; without one packets stay in `inbox`."""

    def __init__(self, number: int, hosts: int, loop: Loop, frames: Frames, others: list[Attachment]) -> None:
        self.number = number
        self.hosts = hosts
        self.loop = loop
        self.frames = frames
        self.others = others
        self.port: Port = None  # type: ignore[assignment]
        self.inbox: list[Packet] = []
        self.owner: Owner | None = None
        self.address = b""
        self.unreachable = 0
        self.room = ROOM
        self.one_class = False

    def drained(self, now: cython.longlong) -> None:
        if self.owner is not None and self.port.data.size < self.room:
            self.owner.room(now)

    def send(self, packet: Packet, now: cython.longlong) -> cython.bint:
        """Take a packet of one segment; False if there is no room for it now."""
        data: cython.bint = packet.priority != CLASS_CONTROL or self.one_class
        if data and self.port.data.size >= self.room:
            return False
        number: cython.longlong = self._number(packet.dst)
        if number < 0:
            self.unreachable += 1
            return True
        where: Attachment = self.others[number]
        frame: Frame = self.frames.take()
        frame.packet = packet
        frame.size = packet.length + HEADER_BYTES
        flow: cython.ulonglong = self.number
        flow = (flow << 40) ^ (number << 16) ^ packet.entropy
        frame.flow = mix(flow)
        frame.edge = where.edge
        frame.slot = where.slot
        frame.data = data
        frame.tail = 0
        self.port.send(frame, now)
        return True

    def _number(self, address: bytes) -> cython.longlong:
        """Of the host port that has this address (testbed.rank.address_of), -1 if none has."""
        plane: cython.longlong = address[1]
        high: cython.longlong = address[2]
        low: cython.longlong = address[3]
        rank: cython.longlong = ((high << 8) | low) - 1
        number: cython.longlong = plane * self.hosts + rank
        return number if 0 <= rank < self.hosts and number < len(self.others) else -1


class Exit(Node):
    """The end of the link to a host."""

    def __init__(self, host: HostPort) -> None:
        self.host = host

    def arrive(self, frame: Frame, now: cython.longlong, ingress: object) -> None:
        packet: Packet = frame.packet
        packet.received_at = now
        host: HostPort = self.host
        host.frames.give(frame)
        if host.owner is None:
            host.inbox.append(packet)
        else:
            host.owner.arrived(packet, now)


class SimNic:
    """The Nic over the ports of one host, one on each plane; a packet leaves by the one that has its source address.
    inbox: what arrived, if an Owner puts it there for whoever reads the Nic. Time is the loop's; `wait` is not for it,
    since the loop drives all hosts at once."""

    def __init__(self, ends: Sequence[HostPort], addresses: Sequence[bytes], caps: NicCaps) -> None:
        self.ends = list(ends)
        self.addresses = tuple(addresses)
        self.address = addresses[0]
        self.caps = caps
        self.loop = ends[0].loop
        self.inbox: list[Packet] = []
        for end, address in zip(ends, addresses, strict=True):
            end.address = address
            end.room = ROOM if len(ends) == 1 else 2 * ROOM  # a port that is busy holds up the others

    def now(self) -> Time:
        return self.loop.now

    def carry(self, packets: Packets, first: cython.longlong, now: cython.longlong) -> cython.longlong:
        """Take packets of one segment in order, from place `first` on; return how many there was room for."""
        end: HostPort = self.ends[0]
        count: cython.longlong = len(packets)
        place: cython.longlong = first
        while place < count:
            packet: Packet = packets[place]
            if len(self.ends) > 1:
                end = self._end_of(packet.src)
            if not end.send(packet, now):
                break
            place += 1
        return place - first

    def _end_of(self, address: bytes) -> HostPort:
        end: HostPort
        for end in self.ends:
            if end.address == address:
                break
        return end

    def send(self, packets: Sequence[Packet]) -> int:
        return self.carry(list(packets), 0, self.loop.now)

    def receive(self, limit: int) -> list[Packet]:
        packets, self.inbox = self.inbox, []
        return packets

    def wait(self, until: Time | None) -> None:
        raise NicError("wait: time on a simulated fabric is moved by its loop")

    def next_event(self) -> Time:
        """Never: the loop calls when something arrives."""
        return NEVER

    def alarm(self, due: Time) -> None:
        """Nothing to do: who drives a host asks for its timer."""

    def counters(self) -> dict[str, int]:
        """Frames that the ports sent, of each class."""
        ports = [end.port for end in self.ends]
        return {
            "data_frames": sum(port.packets for port in ports),
            "control_frames": sum(port.control_packets for port in ports),
        }

    def close(self) -> None:
        for end in self.ends:
            end.owner = None
