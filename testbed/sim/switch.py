"""A switch: finds the output port of a frame.

Among equally short ways it takes the one that a hash of the 5-tuple with the switch's own seed says (ECMP), so that a
source port is a path; or, without regard to it, a random one for every packet, or the less filled of two random ones.
The last two are what switches do on their own, and the baseline for spraying by the sender.
"""

from __future__ import annotations

import cython

from testbed.sim.frame import Frame
from testbed.sim.mix import Draws, mix
from testbed.sim.port import Node, Port

#: How a switch chooses among equal ways.
ECMP = 0
SPRAY = 1
ADAPTIVE = 2
MODES = {"ecmp": ECMP, "spray": SPRAY, "adaptive": ADAPTIVE}

#: Hot signatures use this name: Cython takes a parametrised tuple for another type than `tuple`.
Ports = tuple[Port, ...]


class Switch(Node):
    """number: among the edges, those that hosts are attached to; -1 for others. down: the ports to its hosts, by slot.
    ways: the ports towards each edge, by its number."""

    def __init__(self, name: str, mode: int, seed: int) -> None:
        self.name = name
        self.mode = mode
        self.seed = seed
        self.draws = Draws(seed)
        self.number = -1
        self.down: list[Port] = []
        self.ways: list[tuple[Port, ...]] = []

    def arrive(self, frame: Frame, now: cython.longlong, ingress: object) -> None:
        port: Port
        if ingress is not None and frame.data and not ingress.take(frame, now):  # type: ignore[attr-defined]
            return
        if frame.edge == self.number:
            port = self.down[frame.slot]
        else:
            ways: tuple[Port, ...] = self.ways[frame.edge]
            count: cython.ulonglong = len(ways)
            port = ways[0] if count == 1 else ways[self._choose(frame, ways, count, now)]
        port.send(frame, now)

    def _choose(self, frame: Frame, ways: Ports, count: cython.ulonglong, now: cython.longlong) -> cython.longlong:
        seed: cython.ulonglong = self.seed
        drawn: cython.ulonglong
        if self.mode == ECMP:
            return (mix(frame.flow ^ seed) >> 16) % count
        drawn = self.draws.draw()
        one: cython.longlong = (drawn & 0xFFFFFF) % count
        if self.mode == SPRAY:
            return one
        two: cython.longlong = ((drawn >> 32) & 0xFFFFFF) % count
        first: Port = ways[one]
        second: Port = ways[two]
        return two if second.backlog(now) < first.backlog(now) else one
