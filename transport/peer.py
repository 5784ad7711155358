"""What this endpoint knows of one peer host, shared by all connections to it: its paths, their order, their probes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import cython

from transport import selectors
from transport.clock import NEVER
from transport.control import Probe, ProbeReply
from transport.flight import Subflow
from transport.packet import CLASS_DATA, DATAGRAM, ECT_0, Packets
from transport.paths import PathSet
from transport.probes import Prober
from transport.timers import Ready, Source, Timers

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

    from transport.connection import Connection
    from transport.path import Planes


class Peer(Source):
    """One peer host. planes: the pairs of addresses towards it. carrier: the connection that data flowed on last;
    probes, which need no connection of their own, go to its queue pair, unless `probes` is False. users: connections to
    this peer."""

    def __init__(
        self, name: str, planes: Planes, entropies: Sequence[int], selector: str, base_rtt: int, floor: int,
        rng: random.Random, timers: Timers, ready: Ready, probes: bool = True,
    ) -> None:  # fmt: skip
        Source.__init__(self)
        self.name = name
        self.planes = planes
        self.paths = PathSet(entropies, selectors.make(selector), rng, base_rtt, floor, name, len(planes))
        self.subflows = [Subflow(path) for path in self.paths.paths]
        self.prober = Prober(self.paths, rng)
        self.timers = timers
        self.ready = ready
        self.carrier: Connection | None = None
        self.users = 0
        self.probes = probes

    def activity(self, now: cython.longlong, connection: Connection) -> None:
        """Data is flowing to this peer on `connection`: its paths are worth probing."""
        if not self.probes:
            return
        self.carrier = connection
        if self.prober.activity(now):
            self.ready.push(self)
        due: cython.longlong = self.prober.next_timeout()
        if due < self.deadline:
            self.timers.arm(self, due)

    def leave(self, connection: Connection) -> None:
        """`connection` carries no probes any more."""
        if self.carrier is connection:
            self.carrier = None

    def expire(self, now: cython.longlong) -> None:
        self.prober.handle_timeout(now)
        self.ready.push(self)

    def transmit(self, now: cython.longlong, out: Packets, limit: cython.longlong) -> cython.bint:
        """Send the probes that are due, in the data class: they must meet what data meets."""
        index: cython.longlong
        while self.carrier is not None and limit > 0:
            index = self.prober.poll(now)
            if index < 0:
                break
            connection = self.carrier
            path = self.paths.paths[index]
            packet = connection.context.packet(DATAGRAM, path.entropy, 1, path.plane)
            packet.control = Probe(self.prober.sent(now, index), path.entropy)
            packet.priority = CLASS_DATA
            packet.ecn = ECT_0
            connection.context.counters.probes_sent += 1
            out.append(packet)
            limit -= 1
        due: cython.longlong = self.prober.next_timeout()
        self.timers.arm(self, due if self.carrier is not None else NEVER)
        return False

    def probe_reply(self, now: cython.longlong, reply: ProbeReply, plane: cython.longlong) -> bool:
        """A reply came by `plane`. False if it answers no probe of ours."""
        return bool(self.prober.reply(now, reply.nonce, reply.entropy, reply.hold, reply.marked, plane))
