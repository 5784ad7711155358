"""A network inside one process: it carries Packet records between LoopbackNics.

Every receiver has one port: a link of `rate` behind a queue, as the last switch of a network has towards a host.
A packet enters the queue of its destination's port the moment it is sent, is serialised there with HEADER_BYTES
around each segment, and is delivered `delay` after its last bit has left the queue. With priorities, CLASS_CONTROL has
a queue of its own and is served first; a packet in transmission is not interrupted. Packets that a full queue has no
room for are dropped and counted; ECN-capable ones that find `ecn_threshold` bytes ahead of them are marked CE. The
bytes a queue holds include those that are not yet transmitted of the packet that is.

The payload is copied when it is sent: what is on the wire does not change when the application reuses its buffer.

Time is virtual (one integer clock that only `Network.advance` and `wait` move; the same calls give the same results)
or real (the monotonic clock; Nics of one Network may then be used from different threads).

Not modelled: the sender's own link (it sends any number of packets at one instant), any queue but the last, different
distances, hashing of source ports on links (a path is only a number), packet trimming, and loss other than by a full
queue; transport.nic.faults adds faults, testbed.sim has a whole fabric. A run stays whole unless a queue limit or a
mark falls inside it, and is delivered when its last segment is.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from heapq import heappop, heappush

import cython

from transport.clock import NEVER, US, Time, transmit_time
from transport.errors import ConfigError, NicError
from transport.nic import realtime
from transport.nic.base import VERBS_MTUS, NicCaps
from transport.packet import CE, CLASS_CONTROL, NOT_ECT, Packet

#: Bytes around the payload of each segment that occupy the link.
HEADER_BYTES = 64

#: Longest time a thread sleeps less than it could, picoseconds: below it, real-time waits yield instead of sleeping.
_SPIN = 100 * US

_FITS = 0
_MARKED = 1
_DROPPED = 2
_END = 3


class Port:
    """The link to one receiver with its queues; internal to Network. Sizes are bytes on the link."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.data: deque[tuple[Time, int, Packet]] = deque()
        self.control: deque[tuple[Time, int, Packet]] = deque()
        self.data_bytes = 0
        self.control_bytes = 0
        self.free_at = 0
        self.serving_control = False
        self.line: deque[tuple[Time, Packet]] = deque()
        self.scheduled = False
        self.inbox: deque[Packet] = deque()
        self.on_arrival: Callable[[], object] | None = None
        self.sent = 0
        self.delivered = 0
        self.dropped = 0
        self.marked = 0

    def held(self, control: cython.bint, now: cython.longlong) -> cython.longlong:
        """Bytes in the queue of one class, with what is left of the packet in transmission if it is of that class."""
        size: cython.longlong = self.control_bytes if control else self.data_bytes
        if self.free_at > now and self.serving_control == control:
            left: cython.double = (self.free_at - now) / self.network.byte_time
            size += int(left + 0.5)
        return size

    def serve(self, now: cython.longlong) -> None:
        """Begin every transmission that begins until `now`, in the order the link would."""
        network: Network = self.network
        start: cython.longlong
        size: cython.longlong
        control: cython.bint
        while self.data or self.control:
            start = NEVER
            if self.control:
                start = self.control[0][0]
            if self.data and self.data[0][0] < start:
                start = self.data[0][0]
            if start < self.free_at:
                start = self.free_at
            if start > now:
                return
            control = bool(self.control) and self.control[0][0] <= start
            if control:
                entry = self.control.popleft()
                size = entry[1]
                self.control_bytes -= size
            else:
                entry = self.data.popleft()
                size = entry[1]
                self.data_bytes -= size
            self.serving_control = control
            self.free_at = start + transmit_time(size, network.rate)
            self.line.append((self.free_at + network.delay, entry[2]))

    def enter(self, now: cython.longlong, packet: Packet) -> None:
        """Queue a packet that belongs to the network, or those of its segments that there is room for."""
        network: Network = self.network
        count: cython.longlong = packet.count
        self.sent += count
        if network.rate == 0:
            self.line.append((now + network.delay, packet))
            return
        self.serve(now)
        control: cython.bint = network.priorities and packet.priority == CLASS_CONTROL
        if network.queue_limit < 0 and network.ecn_threshold < 0:
            self._queue(now, packet, control)
        else:
            held: cython.longlong = self.held(control, now)
            can_mark: cython.bint = network.ecn_threshold >= 0 and packet.ecn != NOT_ECT
            first: cython.longlong = 0
            fate: cython.int = _END
            i: cython.longlong
            for i in range(count + 1):
                following: cython.int = _END
                if i < count:
                    size: cython.longlong = packet.segment_length(i) + HEADER_BYTES
                    if network.queue_limit >= 0 and held + size > network.queue_limit:
                        following = _DROPPED
                    else:
                        following = _MARKED if can_mark and held >= network.ecn_threshold else _FITS
                        held += size
                if i > first and following != fate:
                    if fate == _DROPPED:
                        self.dropped += i - first
                    else:
                        part: Packet = packet if i - first == count else packet.split(first, i - first)
                        if fate == _MARKED:
                            self.marked += i - first
                            part.ecn = CE
                        self._queue(now, part, control)
                    first = i
                fate = following
        self.serve(now)

    def _queue(self, now: cython.longlong, packet: Packet, control: cython.bint) -> None:
        size: cython.longlong = packet.length + HEADER_BYTES * packet.count
        if control:
            self.control.append((now, size, packet))
            self.control_bytes += size
        else:
            self.data.append((now, size, packet))
            self.data_bytes += size

    def collect(self, now: cython.longlong) -> cython.longlong:
        """Move what has arrived by `now` to the inbox; return how many packets."""
        self.serve(now)
        moved: cython.longlong = 0
        while self.line and self.line[0][0] <= now:
            entry = self.line.popleft()
            packet: Packet = entry[1]
            packet.received_at = entry[0]
            self.delivered += packet.count
            self.inbox.append(packet)
            moved += 1
        return moved


