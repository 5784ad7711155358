"""Loss detection and what an acknowledgement means.

Three ways to find a loss, from quick to slow:

- by the order of its path: three later segments of the path arrived, and it is a round trip plus the reorder window old
  (a path is FIFO up to small reordering; the window starts at a quarter of the round trip, follows the lateness that is
  seen, and doubles up to four round trips when the receiver reports duplicates);
- by recency: something sent later on any path arrived, and it is older than its own path's delay explains (RFC 8985);
- by silence: a tail probe on another path after two round trips, then timeouts that back off, then giving up.

In classic mode only the last has its place, and not the tail probe: transport/go_back.py.

Evidence about a path comes only from segments sent once, or from the exact copy that triggered the ACK: which copy of a
segment arrived is otherwise unknown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import cython

from cc.signals import AckSignal, LossSignal
from transport import go_back
from transport.channel import Channel
from transport.clock import MS, NEVER
from transport.completion import Status
from transport.context import Context
from transport.control import SPACE_DATA, Ack
from transport.flight import Send, Subflow
from transport.packet import PSN_MASK
from transport.path import Path
from transport.sender import Sender
from transport.sequence import unwrap, wrap

if TYPE_CHECKING:
    from typing import Any


class Recovery:
    """Turns ACKs and timers of one connection into losses, path evidence, and signals to its control."""

    def __init__(self, context: Context, sender: Sender, channel: Channel, connection: Any) -> None:
        self.context = context
        self.sender = sender
        self.channel = channel
        self.connection = connection
        self.expirations = 0
        self.acked_at = -NEVER  # last ACK that told something new
        self.heard_at = -NEVER  # the same, or the last timeout
        self.newest_acked = -NEVER  # latest departure of anything known to have arrived
        self.duplicates = 0
        self.reorder_quarters = 1  # reorder window in quarters of the round trip, 1 to 16
        self.batch_path = -1
        self.batch_size = 0
        self.batch_packets = 0
        self.batch_marked = 0

    def on_ack(self, now: cython.longlong, ack: Ack) -> cython.bint:
        """Take an ACK. False if it speaks of what was never sent; then nothing was changed."""
        i: cython.longlong
        dsn: cython.longlong
        byte: cython.int
        send: Send
        context = self.context
        sender = self.sender
        una: cython.longlong = sender.una
        edge: cython.longlong = unwrap(ack.edge, una)
        base: cython.longlong = unwrap(ack.base, edge)
        bits: cython.longlong = ack.bits
        if edge > sender.next or base > edge or base + bits > sender.next:
            return False
        if 8 * min(len(ack.received), len(ack.marked)) < bits:
            return False
        if not self.channel.knows(ack):
            return False
        signal: AckSignal = context.ack_signal
        signal.acked_bytes = signal.acked_packets = signal.marked_bytes = signal.marked_packets = 0
        signal.rtt = -1
        signal.hops = ack.hops
        exact: cython.longlong = self._sample(now, ack)
        control_acked: cython.longlong = self.channel.on_ack(now, ack)
        received: bytes = ack.received
        marked: bytes = ack.marked
        newest: Send | None = None
        for dsn in range(una, edge):
            send = sender.ring[dsn & sender.mask]
            if send is not None:
                i = dsn - base
                self._take(now, send, dsn, 0 <= i < bits and marked[i >> 3] >> (i & 7) & 1 == 1, dsn == exact)
                newest = send
        sender.una = max(una, edge)
        i = max(0, sender.una - base)
        while i < bits:
            byte = received[i >> 3]
            if byte == 0:
                i = (i | 7) + 1
                continue
            if byte >> (i & 7) & 1:
                dsn = base + i
                send = sender.ring[dsn & sender.mask]
                if send is not None:
                    self._take(now, send, dsn, marked[i >> 3] >> (i & 7) & 1 == 1, dsn == exact)
                    newest = send
            i += 1
        self._flush_batch(now)
        self._count_duplicates(ack)
        if newest is None and not control_acked:
            context.counters.stale_acks += 1
            return True
        self.acked_at = self.heard_at = now
        self.expirations = 0
        if newest is not None:
            self._tell_control(now, signal)
            if not context.classic:  # there all that is acknowledged comes in order: nothing is overtaken
                self.detect(now, newest.subflow)
        if self.channel.outstanding:
            self.channel.newest_acked = max(self.channel.newest_acked, self.newest_acked)
            self.channel.detect(now)
        return True

    def _sample(self, now: cython.longlong, ack: Ack) -> cython.longlong:
        """Attribute the round trip to the very packet that triggered the ACK. Returns its DSN, or a number no DSN
        has."""
        send: Send | None
        sender = self.sender
        paths = self.context.paths
        if ack.trigger_space != SPACE_DATA:
            item = self.channel.exact(ack.trigger_seq, ack.trigger_psn)
            if item is not None and now - item.sent_at > ack.hold:
                paths.sampled(now, item.path, now - item.sent_at - ack.hold)
            return -NEVER
        dsn: cython.longlong = unwrap(ack.trigger_seq, sender.una)
        if dsn < sender.una or dsn >= sender.next:
            return -NEVER
        latest: Send | None = sender.ring[dsn & sender.mask]
        send = latest
        # An earlier copy may have triggered the ACK: a round trip that has grown is learnt from it, and only from it.
        while send is not None and (
            dsn < send.first
            or dsn >= send.first + send.count
            or (send.psn + dsn - send.first) & PSN_MASK != ack.trigger_psn
        ):
            send = send.previous
        if send is None:
            return -NEVER
        # Copies that left on several planes at once: that one of them arrived dates the others.
        if latest is not None and send is not latest and send.sent_at == latest.sent_at:
            self.newest_acked = max(self.newest_acked, send.sent_at)
        if dsn == send.first + send.count - 1:
            rtt: cython.longlong = now - send.sent_at - ack.hold
            if rtt > 0 and paths.sampled(now, send.subflow.path.index, rtt):
                self.context.ack_signal.rtt = rtt
        return dsn if send is latest else -NEVER

    def _take(
        self, now: cython.longlong, send: Send, dsn: cython.longlong, marked: cython.bint, exact: cython.bint
    ) -> None:
        """Segment `dsn` arrived; its latest copy is `send`, and `exact` says that this copy did."""
        subflow: Subflow = send.subflow
        signal: AckSignal = self.context.ack_signal
        size: cython.longlong = self.sender.acknowledge(send, dsn)
        signal.acked_bytes += size
        signal.acked_packets += 1
        if marked:
            signal.marked_bytes += size
            signal.marked_packets += 1
        if send.copies > 1 and not exact:
            return
        if send.sent_at > self.newest_acked:
            self.newest_acked = send.sent_at
        if subflow.acknowledged(send.order + dsn - send.first) and send.copies == 1:
            late: cython.longlong = now - send.sent_at - subflow.path.srtt
            if late > subflow.reorder and subflow.path.srtt > 0:
                subflow.reorder = min(late, 4 * subflow.path.srtt)
        if send.copies > 1 and send.lost_on >= 0 and send.lost_on != subflow.path.index:
            self.context.paths.blamed(now, send.lost_on)
            send.lost_on = -1
        if subflow.path.index != self.batch_path:
            self._flush_batch(now)
            self.batch_path = subflow.path.index
        self.batch_size += size
        self.batch_packets += 1
        if marked:
            self.batch_marked += 1

    def _flush_batch(self, now: cython.longlong) -> None:
        """Tell the path what arrived by it since the last time."""
        if self.batch_packets:
            path: Path = self.context.paths.paths[self.batch_path]
            path.delivered_packets += self.batch_packets
            path.marked_packets += self.batch_marked
            self.context.paths.delivered(now, self.batch_path, self.batch_size, self.batch_packets, self.batch_marked)
            self.batch_packets = self.batch_size = self.batch_marked = 0
        self.batch_path = -1

    def _count_duplicates(self, ack: Ack) -> None:
        more: cython.longlong = wrap(ack.duplicates - self.duplicates)
        if 0 < more < 0x80000000:
            self.duplicates = ack.duplicates
            self.context.counters.spurious += more
            if self.reorder_quarters < 16:
                self.reorder_quarters *= 2

    def _tell_control(self, now: cython.longlong, signal: AckSignal) -> None:
        context = self.context
        paths = context.paths
        signal.in_flight = self.sender.in_flight
        signal.window_limited = self.sender.window_limited
        signal.min_rtt = paths.min_rtt
        signal.median_rtt = paths.median_rtt
        signal.spread_rtt = paths.spread_rtt
        signal.marked_fraction = paths.marked_fraction
        context.counters.marked_packets += signal.marked_packets
        if signal.marked_packets and not paths.slow_down():
            signal.marked_packets = signal.marked_bytes = 0
        if paths.generation != context.generation:
            context.generation = paths.generation
            context.control.on_path_change(now)
        context.control.on_ack(now, signal)

    def detect(self, now: cython.longlong, subflow: Subflow) -> None:
        """Declare lost what three later segments of `subflow` overtook long enough ago. Other connections' Sends
        too."""
        newer: Send | None
        due: cython.longlong
        sender: Sender
        send: Send | None = subflow.oldest
        while send is not None and send.order < subflow.high3:
            newer = send.path_newer
            sender = send.sender
            recovery: Recovery = sender.connection.recovery
            due = send.sent_at + recovery.reorder_age(subflow)
            if now < due:
                subflow.detector = self
                self.context.timers.arm(subflow, due)
                return
            recovery.declare(now, send, subflow.high3)
            send = newer

    def reorder_age(self, subflow: Subflow) -> cython.longlong:
        """Age at which an overtaken segment counts as lost: the round trip and the reorder window."""
        rtt: cython.longlong = subflow.path.srtt
        if rtt <= 0:
            rtt = self.context.round_trip()
        return rtt + max(self.reorder_quarters * rtt // 4, subflow.reorder)

    def declare(self, now: cython.longlong, send: Send, below: cython.longlong) -> None:
        """Declare the segments of `send` before place `below` lost, queue them, and tell the control."""
        context = self.context
        before: cython.longlong = context.counters.losses
        lost: cython.longlong = self.sender.requeue(now, send, below)
        packets: cython.longlong = context.counters.losses - before
        if not packets:
            return
        signal: LossSignal = context.loss_signal
        signal.lost_bytes = lost
        signal.lost_packets = packets
        signal.in_flight = self.sender.in_flight
        signal.trimmed = False
        signal.sent_at = send.sent_at
        context.paths.lost(send.subflow.path.index)
        context.control.on_loss(now, signal)
        context.wake()

    def trimmed(self, now: cython.longlong, sequence: int, psn: int) -> bool:
        """A switch cut the payload of this very copy: send it again at once; the path lives. False if it is not
        known."""
        sender = self.sender
        dsn: cython.longlong = unwrap(sequence, sender.una)
        if dsn < sender.una or dsn >= sender.next:
            return False
        send = sender.ring[dsn & sender.mask]
        if send is None or (send.psn + dsn - send.first) & PSN_MASK != psn or sender.state[dsn & sender.mask] != 1:
            return False
        context = self.context
        size: cython.longlong = sender.size(send.work, dsn)
        sender.lose(now, send, dsn)
        sender.missing.append(dsn)
        if context.account is not None:
            context.account.lost -= size  # the peer has seen it
        context.counters.losses += 1
        signal: LossSignal = context.loss_signal
        signal.lost_bytes = size
        signal.lost_packets = 1
        signal.in_flight = sender.in_flight
        signal.trimmed = True
        signal.sent_at = send.sent_at
        context.paths.lost(send.subflow.path.index)
        context.control.on_loss(now, signal)
        context.wake()
        return True

    # Timers

    def next_timeout(self, now: cython.longlong) -> cython.longlong:
        """When `handle_timeout` must be called, NEVER if nothing is outstanding."""
        send: Send | None = self.sender.flow.oldest
        due: cython.longlong = NEVER
        if send is not None:
            if send.sent_at < self.newest_acked:
                due = send.sent_at + self.context.paths.loss_delay(send.subflow.path.index)
            due = min(due, self._silence_from(max(self.sender.last_sent_at, self.heard_at)))
        if self.channel.outstanding:
            due = min(due, self.channel.next_loss())
            due = min(due, self._silence_from(max(self.channel.oldest_sent_at(), self.heard_at)))
        return due

    def _silence_from(self, since: cython.longlong) -> cython.longlong:
        if since >= NEVER:
            return NEVER
        if self.context.classic:
            return since + self.context.backed_off(self.expirations)
        if self.expirations == 0:
            return since + self.context.probe_timeout()
        return since + self.context.backed_off(self.expirations - 1)

    def handle_timeout(self, now: cython.longlong) -> None:
        """Act on what is due. Early calls do nothing."""
        context = self.context
        send: Send | None = self.sender.flow.oldest
        while send is not None and send.sent_at < self.newest_acked:
            if now < send.sent_at + context.paths.loss_delay(send.subflow.path.index):
                break
            newer: Send | None = send.newer
            context.paths.suspected(now, send.subflow.path.index)
            self.declare(now, send, NEVER)
            send = newer
        if self.channel.outstanding:
            self.channel.detect(now)
        since: cython.longlong = NEVER
        if self.sender.flow.oldest is not None:
            since = max(self.sender.last_sent_at, self.heard_at)
        if self.channel.outstanding:
            oldest: cython.longlong = self.channel.oldest_sent_at()
            if oldest < NEVER:
                since = min(since, max(oldest, self.heard_at))
        if since < NEVER and now >= self._silence_from(since):
            self._silence(now)

    def last_ack(self, now: cython.longlong) -> str:
        """When the peer last acknowledged something, for errors."""
        if self.acked_at == -NEVER:
            return "never an ACK"
        return f"last ACK {(now - self.acked_at) / MS:.3f} ms ago"

    def _silence(self, now: cython.longlong) -> None:
        context = self.context
        self.expirations += 1
        context.counters.timeouts += 1
        if self.expirations > context.config.retries + 1:
            cause = f"no answer after {context.config.retries} retransmission timeouts, {self.last_ack(now)}"
            self.connection.fail(now, Status.RETRY_EXC_ERR, cause, None)
            return
        if context.classic:
            go_back.timed_out(now, self)
            return
        send: Send | None = self.sender.flow.oldest
        if send is not None:
            context.paths.suspected(now, send.subflow.path.index)
            self.sender.everywhere = context.paths.planes > 1
        if self.channel.outstanding:
            self.channel.timeout()
        if send is not None and self.expirations == 1:
            self.sender.probe_tail = True
        elif send is not None:
            while send is not None:
                newer: Send | None = send.newer
                self.sender.requeue(now, send, NEVER)
                send = newer
            context.control.on_timeout(now)
        self.heard_at = now
        context.wake()
