"""An output port of a switch or a host: two queues, one serializer, and the link behind it.

The control class goes first; a frame in transmission is not interrupted. A frame that finds nothing ahead of it costs
one event, its arrival at the far end; one that waits costs a second, when the serializer is free.

A full data queue drops the frame, or trims it: its payload is cut off and its header goes on in the control class
(Handley et al., Re-architecting datacenter networks and stacks for low latency and high performance, SIGCOMM 2017,
section 3.1; Ultra Ethernet 1.0 section 3.6.4). A frame that leaves is marked CE by the bytes it leaves behind: never
below `ecn_low`, always from `ecn_high` on, between them with a probability that rises linearly (one threshold if the
two are equal). Where a pool is shared by all ports of a switch, a queue may hold `alpha` times what is left of it
(Choudhury and Hahne, Dynamic queue length thresholds for shared-memory packet switches, ToN 1998).

Cut-through: a frame arrives at the next switch when its header does, but does not leave that before its last bit came.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import cython

from testbed.sim.frame import Frame, Frames, Queue
from testbed.sim.loop import Event, Loop
from testbed.sim.mix import Draws
from transport.clock import transmit_time
from transport.packet import CE, NOT_ECT, Hop, Packet

if TYPE_CHECKING:
    from testbed.sim.pfc import Ingress
    from testbed.sim.spec import QueueSpec

#: Bytes of a frame that is only a header: of a trimmed one, and of one that carries nothing but control.
HEADER_BYTES = 64


class Node:
    """Where links end."""

    def arrive(self, frame: Frame, now: cython.longlong, ingress: Ingress | None) -> None:
        """A frame has come in. ingress: the port it came by, where PFC needs to know."""


class Pool:
    """The buffer that the ports of a switch share. alpha: in 1/256."""

    def __init__(self, size: int, alpha: int) -> None:
        self.size = size
        self.alpha = alpha
        self.used = 0


class Link(Event):
    """One direction of a cable: `delay` picoseconds to `node`. loss: probability in 1/2^32 that a frame is lost; up:
    False loses all. lost: frames."""

    def __init__(self, loop: Loop, frames: Frames, node: Node, delay: int, seed: int) -> None:
        Event.__init__(self)
        self.loop = loop
        self.frames = frames
        self.node = node
        self.delay = delay
        self.draws = Draws(seed)
        self.loss = 0
        self.up = True
        self.lost = 0
        self.queue = Queue()
        self.last = 0
        self.ingress: Ingress | None = None

    def carry(self, frame: Frame, arrives: cython.longlong) -> None:
        """Take a frame that arrives then; no link overtakes itself."""
        if not self.up or (self.loss > 0 and (self.draws.draw() >> 32) < self.loss):
            self.lost += 1
            self.frames.give(frame)
            return
        if arrives < self.last:
            arrives = self.last
        self.last = arrives
        frame.arrives = arrives
        if self.queue.first is None:
            self.loop.arm(self, arrives)
        self.queue.push(frame)

    def fire(self, now: cython.longlong) -> None:
        frame: Frame = self.queue.pop()
        if self.queue.first is not None:
            following: Frame = self.queue.first
            self.loop.arm(self, following.arrives)
        self.node.arrive(frame, now, self.ingress)


class Port(Event):
    """rate: bits per second. host: told when the port has room for more, None for those of switches. pool: shared with
    the other ports of its switch, or None. limit, control_limit, peak: bytes; the other counters are frames, paused_for
    is picoseconds."""

    def __init__(self, loop: Loop, frames: Frames, link: Link, rate: int, spec: QueueSpec, seed: int) -> None:
        Event.__init__(self)
        self.loop = loop
        self.frames = frames
        self.link = link
        self.draws = Draws(seed)
        self.set_rate(rate)
        self.data = Queue()
        self.control = Queue()
        self.free_at = 0
        self.paused = False
        self.paused_at = 0
        self.paused_for = 0
        self.pauses = 0
        self.limit = spec.data_bytes
        self.control_limit = spec.control_bytes
        self.trim = spec.trim
        self.ecn_low = spec.ecn_low
        self.ecn_high = spec.ecn_high
        self.cut_through = spec.cut_through
        self.stamp = spec.int_telemetry
        self.pool: Pool | None = None
        self.host: Waiting | None = None
        self.packets = 0
        self.control_packets = 0
        self.bytes = 0
        self.marked = 0
        self.trimmed = 0
        self.dropped = 0
        self.control_dropped = 0
        self.peak = 0

    def set_rate(self, rate: cython.longlong) -> None:
        """From the next frame on. bits per second."""
        self.rate = rate
        exact: cython.longlong = 8_000_000_000_000
        self.byte_time = exact // rate if exact % rate == 0 else 0

    # What enters

    def send(self, frame: Frame, now: cython.longlong) -> None:
        """A frame wants to leave by this port."""
        if self.free_at <= now and not self.armed and not (self.paused and frame.data):
            self._transmit(frame, now)
            return
        if frame.data:
            if not self._fits(frame.size):
                if self._trimmed(frame):
                    self._enter_control(frame, now)
                return
            self.data.push(frame)
            if self.data.size > self.peak:
                self.peak = self.data.size
            if self.pool is not None:
                self.pool.used += frame.size
        else:
            self._enter_control(frame, now)
            return
        if not self.armed and not self.paused:
            self.loop.arm(self, self.free_at)

    def _fits(self, size: cython.longlong) -> cython.bint:
        if self.data.size + size > self.limit:
            return False
        pool: Pool | None = self.pool
        return pool is None or (
            pool.used + size <= pool.size and (self.data.size + size) * 256 <= pool.alpha * (pool.size - pool.used)
        )

    def _trimmed(self, frame: Frame) -> cython.bint:
        """Trim a frame that there is no room for, or drop it and say False."""
        packet: Packet = frame.packet
        ingress: Ingress | None = frame.ingress
        if ingress is not None:
            frame.ingress = None
            ingress.release(frame.size, self.loop.now)
        if self.trim:
            if packet.length > 0:
                self.trimmed += 1
                packet.trimmed = True
            elif packet.ecn != NOT_ECT:  # a probe: nothing to cut off
                packet.ecn = CE
            frame.data = False
            frame.size = HEADER_BYTES
            frame.tail = 0  # the rest is not waited for
            return True
        self.dropped += 1
        self.frames.give(frame)
        return False

    def _enter_control(self, frame: Frame, now: cython.longlong) -> None:
        if self.free_at <= now and not self.armed:
            self._transmit(frame, now)
            return
        if self.control.size + frame.size > self.control_limit:
            self.control_dropped += 1
            self.frames.give(frame)
            return
        self.control.push(frame)
        if not self.armed:
            self.loop.arm(self, self.free_at)

    # What leaves

    def fire(self, now: cython.longlong) -> None:
        """The serializer is free and something waits."""
        frame: Frame
        if self.control.first is not None:
            frame = self.control.pop()
        elif self.data.first is not None and not self.paused:
            frame = self.data.pop()
            if self.pool is not None:
                self.pool.used -= frame.size
        else:
            if self.host is not None:
                self.host.drained(now)
            return
        self._transmit(frame, now)
        if self.control.first is not None or (self.data.first is not None and not self.paused):
            self.loop.arm(self, self.free_at)
        if self.host is not None:
            self.host.drained(now)

    def _transmit(self, frame: Frame, now: cython.longlong) -> None:
        size: cython.longlong = frame.size
        took: cython.longlong = size * self.byte_time if self.byte_time else transmit_time(size, self.rate)
        ends: cython.longlong = now + took
        if ends < frame.tail:
            ends = frame.tail
        self.free_at = ends
        self.bytes += size
        if frame.data:
            packet: Packet = frame.packet
            self.packets += 1
            if self.data.size > self.ecn_low and packet.ecn != NOT_ECT and self._marks():
                packet.ecn = CE
                self.marked += 1
            if self.stamp:
                if packet.hops is None:
                    packet.hops = []
                packet.hops.append(Hop(self.data.size, self.bytes, now, self.rate))
            ingress: Ingress | None = frame.ingress
            if ingress is not None:
                frame.ingress = None
                ingress.release(size, now)
        else:
            self.control_packets += 1
        link: Link = self.link
        frame.tail = ends + link.delay
        if self.cut_through and size > HEADER_BYTES:
            header: cython.longlong = transmit_time(HEADER_BYTES, self.rate)
            link.carry(frame, now + header + link.delay)
        else:
            link.carry(frame, frame.tail)

    def _marks(self) -> cython.bint:
        """Whether a frame that leaves so many bytes behind, more than `ecn_low`, is marked."""
        if self.data.size >= self.ecn_high:
            return True
        coin: cython.longlong = self.draws.draw() >> 33
        share: cython.longlong = 2_147_483_648
        return coin < share * (self.data.size - self.ecn_low) // (self.ecn_high - self.ecn_low)

    # PFC

    def pause(self, now: cython.longlong, stop: cython.bint) -> None:
        """The far end has no room for the data class, or has it again."""
        if stop == self.paused:
            return
        self.paused = stop
        if stop:
            self.pauses += 1
            self.paused_at = now
            if self.armed and self.control.first is None:
                self.loop.disarm(self)
        else:
            self.paused_for += now - self.paused_at
            if not self.armed and self.data.first is not None:
                self.loop.arm(self, self.free_at)

    def backlog(self, now: cython.longlong) -> cython.longlong:
        """Picoseconds for what is in it and not yet sent, of the data class."""
        busy: cython.longlong = self.free_at - now if self.free_at > now else 0
        return busy + transmit_time(self.data.size, self.rate)


class Waiting:
    """A host at its own port."""

    def drained(self, now: cython.longlong) -> None:
        """The port has begun with a frame that had waited, or has nothing more to send."""