class Network:
    """The fabric between LoopbackNics; see the module's text.

    rate: bits per second of each receiver's link, 0 for infinitely fast (then there is no queue). delay: one way,
    picoseconds. queue_limit: bytes a queue may hold, None for no limit. ecn_threshold: bytes in the queue from which
    ECN-capable packets are marked, None for no marks, 0 for a mark on each. priorities: control overtakes data.
    virtual: whose clock, see the module's text; virtual time starts at `start`. mtu, max_run: what its Nics' caps say.
    """

    def __init__(
        self,
        rate: int = 100_000_000_000,
        delay: Time = 5 * US,
        queue_limit: int | None = None,
        ecn_threshold: int | None = None,
        *,
        priorities: bool = True,
        virtual: bool = True,
        start: Time = 0,
        mtu: int = 4096,
        max_run: int = 64,
    ) -> None:
        for name, value, low in (
            ("rate", rate, 0), ("delay", delay, 0), ("queue_limit", queue_limit, 1), ("start", start, 0),
            ("ecn_threshold", ecn_threshold, 0), ("max_run", max_run, 1),
        ):  # fmt: skip
            if value is not None and not low <= value < NEVER:
                raise ConfigError(f"{name} = {value!r}: allowed are whole numbers from {low}")
        if mtu not in VERBS_MTUS:
            raise ConfigError(f"mtu = {mtu!r}: allowed are the verbs MTUs {', '.join(map(str, VERBS_MTUS))}")
        self.rate = rate
        self.byte_time = 8e12 / rate if rate else 0.0
        self.delay = delay
        self.queue_limit = -1 if queue_limit is None else queue_limit
        self.ecn_threshold = -1 if ecn_threshold is None else ecn_threshold
        self.priorities = priorities
        self.virtual = virtual
        self.caps = NicCaps(
            mtu=mtu,
            max_run=max_run,
            max_entropies=16384,
            ecn=True,
            rate=rate or 100_000_000_000,
            base_rtt=max(2 * delay, US if virtual else 100 * US),
            priorities=priorities,
            virtual_time=virtual,
        )
        self.clock = start
        self.ports: dict[bytes, Port] = {}
        self.events: list[tuple[Time, int, Port | None]] = []
        self.serial = 0
        self.waiting = 0
        self.unreachable = 0
        self.condition = threading.Condition()

    def now(self) -> cython.longlong:
        """The clock of the network and of all its Nics, picoseconds."""
        if self.virtual:
            return self.clock
        return realtime.now()

    def next_event(self) -> cython.longlong:
        """When a packet arrives next or an alarm is due; now, if an arrived one was not received yet; else NEVER."""
        if self.waiting:
            return self.now()
        return self.events[0][0] if self.events else NEVER

    def advance(self, to: cython.longlong) -> None:
        """Move virtual time to `to` and deliver what arrives until then. Earlier than now is an error."""
        if not self.virtual:
            raise NicError("advance: the network runs in real time")
        if to < self.clock:
            raise NicError(f"advance to {to} ps: time is already {self.clock} ps")
        self.clock = to
        self.deliver(to)

    def alarm(self, due: cython.longlong) -> None:
        """Make `next_event` and virtual `wait` stop at `due`, for what is kept outside the network until then."""
        self.serial += 1
        heappush(self.events, (due, self.serial, None))

    def deliver(self, now: cython.longlong) -> None:
        """Put what has arrived by `now` into the inboxes of its receivers."""
        while self.events and self.events[0][0] <= now:
            port: Port | None = heappop(self.events)[2]
            if port is not None:
                port.scheduled = False
                self.waiting += port.collect(now)
                self.schedule(port)

    def schedule(self, port: Port) -> None:
        """Note when the port delivers next."""
        if port.line and not port.scheduled:
            port.scheduled = True
            self.serial += 1
            heappush(self.events, (port.line[0][0], self.serial, port))

    def accept(self, packets: Sequence[Packet]) -> None:
        """Take a snapshot of each packet into the queue of its destination."""
        now: cython.longlong = self.now()
        for packet in packets:
            port: Port | None = self.ports.get(packet.dst)
            if port is None:
                self.unreachable += packet.count
                continue
            own: Packet = packet.copy()
            own.detach()
            port.enter(now, own)
            self.schedule(port)
            if port.on_arrival is not None:
                port.on_arrival()

    def counters(self) -> dict[str, int]:
        """Segments sent, delivered, dropped by full queues, marked, and sent to nobody, over all open Nics."""
        ports: list[Port] = list(self.ports.values())
        names = ("sent", "delivered", "dropped", "marked")
        return {**{name: sum(getattr(port, name) for port in ports) for name in names}, "unreachable": self.unreachable}


