"""Priority flow control (IEEE 802.1Qbb) of the data class: a switch stops the port that feeds it before it drops."""

from __future__ import annotations

from collections import deque

import cython

from testbed.sim.frame import Frame
from testbed.sim.loop import Event, Loop
from testbed.sim.port import Port


class Ingress(Event):
    """The data frames in a switch that came by one of its ports, in bytes. At `xoff` bytes the port at the other end is
    paused, at `xon` it goes on; what is on its way by then has `headroom` bytes above xoff. delay: picoseconds until
    the other end obeys. dropped: frames that the headroom was too small for; peak: most bytes."""

    def __init__(self, loop: Loop, upstream: Port, delay: int, xoff: int, xon: int, headroom: int) -> None:
        Event.__init__(self)
        self.loop = loop
        self.upstream = upstream
        self.delay = delay
        self.xoff = xoff
        self.xon = xon
        self.headroom = headroom
        self.bytes = 0
        self.peak = 0
        self.dropped = 0
        self.stopped = False
        self.told: deque[tuple[int, bool]] = deque()

    def take(self, frame: Frame, now: cython.longlong) -> bool:
        """Count a frame that has come in; False if there is no room for it."""
        if self.bytes + frame.size > self.xoff + self.headroom:
            self.dropped += 1
            return False
        frame.ingress = self
        self.bytes += frame.size
        self.peak = max(self.peak, self.bytes)
        if not self.stopped and self.bytes >= self.xoff:
            self._tell(now, True)
        return True

    def release(self, size: cython.longlong, now: cython.longlong) -> None:
        """A frame has left the switch."""
        self.bytes -= size
        if self.stopped and self.bytes <= self.xon:
            self._tell(now, False)

    def _tell(self, now: int, stop: bool) -> None:
        self.stopped = stop
        if not self.told:
            self.loop.arm(self, now + self.delay)
        self.told.append((now + self.delay, stop))

    def fire(self, now: cython.longlong) -> None:
        _, stop = self.told.popleft()
        if self.told:
            self.loop.arm(self, self.told[0][0])
        self.upstream.pause(now, stop)
