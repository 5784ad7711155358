"""Receiver credits: who receives says how much may be sent, and so no queue of its own last hop grows.

The sender tells what it wants (DEMAND), the receiver grants it (CREDIT) at the rate of its own link, a quantum at a
time, to the connection that has been served least. All totals are cumulative bytes of payload since the connection
began, so a lost or repeated record does no harm. A copy that was lost or trimmed is wanted, and granted, again.

The first bytes after a pause go unsolicited, one bandwidth-delay product at most: nobody can know of the other senders
before one round trip is over. The receiver begins to grant when no more than one such product of them, from all senders
together, is still on its way: then the first granted byte comes when the last unsolicited one has left the queue.

After the receiver-driven transports NDP (SIGCOMM 2017, section 3), Homa (SIGCOMM 2018, section 3) and EQDS (NSDI 2022,
section 4). Serving the least served by bytes that really arrived, and the gate of the first burst, are our own.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

import cython

from transport.clock import NEVER, US, transmit_time
from transport.control import Credit, Demand
from transport.packet import DATAGRAM, Packet, Packets
from transport.timers import Ready, Source, Timers

if TYPE_CHECKING:
    from cc.credit import CreditParameters
    from transport.context import Context
    from transport.nic.base import NicCaps

_HEADERS = 64


class Account:
    """The sender's side of one connection. first: bytes that may go unsolicited after a pause; patience: picoseconds
    until the peer is told again. wanted: bytes ever wanted, with copies; spent: sent; unsolicited: sent or to be sent
    without credit; granted: by the peer; lost: declared lost without a word of the peer. told, told_lost, told_at: the
    last DEMAND; heard_at: the last CREDIT that brought something."""

    def __init__(self, first: int, patience: int) -> None:
        self.first = first
        self.patience = patience
        self.wanted = 0
        self.spent = 0
        self.unsolicited = 0
        self.granted = 0
        self.lost = 0
        self.told = 0
        self.told_lost = 0
        self.told_at = -NEVER
        self.heard_at = -NEVER

    def want(self, size: cython.longlong, resting: cython.bint) -> None:
        """`size` bytes more. resting: nothing was outstanding or waiting, so they may begin at once."""
        if resting and self.spent >= self.wanted:
            left: cython.longlong = self.unsolicited + self.granted - self.spent
            fresh: cython.longlong = min(self.first, size) - left
            if fresh > 0:
                self.unsolicited += fresh
        self.wanted += size

    def may_send(self) -> cython.bint:
        """Whether a segment may leave; the last one of an allowance may pass its end."""
        return self.spent < self.unsolicited + self.granted

    def blocked(self) -> cython.bint:
        """It has something to send and no credit for it."""
        return self.spent < self.wanted and self.spent >= self.unsolicited + self.granted

    def due(self) -> cython.longlong:
        """When the peer must be told next; NEVER if it knows everything."""
        if self.wanted <= self.unsolicited + self.granted:
            return NEVER
        if self.wanted > self.told or self.lost > self.told_lost:
            covered: cython.bint = self.told - self.unsolicited - self.granted >= self.first
            return self.told_at + self.patience // 16 if covered else -NEVER
        return max(self.told_at, self.heard_at) + self.patience if self.blocked() else NEVER

    def demand(self, now: cython.longlong) -> Demand:
        """What the peer is told now."""
        self.told = self.wanted
        self.told_lost = self.lost
        self.told_at = now
        return Demand(self.wanted, self.unsolicited, self.lost)

    def credit(self, now: cython.longlong, total: int) -> bool:
        """A CREDIT came; False if it is for more than was asked for."""
        if total > self.told - self.unsolicited:
            return False
        if total > self.granted:
            self.granted = total
            self.heard_at = now
        return True


class Grant:
    """The receiver's side of one connection. demand, unsolicited, lost: as the peer told; granted: to it; received:
    bytes that came, trimmed ones too. burst: unsolicited bytes still on their way, of the granter's `epoch`. served: by
    which connections are compared; serial: of its place in the granter's heap, 0 if it has none. renewed_at: when what
    was on its way was last given up, because the peer asked again."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.demand = 0
        self.unsolicited = 0
        self.lost = 0
        self.granted = 0
        self.received = 0
        self.burst = 0
        self.epoch = 0
        self.served = 0
        self.serial = 0
        self.entropy = 0
        self.plane = 0
        self.renewed_at = -NEVER
        self.ended = False

    def missing(self) -> cython.longlong:
        """Bytes wanted and not granted."""
        return self.demand - self.unsolicited - self.granted

    def outstanding(self) -> cython.longlong:
        """Bytes that may be on their way."""
        return self.unsolicited + self.granted - self.received - self.lost


