"""One Nic made of several, each with an address of its own: the ports of a host that is wired to several planes.

A packet leaves by the port that has its source address, in order on each port. A port that is busy does not hold up the
others: what it does not take waits here, a bounded number of packets, and goes first when it takes some again. When the
bound is reached `send` takes no more; when nothing has left for a while what waits is lost, so one port that is stuck
stops the others only that long. A port whose link is down (LinkDownError) loses what it is given, as a cable does, and
works again when the link is back. Both losses are counted; finding another way is the transport's business.

Not done: telling anybody at once that a link went down, and moving packets from one port to another (a port's network
reaches only the peers' ports on the same plane).
"""

from __future__ import annotations

import selectors
from collections import deque
from collections.abc import Sequence

from transport.clock import MS, NEVER, US, Time
from transport.errors import ConfigError, LinkDownError, NicError
from transport.nic import _mmsg
from transport.nic.base import Nic, NicCaps
from transport.packet import Packet

#: Packets that wait for one port.
HOLD = 256
#: Picoseconds without a packet taken after which what waits for a port is given up: a socket's buffer drains in much
#: less, and the other ports must not wait for a retransmission timeout.
PATIENCE = 10 * MS

#: How long to wait at most for a port that did not take everything, picoseconds.
_RETRY = 100 * US
#: Waits spin for their last part: the kernel's timers are this late by default (prctl(2), timer slack).
_SPIN = 50 * US


class _Port:
    """One of the Nics. held: what it did not take yet; batch: what the current `send` has for it; moved_at: when it
    last took something, or had nothing to take."""

    def __init__(self, nic: Nic) -> None:
        self.nic = nic
        self.held: deque[Packet] = deque()
        self.batch: list[Packet] = []
        self.moved_at = 0
        self.lost_down = 0
        self.lost_stuck = 0

    def offer(self, packets: Sequence[Packet]) -> int:
        """Send; how many were taken. A port that is down takes and loses all."""
        try:
            return self.nic.send(packets)
        except LinkDownError:
            self.lost_down += sum(packet.count for packet in packets)
            return len(packets)

    def drain(self, now: Time) -> None:
        """Send what is held. Also when that is nothing: the Nic itself may hold the rest of a run."""
        taken = self.offer(list(self.held))
        for _ in range(taken):
            self.held.popleft()
        if taken or not self.held:
            self.moved_at = now
        elif now - self.moved_at > PATIENCE:
            self.lost_stuck += sum(packet.count for packet in self.held)
            self.held.clear()

    def finish(self) -> None:
        """Send the batch, and hold what is not taken, with its own bytes: the sender's buffer is the sender's."""
        taken = 0 if self.held else self.offer(self.batch)
        for packet in self.batch[taken:]:
            kept = packet.copy()
            kept.detach()
            self.held.append(kept)
        self.batch.clear()


