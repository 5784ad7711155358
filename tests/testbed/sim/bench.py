"""A port on a test bench: frames go in, and what comes out of its link is written down."""

from __future__ import annotations

from testbed.sim.frame import Frame, Frames
from testbed.sim.loop import Event, Loop
from testbed.sim.port import HEADER_BYTES, Link, Node, Port
from testbed.sim.spec import QueueSpec
from transport.packet import CLASS_CONTROL, ECT_0, Packet

GBIT = 1_000_000_000
#: 100 Gbit/s: 80 ps a byte.
RATE = 100 * GBIT
BYTE = 80


class Sink(Node):
    """got: time and sequence of each frame. packets: as they came."""

    def __init__(self, frames: Frames) -> None:
        self.frames = frames
        self.got: list[tuple[int, int]] = []
        self.packets: list[Packet] = []

    def arrive(self, frame: Frame, now: int, ingress: object) -> None:
        self.got.append((now, frame.packet.seq))
        self.packets.append(frame.packet)
        self.frames.give(frame)


class Later(Event):
    """Something of the test's at a time."""

    def __init__(self, loop: Loop, when: int, call) -> None:  # type: ignore[no-untyped-def]
        Event.__init__(self)
        self.call = call
        loop.arm(self, when)

    def fire(self, now: int) -> None:
        self.call(now)


class Bench:
    def __init__(self, spec: QueueSpec | None = None, rate: int = RATE, delay: int = 0, seed: int = 1) -> None:
        self.loop = Loop(seed)
        self.frames = Frames()
        self.sink = Sink(self.frames)
        self.link = Link(self.loop, self.frames, self.sink, delay, seed)
        self.port = Port(self.loop, self.frames, self.link, rate, spec or QueueSpec(), seed)

    def frame(self, seq: int, length: int = 4096, control: bool = False) -> Frame:
        packet = Packet()
        packet.seq = seq
        packet.length = length
        packet.ecn = ECT_0
        if control:
            packet.priority = CLASS_CONTROL
        frame = self.frames.take()
        frame.packet = packet
        frame.size = length + HEADER_BYTES
        frame.data = not control
        frame.tail = 0
        return frame

    def send(self, seq: int, length: int = 4096, control: bool = False) -> None:
        self.port.send(self.frame(seq, length, control), self.loop.now)

    def at(self, when: int, call) -> None:  # type: ignore[no-untyped-def]
        self.later = [*getattr(self, "later", []), Later(self.loop, when, call)]

    def run(self, until: int = 1 << 60) -> list[tuple[int, int]]:
        while self.loop.run(until, 1_000_000):
            pass
        return self.sink.got


class Onward(Node):
    """Passes frames on to the port of another bench."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench

    def arrive(self, frame: Frame, now: int, ingress: object) -> None:
        self.bench.port.send(frame, now)