class LoopbackNic:
    """One host on a Network. `address` is 4 or 16 bytes and names it; an address in use is a NicError."""

    def __init__(self, network: Network, address: bytes) -> None:
        if len(address) not in (4, 16):
            raise ConfigError(f"address = {address!r}: allowed are the 4 or 16 bytes of an IP address")
        if address in network.ports:
            raise NicError(f"loopback address {address.hex('.')} is in use")
        self.network = network
        self.address = address
        self.caps = network.caps
        self.port = Port(network)
        self.closed = False
        network.ports[address] = self.port

    def now(self) -> Time:
        return self.network.now()

    def next_event(self) -> Time:
        """In virtual time, when the network has something to do next, see Network.next_event. In real time, when a
        packet arrives here next, or NEVER."""
        if self.network.virtual:
            return self.network.next_event()
        with self.network.condition:
            if self.port.inbox:
                return self.network.now()
            return int(self.port.line[0][0]) if self.port.line else NEVER

    @property
    def on_arrival(self) -> Callable[[], object] | None:
        """Called, in the sender's thread, whenever a packet is on its way here: `next_event` may have changed. For
        who sleeps elsewhere than in `wait`."""
        return self.port.on_arrival

    @on_arrival.setter
    def on_arrival(self, call: Callable[[], object] | None) -> None:
        self.port.on_arrival = call

    def alarm(self, due: Time) -> None:
        """Stop virtual time at `due`, see Network.alarm."""
        self.network.alarm(due)

    def counters(self) -> dict[str, int]:
        """Segments towards this Nic: sent, delivered, dropped by a full queue, marked."""
        port: Port = self.port
        return {"sent": port.sent, "delivered": port.delivered, "dropped": port.dropped, "marked": port.marked}

    def send(self, packets: Sequence[Packet]) -> int:
        """Takes all packets: the network has room, or drops."""
        self._check_open()
        network: Network = self.network
        if network.virtual:
            network.accept(packets)
        else:
            with network.condition:
                network.accept(packets)
                network.condition.notify_all()
        return len(packets)

    def receive(self, limit: int) -> list[Packet]:
        self._check_open()
        network: Network = self.network
        if network.virtual:
            return self._take(limit)
        with network.condition:
            return self._take(limit)

    def _take(self, limit: cython.longlong) -> list[Packet]:
        network: Network = self.network
        inbox: deque[Packet] = self.port.inbox
        packets: list[Packet] = []
        network.deliver(network.now())
        while inbox and len(packets) < limit:
            packets.append(inbox.popleft())
        network.waiting -= len(packets)
        return packets

    def wait(self, until: Time | None) -> None:
        """Virtual time moves to the next event of the whole network, or to `until`; it stays if there is neither."""
        self._check_open()
        network: Network = self.network
        if network.virtual:
            to = network.next_event()
            if until is not None and until < to:
                to = until
            if network.clock < to < NEVER:
                network.advance(to)
            return
        with network.condition:
            while True:
                now = network.now()
                network.deliver(now)
                if self.port.inbox or self.closed or (until is not None and until <= now):
                    return
                to = self.port.line[0][0] if self.port.line else NEVER
                if until is not None and until < to:
                    to = until
                if to == NEVER:
                    network.condition.wait()
                else:
                    network.condition.wait((to - now - _SPIN) / 1e12 if to - now > _SPIN else 0)

    def close(self) -> None:
        """Leave the network; what is on its way to this Nic is lost."""
        if self.closed:
            return
        self.closed = True
        network: Network = self.network
        with network.condition:
            network.waiting -= len(self.port.inbox)
            self.port.inbox.clear()
            self.port.line.clear()
            self.port.data.clear()
            self.port.control.clear()
            del network.ports[self.address]
            network.condition.notify_all()

    def _check_open(self) -> None:
        if self.closed:
            raise NicError(f"loopback address {self.address.hex('.')} is closed")
