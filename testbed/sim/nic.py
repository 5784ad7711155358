"""A host's port on a simulated fabric, behind the Nic interface: it carries the Packet records themselves.

It takes data as long as it has less than ROOM bytes waiting, and control always. Who sends must come back when
`drained` says that there is room. Payload is not copied: a buffer that the application uses again after its completion
cannot be seen any more by a copy that is still on its way, since the receiver places nothing twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import cython

from testbed.sim.frame import Frame, Frames
from testbed.sim.loop import Loop
from testbed.sim.mix import mix
from testbed.sim.port import HEADER_BYTES, Node, Port, Waiting
from transport.clock import NEVER, Time
from transport.errors import NicError
from transport.nic.base import NicCaps
from transport.packet import CLASS_CONTROL, Packet

#: Data bytes waiting in front of a host's serializer from which it takes no more: one packet is enough to keep it busy,
#: and what leaves next is decided late.
ROOM = 1


class Attachment:
    """Where a host port is: the number of its switch among the edges, and the slot there."""

    def __init__(self, edge: int, slot: int) -> None:
        self.edge = edge
        self.slot = slot


class HostPort(Waiting):
    """Where the frames of a host enter and leave its fabric. number: among all host ports. others: where every host
    port is attached, by number: those of all hosts on the first plane, then on the second, and so on; hosts: on a
    plane."""

    def __init__(self, number: int, hosts: int, loop: Loop, frames: Frames, others: list[Attachment]) -> None:
        self.number = number
        self.hosts = hosts
        self.loop = loop
        self.frames = frames
        self.others = others
        self.port: Port = None  # type: ignore[assignment]
        self.inbox: list[Packet] = []
        self.on_arrival: Callable[[int], object] | None = None
        self.on_room: Callable[[int], object] | None = None
        self.unreachable = 0

    def drained(self, now: cython.longlong) -> None:
        if self.on_room is not None and self.port.data.size < ROOM:
            self.on_room(now)

    def send(self, packet: Packet, now: cython.longlong) -> cython.bint:
        """Take a packet of one segment; False if there is no room for it now."""
        data: cython.bint = packet.priority != CLASS_CONTROL
        if data and self.port.data.size >= ROOM:
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
        host.inbox.append(packet)
        if host.on_arrival is not None:
            host.on_arrival(now)


class SimNic:
    """The Nic over a HostPort. Time is the loop's; `wait` is not for it, since the loop drives all hosts at once."""

    def __init__(self, host: HostPort, address: bytes, caps: NicCaps) -> None:
        self.host = host
        self.address = address
        self.caps = caps

    def now(self) -> Time:
        return self.host.loop.now

    def send(self, packets: Sequence[Packet]) -> int:
        host = self.host
        now: cython.longlong = host.loop.now
        taken = 0
        for packet in packets:
            if not host.send(packet, now):
                break
            taken += 1
        return taken

    def receive(self, limit: int) -> list[Packet]:
        packets, self.host.inbox = self.host.inbox, []
        return packets

    def wait(self, until: Time | None) -> None:
        raise NicError("wait: time on a simulated fabric is moved by its loop")

    def next_event(self) -> Time:
        """The loop calls when something happens; nothing must be waited for."""
        return NEVER

    def alarm(self, due: Time) -> None:
        """Nothing to do: who drives a host asks for its timer."""

    def counters(self) -> dict[str, int]:
        """Frames that this port sent, of each class."""
        port = self.host.port
        return {"data_frames": port.packets, "control_frames": port.control_packets}

    def close(self) -> None:
        self.host.on_arrival = self.host.on_room = None