class PortsNic:
    """See the module's text. nics: one for each plane in order, with different addresses of one family and one clock;
    this Nic owns them. Its caps are what all of them can do; the rate is the sum. `addresses` is for the Endpoint.

    ConfigError if the Nics cannot be one.
    """

    def __init__(self, nics: Sequence[Nic]) -> None:
        self.caps = _common(nics)
        self.addresses = tuple(nic.address for nic in nics)
        if len({len(address) for address in self.addresses}) > 1 or len(set(self.addresses)) < len(nics):
            shown = ", ".join(address.hex() for address in self.addresses)
            raise ConfigError(f"nics have the addresses {shown}: different ones of one family are allowed")
        self.address = self.addresses[0]
        self._ports = [_Port(nic) for nic in nics]
        self._turn = 0
        self._ready = selectors.DefaultSelector()
        self._filed = True
        for nic in nics:
            fd = -1 if self.caps.virtual_time else _call(nic, "fileno", -1)
            if fd >= 0:
                self._ready.register(fd, selectors.EVENT_READ)
            else:
                self._filed = False

    @property
    def nics(self) -> tuple[Nic, ...]:
        """The Nic of each port."""
        return tuple(port.nic for port in self._ports)

    def now(self) -> Time:
        return self._ports[0].nic.now()

    def fileno(self) -> int:
        """Readable when something has arrived at any port; -1 if the ports, or the system, cannot tell."""
        own = getattr(self._ready, "fileno", None)
        return int(own()) if own is not None and self._filed else -1

    def send(self, packets: Sequence[Packet]) -> int:
        """Stops at the first packet whose port has no room for it left, here or in its queue."""
        now = self.now()
        for port in self._ports:
            port.drain(now)
        taken = 0
        for packet in packets:
            port = self._port(packet.src)
            if len(port.held) + len(port.batch) >= HOLD:
                break
            port.batch.append(packet)
            taken += 1
        for port in self._ports:
            if port.batch:
                port.finish()
        return taken

    def receive(self, limit: int) -> list[Packet]:
        """Every port is asked, each time another one first, which leaves the others their share."""
        packets: list[Packet] = []
        count = len(self._ports)
        self._turn = (self._turn + 1) % count
        for place in range(count):
            port = self._ports[(self._turn + place) % count]
            left = max(1, (limit - len(packets)) // (count - place))
            try:
                packets += port.nic.receive(left)
            except LinkDownError:
                continue
        return packets

    def wait(self, until: Time | None) -> None:
        """Also returns, shortly, when a port that did not take everything may take more, and early where the ports have
        no file descriptors."""
        until = min(NEVER if until is None else until, self.next_event())
        first = self._ports[0].nic
        if self.caps.virtual_time:  # one network, one clock
            first.wait(None if until >= NEVER else until)
        elif self.fileno() >= 0:
            self._sleep(until)
        else:  # each only knows how to wait for itself: in turn, a little at a time
            for port in self._ports:
                port.nic.wait(min(until, self.now() + _RETRY))

    def next_event(self) -> Time:
        """When a port has something to do next that no arrival tells of; NEVER if none has."""
        due: Time = min(_call(port.nic, "next_event", NEVER) for port in self._ports)
        if any(port.held or _call(port.nic, "backlog", 0) for port in self._ports):
            due = min(due, self.now() + _RETRY)
        return due

    def alarm(self, due: Time) -> None:
        """Make virtual time stop at `due`."""
        alarm = getattr(self._ports[0].nic, "alarm", None)
        if alarm is not None:
            alarm(due)

    def port_counters(self) -> list[dict[str, int]]:
        """What each port's Nic counts, and of segments, lost_down: given to the port while its link was down, and
        lost_stuck: given up since the port took nothing."""
        found = []
        for port in self._ports:
            own = getattr(port.nic, "counters", None)
            counted = dict(own()) if own is not None else {}
            found.append({**counted, "lost_down": port.lost_down, "lost_stuck": port.lost_stuck})
        return found

    def counters(self) -> dict[str, int]:
        """The sums of all ports' counters."""
        total: dict[str, int] = {}
        for counted in self.port_counters():
            for name, value in counted.items():
                total[name] = total.get(name, 0) + value
        return total

    def close(self) -> None:
        """Close all ports; what is held is lost."""
        self._ready.close()
        for port in self._ports:
            port.held.clear()
            port.nic.close()

    def _port(self, source: bytes) -> _Port:
        for port in self._ports:
            if port.nic.address == source:
                return port
        shown = ", ".join(address.hex() for address in self.addresses)
        raise NicError(f"a packet from {source.hex()} cannot leave: the ports have the addresses {shown}")

    def _sleep(self, until: Time) -> None:
        while True:
            left = until - self.now()
            if left <= 0:
                return
            timeout = -1 if until >= NEVER else (left - _SPIN) // 1000 if left > _SPIN else 0
            if _mmsg.wait(self.fileno(), -1, timeout):
                return


def _call(nic: Nic, name: str, otherwise: int) -> int:
    """What a method says that only some Nics have."""
    method = getattr(nic, name, None)
    return int(method()) if method is not None else otherwise


def _common(nics: Sequence[Nic]) -> NicCaps:
    """What all of the Nics can do."""
    if not nics:
        raise ConfigError("nics = []: at least one is needed")
    caps = [nic.caps for nic in nics]
    for name in ("virtual_time", "places_payload"):
        if len({getattr(one, name) for one in caps}) > 1:
            raise ConfigError(f"nics differ in {name}: all or none is allowed")
    return NicCaps(
        mtu=min(one.mtu for one in caps),
        max_run=min(one.max_run for one in caps),
        max_entropies=min(one.max_entropies for one in caps),
        ecn=all(one.ecn for one in caps),
        rate=sum(one.rate for one in caps),
        base_rtt=max(one.base_rtt for one in caps),
        priorities=all(one.priorities for one in caps),
        int_telemetry=all(one.int_telemetry for one in caps),
        places_payload=caps[0].places_payload,
        virtual_time=caps[0].virtual_time,
    )