class Granter(Source):
    """Grants for all connections of an endpoint. due: when the link has room for the next quantum. slack: picoseconds
    that a grant may be made up for which had to wait for this host's own packets; without it, each such wait would be
    bandwidth lost for good."""

    def __init__(self, timers: Timers, ready: Ready, caps: NicCaps, values: CreditParameters, bdp: int) -> None:
        Source.__init__(self)
        self.timers = timers
        self.ready = ready
        self.rate = max(1, int(caps.rate * values.share))
        self.bdp = bdp
        self.cap = int(values.outstanding_bdps * bdp)
        self.most = 64 * max(bdp, 1 << 20)
        self.quantum = values.quantum
        self.shortest = values.shortest_first
        self.silence = 4 * caps.base_rtt
        self.slack = caps.base_rtt if caps.virtual_time else 100 * US
        self.heap: list[tuple[int, int, Grant]] = []
        self.serial = 0
        self.level = 0
        self.due = 0
        self.burst = 0
        self.burst_at = 0
        self.epoch = 0

    # What the connections are told

    def on_demand(
        self, now: cython.longlong, grant: Grant, demand: Demand, packet: Packet, plane: cython.longlong
    ) -> bool:
        """A DEMAND came for a connection. What is older than the last one changes nothing. False if it says what cannot
        be: more without credit at once than anybody sends so, or more lost than can have been on its way."""
        repeated = demand.total == grant.demand and demand.lost == grant.lost
        if demand.total < grant.demand or demand.lost < grant.lost or demand.unsolicited < grant.unsolicited:
            return True
        fresh: cython.longlong = demand.unsolicited - grant.unsolicited
        gone: cython.longlong = demand.lost - grant.lost
        if fresh > self.most or gone > fresh + max(0, grant.outstanding()) + self.most:
            return False
        grant.entropy = packet.entropy
        grant.plane = plane
        grant.demand = demand.total
        grant.unsolicited = demand.unsolicited
        grant.lost = demand.lost
        self._fresh(grant)
        if fresh > 0:
            # What came before its announcement is no longer on its way.
            early: cython.longlong = max(0, grant.received + grant.lost - grant.granted - grant.unsolicited + fresh)
            grant.burst += max(0, fresh - early)
            self.burst += max(0, fresh - early)
            self.burst_at = now
        if gone > 0:
            grant.served -= gone
            self._arrived(now, grant, gone)
        if repeated and grant.granted and now - grant.renewed_at >= self.silence:
            # It waits: for a CREDIT that was lost, or because what it sent was lost and it does not know yet.
            grant.renewed_at = now
            grant.received = grant.unsolicited + grant.granted - grant.lost
            self._tell(grant)
        self._enter(now, grant)
        return True

    def arrived(self, now: cython.longlong, grant: Grant, size: cython.longlong, trimmed: cython.bint) -> None:
        """`size` bytes of a connection came, or the header that is left of them."""
        grant.received += size
        if trimmed:
            grant.served -= size
        if grant.burst:
            self._fresh(grant)
            self._arrived(now, grant, size)
        if not grant.serial or trimmed:
            self._enter(now, grant)

    def end(self, grant: Grant) -> None:
        """The connection takes no data any more."""
        grant.ended = True
        grant.serial = 0
        self._fresh(grant)
        self.burst -= grant.burst
        grant.burst = 0

    # Serving

    def expire(self, now: cython.longlong) -> None:
        if self.burst > self.bdp and now >= self.burst_at + self.silence:
            self.epoch += 1  # nothing of it comes any more
            self.burst = 0
        self.ready.push(self)

    def transmit(self, now: cython.longlong, out: Packets, limit: cython.longlong) -> cython.bint:
        sent: cython.longlong = 0
        if self.due < now - self.slack:
            self.due = now - self.slack
        while self.heap and self.due <= now and self.burst <= self.bdp and sent < limit:
            level, serial, grant = heappop(self.heap)
            if grant.serial != serial:
                continue
            grant.serial = 0
            self.level = level
            segment: cython.longlong = grant.context.segment
            size: cython.longlong = min(self.quantum * segment, grant.missing())
            grant.granted += size
            grant.served += size
            out.append(self._credit(grant))
            sent += 1
            packets: cython.longlong = (size + segment - 1) // segment
            self.due += transmit_time(size + _HEADERS * packets, self.rate)
            self._enter(now, grant)
        if self.heap:
            if self.burst > self.bdp:
                self.timers.arm(self, self.burst_at + self.silence)
            elif self.due > now:
                self.timers.arm(self, self.due)
            else:
                return True
        return False

    def _enter(self, now: cython.longlong, grant: Grant) -> None:
        """Put a connection in line if it wants something and may have it."""
        if grant.ended or grant.missing() <= 0 or grant.outstanding() >= self.cap:
            return
        # What it did not want earlier is not made up for.
        if grant.served < self.level - self.cap:
            grant.served = self.level - self.cap
        if not self.heap and self.due < now:
            self.due = now  # nobody has waited, so nothing is made up for
        key = grant.missing() if self.shortest else grant.served
        self.serial += 1
        grant.serial = self.serial
        heappush(self.heap, (key, self.serial, grant))
        if not self.queued and self.burst <= self.bdp:
            if self.due <= now:
                self.ready.push(self)
            elif self.deadline != self.due:
                self.timers.arm(self, self.due)

    def _arrived(self, now: cython.longlong, grant: Grant, size: cython.longlong) -> None:
        used: cython.longlong = min(size, grant.burst)
        if used <= 0:
            return
        grant.burst -= used
        closed: cython.bint = self.burst > self.bdp
        self.burst -= used
        self.burst_at = now
        if closed and self.burst <= self.bdp and self.heap:
            self.ready.push(self)

    def _fresh(self, grant: Grant) -> None:
        if grant.epoch != self.epoch:
            grant.epoch = self.epoch
            grant.burst = 0

    def _tell(self, grant: Grant) -> None:
        """Say again what was granted."""
        grant.context.owner.send_datagram(self._credit(grant))
        grant.context.wake()

    def _credit(self, grant: Grant) -> Packet:
        packet = grant.context.packet(DATAGRAM, grant.entropy, 1, grant.plane)
        packet.control = Credit(grant.granted)
        return packet
