"""Reliable control: the CSN space, both directions of it.

At most 128 packets are outstanding, the width of the ACK's control bitmap; more wait in line, and the queue depths
bound how many can. Control waits for no congestion window, so a READ can always be answered and a receive always be
advertised;
INLINE and ATOMIC count against the window, their size is charged by the sender before they are posted here. A control
packet is missing when one sent later arrived and it is a round trip and a quarter old (RFC 8985), or by timeout; it is
sent again on another path, one packet per round trip after a timeout.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import cython

from transport.clock import NEVER
from transport.config import CONTROL_WINDOW
from transport.context import Context
from transport.control import Ack
from transport.packet import CLASS_CONTROL, CLASS_DATA, CONTROL, ECT_0
from transport.path import Path
from transport.sequence import unwrap, wrap

if TYPE_CHECKING:
    from transport.control import Control
    from transport.packet import Packet, Packets
    from transport.work import Work


class Reliable:
    """One control packet until it is acknowledged. charge: bytes it holds of the congestion window."""

    def __init__(self, control: Control, work: Work | None, charge: int, ask: bool) -> None:
        self.control = control
        self.work = work
        self.charge = charge
        self.ask = ask
        self.sequence = -1
        self.sent_at = 0
        self.psn = 0
        self.path = -1
        self.copies = 0
        self.acked = False
        self.missing = False


class Channel:
    """Sends and receives reliable control of one connection. acknowledged: called with each Reliable that arrived."""

    def __init__(self, context: Context, first_out: int, first_in: int, acknowledged: Any) -> None:
        self.context = context
        self.acknowledged = acknowledged
        self.next = first_out
        self.una = first_out
        self.waiting: deque[Reliable] = deque()
        self.outstanding: deque[Reliable] = deque()
        self.missing = 0
        self.everywhere = False
        self.newest_acked = -NEVER
        self.edge_in = first_in
        self.seen = 0  # bit i: CSN edge_in + i has arrived

    def post(self, control: Control, work: Work | None = None, charge: int = 0, ask: bool = False) -> None:
        """Send `control` reliably. ask: request an acknowledgement at once."""
        self.waiting.append(Reliable(control, work, charge, ask))
        self.context.wake()

    def pending(self) -> cython.bint:
        return bool(self.waiting or self.outstanding)

    def busy(self) -> cython.bint:
        """Whether `transmit` would find something."""
        return self.missing > 0 or bool(self.waiting)

    def transmit(self, now: cython.longlong, out: Packets, limit: cython.longlong) -> cython.longlong:
        """Append packets to `out`, at most `limit`; return how many."""
        sent: cython.longlong = 0
        if self.missing:
            for item in self.outstanding:
                if sent >= limit:
                    return sent
                if item.missing:
                    item.missing = False
                    self.missing -= 1
                    self.context.counters.control_retransmits += 1
                    out.append(self._packet(now, item))
                    sent += 1
                    if self.everywhere:
                        self._everywhere(now, item, out)
        while self.waiting and sent < limit and self.next - self.una < CONTROL_WINDOW:
            item = self.waiting.popleft()
            item.sequence = self.next
            self.next += 1
            self.outstanding.append(item)
            out.append(self._packet(now, item))
            sent += 1
        return sent

    def knows(self, ack: Ack) -> cython.bint:
        """False if the control part of an ACK acknowledges what was never sent."""
        edge: cython.longlong = unwrap(ack.control_edge, self.una)
        if ack.control_received:
            edge += int.from_bytes(ack.control_received, "little").bit_length()
        return edge <= self.next

    def on_ack(self, now: cython.longlong, ack: Ack) -> cython.longlong:
        """Take the control part of an ACK that `knows` let pass. Returns how many packets it newly acknowledged."""
        edge: cython.longlong = unwrap(ack.control_edge, self.una)
        bits = int.from_bytes(ack.control_received, "little")
        if not self.outstanding or (edge <= self.una and not bits):
            return 0
        count: cython.longlong = 0
        for item in self.outstanding:
            if item.acked:
                continue
            offset = item.sequence - edge
            if offset < 0 or bits >> offset & 1:
                item.acked = True
                if item.missing:
                    item.missing = False
                    self.missing -= 1
                elif item.copies == 1:
                    self.newest_acked = max(self.newest_acked, item.sent_at)
                count += 1
                self.acknowledged(now, item)
        while self.outstanding and self.outstanding[0].acked:
            self.una = self.outstanding.popleft().sequence + 1
        return count

    def exact(self, sequence: int, psn: int) -> Reliable | None:
        """The outstanding packet whose very copy `psn` triggered an ACK."""
        offset = unwrap(sequence, self.una) - (self.outstanding[0].sequence if self.outstanding else 0)
        if 0 <= offset < len(self.outstanding):
            item = self.outstanding[offset]
            if item.psn == psn and not item.acked:
                return item
        return None

    def detect(self, now: cython.longlong) -> None:
        """Declare missing what something later overtook for long enough."""
        age: cython.longlong = self._age()
        for item in self.outstanding:
            if not item.acked and not item.missing and item.sent_at < self.newest_acked and item.sent_at + age <= now:
                item.missing = True
                self.missing += 1
                self.context.wake()

    def next_loss(self) -> cython.longlong:
        """When `detect` has something to declare, NEVER if nothing was overtaken."""
        for item in self.outstanding:
            if not item.acked and not item.missing and item.sent_at < self.newest_acked:
                return item.sent_at + self._age()
        return NEVER

    def oldest_sent_at(self) -> cython.longlong:
        """When the oldest outstanding packet was last sent, NEVER if there is none."""
        for item in self.outstanding:
            if not item.acked and not item.missing:
                return item.sent_at
        return NEVER

    def timeout(self) -> None:
        """Send the oldest outstanding packet again, by every plane; the others follow when it is acknowledged or with
        the next timeout."""
        self.everywhere = self.context.paths.planes > 1
        for item in self.outstanding:
            if not item.acked:
                if not item.missing:
                    item.missing = True
                    self.missing += 1
                return

    def abandon(self) -> None:
        """Forget everything unsent and unacknowledged; the connection has failed or ended."""
        self.waiting.clear()
        self.outstanding.clear()
        self.missing = 0
        self.una = self.next

    def arrived(self, wire: int) -> int:
        """Note the arrival of the peer's CSN `wire`: its unwrapped number if it is new, -1 for a repeat, -2 if
        outside."""
        sequence = unwrap(wire, self.edge_in)
        offset = sequence - self.edge_in
        if offset < -CONTROL_WINDOW or offset >= CONTROL_WINDOW:  # what is older is acknowledged, and the peer knows
            return -2
        if offset < 0 or self.seen >> offset & 1:
            return -1
        self.seen |= 1 << offset
        while self.seen & 1:
            self.seen >>= 1
            self.edge_in += 1
        return sequence

    def fill(self, ack: Ack) -> None:
        """Write what arrived into `ack`."""
        ack.control_edge = wrap(self.edge_in)
        ack.control_received = self.seen.to_bytes((self.seen.bit_length() + 7) >> 3, "little")

    def _age(self) -> cython.longlong:
        rtt: cython.longlong = self.context.round_trip()
        return rtt + max(rtt // 2, 4 * self.context.paths.rttvar)

    def _everywhere(self, now: cython.longlong, item: Reliable, out: Packets) -> None:
        """The copy that was just sent goes out on the other planes too: one may be down."""
        step: cython.longlong
        self.everywhere = False
        first: cython.longlong = item.path
        for step in range(1, self.context.paths.planes):
            path: cython.longlong = self.context.paths.across(first, step)
            if path >= 0:
                self.context.counters.control_retransmits += 1
                out.append(self._packet(now, item, path))

    def _packet(self, now: cython.longlong, item: Reliable, by: cython.longlong = -1) -> Packet:
        context = self.context
        last: cython.longlong = context.last_path
        if by >= 0:
            item.path = by
        elif item.copies or last < 0 or context.paths.paths[last].usable < 0:
            item.path = context.paths.select(now, context.flow, -1 if context.classic else item.path)
        else:  # by the path of the latest data: a Nic sends both at once
            item.path = last
        path: Path = context.paths.paths[item.path]
        packet = context.packet(CONTROL, path.entropy, 1, path.plane)
        packet.seq = wrap(item.sequence)
        packet.control = item.control
        packet.ack_request = item.ask or item.copies > 0
        packet.priority = CLASS_DATA if item.charge else CLASS_CONTROL
        if item.charge:
            packet.ecn = ECT_0
        item.copies += 1
        item.sent_at = now
        item.psn = packet.psn
        context.counters.control_sent += 1
        return packet
