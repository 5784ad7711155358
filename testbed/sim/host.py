"""A host on a simulated fabric: an endpoint at its ports, with the application that posts its requests.

It takes part only when something happens to it: a packet comes, a port has room, or its timer is due. Packets go from
the ports to the endpoint and back as they are; only where something is wrapped around the Nic, faults or a capture, do
they go through its interface.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import cython

from testbed.sim.loop import Event, Loop
from testbed.sim.nic import Owner, SimNic
from transport.clock import NEVER
from transport.endpoint import Endpoint
from transport.packet import Packet

if TYPE_CHECKING:
    from typing import Any

#: Packets asked of an endpoint at a time. Few, so that what leaves next is decided late.
_BATCH = 2
#: Packets taken in at a time from what is wrapped around a Nic.
_MOST = 64


class Timer(Event):
    """A host's."""

    def __init__(self, host: Host) -> None:
        Event.__init__(self)
        self.host = host

    def fire(self, now: cython.longlong) -> None:
        self.host.timeout(now)


class Host(Owner):
    """application: has `next_post` (picoseconds), `handle_timeout`, `on_completion` and `done`, as testbed.rank.Rank.
    outer: what is wrapped around `nic`, or None. on_done: called when the application is done. completed: requests."""

    def __init__(self, loop: Loop, nic: SimNic, outer: Any, endpoint: Endpoint, application: Any) -> None:
        self.loop = loop
        self.ports = nic
        self.outer = outer
        self.endpoint = endpoint
        self.application = application
        self.timer = Timer(self)
        self.on_done: Any = None
        self.unsent: list[Packet] = []
        self.taken = 0  # of these
        self.next_post = NEVER
        self.completed = 0
        self.done = False
        for end in nic.ends:
            end.owner = self

    def arrived(self, packet: Packet, now: cython.longlong) -> None:
        if self.outer is None:
            self.endpoint.receive(packet, now)
        else:
            self.ports.inbox.append(packet)
            self._take_in(now)
        self._settle(now, now)

    def room(self, now: cython.longlong) -> None:
        self._settle(now, now)

    def timeout(self, now: cython.longlong) -> None:
        """The time has come of a timer of the endpoint, of the application, or of what is wrapped around the Nic."""
        if self.outer is not None and self.outer.next_event() <= now:
            self._take_in(now)
        if self.endpoint.poll_timeout() <= now:
            self.endpoint.handle_timeout(now)
        if self.application.next_post <= now:
            self.application.handle_timeout(now)
        self.next_post = self.application.next_post
        self._settle(now, now + 1)

    def wake(self, now: cython.longlong) -> None:
        """The application has posted something."""
        self.loop.arm(self.timer, now)

    def begin(self, now: cython.longlong) -> None:
        """A phase begins: the application has posted its first requests."""
        self.done = self.application.done
        self.completed = 0
        self.next_post = self.application.next_post
        self._settle(now, now)

    def _settle(self, now: cython.longlong, soonest: cython.longlong) -> None:
        """Everything that follows at this moment, and the timer for what does not, which fires not before `soonest`."""
        endpoint: Endpoint = self.endpoint
        due: cython.longlong
        self._push(now)
        if endpoint.completions:
            self._complete(now)
            self._push(now)
        due = min(endpoint.poll_timeout(), self.next_post)
        if self.outer is not None:
            due = min(due, self.outer.next_event())
        if due <= now:  # what is due may wait for room in the port, which tells when it is there
            due = NEVER if self.unsent else soonest
        if due < self.timer.when:  # one that comes too early finds nothing to do
            self.loop.arm(self.timer, due)

    def _take_in(self, now: cython.longlong) -> None:
        for packet in self.outer.receive(_MOST):
            self.endpoint.receive(packet, now)

    def _complete(self, now: cython.longlong) -> None:
        application = self.application
        while (completion := self.endpoint.poll_completion()) is not None:
            application.on_completion(completion, now)
            self.completed += 1
        self.next_post = application.next_post
        if application.done and not self.done:
            self.done = True
            self.on_done()

    def _push(self, now: cython.longlong) -> None:
        """Send until the port or the endpoint has enough."""
        taken: cython.longlong
        while True:
            if not self.unsent:
                self.endpoint.fill(now, self.unsent, _BATCH)
                if not self.unsent:
                    return
            if self.outer is None:
                taken = self.ports.carry(self.unsent, self.taken, now)
            else:
                taken = self.outer.send(self.unsent[self.taken :])
            self.taken += taken
            if self.taken < len(self.unsent):
                return
            self.taken = 0
            self.unsent.clear()
